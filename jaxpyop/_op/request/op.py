"""Reads and checks what the user asked for, and makes an `Op` of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax
import numpy as np

from jaxpyop._config import Mode, config
from jaxpyop._dtypes import is_inexact
from jaxpyop._functions import without_partials
from jaxpyop._host import VMAP_METHODS, Failures, Method, Workers, check_executor, check_workers
from jaxpyop._op.request.read_rules import RULES_ON_THE_HOST, Rules, check_function, read_rules
from jaxpyop._values import CASTING, Leaf, ResultSpec, cast_to_numpy, read_tout, with_shapes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Op:
    """Everything that the user asked for.

    Attributes:
        title: the op in errors.
        on_jax: whether func gets `jax.Array` values.
        mode: "eager", "traced" or "auto".
        reason_to_call: why mode "auto" calls func without trying to trace it; empty if it tries.
        fills: with `on_error=`, what fills each array of the op's results where func fails.
        failures: with `on_error=`, counts the elements that failed: ``failures.count``. None if errors are raised.

    The other attributes are the arguments of the public functions, and those of the `Workers` in `executor=`.
    """

    api: str
    name: str
    func: Callable[..., Any]
    spec: ResultSpec
    output_shapes: Callable[..., Any] | None
    stateful: bool
    ordered: bool
    vmap_method: Method
    casting: str
    on_jax: bool
    title: str
    rules: Rules
    copy: bool = True
    out: bool = False
    executor: Any = None
    chunksize: int | None = None
    retries: int = 0
    timeout: float | None = None
    mode: str = "eager"
    reason_to_call: str = ""
    max_steps: int | None = None
    fills: tuple[Any, ...] = ()
    failures: Failures | None = None

    def __reduce__(self) -> Any:
        # Another process has no use for the executor. This process checks the shapes, but the fills of on_error= need
        # them there.
        left_out = {"executor"} if self.failures is not None else {"executor", "output_shapes"}
        names = [field.name for field in dataclasses.fields(self)]
        return Op, tuple(None if name in left_out else getattr(self, name) for name in names)

    def origin_of_array(self, k: int) -> str:
        """The beginning of an error about array `k` of the op's results."""
        of_arrays = [i for i, leaf in enumerate(self.spec.returned.leaves) for _ in range(leaf.arrays)]
        return self.origin_of_result(of_arrays[k] if k < len(of_arrays) else k)

    def origin_of_result(self, k: int) -> str:
        """The beginning of an error about value `k` that func returned."""
        return "func returned" if len(self.spec.returned.leaves) == 1 else f"func returned, as result {k},"

    @property
    def stateless_advice(self) -> str:
        """The line to write where only a stateless op is possible."""
        what = "return a result that is used, and pass" if self.spec.empty else "leave ordered out, and pass"
        return f"{what} stateful=False, if its side effects may run any number of times"


def make_op(
    api: str, func: Any, tout: Any, name: Any, *, on_jax: bool, mode: str | None = None, output_shapes: Any, **rest: Any
) -> Op:
    """Check what the user wrote and make an op of it.

    Args:
        api: the public function.
        func: what the user passed as `func`.
        tout: as `Tout`.
        name: as `name`.
        on_jax: whether the function gets JAX arrays.
        mode: as `mode`, of ``py_function``.
        output_shapes: as `output_shapes`.
        **rest: the other options, by name, and whether the op has `when=`.

    Raises:
        TypeError: func is not callable, or is async or a generator; or Tout or output_shapes cannot be read.
        ValueError: an option has no such value, or the shapes do not fit Tout.
    """
    has_when = rest.pop("has_when", False)
    mode, reason_to_call = _mode(mode, api, rest, tout, has_when) if on_jax else ("eager", "")
    check_function(func, "func", f"a function, as in {api}(func, inp, Tout)", api)
    _check_options(rest, api)
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"{api}: name is {name!r}; expected a string{_ONE_LIST}")
    spec, shapes = read_tout(tout, api), output_shapes
    if shapes is not None and not callable(shapes):
        spec, shapes = with_shapes(spec, shapes, api), None
    # An op without a result can only be called for its side effects.
    rest["stateful"] = bool(rest["stateful"] or rest["ordered"] or spec.empty)
    if rest.get("out") and (spec.empty or spec.returned_spec is not None):
        raise ValueError(
            f"{api}: out=True passes the results to func as arrays to be filled, and Tout declares none, or padded "
            "results or typed keys, which are not arrays; return what there is, and remove out=True"
        )
    rest["rules"] = read_rules(rest, spec, api)
    rest["vmap_method"] = VMAP_METHODS[rest["vmap_method"]]
    if (workers := rest["executor"]) is not None:
        workers = workers if isinstance(workers, Workers) else Workers(workers)
        check_workers(workers, rest["stateful"], rest["vmap_method"], api)
        rest |= {field.name: getattr(workers, field.name) for field in dataclasses.fields(workers)}
        rest["executor"] = rest.pop("pool")
    name = _name_of(func, name)
    title = f"{api} {name!r}"
    if _is_given(on_error := rest.pop("on_error", "raise")):
        if rest["vmap_method"].whole_batch:
            raise ValueError(
                f"{api}: on_error= fills the results of single elements, and vmap_method={rest['vmap_method'].name!r} "
                "calls func once for the batch; pass vmap_method='sequential' or 'parallel'"
            )
        rest["fills"] = _read_on_error(on_error, spec, shapes, rest["rules"], rest.get("out", False), api)
        rest["failures"] = Failures(title, func)
    rest.update(title=title, on_jax=on_jax, mode=mode, reason_to_call=reason_to_call)
    return Op(api, name, func, spec, shapes, **rest)


def _check_options(options: dict[str, Any], api: str) -> None:
    _check_choice(options["vmap_method"], tuple(VMAP_METHODS), "vmap_method", api)
    _check_choice(options["casting"], CASTING, "casting", api)
    steps = options.get("max_steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1):
        raise ValueError(f"{api}: max_steps is {steps!r}; expected a whole number of iterations, at least 1, or None")
    if options["executor"] is not None and not isinstance(options["executor"], Workers):
        check_executor(options["executor"], api)
    for flag in ("stateful", "ordered", "copy", "out"):
        if not isinstance(value := options.get(flag, False), (bool, np.bool_)):
            raise TypeError(f"{api}: {flag} is {value!r}; expected True or False{_ONE_LIST}")


def _name_of(func: Any, name: str | None) -> str:
    if name is not None:
        return name
    func = without_partials(func)
    found = getattr(func, "__name__", None) or type(func).__name__
    return "lambda" if found == "<lambda>" else found


def _mode(mode: str | None, api: str, options: dict[str, Any], tout: Any, has_when: bool) -> tuple[str, str]:
    """The mode of a py_function, and the reason why an op of mode "auto" is always called.

    `config.mode` is a default, for ops that can be traced. A mode that is passed as an argument must be possible.

    Raises:
        ValueError: there is no such mode, or an op that needs the host is to be traced.
    """
    if mode is not None:
        _check_choice(mode, get_args(Mode), "mode", api)
    asked = mode or config.mode
    if asked == "eager":
        return asked, ""
    reasons = {
        "it is stateful": options["stateful"] or options["ordered"] or not jax.tree.leaves(tout),
        "it has vjp= or jvp=": any(options.get(rule) is not None for rule in RULES_ON_THE_HOST),
        "it has on_error=": _is_given(options.get("on_error", "raise")),
        "it has when=": has_when,
    }
    why = next((why for why, holds in reasons.items() if holds), "")
    if mode == "traced" and why:
        raise ValueError(
            f"{api}: {why}, which is for functions that are called, and mode='traced' runs nothing on the host; pass "
            "mode='eager' (an op without a result is stateful; around a traced op go jax.custom_vjp and jax.lax.cond)"
        )
    if asked == "traced":
        return ("eager" if why else asked), ""
    if options["executor"] is not None:
        why = why or "executor= is for functions that are called"
    return asked, why


# ------------------------------------------------------------------------ checks


def _check_choice(value: Any, choices: Sequence[Any], name: str, api: str) -> None:
    if value not in choices:
        raise ValueError(f"{api}: {name}={value!r}; expected one of {', '.join(map(repr, choices))}")


_ONE_LIST = " (inputs go in one list, inp=[x, y])"


# -------------------------------------------------------------------- on_error=


def _is_given(on_error: Any) -> bool:
    """Tell whether failures are filled. The default raises them."""
    return not (isinstance(on_error, str) and on_error == "raise")


def _read_on_error(
    on_error: Any, spec: ResultSpec, shapes: Callable[..., Any] | None, rules: Rules, out: bool, api: str
) -> tuple[Any, ...]:
    """The fill of each array of the op's results.

    Args:
        on_error: ``"nan"``, a number, or a pytree of numbers in the structure of `Tout`.
        spec: the results.
        shapes: the function that gives their shapes, if there is one.
        rules: the rules of the op.
        out: whether func fills the results.
        api: the op, for errors.

    Raises:
        ValueError: a result cannot hold its fill, or its shape is not known, or the op cannot have `on_error=`.
    """
    if rules.transpose is not None or out:
        raise ValueError(
            f"{api}: on_error= fills results where func fails, but transpose= declares func linear, and with out=True "
            "func fills them itself; remove on_error="
        )
    if shapes is None and not all(leaf.shape_known for leaf in spec.leaves):
        raise ValueError(
            f"{api}: on_error= has to know the shapes of results that func does not return; give output_shapes=, or "
            "shapes in Tout, such as jax.ShapeDtypeStruct((3,), jnp.float32)"
        )
    if isinstance(on_error, str) and on_error == "nan":
        on_error = float("nan")
    leaves = spec.returned.leaves
    numbers, tree = jax.tree.flatten(on_error)
    if _is_number(on_error):
        numbers, tree = [on_error] * len(leaves), spec.returned.tree
    if tree != spec.returned.tree or not all(map(_is_number, numbers)):
        raise ValueError(
            f"{api}: on_error is {on_error!r}; expected 'raise', 'nan', a number, or numbers in the structure of Tout"
        )
    return tuple(fill for k, (leaf, number) in enumerate(zip(leaves, numbers)) for fill in _fills(leaf, number, k, api))


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)) and np.ndim(value) == 0


def _fills(leaf: Leaf, number: Any, k: int, api: str) -> list[Any]:
    if leaf.encoding is not None and leaf.arrays == 1:
        raise ValueError(f"{api}: on_error= has no fill for typed keys, and result {k} is one; return the key's data")
    try:
        fill = np.asarray(cast_to_numpy(number, Leaf(leaf.dtype), "same_kind", "on_error= gives", api))
        if is_inexact(leaf) and np.isfinite(complex(number)) and not np.isfinite(complex(fill)):
            raise OverflowError("a finite number becomes infinite")
    except (TypeError, OverflowError) as error:
        raise ValueError(
            f"{api}: on_error={number!r} does not fit result {k}, which is {leaf.dtype.name}; give one that does, say 0"
        ) from error
    if is_nan(fill) and leaf.dtype.kind == "c":
        # The derivative of a failed element makes both parts NaN.
        fill = np.asarray(complex(np.nan, np.nan), leaf.dtype)
    # A padded result is empty.
    return [fill] if leaf.arrays == 1 else [fill, np.int32(0)]


def is_nan(fill: Any) -> bool:
    """Tell whether the derivative of a result with this fill is NaN. It is zero for other fills."""
    return is_inexact(fill) and bool(np.isnan(fill))

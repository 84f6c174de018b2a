"""Everything that the user said about an op, read and checked."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from jaxpyop._config import Mode, config
from jaxpyop._functions import without_partials
from jaxpyop._host import METHODS, check_progress
from jaxpyop._op.request.user_rules import NO_RULES, Rules, read_rules
from jaxpyop._op.values import CASTING, IN_A_LOOP, ResultSpec, declares_nothing, read_tout, with_shapes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Op:
    """Everything that the user said about an op."""

    api: str
    name: str
    func: Callable[..., Any]
    spec: ResultSpec
    output_shapes: Callable[..., Any] | None
    stateful: bool
    ordered: bool
    vmap_method: str
    casting: str
    on_jax: bool
    title: str
    copy: bool = True
    out: bool = False
    rules: Rules = NO_RULES
    executor: Any = None
    chunksize: int | None = None
    progress: bool = False
    mode: str = "eager"
    why_called: str = ""  # of mode "auto": why there is nothing to try
    max_steps: int | None = None

    def origin_of_array(self, k: int) -> str:
        """How an error begins about array `k` of the results."""
        of_arrays = [i for i, leaf in enumerate(self.spec.returned.leaves) for _ in range(leaf.arrays)]
        return self.origin_of_result(of_arrays[k] if k < len(of_arrays) else k)

    def origin_of_result(self, k: int) -> str:
        """How an error begins about leaf `k` of what func returned."""
        return "func returned" if len(self.spec.returned.leaves) == 1 else f"func returned, as result {k},"

    @property
    def stateless_cure(self) -> str:
        """What to write where only a stateless op can go."""
        if self.spec.empty:
            return "it is stateful for having no result: return one, use it, and pass stateful=False"
        if self.ordered:
            return "pass stateful=False and leave ordered out, if its side effects may run any number of times"
        return "pass stateful=False if its side effects may run any number of times"


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
        **rest: the other options, by name.

    Raises:
        TypeError: func is not callable, or async, or a generator; Tout or
            output_shapes cannot be read.
        ValueError: an option has no such value; the shapes do not fit Tout.
    """
    mode, why_called = _mode(mode, api, rest, tout) if on_jax else ("eager", "")
    _check_func(func, api)
    _check_options(rest, api)
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"{api}: name is {name!r}; expected a string{_ONE_LIST}")
    spec, shapes = read_tout(tout, api), output_shapes
    if shapes is not None and not callable(shapes):
        spec, shapes = with_shapes(spec, shapes, api), None
    # No result: nothing but the side effects is left to be called for.
    rest["stateful"] = bool(rest["stateful"] or rest["ordered"] or spec.empty)
    if rest.get("out"):
        _check_out(spec, api)
    rest["rules"] = read_rules(rest, spec, api)
    name = _name_of(func, name)
    rest.update(title=f"{api} {name!r}", on_jax=on_jax, mode=mode, why_called=why_called)
    return Op(api, name, func, spec, shapes, **rest)


def _check_options(options: dict[str, Any], api: str) -> None:
    _check_choice(options["vmap_method"], METHODS, "vmap_method", api)
    _check_choice(options["casting"], CASTING, "casting", api)
    _check_max_steps(options.get("max_steps"), api)
    _check_executor(options["executor"], api)
    _check_chunksize(options["chunksize"], api)
    if options["progress"]:
        check_progress(api)
    for flag in ("stateful", "ordered", "progress", "copy", "out"):
        _check_flag(options.get(flag, False), flag, api)


def _name_of(func: Any, name: str | None) -> str:
    if name is not None:
        return name
    func = without_partials(func)
    found = getattr(func, "__name__", None) or type(func).__name__
    return "lambda" if found == "<lambda>" else found


def _mode(mode: str | None, api: str, options: dict[str, Any], tout: Any) -> tuple[str, str]:
    """The mode of a py_function, and why an op of mode "auto" is called in any case.

    `config.mode` is a default for what can be traced; the argument is meant.

    Raises:
        ValueError: no such mode, or an op of the host that is to be traced.
    """
    if mode is not None:
        _check_choice(mode, get_args(Mode), "mode", api)
    asked = mode or config.mode
    if asked == "eager":
        return asked, ""
    stateful = options["stateful"] or options["ordered"] or declares_nothing(tout)
    rules = any(options.get(rule) is not None for rule in ("vjp", "jvp"))
    if mode == "traced" and (stateful or rules):
        raise ValueError(f"{api}: {_ONLY_EAGER_STATEFUL if stateful else _ONLY_EAGER_RULES}")
    if asked == "traced":
        return ("eager" if stateful or rules else asked), ""
    placed = options["executor"] is not None or options["progress"]
    for found, why in ((stateful, "it is stateful"), (rules, "it has vjp= or jvp="), (placed, _PLACED)):
        if found:
            return asked, why
    return asked, ""


_PLACED = "executor= and progress= are for functions that are called"
_ONLY_EAGER_STATEFUL = (
    "a stateful op runs on the host, and mode='traced' leaves nothing to run there; pass mode='eager' (an op without "
    "a result is stateful)"
)
_ONLY_EAGER_RULES = (
    "vjp= and jvp= are called on the host, and mode='traced' leaves nothing to run there; pass mode='eager', or put "
    "jax.custom_vjp or jax.custom_jvp around the op"
)


# ------------------------------------------------------------------------ checks


_UNUSUAL = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def _check_func(func: Any, api: str) -> None:
    if not callable(func):
        raise TypeError(f"{api}: func must be callable, got {func!r}; write {api}(func, inp, Tout)")
    if isinstance(func, types.FunctionType) and not func.__code__.co_flags & _UNUSUAL:
        return  # the usual case, which inspect takes longer to tell
    inner = without_partials(func)
    for candidate in (inner, type(inner).__call__):
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise TypeError(
                f"{api}: func is an async function, which returns before it has run; "
                f"write a plain function that calls asyncio.run(...); {IN_A_LOOP}"
            )
        if inspect.isgeneratorfunction(candidate):
            raise TypeError(f"{api}: func is a generator function; write a plain function that returns its results")


def _check_choice(value: Any, choices: Sequence[Any], name: str, api: str) -> None:
    if value not in choices:
        raise ValueError(f"{api}: {name}={value!r}; expected one of {', '.join(map(repr, choices))}")


_ONE_LIST = " (inputs go in one list, inp=[x, y])"


def _check_flag(value: Any, name: str, api: str) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{api}: {name} is {value!r}; expected True or False{_ONE_LIST}")


def _check_max_steps(steps: Any, api: str) -> None:
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1):
        raise ValueError(f"{api}: max_steps is {steps!r}; expected how many turns a loop can take, at least 1, or None")


def _check_executor(executor: Any, api: str) -> None:
    if executor is None:
        return
    if hasattr(executor, "get_executor"):
        raise TypeError(f"{api}: executor is a Dask client, whose futures are its own; pass client.get_executor()")
    if not (hasattr(executor, "submit") or callable(executor)):
        raise TypeError(
            f"{api}: executor is {executor!r}; expected a concurrent.futures.Executor, or a function that returns one"
        )


def _check_chunksize(chunksize: Any, api: str) -> None:
    if chunksize is None:
        return
    if isinstance(chunksize, bool) or not isinstance(chunksize, (int, np.integer)):
        raise TypeError(f"{api}: chunksize is {chunksize!r}; expected a whole number of elements")
    if chunksize < 1:
        raise ValueError(f"{api}: chunksize is {chunksize}; expected at least 1")


def _check_out(spec: ResultSpec, api: str) -> None:
    """Raise where there is nothing to fill, or nobody knows how much.

    Raises:
        ValueError: no result, or one of another form than the op's.
    """
    if spec.empty:
        raise ValueError(f"{api}: out=True hands func the results to fill, and Tout promises none; leave out=True out")
    if spec.returned_spec is not None:
        raise ValueError(
            f"{api}: out=True hands func the results to fill, which padded results and typed keys have no array for; "
            "return them, and leave out=True out"
        )

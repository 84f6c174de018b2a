"""Random programs and what plain JAX makes of them, for `test_fuzz`.

A `Case` says everything about one program: inputs, body, promise, options and
a stack of transformations. The same body without an op is the reference.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.shared.fuzz_bodies import results
from tests.shared.util import contrib

# ------------------------------------------------------------------------ cases


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of the inputs.

    "array", "weak" and "moving key" are arguments of the program; "numpy",
    "number", "key" and "static" belong to it.
    """

    kind: str
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    static: Any = None

    @property
    def is_key(self) -> bool:
        return self.kind.endswith("key")

    @property
    def moves(self) -> bool:
        return self.kind in ("array", "weak", "moving key")


@dataclasses.dataclass(frozen=True)
class Output:
    """One result: an expression, computed in `work` and promised as `dtype`."""

    expr: Any
    form: str  # elementwise, sum, last, stack
    work: str
    dtype: str
    cast: bool = True  # by the body; or else by the op
    python: bool = False  # a Python number, where it is one number

    @property
    def kind(self) -> str:
        return {"f": "inexact", "c": "inexact", "V": "inexact", "b": "bool"}.get(np.dtype(self.work).kind, "int")


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, and how its op is written."""

    api: str
    leaves: tuple[Leaf, ...]
    inp: Any  # the inputs' structure over indices of leaves
    outputs: tuple[Output, ...]
    tout: str = "alone"  # alone, list, tuple, dict, nested
    shapes: str = "given"  # given, struct, absent, holes, some, callable
    branch: str | None = None  # how the body asks for a value: bool, float, item, asarray, loop
    stack: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    transport: str = "auto"
    x64: bool = False
    vjp: bool = True
    decorator: bool = False
    raises: bool = False
    records: int | None = None  # how many gradient records are kept

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.stack]

    @property
    def on_jax(self) -> bool:
        return self.api == "py_function"

    @property
    def traced(self) -> bool:
        return dict(self.options).get("mode") == "traced"

    @property
    def stateful(self) -> bool:
        options = dict(self.options)
        return options.get("stateful", self.api in ("py_func", "contrib")) or options.get("ordered", False)

    @property
    def title(self) -> str:
        return f"{'contrib.framework.py_func' if self.api == 'contrib' else self.api} 'body'"


class Boom(Exception):  # noqa: N818  # not an error of anybody's
    """What a body raises that is to fail."""


# ----------------------------------------------------------------------- inputs


def value_of(leaf: Leaf, k: int) -> Any:
    numbers = np.random.default_rng(k).integers(-8, 9, leaf.shape)
    dtype = jnp.dtype(leaf.dtype)
    if leaf.kind == "static":
        return leaf.static
    if leaf.is_key:
        return jax.random.key(k)
    if dtype.kind == "b":
        array = numbers > 0
    elif dtype.kind in "iu":
        array = (numbers % 5).astype(dtype)
    else:
        array = (numbers / 4 + (0.5j if dtype.kind == "c" else 0)).astype(dtype)
    if leaf.kind == "number":
        return array.reshape(-1)[0].item() if dtype.kind in "bifc" else float(array.reshape(-1)[0])
    if leaf.kind == "weak":
        return jnp.asarray(array.reshape(-1)[0].item())
    return jnp.asarray(array) if leaf.kind == "array" else array


def fill(template: Any, values: Any) -> Any:
    """The structure with a value for each index."""
    if isinstance(template, dict):
        return {key: fill(part, values) for key, part in template.items()}
    if isinstance(template, (list, tuple)):
        return type(template)(fill(part, values) for part in template)
    return values[template]


def collect(template: Any, given: Any, into: dict[int, Any]) -> dict[int, Any]:
    """The values by index of what `fill` made; a body checks its structure with it."""
    if isinstance(template, dict):
        assert isinstance(given, dict)
        assert set(given) == set(template)
        for key, part in template.items():
            collect(part, given[key], into)
    elif isinstance(template, (list, tuple)):
        assert type(given) is type(template)
        assert len(given) == len(template)
        for part, value in zip(template, given):
            collect(part, value, into)
    else:
        into[template] = given
    return into


# --------------------------------------------------------------------- promises


def _arranged(form: str, parts: list[Any]) -> Any:
    if form == "alone":
        assert len(parts) == 1
        return parts[0]
    if form == "dict":
        return {f"r{9 - k}": part for k, part in enumerate(parts)}  # not in the order of keys
    if form == "nested":
        return {"a": [parts[0]], "b": tuple(parts[1:])} if len(parts) > 1 else ({"a": parts[0]},)
    return {"list": list, "tuple": tuple}[form](parts)


def promise(case: Case, structs: list[Any], inputs: Any) -> dict[str, Any]:
    """`Tout` and `output_shapes` for results of these shapes and dtypes."""
    form = case.tout
    if case.shapes == "struct":
        return {"tout": _arranged(form, structs)}
    tout = _arranged(form, [s.dtype for s in structs])
    if case.shapes == "absent":
        return {"tout": tout}
    if case.shapes == "callable":
        return {"tout": tout, "output_shapes": inputs}
    shapes = [s.shape for s in structs]
    if case.shapes == "holes":
        shapes = [(None, *shape[1:]) if shape else shape for shape in shapes]
    if case.shapes == "some":
        shapes[0] = None
    return {"tout": tout, "output_shapes": _arranged(form, shapes)}


# ---------------------------------------------------------------------- the two


def moving(case: Case) -> list[int]:
    return [k for k, leaf in enumerate(case.leaves) if leaf.moves]


def arguments(case: Case) -> list[Any]:
    return [value_of(case.leaves[k], k) for k in moving(case)]


def _values(case: Case, args: Any) -> dict[int, Any]:
    values = {k: value_of(leaf, k) for k, leaf in enumerate(case.leaves)}
    return values | dict(zip(moving(case), args))


def reference(case: Case) -> Any:
    """The body as a JAX function of the moving arrays."""

    def run(args: Any) -> Any:
        values = _values(case, args)
        return _reference_of(case, {k: _strong(v) for k, v in values.items() if case.leaves[k].kind != "static"})

    return run


def _reference_of(case: Case, values: dict[int, Any]) -> Any:
    return _arranged(case.tout, results(jnp, case, values, reference=True))


def _strong(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return x
    array = np.asarray(x)
    return jnp.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def operation(case: Case, ran: list[Any]) -> Any:
    """The body as an op of the moving arrays; `ran` gets an entry for each call of the body."""
    xp = jnp if case.on_jax else np

    def body(*args: Any, **kwargs: Any) -> Any:
        leaves = collect(case.inp, [*args, *kwargs.values()], {})
        for k, leaf in enumerate(case.leaves):
            expected = jax.Array if case.on_jax else np.ndarray
            assert leaves[k] is leaf.static if leaf.kind == "static" else isinstance(leaves[k], expected)
        if ("mode", "traced") not in case.options:
            # Where JAX traces the body, a change outside of it is refused.
            ran.append(1)
        if case.raises:
            raise Boom("boom")
        return _arranged(case.tout, results(xp, case, leaves, reference=False))

    def vjp(inputs: Any, outputs: Any, cotangents: Any) -> Any:
        order = [k for k in jax.tree.leaves(case.inp) if case.leaves[k].kind != "static"]
        fun = lambda args: jax.tree.leaves(_reference_of(case, dict(zip(order, args))))
        found = jax.vjp(fun, [jnp.asarray(a) for a in inputs])[1](list(cotangents))[0]
        return [None if f.dtype == jax.dtypes.float0 else np.asarray(f) for f in found]

    def run(args: Any) -> Any:
        inp = fill(case.inp, _values(case, args))
        structs = jax.eval_shape(lambda args: jax.tree.leaves(reference(case)(args)), args)
        structs = _from_tree_order(case, structs)
        said = promise(case, structs, lambda *a, **k: _shapes_for(case, [*a, *k.values()]))
        options = dict(case.options)
        if case.vjp and not case.on_jax:
            options["vjp"] = vjp
        return call(case, body, inp, said.pop("tout"), options | said)

    return run


def _from_tree_order(case: Case, structs: list[Any]) -> list[Any]:
    """The structs in the order of `case.outputs`: a dict's leaves come by sorted key."""
    order = jax.tree.leaves(_arranged(case.tout, list(range(len(structs)))))
    found = dict(zip(order, structs))
    return [found[k] for k in range(len(structs))]


def _shapes_for(case: Case, structs: Any) -> Any:
    leaves = collect(case.inp, structs, {})
    arrays = {k: s for k, s in leaves.items() if case.leaves[k].kind != "static"}
    outs = jax.eval_shape(lambda arrays: _reference_of(case, arrays), arrays)
    return jax.tree.map(lambda s: s.shape, outs)


def call(case: Case, body: Any, inp: Any, tout: Any, options: dict[str, Any]) -> Any:
    if case.api == "contrib":
        last = {"last": inp[-1]} if len(inp) > 1 and case.decorator else {}
        return contrib(body, list(inp[: len(inp) - len(last)]), tout, kwargs=last, **options)
    api = getattr(jaxpyop, case.api)
    return api(Tout=tout, **options)(body)(*inp) if case.decorator else api(body, inp, tout, **options)

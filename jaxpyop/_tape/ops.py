"""Operations: primitives with their parameters, shared by all calls that compute the same.

A jaxpr among the parameters counts by its structure, for the body of a `scan`
over a fresh lambda is a new object every time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._tape.flow import Flow, find_flow, full_flow
from jaxpyop._tape.keys import (
    Cache,
    UnkeyableError,
    bare,
    constants_of,
    holds_constants,
    jaxprs_in,
    structure,
    value_type,
)

_MAX_FLOWS = 1024  # per op
_MAX_PARAMETERS = 4096

# A plain dict, faster than a Cache and soon full again when it is cleared.
_by_parameters: dict[Hashable, Operation] = {}
_by_structure = Cache(2048)
_ids = itertools.count(-1, -1)  # negative: a program's key mixes them with slots


@dataclasses.dataclass(eq=False, slots=True)
class Operation:
    """A primitive with its parameters.

    Attributes:
        bind: evaluates it under the current trace.
        run: evaluates it on concrete arrays, compiled.
        multiple: whether `bind` and `run` return a list.
        id: a negative number of its own; None if the op is not shared.
        once: whether it has to be linearised when it is recorded: it has side
            effects, calls Python, holds constants, which may be NumPy arrays
            that are written to later, or is yet to be expanded by JAX.
        calls_python: whether it runs, perhaps deep inside, a function of the
            user's on the host.
        stateful: whether it reads or writes a mutable array.
        probed: whether dependence is looked up; else all is taken to depend on
            all, for functions that may not be called before their call is over.
    """

    bind: Callable[..., Any]
    run: Callable[..., Any]
    multiple: bool
    id: int | None = None
    once: bool = False
    calls_python: bool = False
    stateful: bool = False
    probed: bool = True
    _flows: dict[Hashable, Flow] = dataclasses.field(default_factory=dict[Hashable, Flow], init=False, repr=False)

    def outputs(self, args: Sequence[Any]) -> Sequence[Any]:
        """Evaluate it under the current trace; always a sequence."""
        out = self.bind(*args)
        return out if self.multiple else (out,)

    def flow(self, tracked: tuple[bool, ...], args: Sequence[Any], outs: Sequence[Any]) -> Flow:
        """How derivatives pass through when these inputs have tangents."""
        if not self.probed:
            return full_flow(tracked, outs)
        # By type too: a rule may take a short cut for, say, empty arrays.
        key = (tracked, *map(value_type, args))
        found = self._flows.get(key)
        if found is None:
            if len(self._flows) >= _MAX_FLOWS:
                self._flows.clear()
            found = self._flows[key] = find_flow(self.outputs, tracked, args)
        return found


def find_op(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation:
    """The op of a primitive and its parameters, called with `args`."""
    try:
        key = (primitive, *params.items())
        op = _by_parameters.get(key)
    except TypeError:  # unhashable
        return _find_by_structure(primitive, params, args)
    if op is None:
        op = _find_by_structure(primitive, params, args)
        if op.id is not None:
            if len(_by_parameters) >= _MAX_PARAMETERS:
                _by_parameters.clear()
            _by_parameters[key] = op
    return op


def _find_by_structure(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation:
    if (only := _only_equation(primitive, params)) is not None:
        return find_op(only.primitive, only.params, args)
    if _calls_python(primitive, params):
        # Not shared: nothing of it is compiled here, and the caches would keep
        # the Python function alive.
        return dataclasses.replace(_make_op(primitive, params, args), once=True, calls_python=True)
    if _jaxcore.is_high(primitive, args, params) or _holds_closure(params):
        return dataclasses.replace(_make_op(primitive, params, args), once=True)
    try:
        key = (primitive, structure(params))
    except UnkeyableError:
        return dataclasses.replace(_make_op(primitive, params, args), once=holds_constants(params))
    op = _by_structure.get(key)
    if op is None:
        op = _make_op(primitive, params, args, id=next(_ids))
        _by_structure.put(key, op)
    return op


def find_alone(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation | None:
    """The shared op that a `jit` consists of, as `jnp.abs` does: its executable is called in a third of the time."""
    if primitive is not _jaxcore.jit_p or len(bare(params["jaxpr"]).eqns) != 1:
        return None
    op = find_op(primitive, params, args)
    return op if op.id is not None and not (op.once or op.stateful or op.multiple) else None


def _holds_closure(params: dict[str, Any]) -> bool:
    # Such as the transpose of a linear_call: made in this call, it is equal to none that comes.
    return any(isinstance(value, types.FunctionType) and value.__closure__ for value in params.values())


def _only_equation(primitive: Any, params: dict[str, Any]) -> Any | None:
    """The equation that a `jit` consists of, as for many of jnp's functions.

    It is evaluated by itself, with the executable that JAX has for it anyway.
    """
    if primitive is not _jaxcore.jit_p:
        return None
    jaxpr = bare(params["jaxpr"])
    if len(jaxpr.eqns) != 1 or jaxpr.constvars or not _is_plain_jit(params):
        return None
    eqn = jaxpr.eqns[0]
    same = list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars)
    plain = eqn.primitive not in _jaxcore.CUSTOM_CALLS and not jaxprs_in(eqn.params)
    return eqn if same and plain else None


def _is_plain_jit(params: dict[str, Any]) -> bool:
    shardings = (*params["in_shardings"], *params["out_shardings"])
    specified = any(type(s).__name__ != "UnspecifiedValue" for s in shardings)  # a class without a public name
    jaxpr = bare(params["jaxpr"])
    return not (specified or jaxpr.effects or jaxpr.is_high or any(params["donated_invars"]))


def with_constants(primitive: Any, params: dict[str, Any]) -> tuple[Operation, tuple[Any, ...]] | None:
    """The op of a jitted function that closes over arrays, with these as its first operands.

    So it is shared, and recorded, like any other; None for what cannot be taken apart so.
    """
    if primitive is not _jaxcore.jit_p or not _is_plain_jit(params):
        return None
    constants = constants_of(params["jaxpr"])
    if not constants:
        return None
    try:
        key = ("with constants", structure(params, but_constants=True))
    except UnkeyableError:
        return None
    op = _by_structure.get(key)
    if op is None:
        run = jax.jit(_named(_without_constants(params["jaxpr"]), params["name"]))
        op = Operation(run, run, multiple=True, id=next(_ids))
        _by_structure.put(key, op)
    return op, constants


def _without_constants(closed: Any) -> Callable[..., list[Any]]:
    count = len(constants_of(closed))

    def call(*operands: Any) -> list[Any]:
        return _evaluate(closed, iter(operands[:count]), operands[count:])

    avals = [jax.typeof(c) for c in constants_of(closed)] + [v.aval for v in bare(closed).invars]
    like = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    with _jaxcore.eval_context():
        pure = jax.make_jaxpr(call)(*like)  # or the function would keep the constants
    return lambda *operands: _evaluate(pure, iter(pure.consts), operands)


def _evaluate(closed: Any, constants: Iterator[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr with other constants, see `constants_of`."""
    jaxpr = bare(closed)
    env = dict(zip(jaxpr.constvars, itertools.islice(constants, len(jaxpr.constvars)), strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _jaxcore.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        values = list(map(read, eqn.invars))
        with eqn.ctx.manager:
            if eqn.primitive is _jaxcore.jit_p and constants_of(eqn.params["jaxpr"]):
                outs = _evaluate(eqn.params["jaxpr"], constants, values)
            else:
                outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, outs if eqn.primitive.multiple_results else [outs], strict=True))
    return list(map(read, jaxpr.outvars))


def _calls_python(primitive: Any, params: dict[str, Any]) -> bool:
    if getattr(primitive, "calls_python", False):
        return True
    eqns = (eqn for jaxpr in jaxprs_in(params) for eqn in jaxpr.eqns)
    return any(_calls_python(eqn.primitive, eqn.params) for eqn in eqns)


def _make_op(primitive: Any, params: dict[str, Any], args: Sequence[Any], id: int | None = None) -> Operation:
    bind = functools.partial(primitive.bind, **params)
    own = id is not None and _wants_own_function(primitive, params)
    return Operation(
        bind,
        run=jax.jit(_named(bind, primitive.name)) if own else functools.partial(primitive.impl, **params),
        multiple=primitive.multiple_results,
        id=id,
        once=any(jaxpr.effects for jaxpr in jaxprs_in(params)),
        stateful=primitive.ref_allocating or any(map(_is_ref, args)),
    )


def _is_ref(value: Any) -> bool:
    return type(jax.typeof(value)).__name__ == "AbstractRef"


def _wants_own_function(primitive: Any, params: dict[str, Any]) -> bool:
    """Whether to compile a call anew rather than use the primitive's `impl`.

    The `impl` of `jit` shares the executable with calls from elsewhere, but
    takes 15 microseconds longer: too much for what compiles in no time. That of
    `checkpoint` and others evaluates equation by equation, or compiles anew each time.
    """
    if primitive is _jaxcore.jit_p:
        eqns = params["jaxpr"].eqns
        nested = any(jaxprs_in(eqn.params) for eqn in eqns)
        return len(eqns) <= 16 and not nested and not params["compiler_options_kvs"]
    if isinstance(primitive.impl, functools.partial):  # of apply_primitive, which compiles
        return False
    # Those of random numbers run loops over fresh functions (random_gamma, 0.10 to 0.12).
    return bool(jaxprs_in(params)) or primitive.impl.__module__.startswith("jax._src.random")


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return function(*args)

    call.__name__ = call.__qualname__ = name  # in JAX's logs and profiles
    return call


def find_custom_jvp_op(
    primitive: Any, fun: Any, jvp: Any, args: Sequence[Any], params: dict[str, Any]
) -> Operation | None:
    """The shared op of a `custom_jvp` function of JAX's own, such as relu.

    Shared among calls of the same types: JAX notes the results' types on the
    wrapped functions. A user's function is not shared at all: its rule may
    read variables that change.
    """
    function, rule = getattr(fun, "f", None), getattr(jvp, "f", None)
    if not (getattr(function, "__module__", None) or "").startswith("jax."):
        return None
    if len(fun.transforms) > 1 or len(jvp.transforms) > 1:
        return None  # under vmap: what it added, beside flattening, can be called once only (0.10 to 0.12)
    try:
        key = (primitive, fun, rule, tuple(params.items()), tuple(map(value_type, args)))
        op = _by_structure.get(key)
    except TypeError:
        return None
    if op is None:
        bind = functools.partial(primitive.bind, subfuns=(fun, jvp), **params)
        op = Operation(bind, bind, multiple=True, id=next(_ids), probed=False)
        _by_structure.put(key, op)
    return op

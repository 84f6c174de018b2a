"""Operations: primitives with their parameters, shared by all calls that compute the same.

A jaxpr among the parameters counts by its structure, for the body of a `scan`
over a fresh lambda is a new object every time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._tape.flow import Flow, find_flow, full_flow
from jaxpyop._tape.keys import (
    Cache,
    OwnRulesError,
    UnkeyableError,
    bare,
    holds_constants,
    jaxprs_in,
    structure,
    value_type,
)

_MAX_FLOWS = 1024  # per op
_MAX_PARAMETERS = 4096

# Plain dicts, faster than a Cache and soon full again when they are cleared.
_by_parameters: dict[Hashable, Operation] = {}
_by_jaxpr: dict[Any, tuple[tuple[Any, ...], Operation]] = {}
by_structure = Cache(2048)
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
    fresh: bool = False
    _flows: dict[Hashable, Flow] = dataclasses.field(default_factory=dict[Hashable, Flow], init=False, repr=False)

    def outputs(self, args: Sequence[Any]) -> Sequence[Any]:
        """Evaluate it under the current trace; always a sequence."""
        out = self.bind(*args)
        return out if self.multiple else (out,)

    def followed(
        self, evaluate: Callable[..., Any], tracked: tuple[bool, ...], args: Sequence[Any]
    ) -> tuple[Sequence[Any], Flow]:
        """What `evaluate` makes of the inputs, as a sequence, and how derivatives pass through."""
        out = evaluate(*args)
        outs = out if self.multiple else (out,)
        return outs, self.flow(tracked, args, outs)

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
    if primitive is _jaxcore.jit_p:
        return _find_jit(params, args)
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


def _find_jit(params: dict[str, Any], args: Sequence[Any]) -> Operation:
    # By the jaxpr alone, where the rest are the very same objects: shardings are hashed and compared in Python.
    jaxpr, values = params["jaxpr"], tuple(params.values())
    found = _by_jaxpr.get(jaxpr)
    if found is not None and found[0] == values:
        return found[1]
    op = _find_by_structure(_jaxcore.jit_p, params, args)
    if op.id is not None:
        if len(_by_jaxpr) >= _MAX_PARAMETERS:
            _by_jaxpr.clear()
        _by_jaxpr[jaxpr] = values, op
    return op


def _find_by_structure(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation:
    if (only := _only_equation(primitive, params)) is not None:
        return find_op(only.primitive, only.params, args)
    if _calls_python(primitive, params):
        # Not shared: nothing of it is compiled here, and the caches would keep
        # the Python function alive.
        return dataclasses.replace(_make_op(primitive, params, args), once=True, calls_python=True)
    if any(map(_jaxcore.is_of_high_type, args)) or _holds_closure(params):
        return dataclasses.replace(_make_op(primitive, params, args), once=True)
    try:
        key = (primitive, structure(params))
    except OwnRulesError:
        return dataclasses.replace(_make_op(primitive, params, args), once=True)
    except UnkeyableError:
        once = holds_constants(params)
        if once or primitive is not _jaxcore.jit_p:
            return dataclasses.replace(_make_op(primitive, params, args), once=once)
        key = (primitive, *params.values())  # by the very jaxpr: a custom_vjp in it has no hash on 0.10.0
    op = by_structure.get(key)
    if op is None:
        op = _make_op(primitive, params, args, id=next(_ids))
        by_structure.put(key, op)
    return op


def find_plain(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation | None:
    """The shared op that evaluates a primitive on values without a tangent; None where JAX's own way is the best.

    JAX looks a `jit` up for longer, and would compile a `scan` over a fresh function each time.
    """
    if not _is_of_jaxprs(primitive, params):
        return None
    op = find_op(primitive, params, args)
    if op.id is None or op.once or op.stateful:
        return None
    if op.fresh:  # JAX may have compiled it already, and it may never come again
        op.fresh = False
        return None
    return op


_of_jaxprs: dict[Any, bool] = {}


def _is_of_jaxprs(primitive: Any, params: dict[str, Any]) -> bool:
    found = _of_jaxprs.get(primitive)
    if found is None:
        found = _of_jaxprs[primitive] = bool(jaxprs_in(params))
    return found


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
    if len(jaxpr.eqns) != 1 or jaxpr.constvars or jaxpr.is_high or not is_plain_jit(params):
        return None
    eqn = jaxpr.eqns[0]
    same = list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars)
    plain = eqn.primitive not in _jaxcore.CUSTOM_CALLS and not jaxprs_in(eqn.params)
    return eqn if same and plain else None


def is_plain_jit(params: dict[str, Any]) -> bool:
    shardings = (*params["in_shardings"], *params["out_shardings"])
    specified = any(type(s).__name__ != "UnspecifiedValue" for s in shardings)  # a class without a public name
    jaxpr = bare(params["jaxpr"])
    return not (specified or jaxpr.effects or any(params["donated_invars"]))


def make_shared(key: Hashable, function: Callable[..., Any]) -> Operation:
    """The op of a function that returns a list, for all calls of a key."""
    run = jax.jit(function)
    op = Operation(run, run, multiple=True, id=next(_ids))
    by_structure.put(key, op)
    return op


def is_once(primitive: Any, params: dict[str, Any]) -> bool:
    """Whether a call of jaxprs may run only once."""
    return any(bare(jaxpr).effects for jaxpr in jaxprs_in(params)) or _calls_python(primitive, params)


def _calls_python(primitive: Any, params: dict[str, Any]) -> bool:
    if getattr(primitive, "calls_python", False):
        return True
    eqns = (eqn for jaxpr in jaxprs_in(params) for eqn in jaxpr.eqns)
    return any(_calls_python(eqn.primitive, eqn.params) for eqn in eqns)


def _make_op(primitive: Any, params: dict[str, Any], args: Sequence[Any], id: int | None = None) -> Operation:
    bind = functools.partial(primitive.bind, **params)
    high = _jaxcore.is_high(primitive, args, params)  # which JAX lowers before it comes to the `impl`
    own = id is not None and (high or _wants_own_function(primitive, params))
    return Operation(
        bind,
        run=jax.jit(named(bind, primitive.name)) if own else _jaxcore.compiled(primitive, params),
        multiple=primitive.multiple_results,
        id=id,
        once=any(jaxpr.effects for jaxpr in jaxprs_in(params)),
        stateful=primitive.ref_allocating or any(map(_is_ref, args)),
        fresh=own,
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


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
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
        op = by_structure.get(key)
    except TypeError:
        return None
    if op is None:
        bind = functools.partial(primitive.bind, subfuns=(fun, jvp), **params)
        op = Operation(bind, bind, multiple=True, id=next(_ids), probed=False)
        by_structure.put(key, op)
    return op

"""Jaxprs: made, taken apart, evaluated and compared.

From JAX 0.12 a closed jaxpr and a jaxpr are one class; until 0.11 they are two. The functions here take either.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._jaxcore.capabilities import parts_of, using
from jaxpyop._jaxcore.primitives import SAMPLE, jit_p

_closed = SAMPLE.eqns[2].params["jaxpr"]
JAXPR_TYPES: Any = tuple({type(_closed), type(getattr(_closed, "jaxpr", _closed))})
Literal: Any = type(_closed.eqns[0].invars[1])
_eval_jaxpr, _dce_jaxpr, _convert_constvars_jaxpr = parts_of("jaxpr_tools", 3)
_trace_quickly = using("fast_tracing")
_current_name_stack, _user_context = parts_of("source_lines", 2)
# The traced mode wraps the rules of custom_jvp calls anew. None if it cannot.
transformation2 = using("custom_rules")


def jaxpr_of(closed: Any) -> Any:
    """Returns the Jaxpr of a ClosedJaxpr."""
    return getattr(closed, "jaxpr", closed)


def consts_of(closed: Any) -> Sequence[Any]:
    """Returns the constants of a jaxpr itself, not of the jaxprs in it."""
    return getattr(closed, "consts", ())


def jaxprs_in(params: dict[str, Any]) -> list[Any]:
    """Returns the jaxprs among a primitive's parameters."""
    found: list[Any] = []
    pending = list(params.values())
    while pending:
        value = pending.pop()
        if isinstance(value, JAXPR_TYPES):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            pending.extend(value)
    return found


def equations_in(params: dict[str, Any]) -> Iterator[Any]:
    """Returns the equations of the jaxprs among a primitive's parameters, and of the jaxprs in them."""
    for jaxpr in jaxprs_in(params):
        for eqn in jaxpr_of(jaxpr).eqns:
            yield eqn
            yield from equations_in(eqn.params)


def opened(closed: Any) -> tuple[Any, list[Any]]:
    """Returns a closed jaxpr as one whose first inputs are its constants, and the constants."""
    jaxpr, consts = jaxpr_of(closed), list(closed.consts)
    if _convert_constvars_jaxpr is not None:
        return _convert_constvars_jaxpr(jaxpr), consts
    like = [struct_of(v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)]
    count = len(consts)
    return jaxpr_of(jax.make_jaxpr(lambda *xs: run_jaxpr(jaxpr, *xs[count:], consts=xs[:count]))(*like)), consts


def struct_of(x: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape, dtype and weak type of a value, or of the type of one."""
    aval = x if hasattr(x, "shape") and hasattr(x, "dtype") else jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def with_weak_type(x: Any, aval: Any) -> Any:
    """Returns a value whose type is weak if this type of the same dtype is, and only then.

    A weak dtype gives way to other dtypes, as the dtype of a Python number does.
    """
    weak = getattr(aval, "weak_type", False)
    if getattr(jax.typeof(x), "weak_type", False) == weak:
        return x
    return jax.lax.convert_element_type_p.bind(x, new_dtype=aval.dtype, weak_type=weak, sharding=None)


def make_jaxpr(function: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Any:
    """Traces a function that takes and returns flat lists of values, and returns its closed jaxpr.

    It takes a third of the time of `jax.make_jaxpr`, because nothing is flattened, named or looked up.
    """
    if _trace_quickly is None:
        return jax.make_jaxpr(lambda *xs: list(function(*xs)))(*args)
    jaxpr, consts = _trace_quickly(function, args)
    closed: Any = getattr(jaxpr, "with_consts", None)
    return closed(consts) if closed else type(_closed)(jaxpr, consts)


def without_dead_code(jaxpr: Any, used: Sequence[bool] | None = None) -> tuple[Any, list[bool]]:
    """Returns a jaxpr without the equations that its results do not need, and which inputs they need.

    Args:
        jaxpr: the jaxpr.
        used: which of its results count. The default is all.
    """
    if _dce_jaxpr is None:
        return jaxpr, [True] * len(jaxpr.invars)
    return _dce_jaxpr(jaxpr, list(used or [True] * len(jaxpr.outvars)))


# ------------------------------------------------------------------- evaluation


def run_equation(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """Evaluates an equation under the current trace, with its source line, named scope and settings."""
    with _source_line(eqn), eqn.ctx.manager:
        outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


def _source_line(eqn: Any) -> contextlib.AbstractContextManager[Any]:
    if _user_context is None:
        return contextlib.nullcontext()
    stack = _current_name_stack() + eqn.source_info.name_stack
    return _user_context(eqn.source_info.traceback, name_stack=stack)


def run_jaxpr(
    jaxpr: Any,
    *args: Any,
    consts: Iterable[Any] = (),
    bind: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None,
) -> list[Any]:
    """Evaluates a jaxpr under the current trace.

    Args:
        jaxpr: the jaxpr, whose own constants are not read.
        *args: its inputs.
        consts: its constants.
        bind: evaluates one equation on its operands, instead of `run_equation`.
    """
    if bind is None and _eval_jaxpr is not None:
        # JAX's own evaluator, which frees each value after its last use.
        return _eval_jaxpr(jaxpr, list(consts), *args)
    bind = bind or run_equation
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, bind(eqn, list(map(read, eqn.invars))), strict=True))
    return list(map(read, jaxpr.outvars))


def run_closed(closed: Any, *args: Any) -> list[Any]:
    """Evaluates a closed jaxpr under the current trace."""
    jaxpr, consts = opened(closed)
    return run_jaxpr(jaxpr, *consts, *args)


def run_cond(predicate: Any, yes: Any, no: Any, operands: Sequence[Any]) -> list[Any]:
    """Binds `jax.lax.cond` of two closed jaxprs without constants and effects, whose results have the same types."""
    index = jax.lax.convert_element_type(predicate, np.int32)
    return jax.lax.cond_p.bind(index, *operands, branches=(no, yes))


# ------------------------------------------------------------------- comparison


class UnkeyableError(Exception):
    """A parameter has no hash, or a jaxpr holds constants."""


class OwnRulesError(UnkeyableError):
    """A primitive of the user's own, which JAX expands: its rules may read variables that change."""


# How constants of jaxprs, and parameters without a hash, go into a key.
REFUSE, OMIT, IDENTITY = range(3)

# One table for each way to treat constants. A key by IDENTITY is valid only while its values are alive.
_keys: tuple[weakref.WeakKeyDictionary[Any, HashedKey], ...] = tuple(weakref.WeakKeyDictionary() for _ in range(3))


def structural_key(value: Any, constants: int = REFUSE) -> Hashable:
    """Makes a key that is equal for equal parameters of primitives, and for jaxprs that compute the same.

    The jaxpr in a `jit` or a `scan` of a fresh lambda is a new object each time, with new variables.

    Args:
        value: a parameter, or a tuple, list or dict of them.
        constants: REFUSE raises where a jaxpr holds constants, which a cache would keep alive, and which may be NumPy
            arrays that change. OMIT leaves out the constants of jitted functions. With IDENTITY constants, and
            values without a hash, are equal only to themselves.

    Raises:
        UnkeyableError: `value` holds something without a hash, or constants.
        OwnRulesError: it holds a primitive of the user's own.
    """
    if isinstance(value, JAXPR_TYPES):
        key = _keys[constants].get(value)
        if key is None:
            key = _keys[constants][value] = HashedKey(_jaxpr_key(value, constants))
        return key
    # Named tuples too.
    if isinstance(value, (tuple, list)):
        return (type(value), *(structural_key(v, constants) for v in value))
    if type(value) is dict:
        return (dict, *((k, structural_key(v, constants)) for k, v in value.items()))
    if constants != IDENTITY and hasattr(value, "expand") and not type(value).__module__.startswith("jax."):
        raise OwnRulesError(type(value).__name__)
    try:
        hash(value)
    except TypeError:
        if constants == IDENTITY:
            return type(value), id(value)
        raise UnkeyableError(type(value).__name__) from None
    # The type tells 1 from True.
    return type(value), value


def is_same(a: Any, b: Any) -> bool:
    """Tells whether two parameters of primitives mean the same; False when in doubt."""
    if a is b:
        return True
    try:
        return bool(structural_key(a, IDENTITY) == structural_key(b, IDENTITY))
    except Exception:
        # The comparison of a user's objects may fail.
        return False


class HashedKey:
    """A nested tuple that computes its hash once."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._key, self._hash = key, hash(key)

    def __repr__(self) -> str:
        return repr(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, HashedKey) and self._hash == other._hash and self._key == other._key)


def _jaxpr_key(closed: Any, constants: int) -> tuple[Any, ...]:
    jaxpr, consts = jaxpr_of(closed), consts_of(closed)
    if consts and constants == REFUSE:
        raise UnkeyableError("constants")
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> Hashable:
        if isinstance(atom, Literal):
            # By bytes: 0.0 and -0.0 differ, NaN equals itself.
            return np.asarray(atom.val).tobytes(), atom.aval
        return numbers.setdefault(atom, len(numbers))

    binders = tuple((name(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars))
    eqns = tuple(
        (
            eqn.primitive,
            tuple(map(name, eqn.invars)),
            structural_key(dict(eqn.params), REFUSE if constants == OMIT and eqn.primitive is not jit_p else constants),
            tuple((name(v), v.aval) for v in eqn.outvars),
            eqn.ctx,
        )
        for eqn in jaxpr.eqns
    )
    identities = tuple(map(id, consts)) if constants == IDENTITY else ()
    return binders, eqns, tuple(map(name, jaxpr.outvars)), identities


def constants_of(closed: Any) -> list[Any]:
    """Returns the constants of a jitted function and of the jitted functions in it, outermost first."""
    inner = [eqn.params["jaxpr"] for eqn in jaxpr_of(closed).eqns if eqn.primitive is jit_p]
    return [*consts_of(closed), *itertools.chain.from_iterable(map(constants_of, inner))]


def holds_constants(params: dict[str, Any]) -> bool:
    """Tells whether a jaxpr among the parameters, or one in it, holds constants."""
    return any(
        consts_of(jaxpr) or any(holds_constants(eqn.params) for eqn in jaxpr_of(jaxpr).eqns)
        for jaxpr in jaxprs_in(params)
    )

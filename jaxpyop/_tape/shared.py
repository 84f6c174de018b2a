"""Calls that are taken apart, so that what is left is shared by all that compute the same.

What belongs to one call alone, and would make every step linearise or compile it anew, goes elsewhere: constants that
a jitted function closes over become its first operands, what it prints is left to the run that is recorded, and the
transpose of a `linear_call`, a function made in the call, becomes the jaxpr that it stands for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._tape.keys import UnkeyableError, bare, constants_of, structure
from jaxpyop._tape.ops import Operation, by_structure, find_op, is_once, is_plain_jit, make_shared, named


@dataclasses.dataclass(frozen=True, slots=True)
class Apart:
    """A call taken apart.

    Attributes:
        op: what is shared of it.
        first: operands of `op` that come before those of the call.
        evaluate: evaluates all of the call, on the operands of `op`; None where `op` does that.
    """

    op: Operation
    first: tuple[Any, ...] = ()
    evaluate: Callable[..., Any] | None = None


def take_apart(
    op: Operation, primitive: Any, params: dict[str, Any], args: Sequence[Any], tracked: Sequence[bool]
) -> Apart | None:
    """A call whose op is to be linearised each time, as one whose op is not; None for what cannot be taken apart."""
    if primitive is _jaxcore.jit_p:
        return _jit(op, primitive, params, args)
    if set(params) == _OF_LINEAR_CALL:
        return _linear_call(primitive, params, tracked)
    return None


def _jit(op: Operation, primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Apart | None:
    if not bare(params["jaxpr"]).effects:
        return _with_constants(params)
    silent = without_prints(params["jaxpr"])
    if silent is None:
        return None
    params = {**params, "jaxpr": silent}
    of_silent = find_op(primitive, params, args)
    apart = _with_constants(params) if of_silent.once else Apart(of_silent)
    if apart is None:
        return None
    evaluate = functools.partial(_evaluate_all, op, len(apart.first), apart.op.multiple)
    return dataclasses.replace(apart, evaluate=evaluate)


def _evaluate_all(op: Operation, skip: int, multiple: bool, *operands: Any) -> Any:
    outs = op.bind(*operands[skip:])
    return outs if multiple else outs[0]


# ----------------------------------------------------------------------- prints

_silent: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def without_prints(closed: Any) -> Any | None:
    """A jaxpr without what has an effect and no result, as `jax.debug.print`; None if that leaves an effect."""
    if not bare(closed).effects:
        return closed
    if closed not in _silent:
        _silent[closed] = _without_prints(closed)
    return _silent[closed]


def _without_prints(closed: Any) -> Any | None:
    kept = []
    for eqn in bare(closed).eqns:
        if eqn.effects and eqn.primitive is _jaxcore.jit_p:
            if (inner := without_prints(eqn.params["jaxpr"])) is None:
                return None
            kept.append(eqn.replace(params={**eqn.params, "jaxpr": inner}, effects=inner.effects))
        elif not eqn.effects:
            kept.append(eqn)
        elif eqn.outvars:
            return None
    return _jaxcore.with_equations(closed, kept)


# -------------------------------------------------------------------- constants


def _with_constants(params: dict[str, Any]) -> Apart | None:
    if not is_plain_jit(params):
        return None
    constants = constants_of(params["jaxpr"])
    if not constants:
        return None
    try:
        key = ("with constants", structure(params, but_constants=True))
    except UnkeyableError:
        return None
    op = by_structure.get(key)
    if op is None:
        op = make_shared(key, named(_without_constants(params["jaxpr"]), params["name"]))
    return Apart(op, constants)


def _without_constants(closed: Any) -> Callable[..., list[Any]]:
    count = len(constants_of(closed))

    def call(*operands: Any) -> list[Any]:
        return _evaluate(closed, iter(operands[:count]), operands[count:])

    avals = [jax.typeof(c) for c in constants_of(closed)] + [v.aval for v in bare(closed).invars]
    pure = _pure(call, avals)  # or the function would keep the constants
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


# ------------------------------------------------------------------ linear_call

_OF_LINEAR_CALL = {"callee", "transpose_thunk", "num_callee_consts", "num_res"}


def _linear_call(primitive: Any, params: dict[str, Any], tracked: Sequence[bool]) -> Apart | None:
    callee, counts = params["callee"], (params["num_callee_consts"], params["num_res"])
    if any(tracked[: sum(counts)]):
        return None  # JAX has no derivative in these
    transpose, constants = params["transpose_thunk"]()
    jaxprs = {"callee": callee, "transpose": transpose}
    if any(isinstance(c, _jaxcore.Tracer) for c in constants) or is_once(primitive, jaxprs):
        return None
    try:
        key = ("linear_call", structure(jaxprs), counts, len(constants))
    except UnkeyableError:
        return None
    op = by_structure.get(key)
    if op is None:
        op = make_shared(key, _call_of_jaxprs(primitive, callee, counts, transpose, len(constants)))
    return Apart(op, tuple(constants))


def _call_of_jaxprs(
    primitive: Any, callee: Any, counts: tuple[int, int], transpose: Any, count: int
) -> Callable[..., list[Any]]:
    """The call with all constants as operands, of which both functions get all."""
    residual = count + sum(counts)
    constants, operands = transpose.in_avals[:count], callee.in_avals
    back = [*constants, *operands[: sum(counts)], *callee.out_avals]
    whole = _pure(lambda *values: _jaxcore.run_jaxpr(bare(callee), *values[count:]), [*constants, *operands])
    whole_back = _pure(
        lambda *values: _jaxcore.run_jaxpr(bare(transpose), *values[:count], *values[count + counts[0] :]), back
    )

    def linear_call(*operands: Any) -> list[Any]:
        thunk = lambda: (whole_back, [])
        return primitive.bind(*operands, callee=whole, transpose_thunk=thunk, num_callee_consts=0, num_res=residual)

    return linear_call


def _pure(function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """The closed jaxpr of a function, which keeps nothing of the call that it is made in."""
    like = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    with _jaxcore.eval_context():
        return jax.make_jaxpr(function)(*like)

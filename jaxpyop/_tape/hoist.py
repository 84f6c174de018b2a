"""Hoists the constants of a jitted function: arrays that it closes over become its first operands.

Without this, a function that closes over a fresh array in each step would be linearized in each step. With it, all
calls that differ only in such arrays share one operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._jaxcore import constants_of, is_plain_jit, jaxpr_of
from jaxpyop._tape.ops import Operation, shared_op, with_name


def hoisted(primitive: Any, params: dict[str, Any]) -> tuple[Operation, list[Any]] | None:
    """Returns a shared operation that takes a jitted function's constants first, and the constants.

    The result is None for any other primitive, for a function that cannot be shared, and if there is no constant.
    """
    if primitive is not _jaxcore.jit_p or not is_plain_jit(params) or not (constants := constants_of(params["jaxpr"])):
        return None
    try:
        key = ("hoisted", _jaxcore.structural_key(params, _jaxcore.OMIT))
    except _jaxcore.UnkeyableError:
        return None
    return shared_op(key, lambda: with_name(_with_operands(params["jaxpr"], constants), params["name"])), constants


def _with_operands(closed: Any, constants: Sequence[Any]) -> Callable[..., list[Any]]:
    """Returns the function of a jaxpr that takes the constants as its first operands."""
    count = len(constants)

    def call(*operands: Any) -> list[Any]:
        return _evaluate(closed, iter(operands[:count]), operands[count:])

    like = [_jaxcore.struct_of(x) for x in (*map(jax.typeof, constants), *(v.aval for v in jaxpr_of(closed).invars))]
    # The shared operation must not keep this call's constants alive, so it holds a jaxpr made without them.
    with _jaxcore.eval_context():
        pure = jax.make_jaxpr(call)(*like)
    return lambda *operands: _jaxcore.run_jaxpr(jaxpr_of(pure), *operands, consts=pure.consts)


def _evaluate(closed: Any, constants: Iterator[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with other constants, which come in the order of `constants_of`."""

    def bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
        if eqn.primitive is _jaxcore.jit_p and constants_of(eqn.params["jaxpr"]):
            return _evaluate(eqn.params["jaxpr"], constants, values)
        return _jaxcore.run_equation(eqn, values)

    jaxpr = jaxpr_of(closed)
    own = list(itertools.islice(constants, len(jaxpr.constvars)))
    return _jaxcore.run_jaxpr(jaxpr, *args, consts=own, bind=bind)

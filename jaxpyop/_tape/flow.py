"""Which outputs depend on which inputs, and which values the derivatives read.

Both are found by tracing, without evaluating anything. Dependence is symbolic:
what passes through `sign` or `stop_gradient` has no derivative at all, rather
than one of zero, which times infinity would be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.custom_derivatives import SymbolicZero

from jaxpyop import _jaxcore
from jaxpyop._tape.vjp import Outputs, filled, is_differentiable, pull, zeros

# Each probe traces the function once; of more inputs than this, all are taken
# to matter wherever one does.
_MAX_PROBES = 8


class Flow(NamedTuple):
    """How derivatives pass through a call.

    Attributes:
        needs: for each output, the inputs that its tangent depends on.
        reads: the inputs whose values the derivatives read. Those of a sum
            read none: the record need not keep them.
    """

    needs: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]


def full_flow(tracked: Sequence[bool], outs: Sequence[Any]) -> Flow:
    """Every output that has a tangent depends on every tracked input."""
    inputs = tuple(i for i, t in enumerate(tracked) if t)
    needs = tuple(inputs if is_differentiable(o.dtype) else () for o in outs)
    return Flow(needs, tuple(range(len(tracked))))


def find_flow(function: Outputs, tracked: Sequence[bool], args: Sequence[Any]) -> Flow:
    """How derivatives pass through `function` when these inputs have tangents."""
    inputs = [i for i, t in enumerate(tracked) if t]
    groups = [[i] for i in inputs] if len(inputs) <= _MAX_PROBES else [inputs]
    probes = [_live_outputs(function, group, args) for group in groups]
    needs = tuple(
        tuple(i for group, alive in zip(groups, lives, strict=True) if alive for i in group)
        for lives in zip(*probes, strict=True)
    )
    return Flow(needs, _find_reads(function, needs, args) if any(needs) else ())


def _live_outputs(function: Outputs, group: list[int], args: Sequence[Any]) -> list[bool]:
    """Which outputs have a tangent when the inputs in `group` have one.

    All outputs go through a function with a rule of its own, which JAX hands
    a `SymbolicZero` for each that has none.
    """
    differentiable: list[bool] = []
    alive: list[bool] = []

    def sink(outputs: list[Any]) -> list[Any]:
        return outputs

    def rule(primals: Any, tangents: Any) -> Any:
        alive[:] = [type(t) is not SymbolicZero for t in tangents[0]]
        return primals[0], tangents[0]

    observed = jax.custom_jvp(sink)
    observed.defjvp(rule, symbolic_zeros=True)

    def probe(*args: Any) -> Any:
        def inner(*primals: Any) -> Any:
            outputs = function(filled(args, group, primals))
            differentiable[:] = [is_differentiable(o.dtype) for o in outputs]
            return observed([o for o, flag in zip(outputs, differentiable, strict=True) if flag])

        primals = [args[i] for i in group]
        return jax.jvp(inner, primals, primals)

    try:
        jax.eval_shape(probe, *args)
    except Exception:
        # It has no derivative: the error belongs to the backward pass, if one comes.
        shapes = jax.eval_shape(lambda *a: list(function(a)), *args)
        return [is_differentiable(s.dtype) for s in shapes]
    flags = iter(alive)  # empty if no output has a tangent: then the rule is not called
    return [flag and next(flags, False) for flag in differentiable]


def _find_reads(function: Outputs, needs: Sequence[Sequence[int]], args: Sequence[Any]) -> tuple[int, ...]:
    """The inputs whose values the pullback of all outputs reads."""
    wanted = tuple(j for j, need in enumerate(needs) if need)
    diff = tuple(sorted({i for need in needs for i in need}))

    def backward(args: list[Any]) -> Sequence[Any]:
        outs = function(args)
        return pull(function, wanted, diff, args, [zeros(outs[j]) for j in wanted])

    try:
        jaxpr = jax.make_jaxpr(backward)(list(args)).jaxpr
    except Exception:
        return tuple(range(len(args)))  # as above
    _, live = live_equations(jaxpr)
    return tuple(i for i, v in enumerate(jaxpr.invars) if v in live)


def live_equations(jaxpr: Any) -> tuple[list[Any], set[Any]]:
    """The equations that the outputs depend on, and all variables that those read."""

    def variables(atoms: Sequence[Any]) -> set[Any]:
        return {a for a in atoms if not isinstance(a, _jaxcore.Literal)}

    live = variables(jaxpr.outvars)
    eqns: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not live.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            live |= variables(eqn.invars)
    return eqns[::-1], live

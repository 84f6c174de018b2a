"""Finds which outputs of an operation depend on which inputs, and which values its derivatives read.

Both are found by tracing, without evaluating anything. Dependence is symbolic: what passes through `sign` or
`stop_gradient` has no derivative at all. A derivative of zero would not do, because zero times infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.custom_derivatives import SymbolicZero

from jaxpyop import _jaxcore
from jaxpyop._jaxcore import is_inexact
from jaxpyop._tape.pull_push import Outputs, pull

# Each probe traces the function once. More inputs than this are probed as one group: an output that depends on one is
# taken to depend on all.
_MAX_PROBES = 8


class Dependence(NamedTuple):
    """How derivatives pass through a call.

    Attributes:
        needs: for each output, the inputs that its tangent depends on.
        reads: the inputs whose values the derivatives read. The derivatives of a sum read none, so that the record
            need not keep them.
    """

    needs: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]


def full_dependence(tracked: Sequence[bool], outs: Sequence[Any]) -> Dependence:
    """Every output that can have a tangent depends on every tracked input."""
    inputs = tuple(i for i, t in enumerate(tracked) if t)
    return Dependence(tuple(inputs if is_inexact(o) else () for o in outs), tuple(range(len(tracked))))


def find_dependence(function: Outputs, tracked: Sequence[bool], args: Sequence[Any]) -> Dependence:
    """Finds how derivatives pass through `function` when the `tracked` inputs have tangents."""
    inputs = [i for i, t in enumerate(tracked) if t]
    groups = [[i] for i in inputs] if len(inputs) <= _MAX_PROBES else [inputs]
    probes = [_perturbed_outputs(function, group, args) for group in groups]
    needs = tuple(
        tuple(i for group, perturbed in zip(groups, by_group, strict=True) if perturbed for i in group)
        for by_group in zip(*probes, strict=True)
    )
    return Dependence(needs, _find_reads(function, needs, args) if any(needs) else ())


def _perturbed_outputs(function: Outputs, group: list[int], args: Sequence[Any]) -> list[bool]:
    """Tells which outputs have a tangent when the inputs in `group` have one.

    All outputs go through a function with a rule of its own. JAX hands that rule a `SymbolicZero` for each output
    without a tangent.
    """
    inexact: list[bool] = []
    perturbed: list[bool] = []

    def rule(primals: Any, tangents: Any) -> Any:
        perturbed[:] = [type(t) is not SymbolicZero for t in tangents[0]]
        return primals[0], tangents[0]

    observed = jax.custom_jvp(lambda outputs: outputs)
    observed.defjvp(rule, symbolic_zeros=True)

    def probe(*args: Any) -> Any:
        def inner(*primals: Any) -> Any:
            outputs = function(_jaxcore.replaced(args, group, primals))
            inexact[:] = map(is_inexact, outputs)
            return observed([o for o in outputs if is_inexact(o)])

        primals = [args[i] for i in group]
        return jax.jvp(inner, primals, primals)

    try:
        jax.eval_shape(probe, *args)
    except Exception:
        # The function has no derivative. That is an error of the backward pass, if one comes.
        return list(map(is_inexact, jax.eval_shape(lambda *a: list(function(a)), *args)))
    # JAX does not call the rule where no output has a tangent.
    flags = iter(perturbed)
    return [flag and next(flags, False) for flag in inexact]


def _find_reads(function: Outputs, needs: Sequence[Sequence[int]], args: Sequence[Any]) -> tuple[int, ...]:
    """Finds the inputs whose values the pullback of all outputs reads."""
    outnums = tuple(j for j, need in enumerate(needs) if need)
    argnums = tuple(sorted({i for need in needs for i in need}))

    def backward(args: list[Any]) -> Sequence[Any]:
        outs = function(args)
        return pull(function, outnums, argnums, args, [_jaxcore.zeros(outs[j]) for j in outnums])

    try:
        jaxpr, consts = _jaxcore.opened(jax.make_jaxpr(backward)(list(args)))
        used = _jaxcore.without_dead_code(jaxpr)[1][len(consts) :]
    except Exception:
        # As above: the function has no derivative.
        return tuple(range(len(args)))
    return tuple(i for i, is_used in enumerate(used) if is_used)

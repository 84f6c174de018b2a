"""The tangents of a loop on values: a second loop, over the state and its tangents.

It is bound as a primitive of its own, `loop_tangents`. That primitive is linear in the tangents, so it can be
transposed: `backward` does so, by walking the iterations from the last to the first. Both are made of loops again, so
there are derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore as core
from jaxpyop._jaxcore import ad
from jaxpyop._traced.loop.primitive import (
    Loop,
    Mask,
    batched_loop,
    dependent_state,
    loop_p,
    pick,
    put,
    with_64_bits,
    with_batch_axes,
)

# Which constants, and which values of the state, have tangents.
Perturbed = tuple[Mask, Mask]


def perturbed_step(loop: Loop, consts: Sequence[Any], state: Sequence[Any], perturbed: Perturbed) -> Any:
    """Returns an iteration as a function of the perturbed values alone, and these values.

    The function returns the perturbed values of the next state, and the others.
    """

    def step(c: Sequence[Any], s: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        new = loop.differentiable_step(put(consts, perturbed[0], c), put(state, perturbed[1], s))
        return pick(new, perturbed[1]), pick(new, [not flag for flag in perturbed[1]])

    return step, (pick(consts, perturbed[0]), pick(state, perturbed[1]))


def _loop_with_tangents(loop: Loop, consts: Sequence[Any], state: Sequence[Any], perturbed: Perturbed) -> Loop:
    count, size = len(consts), len(state)

    def goes_on(c: Any, s: Any) -> Any:
        return loop.goes_on(c[:count], s[:size])

    def step(c: Any, s: Any) -> list[Any]:
        function, primals = perturbed_step(loop, c[:count], s[:size], perturbed)
        new, tangents, others = jax.jvp(function, primals, (c[count:], s[size:]), has_aux=True)
        all_new = put([None] * size, perturbed[1], new)
        return [*put(all_new, [not flag for flag in perturbed[1]], others), *tangents]

    like = [*consts, *pick(consts, perturbed[0])], [*state, *pick(state, perturbed[1])]
    return loop.derived(("tangents", perturbed), goes_on, step, *like)


@with_64_bits
def _run_tangents(*operands: Any, loop: Loop, perturbed: Perturbed) -> list[Any]:
    count, size, split = loop.const_count, len(perturbed[1]), sum(perturbed[0])
    consts, state, tangents = operands[:count], operands[count : count + size], operands[count + size :]
    with_tangents = _loop_with_tangents(loop, consts, state, perturbed)
    return loop_p.bind(*consts, *tangents[:split], *state, *tangents[split:], loop=with_tangents)[size:]


loop_tangents_p = core.Primitive("loop_tangents")
loop_tangents_p.multiple_results = True
loop_tangents_p.def_impl(_run_tangents)


@loop_tangents_p.def_abstract_eval
def _tangent_avals(*avals: Any, loop: Loop, perturbed: Perturbed) -> list[Any]:
    state = avals[loop.const_count : loop.const_count + len(perturbed[1])]
    return [aval.update(weak_type=False) for aval in pick(state, perturbed[1])]


core.mlir.register_lowering(loop_tangents_p, core.mlir.lower_fun(_run_tangents, multiple_results=True))


@with_64_bits
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop) -> tuple[list[Any], list[Any]]:
    nonzero = tuple(not core.is_zero(t) for t in tangents)
    consts, inits = nonzero[: loop.const_count], primals[loop.const_count :]
    reached = dependent_state(loop, consts, nonzero[loop.const_count :])
    state = tuple(flag and core.is_inexact(jax.typeof(x)) for flag, x in zip(reached, inits, strict=True))
    outs = loop_p.bind(*primals, loop=loop)
    full = [core.zeros(jax.typeof(x)) if core.is_zero(t) else t for t, x in zip(tangents, primals, strict=True)]
    found = loop_tangents_p.bind(*primals, *pick(full, (*consts, *state)), loop=loop, perturbed=(consts, state))
    return outs, put([ad.Zero(core.tangent_aval(out)) for out in outs], state, found)


ad.primitive_jvps[loop_p] = _jvp


@with_64_bits
def _jvp_of_tangents(
    primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop, perturbed: Perturbed
) -> tuple[list[Any], list[Any]]:
    nonzero = [not core.is_zero(t) for t in tangents]
    outs = loop_tangents_p.bind(*primals, loop=loop, perturbed=perturbed)

    def function(*xs: Any) -> list[Any]:
        return _run_tangents(*put(primals, nonzero, xs), loop=loop, perturbed=perturbed)

    return outs, jax.jvp(function, pick(primals, nonzero), pick(tangents, nonzero))[1]


ad.primitive_jvps[loop_tangents_p] = _jvp_of_tangents


@with_64_bits
def _batch_of_tangents(
    args: Sequence[Any], dims: Sequence[int | None], *, loop: Loop, perturbed: Perturbed
) -> tuple[list[Any], list[int]]:
    count, end = loop.const_count, loop.const_count + len(perturbed[1])
    tangent_dims = put([None] * count, perturbed[0], dims[end : end + sum(perturbed[0])])
    # A perturbed constant is batched if it or its tangent is. The state is batched throughout.
    consts = tuple(a is not None or b is not None for a, b in zip(dims[:count], tangent_dims, strict=True))
    state = (True,) * len(perturbed[1])
    size, operands = with_batch_axes(
        args, dims, (*consts, *state, *pick(consts, perturbed[0]), *pick(state, perturbed[1]))
    )
    batched = batched_loop(loop, consts, state, size, operands[:end])
    outs = loop_tangents_p.bind(*operands, loop=batched, perturbed=perturbed)
    return outs, [0] * len(outs)


core.batching.primitive_batchers[loop_tangents_p] = _batch_of_tangents

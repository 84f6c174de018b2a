"""The derivatives of a loop on values. Both are made of loops again, so there are derivatives of any order.

The tangents are a second loop, over the state and its tangents. It is bound as a primitive of its own, `loop_tangents`.
That primitive is linear in the tangents, so it can be transposed.

Its transpose walks the iterations from the last to the first. The loop is run once more, and the state before each
iteration is kept, in arrays of `max_steps` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._jaxcore import ad
from jaxpyop._traced.loop.primitive import *

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


# -------------------------------------------------------------- the backward pass


def _kept_states(loop: Loop, consts: Sequence[Any], state: Sequence[Any], bound: int) -> tuple[Any, list[Any], Any]:
    """Runs at most `bound` iterations.

    Returns:
        How many there were, the states before each of them, in arrays of `bound` rows, and the last state.
    """
    count = len(state)

    def goes_on(i: Any, *xs: Any) -> Any:
        return (i < bound) & loop.goes_on(consts, xs[:count])

    def step(i: Any, *xs: Any) -> list[Any]:
        values, kept = xs[:count], xs[count:]
        new = [jax.lax.dynamic_update_index_in_dim(k, v, i, 0) for k, v in zip(kept, values, strict=True)]
        return [i + 1, *loop.step(consts, values), *new]

    empty = [jnp.broadcast_to(x, (bound, *jnp.shape(x))) for x in state]
    steps, *rest = run_loop(goes_on, step, [jnp.int32(0), *state, *empty], bound, loop.label)
    return steps, rest[count:], rest[:count]


def _pull_back(
    loop: Loop, consts: Sequence[Any], state: Sequence[Any], cts: Sequence[Any], perturbed: Perturbed
) -> list[Any]:
    bound = loop.max_steps
    if bound is None:
        raise NotImplementedError(
            f"{loop.label}: a backward pass through a loop on values keeps the state of each iteration, and needs to "
            "know how many there can be; pass max_steps=, or mode='eager' (forward mode, jax.jvp and jax.jacfwd, needs "
            "none)"
        )
    steps, kept, last = _kept_states(loop, consts, state, bound)
    count = sum(perturbed[0])

    def step_back(i: Any, *cts: Any) -> list[Any]:
        """The cotangents before one iteration. Those of the constants add up."""
        before = [jax.lax.dynamic_index_in_dim(k, i - 1, keepdims=False) for k in kept]
        step, primals = perturbed_step(loop, consts, before, perturbed)
        _, pullback, _ = jax.vjp(step, *primals, has_aux=True)
        of_consts, of_state = pullback(list(cts[count:]))
        return [i - 1, *map(jnp.add, cts[:count], of_consts), *of_state]

    # The derivative of a loop with more iterations than the bound would leave some out: it is NaN instead.
    is_complete = ~loop.goes_on(consts, last)
    cts = [jnp.where(is_complete, ct, np.nan) for ct in cts]
    zeros = [core.zeros(jax.typeof(c)) for c in pick(consts, perturbed[0])]
    return run_loop(lambda i, *_: i > 0, step_back, [steps, *zeros, *cts], bound, loop.label)[1:]


@with_64_bits
def _transpose(cts: Sequence[Any], *operands: Any, loop: Loop, perturbed: Perturbed) -> list[Any]:
    count, end = loop.const_count, loop.const_count + len(perturbed[1])
    consts, state, tangents = operands[:count], operands[count:end], operands[end:]
    avals = pick([jax.typeof(x) for x in state], perturbed[1])
    full = [core.zeros(a) if type(ct) is ad.Zero else ct for ct, a in zip(cts, avals, strict=True)]
    found = _pull_back(loop, consts, state, full, perturbed)
    wanted = [ct if ad.is_undefined_primal(t) else None for ct, t in zip(found, tangents, strict=True)]
    return [None] * end + wanted


ad.primitive_transposes[loop_tangents_p] = _transpose

"""The rules of the primitive `python_call` for derivatives: `_linearize` for `jax.grad`, `_jvp`, and `_transpose`.

The derivative of a call is another call, linear in its last operands. The transpose of that is a third call. The rules
say which calls these are, and on which operands; the calls themselves say what they do (`Call.linearize`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _dtypes, _jaxcore, _sharding
from jaxpyop._dtypes import is_inexact
from jaxpyop._host import Batch
from jaxpyop._jaxcore import ad
from jaxpyop._op.primitive.call import Call, made_by, masks_and_added_axes
from jaxpyop._op.primitive.primitive import bind, python_call_p

# From the inputs' tangents, some of which are ad.Zero, to the results' tangents.
_Pushforward = Callable[[Sequence[Any]], list[Any]]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, batch: Batch) -> tuple[list[Any], list[Any]]:
    outs, pushforward = _results_and_pushforward(primals, [not _jaxcore.is_zero(t) for t in tangents], call, batch)
    return outs, pushforward(tangents)


def _linearize(perturbed: Sequence[bool], primals: Sequence[Any], *, call: Call, batch: Batch) -> _jaxcore.Linearized:
    perturbed = [p and is_inexact(x) for p, x in zip(perturbed, primals)]
    outs, pushforward = _results_and_pushforward(primals, perturbed, call, batch)
    return outs, [is_inexact(o) for o in outs], pushforward


def _results_and_pushforward(
    primals: Sequence[Any], perturbed: Sequence[bool], call: Call, batch: Batch
) -> tuple[list[Any], _Pushforward]:
    """The results, and the pushforward from the inputs that `perturbed` marks."""
    # `tangents_of` is called while JAX traces the tangents. What it binds is an equation of the linear program, which
    # `jax.grad` transposes afterwards, by the rule `_transpose`.
    first = len(primals) - call.operands.linear_inputs
    of_linear_alone = first < len(primals) and not (any(perturbed[:first]) and call.body.depends_on_inputs)
    if not any(map(is_inexact, call.op.spec.leaves)):
        tangents_of: Callable[[Sequence[Any]], Sequence[Any]] = lambda tangents: []
    elif of_linear_alone and call.is_own_derivative:
        # A derivative is linear in its tangents or cotangents. If these alone are perturbed, it is its own derivative.
        tangents_of = lambda tangents: bind(
            call, *primals[:first], *map(ad.instantiate_zeros, tangents[first:]), batch=batch
        )
    elif (program := call.program(primals, batch)) is not None:
        # Only a user's rule that is an op itself has one.
        return _by_program(program, primals, perturbed)
    else:
        return _by_linearization(primals, tuple(perturbed), call, batch)
    return _with_pushforward(bind(call, *primals, batch=batch), tangents_of)


def _with_pushforward(
    outs: list[Any], tangents_of: Callable[[Sequence[Any]], Sequence[Any]]
) -> tuple[list[Any], _Pushforward]:
    def pushforward(tangents: Sequence[Any]) -> list[Any]:
        found = iter(tangents_of(tangents))
        return [next(found) if is_inexact(o) else ad.Zero(_jaxcore.tangent_aval(o)) for o in outs]

    return outs, pushforward


def _by_linearization(
    primals: Sequence[Any], perturbed: tuple[bool, ...], call: Call, batch: Batch
) -> tuple[list[Any], _Pushforward]:
    """Bind the two calls of `Call.linearize`: the forward call now, and the linear call once there are tangents."""
    plan = call.linearize(perturbed)
    for step, part in (("forward", plan.forward), ("linear", plan.linear)):
        # A saved program names its calls by how they were made.
        made_by(step, call, perturbed, part)
    fitting, inner_batch, fit = _batch_of_derivative(primals, plan.linear, batch)
    inputs, inner_batch = fitting[plan.skip :], inner_batch.with_inputs(lambda mask: mask[plan.skip :])
    if plan.forward is call:
        outs = bind(call, *primals, batch=batch)
    else:
        outs = bind(plan.forward, *inputs, batch=inner_batch)
    count = len(outs) - len(plan.forward.operands.extra_results)
    extra, results = outs[count:], outs[:count] if plan.with_results else []

    def mask_of_operands(mask: tuple[bool, ...]) -> tuple[bool, ...]:
        of_tangents = (axis for axis, p in zip(mask, perturbed[plan.skip :]) if p)
        return (*(True for _ in extra), *mask, *(True for _ in results), *of_tangents)

    def tangents_of(tangents: Sequence[Any]) -> list[Any]:
        nonzero = [fit(k, tangent) for k, (tangent, p) in enumerate(zip(tangents, perturbed)) if p]
        return bind(plan.linear, *extra, *inputs, *results, *nonzero, batch=inner_batch.with_inputs(mask_of_operands))

    return _with_pushforward(outs[: count + len(call.operands.extra_results)], tangents_of)


def _by_program(
    program: Callable[..., list[Any]], primals: Sequence[Any], perturbed: Sequence[bool]
) -> tuple[list[Any], _Pushforward]:
    """Let JAX differentiate a program that gives the results of the call."""

    def of_perturbed(*inputs: Any) -> list[Any]:
        found = iter(inputs)
        return program(*(next(found) if p else x for x, p in zip(primals, perturbed)))

    outs, push = jax.linearize(of_perturbed, *(x for x, p in zip(primals, perturbed) if p))
    return _with_pushforward(outs, lambda tangents: push(*(t for t, p in zip(tangents, perturbed) if p)))


def _batch_of_derivative(
    primals: Sequence[Any], linear: Call, batch: Batch
) -> tuple[Sequence[Any], Batch, Callable[[int, Any], Any]]:
    """Return how the derivative of a batched call is batched. Its part for the tangents is the call `linear`.

    Returns:
        The inputs of the call, as the derivative takes them; the batch over these; and a function that gives the
        tangent of input `k` the batch axes that the derivative expects.
    """
    if not batch.block:
        return primals, batch, lambda k, tangent: tangent
    sizes = batch.sizes
    if linear.method.whole_batch:
        # A rule gets tangents with all batch axes in full size.
        return primals, batch, lambda k, tangent: jnp.broadcast_to(tangent, (*sizes, *tangent.shape[len(sizes) :]))
    # A record belongs to one element, so a differentiated block becomes a loop. The axes of size 1 that a block method
    # added are taken away again.
    masks, added = masks_and_added_axes(primals, sizes)
    squeezed = [jnp.squeeze(p, axes) for p, axes in zip(primals, added)]
    return squeezed, Batch(sizes, masks), lambda k, tangent: jnp.squeeze(tangent, added[k])


# ------------------------------------------------------------------- transpose


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Call, batch: Batch) -> list[Any]:
    with _dtypes.as_wide_as([*cotangents, *operands]):
        return _transpose_here(cotangents, operands, call, batch)


def _transpose_here(cotangents: Sequence[Any], operands: Sequence[Any], call: Call, batch: Batch) -> list[Any]:
    if not call.body.linear_inputs:
        return _transpose_function(cotangents, operands, call, batch)
    nonzero = tuple(type(ct) is not ad.Zero for ct in cotangents)
    if not any(nonzero):
        return [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands]
    # For a `py_function` this is `TapeReplay.transposed`.
    back = made_by("transposed", call, nonzero, call.transposed(nonzero))
    # Residuals come before the tangents.
    first = len(operands) - call.body.linear_inputs
    known = [ct for ct in cotangents if type(ct) is not ad.Zero]
    batch_of_back = batch.with_inputs(lambda mask: (*mask[:first], *(True for _ in known)))
    found = bind(back, *operands[:first], *known, batch=batch_of_back)
    return [None] * first + [
        _cotangent_of(x, ct, first + k, batch) for k, (x, ct) in enumerate(zip(operands[first:], found))
    ]


def _transpose_function(cotangents: Sequence[Any], operands: Sequence[Any], call: Call, batch: Batch) -> list[Any]:
    """Transpose a function that is declared linear. Its derivative is the same for all inputs, and takes zeros here."""
    if call.op.rules.transpose is None:
        raise NotImplementedError(
            f"{call.title}: jax.linear_transpose only works for functions declared linear with transpose=; use jax.vjp"
        )
    moves = tuple(map(ad.is_undefined_primal, operands))
    linear = made_by("linear", call, moves, call.linearize(moves).linear)
    inputs = [jnp.zeros(x.aval.shape, x.aval.dtype) if m else x for x, m in zip(operands, moves)]
    own = [x for x, m in zip(operands, moves) if m]
    of_both = batch.with_inputs(lambda mask: (*mask, *(has for has, m in zip(mask, moves) if m)))
    found = iter(_transpose_here(cotangents, [*inputs, *own], linear, of_both)[len(inputs) :])
    return [next(found) if m else None for m in moves]


def _cotangent_of(operand: Any, cotangent: Any, k: int, batch: Batch) -> Any:
    """The cotangent of operand `k`, summed over the batch axes that it does not have; None if it is not asked for."""
    if not ad.is_undefined_primal(operand):
        return None
    if axes := tuple(axis for axis, mask in enumerate(batch.masks) if not mask[k]):
        cotangent = jnp.sum(cotangent, axes)
    # A block method added axes of size 1.
    shape = operand.aval.shape
    if axes := tuple(axis for axis, (a, b) in enumerate(zip(cotangent.shape, shape)) if a != b):
        cotangent = jnp.sum(cotangent, axes, keepdims=True)
    return _sharding.shard_as(cotangent, operand.aval)


ad.primitive_jvps[python_call_p] = _jvp  # where jax.jvp enters
_jaxcore.set_linearize_rule(python_call_p, _linearize)  # where jax.grad enters
ad.primitive_transposes[python_call_p] = _transpose

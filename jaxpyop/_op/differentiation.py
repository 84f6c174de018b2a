"""The JVP and the transpose of a call: which calls they are, and on which operands.

`python_call_p` has these rules once this is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore
from jaxpyop._host import Batch
from jaxpyop._jaxcore import ad
from jaxpyop._op.bodies import is_inexact
from jaxpyop._op.primitive import bind, python_call_p, structs_of


def _is_zero(tangent: Any) -> bool:
    # JAX hands Python numbers through as they are.
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == jax.dtypes.float0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Any, batch: Batch) -> tuple[list[Any], list[Any]]:
    if not call.differentiable:
        outs = bind(call, *primals, batch=batch)
        return outs, [ad.Zero(_jaxcore.tangent_aval(o)) for o in outs]
    if call.is_linear:
        return _jvp_of_linear(primals, tangents, call, batch)
    if call.linear and all(map(_is_zero, tangents[: len(tangents) - call.linear])):
        return _jvp_of_linear_part(primals, tangents, call, batch)
    whole, block = primals, batch
    if batch.block and call.blocks:
        sizes = batch.sizes
        tangents = [t if _is_zero(t) else jnp.broadcast_to(t, (*sizes, *t.shape[len(sizes) :])) for t in tangents]
    elif batch.block:
        primals, tangents, batch = _as_loop(primals, tangents, batch)
    moving = tuple(not _is_zero(t) for t in tangents)
    plan = call.linearize(moving)
    primals, moving = primals[plan.skip :], moving[plan.skip :]
    batch = batch.with_inputs(lambda mask: mask[plan.skip :])
    if plan.forward is call:
        outs = bind(call, *whole, batch=block)
    else:
        outs = bind(plan.forward, *primals, batch=batch)
    own = len(outs) - plan.forward.adds
    extra = outs[own:]
    results = outs[:own] if plan.with_results else []
    moved = [t for t in tangents if not _is_zero(t)]

    def mask_of_all(mask: tuple[bool, ...]) -> tuple[bool, ...]:
        of_moved = (axis for axis, moves in zip(mask, moving) if moves)
        return (*(True for _ in extra), *mask, *(True for _ in results), *of_moved)

    operands = [*extra, *primals, *results, *moved]
    found = iter(bind(plan.linear, *operands, batch=batch.with_inputs(mask_of_all)))
    outs = outs[: own + call.adds]
    return outs, [next(found) if is_inexact(o) else ad.Zero(_jaxcore.tangent_aval(o)) for o in outs]


def _jvp_of_linear(
    primals: Sequence[Any], tangents: Sequence[Any], call: Any, batch: Batch
) -> tuple[list[Any], list[Any]]:
    outs = bind(call, *primals, batch=batch)
    mask = tuple(map(is_inexact, primals))
    moved = [p if not m else ad.instantiate_zeros(t) for p, t, m in zip(primals, tangents, mask)]
    batch = batch.with_inputs(lambda axes: _sorted(axes, mask))
    found = iter(bind(call.in_tangents(mask), *_sorted(moved, mask), batch=batch))
    return outs, [next(found) if is_inexact(o) else ad.Zero(_jaxcore.tangent_aval(o)) for o in outs]


def _jvp_of_linear_part(
    primals: Sequence[Any], tangents: Sequence[Any], call: Any, batch: Batch
) -> tuple[list[Any], list[Any]]:
    """Of a rule in its tangents or cotangents alone: the rule again."""
    first = len(primals) - call.linear
    moved = map(ad.instantiate_zeros, tangents[first:])
    return bind(call, *primals, batch=batch), bind(call, *primals[:first], *moved, batch=batch)


def _sorted(values: Sequence[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    """What is not marked, then what is: the order of a linear map's inputs."""
    return (*(v for v, m in zip(values, mask) if not m), *(v for v, m in zip(values, mask) if m))


def _as_loop(primals: Sequence[Any], tangents: Sequence[Any], batch: Batch) -> tuple[list[Any], list[Any], Batch]:
    # A record belongs to one element, so a differentiated batch is looped
    # over: axes of size 1 that a block method added are taken away again.
    masks = tuple(tuple(p.shape[axis] == size and size != 1 for p in primals) for axis, size in enumerate(batch.sizes))
    gone = [tuple(axis for axis, mask in enumerate(masks) if not mask[i]) for i in range(len(primals))]
    primals = [jnp.squeeze(p, axes) for p, axes in zip(primals, gone)]
    tangents = [t if _is_zero(t) else jnp.squeeze(t, axes) for t, axes in zip(tangents, gone)]
    return primals, tangents, Batch(batch.sizes, masks)


ad.primitive_jvps[python_call_p] = _jvp


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Any, batch: Batch) -> list[Any]:
    unknown = [ad.is_undefined_primal(x) for x in operands]
    if call.is_linear:
        return _transpose_of_linear(cotangents, operands, call, batch)
    if not hasattr(call.body, "transposed"):
        raise NotImplementedError(f"{call.title}: jax.linear_transpose does not know it as linear; use jax.vjp")
    given = tuple(type(ct) is not ad.Zero for ct in cotangents)
    if not any(given):
        return [ad.Zero(x.aval) if u else None for x, u in zip(operands, unknown)]
    first = len(operands) - sum(call.body.moving)  # of the tangents; before it are residuals
    residuals, of_residuals = operands[:first], slice(0, first)
    known = [ct for ct, g in zip(cotangents, given) if g]
    found = bind(
        call.transposed(given),
        *residuals,
        *known,
        batch=batch.with_inputs(lambda mask: (*mask[of_residuals], *(True for _ in known))),
    )
    summed = [_sum_unbatched(ct, first + k, batch) for k, ct in enumerate(found)]
    asked = zip(summed, operands[first:], unknown[first:])
    return [None] * first + [_jaxcore.shard_as(ct, x.aval) if u else None for ct, x, u in asked]


def _transpose_of_linear(cotangents: Sequence[Any], operands: Sequence[Any], call: Any, batch: Batch) -> list[Any]:
    avals = [x.aval if ad.is_undefined_primal(x) else jax.typeof(x) for x in operands]
    mask = tuple(map(is_inexact, avals))
    known = [ad.instantiate_zeros(ct) for ct in cotangents if not _is_zero_of_integers(ct)]
    fixed = [x for x, m in zip(operands, mask) if not m]
    back = call.in_tangents(mask).back(_sorted(structs_of(avals, batch), mask))

    def mask_of_all(axes: tuple[bool, ...]) -> tuple[bool, ...]:
        return (*_sorted(axes, mask)[: len(fixed)], *(True for _ in known))

    found = iter(bind(back, *fixed, *known, batch=batch.with_inputs(mask_of_all)))
    summed = [_sum_unbatched(next(found), k, batch) if m else None for k, m in enumerate(mask)]
    return [
        _jaxcore.shard_as(_sum_to(ct, aval.shape), aval) if ad.is_undefined_primal(x) else None
        for ct, aval, x in zip(summed, avals, operands)
    ]


def _is_zero_of_integers(cotangent: Any) -> bool:
    return type(cotangent) is ad.Zero and getattr(cotangent.aval, "dtype", None) == jax.dtypes.float0


def _sum_to(cotangent: Any, shape: Sequence[int]) -> Any:
    axes = tuple(k for k, (a, b) in enumerate(zip(cotangent.shape, shape)) if a != b)  # which a block method added
    return jnp.sum(cotangent, axes, keepdims=True) if axes else cotangent


def _sum_unbatched(cotangent: Any, operand: int, batch: Batch) -> Any:
    axes = tuple(axis for axis, mask in enumerate(batch.masks) if not mask[operand])
    return jnp.sum(cotangent, axes) if axes else cotangent


ad.primitive_transposes[python_call_p] = _transpose

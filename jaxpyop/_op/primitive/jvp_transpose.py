"""The JVP and the transpose of a call: which calls they are, and on which operands.

`python_call_p` has these rules once this is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore
from jaxpyop._host import Batch
from jaxpyop._jaxcore import ad
from jaxpyop._op.body import is_inexact
from jaxpyop._op.primitive.primitive import bind, python_call_p, structs_of

_Push = Callable[[Sequence[Any]], list[Any]]  # from the inputs' tangents, or Zero, to the results'


def _is_zero(tangent: Any) -> bool:
    # JAX hands Python numbers through as they are.
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == jax.dtypes.float0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Any, batch: Batch) -> tuple[list[Any], list[Any]]:
    outs, push = _linearized(primals, [not _is_zero(t) for t in tangents], call, batch)
    return outs, push(tangents)


def _linearize(moves: Sequence[bool], primals: Sequence[Any], *, call: Any, batch: Batch) -> _jaxcore.Linearized:
    moves = [m and is_inexact(p) for m, p in zip(moves, primals)]
    outs, push = _linearized(primals, moves, call, batch)
    return outs, [is_inexact(o) for o in outs], push


def _linearized(primals: Sequence[Any], moves: Sequence[bool], call: Any, batch: Batch) -> tuple[list[Any], _Push]:
    """The results, and what makes their tangents of those of the inputs that move."""
    if not call.differentiable:
        return _with_push(bind(call, *primals, batch=batch), lambda tangents: [])
    if call.is_linear:
        outs = bind(call, *primals, batch=batch)
        return _with_push(outs, lambda tangents: _push_linear(primals, tangents, call, batch))
    first = len(primals) - call.linear
    if call.linear and not any(moves[:first]):  # a rule, in its tangents or cotangents alone: the rule again
        outs = bind(call, *primals, batch=batch)
        again = lambda moved: bind(call, *primals[:first], *map(ad.instantiate_zeros, moved[first:]), batch=batch)
        return _with_push(outs, again)
    return _by_plan(primals, tuple(moves), call, batch)


def _with_push(outs: list[Any], found: Callable[[Sequence[Any]], Sequence[Any]]) -> tuple[list[Any], _Push]:
    def push(tangents: Sequence[Any]) -> list[Any]:
        it = iter(found(tangents))
        return [next(it) if is_inexact(o) else ad.Zero(_jaxcore.tangent_aval(o)) for o in outs]

    return outs, push


def _by_plan(primals: Sequence[Any], moving: tuple[bool, ...], call: Any, batch: Batch) -> tuple[list[Any], _Push]:
    whole, block = primals, batch
    fitted: Callable[[int, Any], Any] = lambda k, tangent: tangent
    if batch.block and call.blocks:
        sizes = batch.sizes
        fitted = lambda k, tangent: jnp.broadcast_to(tangent, (*sizes, *tangent.shape[len(sizes) :]))
    elif batch.block:
        primals, gone, batch = _as_loop(primals, batch)
        fitted = lambda k, tangent: jnp.squeeze(tangent, gone[k])
    plan = call.linearize(moving)
    primals = primals[plan.skip :]
    batch = batch.with_inputs(lambda mask: mask[plan.skip :])
    if plan.forward is call:
        outs = bind(call, *whole, batch=block)
    else:
        outs = bind(plan.forward, *primals, batch=batch)
    own = len(outs) - plan.forward.extra_results
    extra, results = outs[own:], outs[:own] if plan.with_results else []

    def mask_of_all(mask: tuple[bool, ...]) -> tuple[bool, ...]:
        of_moved = (axis for axis, moves in zip(mask, moving[plan.skip :]) if moves)
        return (*(True for _ in extra), *mask, *(True for _ in results), *of_moved)

    def found(tangents: Sequence[Any]) -> list[Any]:
        moved = [fitted(k, tangent) for k, (tangent, moves) in enumerate(zip(tangents, moving)) if moves]
        return bind(plan.linear, *extra, *primals, *results, *moved, batch=batch.with_inputs(mask_of_all))

    return _with_push(outs[: own + call.extra_results], found)


def _push_linear(primals: Sequence[Any], tangents: Sequence[Any], call: Any, batch: Batch) -> list[Any]:
    mask = tuple(map(is_inexact, primals))
    moved = [p if not m else ad.instantiate_zeros(t) for p, t, m in zip(primals, tangents, mask)]
    batch = batch.with_inputs(lambda axes: _sorted(axes, mask))
    return bind(call.in_tangents(mask), *_sorted(moved, mask), batch=batch)


def _sorted(values: Sequence[Any], mask: Sequence[bool]) -> tuple[Any, ...]:
    """What is not marked, then what is: the order of a linear map's inputs."""
    return (*(v for v, m in zip(values, mask) if not m), *(v for v, m in zip(values, mask) if m))


def _as_loop(primals: Sequence[Any], batch: Batch) -> tuple[list[Any], list[tuple[int, ...]], Batch]:
    # A record belongs to one element, so a differentiated batch is looped
    # over: axes of size 1 that a block method added are taken away again.
    masks = tuple(tuple(p.shape[axis] == size and size != 1 for p in primals) for axis, size in enumerate(batch.sizes))
    gone = [tuple(axis for axis, mask in enumerate(masks) if not mask[i]) for i in range(len(primals))]
    return [jnp.squeeze(p, axes) for p, axes in zip(primals, gone)], gone, Batch(batch.sizes, masks)


ad.primitive_jvps[python_call_p] = _jvp
_jaxcore.set_linearization(python_call_p, _linearize)


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

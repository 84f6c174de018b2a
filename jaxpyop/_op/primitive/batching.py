"""The `vmap` rule of `python_call`: a batched call is the same call with one more batch axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore
from jaxpyop._host import Batch
from jaxpyop._op.body import differs_in_block
from jaxpyop._op.primitive.call_protocol import Call
from jaxpyop._op.primitive.primitive import bind, python_call_p


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, call: Call, batch: Batch) -> tuple[list[Any], list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    mapped = args
    args = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]
    method, operands = call.batching.method, call.operands
    block = method.whole_batch and batch.block == bool(batch.sizes)
    if operands.conditional and dims[0] is not None and (block or batch.block):
        raise ValueError(differs_in_block(call.op))
    if block:
        args = [a if d is not None else jnp.expand_dims(a, 0) for a, d in zip(args, dims)]
        # `broadcast_all` gives every input the size of the batch, except for the leading ones, which keep axes of size
        # 1: the flag of `when=`, and a receipt, where size 1 means that `fwd` did not run per element of this axis.
        # Other methods broadcast only a rule's tangents or cotangents: their axes of size 1 would be in the results.
        first = operands.leading_inputs if method.broadcasts else len(args) - operands.rule_inputs
        args[first:] = [jnp.broadcast_to(a, (size, *a.shape[1:])) for a in args[first:]]
    mask = tuple(block or d is not None for d in dims)
    outs = bind(call, *args, batch=batch.inside(size, mask, block))
    return _jaxcore.shard_batch_like(outs, mapped, dims), [0] * len(outs)


def over_batch(program: Callable[..., list[Any]], args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]]:
    """The program of one element, as a program of the whole batch.

    Args:
        program: the program.
        args: the inputs of the batch, or their types.
        batch: the batch.
    """
    if not batch.sizes:
        return program
    masks, axes = masks_and_added_axes(args, batch.sizes) if batch.block else (batch.masks, [()] * len(args))
    for size, mask in zip(reversed(batch.sizes), reversed(masks)):
        program = _mapped(program, size, mask)
    mapped = program
    return lambda *arrays: mapped(*(jnp.squeeze(a, axis) if axis else a for a, axis in zip(arrays, axes)))


def masks_and_added_axes(
    args: Sequence[Any], sizes: tuple[int, ...]
) -> tuple[tuple[tuple[bool, ...], ...], list[tuple[int, ...]]]:
    """Find which inputs of a block have each batch axis, and for each input the axes of size 1 that it got."""
    masks = tuple(tuple(a.shape[axis] == size != 1 for a in args) for axis, size in enumerate(sizes))
    return masks, [tuple(axis for axis, mask in enumerate(masks) if not mask[k]) for k in range(len(args))]


def _mapped(program: Callable[..., list[Any]], size: int, mask: tuple[bool, ...]) -> Callable[..., list[Any]]:
    if not any(mask):
        return lambda *args: [jnp.broadcast_to(v, (size, *v.shape)) for v in program(*args)]
    return jax.vmap(program, tuple(0 if m else None for m in mask), axis_size=size)


_jaxcore.batching.primitive_batchers[python_call_p] = _batch

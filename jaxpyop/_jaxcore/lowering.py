"""Lowering: the platforms and devices that a lowering is for, and buffer callbacks as operations of XLA.

The argument `ctx` is the context that JAX hands to a lowering rule. Its attributes are documented for writing
primitives in part only; the ones read here are the same from JAX 0.10 to 0.12.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.interpreters.mlir
import numpy as np
from jax._src import core as _core

from jaxpyop._jaxcore.effects import ORDERED_IO
from jaxpyop._jaxcore.frames import outer_frame
from jaxpyop._jaxcore.primitives import JAX_VERSION, ShapedArray

# Documented for writing primitives, but without a promise of stability.
mlir = jax.interpreters.mlir


def is_export(ctx: Any) -> bool:
    """Tells whether a lowering is for `jax.export`."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def keeps_dead_code(ctx: Any) -> bool:
    """Tells whether the lowered operation may be dead code, whose results are never used.

    JAX drops such operations first, except in the body of a while_loop, for which it has no rule before 0.12. A
    lowering does not see what else the body holds.
    """
    return JAX_VERSION < (0, 12) and "while" in str(ctx.name_stack)


def device_count(ctx: Any) -> int:
    """Returns over how many devices a lowering is partitioned automatically.

    It is 1 inside `shard_map`, where a program is written for one device.
    """
    axis_context = ctx.module_context.axis_context
    return axis_context.num_devices if isinstance(axis_context, mlir.ShardingContext) else 1


def platforms(ctx: Any) -> tuple[str, ...]:
    """Returns the platforms that a lowering is for. Only `jax.export` has several."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


@functools.cache
def is_packed(dtype: Any) -> bool:
    """Tells whether several values share a byte in XLA's memory."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return bool(jax.numpy.iinfo(dtype).bits < 8)
    return bool(jax.dtypes.issubdtype(dtype, np.floating) and jax.numpy.finfo(dtype).bits < 8)


# The functions of JAX that lower a function into a region of one XLA operation (JAX 0.10 to 0.12).
_COMBINING = {
    "_reduce_lower": "jax.lax.reduce",
    "_generic_reduce_window_lower": "jax.lax.reduce_window",
    "_scatter_lower": "a scatter (x.at[i].apply)",
    "_select_and_scatter_lower": "a select-and-scatter",
}


def combining_caller() -> str | None:
    """Names the operation whose combiner is being lowered, if one is: XLA cannot call Python in it."""
    frame = outer_frame(_COMBINING)
    return None if frame is None else _COMBINING[frame.f_code.co_name]


def lowered_buffer_callback(
    ctx: Any, callback: Callable[..., None], operands: Sequence[Any], results: Any, has_side_effect: bool
) -> Any:
    """Lowers a `buffer_callback`, and returns the results' IR values.

    JAX's own has to be traced first and flattens its arguments at each call, which takes several times as long.
    """
    count = len(operands)

    def flat(context: Any, *buffers: Any) -> tuple[()]:
        callback(context, buffers[count:], *buffers[:count])
        return ()

    return _emit(ctx, flat, operands, has_side_effect, [ShapedArray(r.shape, r.dtype) for r in results])


def ordered_buffer_callback(ctx: Any, callback: Callable[..., None], operands: Sequence[Any], results: Any) -> Any:
    """Lowers a `buffer_callback` that keeps program order, and returns the results' IR values.

    JAX's own takes no token. Its target in jaxlib takes one, as the target of `io_callback` does: as one more operand
    and one more result (JAX 0.10 to 0.12).
    """
    # There is no public name for this aval on JAX 0.12.
    token, count = _core.abstract_token, len(operands)

    def with_tokens(context: Any, *buffers: Any) -> tuple[()]:
        callback(context, buffers[count + 2 :], *buffers[1 : count + 1])
        return ()

    avals = [token, *(ShapedArray(r.shape, r.dtype) for r in results)]
    before = ctx.tokens_in.get(ORDERED_IO)
    after, *values = _emit(ctx.replace(avals_in=[token, *ctx.avals_in]), with_tokens, [before, *operands], True, avals)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDERED_IO: after})))
    return values


def _emit(ctx: Any, flat: Callable[..., Any], operands: Sequence[Any], has_side_effect: bool, avals: list[Any]) -> Any:
    ctx.module_context.add_host_callback(flat)
    index = np.uint64(len(ctx.module_context.host_callbacks) - 1)
    emit = jax.ffi.ffi_lowering("xla_buffer_python_cpu_callback", has_side_effect=has_side_effect)
    return emit(ctx.replace(avals_out=avals), *operands, index=index)

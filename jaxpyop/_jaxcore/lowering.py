"""Lowering: the platforms and devices that a lowering is for, and buffer callbacks as operations of XLA.

The argument `ctx` is the context that JAX hands to a lowering rule. Its attributes are documented for writing
primitives in part only; the ones read here are the same from JAX 0.10 to 0.12.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from jaxpyop._jaxcore.capabilities import JAX_VERSION, ShapedArray, has, parts_of
from jaxpyop._jaxcore.frames import caller_among
from jaxpyop._jaxcore.primitives import ORDERED_IO

# Whether a compiled program can lend its buffers.
HAS_ZERO_COPY = has("zero_copy")
_ffi_lowering, _abstract_token = parts_of("zero_copy", 2)


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
    # Only the context of such a program knows a number.
    return getattr(ctx.module_context.axis_context, "num_devices", 1)


def platforms(ctx: Any) -> tuple[str, ...]:
    """Returns the platforms that a lowering is for. Only `jax.export` has several."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


@functools.cache
def is_packed(dtype: Any) -> bool:
    """Tells whether several values share a byte in XLA's memory."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return bool(jax.numpy.iinfo(dtype).bits < 8)
    return bool(jax.dtypes.issubdtype(dtype, np.floating) and jax.numpy.finfo(dtype).bits < 8)


# The operations of XLA that have a function in a region of their own.
_COMBINING = {
    "stablehlo.reduce": "jax.lax.reduce",
    "stablehlo.reduce_window": "jax.lax.reduce_window",
    "stablehlo.scatter": "a scatter (x.at[i].apply)",
    "stablehlo.select_and_scatter": "a select-and-scatter",
}
# The functions of JAX that lower them. If the region calls a jitted function, that is lowered elsewhere, and the
# insertion point no longer shows the operation. Only these functions, on the Python stack, do (JAX 0.10 to 0.12).
_LOWERED_BY = {
    "_reduce_lower": "stablehlo.reduce",
    "_generic_reduce_window_lower": "stablehlo.reduce_window",
    "_scatter_lower": "stablehlo.scatter",
    "_select_and_scatter_lower": "stablehlo.select_and_scatter",
}
_reads_callers = has("combiners")


def combining_caller() -> str | None:
    """Names the operation whose combiner is being lowered, if one is: XLA cannot call Python in it."""
    place: Any = ir.InsertionPoint.current
    operation = getattr(place.block.owner, "OPERATION_NAME", None)
    if operation not in _COMBINING and _reads_callers:
        operation = _LOWERED_BY.get(caller_among(_LOWERED_BY) or "")
    return _COMBINING.get(operation or "")


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
    token, count = _abstract_token, len(operands)

    def with_tokens(context: Any, *buffers: Any) -> tuple[()]:
        callback(context, buffers[count + 2 :], *buffers[1 : count + 1])
        return ()

    avals = [token, *(ShapedArray(r.shape, r.dtype) for r in results)]
    before = ctx.tokens_in.get(ORDERED_IO)
    after, *values = _emit(ctx.replace(avals_in=[token, *ctx.avals_in]), with_tokens, [before, *operands], True, avals)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(type(ctx.tokens_in)({ORDERED_IO: after})))
    return values


def _emit(ctx: Any, flat: Callable[..., Any], operands: Sequence[Any], has_side_effect: bool, avals: list[Any]) -> Any:
    ctx.module_context.add_host_callback(flat)
    index = np.uint64(len(ctx.module_context.host_callbacks) - 1)
    emit = _ffi_lowering("xla_buffer_python_cpu_callback", has_side_effect=has_side_effect)
    return emit(ctx.replace(avals_out=avals), *operands, index=index)

"""Lowering: the platforms and devices that a lowering is for, and buffer callbacks as operations of XLA.

The argument `ctx` is the context that JAX hands to a lowering rule. JAX documents only some of its attributes. The ones
that are read here are the same from JAX 0.10 to 0.12.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._jaxcore.capabilities import JAX_VERSION, ShapedArray, has, parts_of, using
from jaxpyop._jaxcore.jaxprs import equations_in
from jaxpyop._jaxcore.primitives import ORDERED_IO

# Whether a compiled program can lend its buffers.
HAS_ZERO_COPY = has("zero_copy")
_ffi_lowering, _abstract_token = parts_of("zero_copy", 2)


def is_export(ctx: Any) -> bool:
    """Tells whether a lowering is for `jax.export`."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def keeps_dead_code(ctx: Any) -> bool:
    """Tells whether the lowered operation may be dead code, which means that its results are never used.

    JAX drops such operations before lowering. The exception is the body of a while_loop, for which JAX has no rule
    before 0.12. A lowering sees one operation, and not whether another one in the body uses its results.
    """
    return JAX_VERSION < (0, 12) and "while" in str(ctx.name_stack)


def device_count(ctx: Any) -> int:
    """Returns the number of devices over which XLA partitions the lowered program automatically.

    It is 1 inside `shard_map`, where a program is written for one device.
    """
    # Only the context of a program that is partitioned automatically has this attribute.
    return getattr(ctx.module_context.axis_context, "num_devices", 1)


def platforms(ctx: Any) -> tuple[str, ...]:
    """Returns the platforms that a lowering is for. Only `jax.export` lowers for several."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


@functools.cache
def is_packed(dtype: Any) -> bool:
    """Tells whether several values of a dtype, such as int4, share a byte in XLA's memory."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return bool(jax.numpy.iinfo(dtype).bits < 8)
    return bool(jax.dtypes.issubdtype(dtype, np.floating) and jax.numpy.finfo(dtype).bits < 8)


# The primitives that become one operation of XLA with a function of the user in it, with the names that errors use.
_COMBINING = {
    jax.lax.reduce_p: "jax.lax.reduce",
    jax.lax.reduce_window_p: "jax.lax.reduce_window",
    jax.lax.scatter_p: "a scatter (x.at[i].apply)",
    jax.lax.select_and_scatter_p: "a select-and-scatter",
}


def refuse_in_combiners(primitive: Any, refuse: Callable[..., None]) -> None:
    """Makes JAX refuse a primitive inside the function of a reduction or scatter, where XLA cannot call Python.

    It wraps the lowering rules of these operations.

    Args:
        primitive: the primitive to refuse, in such a function and in all functions that it calls.
        refuse: raises the error. It is called with the name of the operation and the parameters of the equation.
    """
    rules: Any = using("combiners") or {}

    def checked(title: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
            for eqn in equations_in(params):
                if eqn.primitive is primitive:
                    refuse(title, **eqn.params)
            return rule(ctx, *operands, **params)

        return lower

    for combining in _COMBINING.keys() & rules.keys():
        entry = rules[combining]
        rules[combining] = dataclasses.replace(entry, rule=checked(_COMBINING[combining], entry.rule))


def lowered_buffer_callback(
    ctx: Any, callback: Callable[..., None], operands: Sequence[Any], results: Any, has_side_effect: bool
) -> Any:
    """Lowers a `buffer_callback`, and returns the results' IR values.

    JAX's own `buffer_callback` has to be traced first, and flattens its arguments at each call. Both together take
    several times as long.
    """
    count = len(operands)

    def flat(context: Any, *buffers: Any) -> tuple[()]:
        callback(context, buffers[count:], *buffers[:count])
        return ()

    return _emit(ctx, flat, operands, has_side_effect, [ShapedArray(r.shape, r.dtype) for r in results])


def ordered_buffer_callback(ctx: Any, callback: Callable[..., None], operands: Sequence[Any], results: Any) -> Any:
    """Lowers a `buffer_callback` that keeps program order, and returns the results' IR values.

    XLA keeps effects in order by a token that each of them takes and returns. JAX's own `buffer_callback` has no token.
    Its target in jaxlib can take one: as one more operand and one more result, as the target of `io_callback` does
    (JAX 0.10 to 0.12).
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

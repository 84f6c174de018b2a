"""What lowering rules ask of JAX's context, and the operations that they emit."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._frames import variables_of_jax
from jaxpyop._jaxcore.jaxprs import JAXPR_TYPES, ORDERED_IO, TOKEN_TYPE, equations_in
from jaxpyop._jaxcore.private import private
from jaxpyop._jaxcore.public import JAX_VERSION, ShapedArray

# The argument `ctx` is the context that JAX hands to a lowering rule. JAX documents only some of its attributes. The
# ones that are read here are the same from JAX 0.10 to 0.12.


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


def is_partly_manual(ctx: Any) -> bool:
    """Tells whether a lowering is inside a `shard_map` over some axes of a mesh, and XLA partitions over the others."""
    context = ctx.module_context.axis_context
    manual = getattr(context, "manual_axes", frozenset())
    return bool(manual) and any(size > 1 for name, size in context.mesh.shape.items() if name not in manual)


# The primitives that become one operation of XLA with a function of the user in it, with the names that errors use.
_COMBINING = {
    jax.lax.reduce_p: "jax.lax.reduce",
    jax.lax.reduce_window_p: "jax.lax.reduce_window",
    jax.lax.scatter_p: "a scatter (x.at[i].apply)",
    jax.lax.select_and_scatter_p: "a select-and-scatter",
}
# The jaxprs that were searched, and hold no call in such a function.
_searched: weakref.WeakSet[Any] = weakref.WeakSet()


def refuse_in_combiner(primitive: Any, refuse: Callable[..., None]) -> None:
    """Refuses a primitive, while it is lowered, in a program with it in the function of a reduction or scatter.

    XLA cannot call Python there, and ends the process. JAX lowers an inner `jit` once for all its uses, so that the
    whole program is searched, which JAX's functions on the stack have among their variables.

    Args:
        primitive: the primitive.
        refuse: raises the error. It gets the name of the operation and the parameters of the equation.
    """
    for jaxpr in variables_of_jax(JAXPR_TYPES):
        if jaxpr in _searched:
            continue
        for eqn in equations_in({"program": jaxpr}):
            for inner in equations_in(eqn.params) if eqn.primitive in _COMBINING else ():
                if inner.primitive is primitive:
                    refuse(_COMBINING[eqn.primitive], **inner.params)
        _searched.add(jaxpr)


def keep_alive(ctx: Any, thing: Any) -> None:
    """Keeps an object as long as the program that is being lowered, and until the last of its runs has ended.

    XLA promises this for the host callbacks of a program, and this is one that nobody calls. What `add_keepalive` keeps
    goes with the program, although runs may still wait for their inputs (from JAX 0.12).
    """
    ctx.module_context.add_host_callback(functools.partial(id, thing))


def lowered_ffi_call(ctx: Any, name: str, operands: Sequence[Any], **attributes: Any) -> Sequence[Any]:
    """Lowers a call of a target of XLA's, and returns the results' IR values."""
    return private.ffi_lowering(name)(ctx, *operands, **attributes)


def lowered_buffer_callback(
    ctx: Any, callback: Callable[..., tuple[()]], operands: Sequence[Any], results: Any, stateful: bool, ordered: bool
) -> Any:
    """Lowers a `buffer_callback`, which keeps program order if it is ordered, and returns the results' IR values.

    JAX's own `buffer_callback` has to be traced first, and flattens its arguments at each call. Both together take
    several times as long. It also has no token: XLA keeps effects in order by a token that each of them takes and
    returns. Its target in jaxlib can take one, as one more operand and one more result, as the target of `io_callback`
    does (JAX 0.10 to 0.12).
    """
    tokens, count = int(ordered), len(operands)

    def without_tokens(context: Any, *buffers: Any) -> tuple[()]:
        return callback(context, *buffers[1 : count + 1], *buffers[count + 2 :])

    ctx.module_context.add_host_callback(without_tokens if ordered else callback)
    index = np.uint64(len(ctx.module_context.host_callbacks) - 1)
    emit = private.ffi_lowering("xla_buffer_python_cpu_callback", has_side_effect=stateful or ordered)
    token_types = [TOKEN_TYPE] * tokens
    avals_out = [*token_types, *(ShapedArray(r.shape, r.dtype) for r in results)]
    before = [ctx.tokens_in.get(ORDERED_IO)] if ordered else []
    emitting = ctx.replace(avals_in=[*token_types, *ctx.avals_in], avals_out=avals_out)
    values = emit(emitting, *before, *operands, index=index)
    if ordered:
        after, *values = values
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(type(ctx.tokens_in)({ORDERED_IO: after})))
    return values

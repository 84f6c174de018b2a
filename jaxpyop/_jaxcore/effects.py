"""Effects, and the tokens by which ordered ones keep program order."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.experimental
import jax.interpreters.mlir
import numpy as np
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import effects as _effects


def _effects_of(**kwargs: Any) -> Any:
    sds = jax.ShapeDtypeStruct((), "float32")
    traced = jax.make_jaxpr(lambda: jax.experimental.io_callback(lambda: 0.0, sds, **kwargs))()
    return next(iter(traced.effects))


_IO = _effects_of()
_ORDERED_IO = _effects_of(ordered=True)

# Where JAX 0.10 to 0.12 look for io_callback's effects in order to refuse them, and what to write there.
_REFUSING = {
    "_cond_batching_rule": "cond on a predicate that differs by element cannot hold the stateful {}: call it outside "
    "the cond, with the predicate as when=, which decides for each element",
    "_while_loop_batching_rule": "while_loop (ordered, or of a length that differs by element) cannot hold the "
    "stateful {}: loop to the longest length with fori_loop, and pass when= what says that an element goes on",
}


class _OpEffect:
    """The effect of one stateful op; mixed into the classes of io_callback's.

    JAX allows and refuses it exactly where it allows and refuses that of
    `io_callback`: a subclass is found by isinstance, an equal by membership.
    Those of one op are equal: `jax_enable_checks` infers them again, and
    compares. Where JAX prints the effects that it refuses, this one says what to do.
    """

    like: Any  # io_callback's effect

    def __init__(self, title: str, cure: str) -> None:
        self.title = title
        self.cure = cure

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        if other is self.like and (frame := _refusing_frame()) is not None:
            # The rule's name for the axis of the predicate (0.10 to 0.12). JAX refuses one predicate for the whole
            # batch too, but such a cond stays one, of batched branches.
            if frame.f_locals.get("index_dim", 0) is None:
                return False
            # JAX's own error would not name the op.
            raise NotImplementedError(
                f"a vmap of a {_REFUSING[frame.f_code.co_name].format(self.title)}; or {self.cure}"
            )
        return other is self.like or (isinstance(other, type(self)) and str(other) == str(self))

    def __str__(self) -> str:
        return f"the stateful {self.title} ({self.cure})"

    __repr__ = __str__


# The classes of the two effects have no names to import.
_IoEffect: Any = type(_IO)
_OrderedIoEffect: Any = type(_ORDERED_IO)


class StatefulEffect(_OpEffect, _IoEffect):
    like = _IO


class OrderedEffect(_OpEffect, _OrderedIoEffect):
    like = _ORDERED_IO

    __hash__ = _OpEffect.__hash__

    def __eq__(self, other: object) -> bool:
        # Tokens order by effect: all ordered ops have to be one, those of another
        # import of jaxpyop too (XLA aborts on a program with two).
        return (other is not self.like and isinstance(other, _OrderedIoEffect)) or super().__eq__(other)


# A differentiated scan drops effects without a result (io_callback's too), but
# for these. Private: no public name up to 0.12.
for _kept in (StatefulEffect, OrderedEffect):
    _effects.partial_eval_kept_effects.add_type(_kept)


# What lowers a function into a region of one XLA operation (0.10 to 0.12), where it cannot call Python.
_COMBINING = {
    "_reduce_lower": "jax.lax.reduce",
    "_generic_reduce_window_lower": "jax.lax.reduce_window",
    "_scatter_lower": "a scatter (x.at[i].apply)",
    "_select_and_scatter_lower": "a select-and-scatter",
}


def combining_caller() -> str | None:
    """Into which operation of XLA's a function is being lowered as its combiner, if so."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _COMBINING:
            return _COMBINING[frame.f_code.co_name]
        frame = frame.f_back
    return None


def _refusing_frame() -> types.FrameType | None:
    frame = sys._getframe(2)
    for _ in range(4):  # the membership test may sit in a generator expression
        if frame is None or frame.f_code.co_name in _REFUSING:
            return frame
        frame = frame.f_back
    return None


# ------------------------------------------------------------------------- tokens


def forget_failed_programs() -> None:
    """Drop the tokens of programs that failed.

    An ordered program would raise its predecessor's error, which has been seen (0.10 to 0.12).
    """
    try:
        _dispatch.runtime_tokens.block_until_ready()  # no public name up to 0.12
    except jax.errors.JaxRuntimeError:
        _dispatch.runtime_tokens.clear()


def lowered_buffer_callback(
    ctx: Any, callback: Callable[..., None], operands: Sequence[Any], results: Any, has_side_effect: bool
) -> Any:
    """What a `buffer_callback` becomes; gives the results' IR values.

    JAX's own has to be traced first, and its arguments flattened at each call: several times the time of this.
    """
    count = len(operands)

    def flat(context: Any, *buffers: Any) -> tuple[()]:
        callback(context, buffers[count:], *buffers[:count])
        return ()

    ctx.module_context.add_host_callback(flat)
    index = np.uint64(len(ctx.module_context.host_callbacks) - 1)
    inner = ctx.replace(avals_out=[jax.core.ShapedArray(r.shape, r.dtype) for r in results])
    emit = jax.ffi.ffi_lowering("xla_buffer_python_cpu_callback", has_side_effect=has_side_effect)
    return emit(inner, *operands, index=index)


def ordered_buffer_callback(ctx: Any, callback: Callable[..., None], operands: Sequence[Any], results: Any) -> Any:
    """Lower a `buffer_callback` that keeps program order; gives the results' IR values.

    JAX's own takes no token. Its target in jaxlib does, as io_callback's: one more operand and result (0.10 to 0.12).
    """
    token, count = _core.abstract_token, len(operands)  # no public name on 0.12

    def with_tokens(context: Any, *buffers: Any) -> tuple[()]:
        callback(context, buffers[count + 2 :], *buffers[1 : count + 1])
        return ()

    ctx.module_context.add_host_callback(with_tokens)
    index = np.uint64(len(ctx.module_context.host_callbacks) - 1)
    avals = [jax.core.ShapedArray(r.shape, r.dtype) for r in results]
    inner = ctx.replace(avals_in=[token, *ctx.avals_in], avals_out=[token, *avals])
    emit = jax.ffi.ffi_lowering("xla_buffer_python_cpu_callback", has_side_effect=True)
    after, *values = emit(inner, ctx.tokens_in.get(_ORDERED_IO), *operands, index=index)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(jax.interpreters.mlir.TokenSet({_ORDERED_IO: after})))
    return values

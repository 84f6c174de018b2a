"""The one place that touches JAX below its documented surface.

Everything here is importable from JAX 0.10 on; each name says what it needs.
Nothing else in the package imports ``jax.core``, ``jax.extend`` or
``jax.interpreters``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.experimental
import jax.extend.core as _extend
import jax.extend.linear_util as _linear_util
import jax.extend.source_info_util as _source_info
import jax.interpreters.ad
import jax.interpreters.batching
import jax.interpreters.mlir
import numpy as np
from jax._src import dispatch as _dispatch
from jax._src import effects as _effects
from jax._src import traceback_util as _traceback_util
from jax._src import xla_bridge as _xla_bridge
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

Trace = jax.core.Trace  # not subscriptable on 0.12
Tracer = jax.core.Tracer
ShapedArray = jax.core.ShapedArray
Primitive = _extend.Primitive
Literal = _extend.Literal
# `with set_current_trace(trace):` and `with take_current_trace() as parent:`
# are in jax.extend.core from 0.10.
set_current_trace = _extend.set_current_trace
take_current_trace = _extend.take_current_trace
eval_context = jax.core.eval_context


def x64_enabled() -> bool:
    """Whether JAX has 64-bit types here and now."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]  # made at run time


def current_trace() -> Any:
    """The innermost trace: what `jnp.add(1, 2)` would be handed to."""
    return _extend.find_top_trace(())  # the argument is unused since 0.4.36


def _find_eval_trace() -> Any:
    with eval_context():
        return current_trace()


EVAL_TRACE = _find_eval_trace()


def is_eager() -> bool:
    """True when no transformation is active, so operations run at once."""
    return current_trace() is EVAL_TRACE


def is_live(x: Any) -> bool:
    """Whether a value is traced by a transformation that may still run.

    A body that keeps its inputs may keep our tracers of earlier runs, which
    say that they are over; those of `jit` do not (0.10 to 0.12).
    """
    return isinstance(x, Tracer) and bool(x._trace.is_valid())  # no public name up to 0.12


# JAX leaves these files' frames out of tracebacks, as it does its own.
_traceback_util.register_exclusion(os.path.join(os.path.dirname(__file__), ""))  # no public name up to 0.12

JAX_VERSION = tuple(int(part) for part in jax.__version__.split(".")[:2])
# One class on 0.12 (`ClosedJaxpr is Jaxpr`), two until 0.11.
JAXPR_TYPES = tuple({_extend.Jaxpr, _extend.ClosedJaxpr})
# Primitives in jax.extend.core.primitives on all of 0.10 to 0.12.
jit_p = _extend.primitives.jit_p
CUSTOM_CALLS = (_extend.primitives.custom_jvp_call_p, _extend.primitives.custom_vjp_call_p)

# `_paths` re-wraps the rules of custom_jvp calls, and replays recorded
# equations with the user's source lines and named scopes: both are in
# jax.extend, on 0.10 and on 0.12.
transformation2 = _linear_util.transformation2
current_name_stack = _source_info.current_name_stack
user_context = _source_info.user_context


# Documented for writing primitives, but without a promise of stability.
ad = jax.interpreters.ad
batching = jax.interpreters.batching
mlir = jax.interpreters.mlir


def backends_are_initialized() -> bool:
    """Whether a JAX client exists already; asking does not make one."""
    return bool(_xla_bridge.backends_are_initialized())  # no public name up to 0.12


# Writes each callback's error to the log, beside raising it (0.10 to 0.12).
CALLBACK_LOGGER = logging.getLogger("jax._src.callback")


def is_high(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether JAX expands a primitive into others before it evaluates it (0.10 to 0.12)."""
    return bool(primitive.is_high(*map(jax.typeof, args), **params))


@functools.cache
def differentiated() -> Any:
    """Something that `jax.closure_convert` takes for differentiated, and so what holds it by its `_contents()`.

    That is how it tells (0.10 to 0.12) which values a function closes over have to be its arguments.
    """
    tracer = jax.interpreters.ad.JVPTracer.__new__(jax.interpreters.ad.JVPTracer)
    tracer.aval, tracer.tangent = ShapedArray((), np.dtype(np.float32)), None  # which is not a zero
    return tracer


def tangent_aval(x: Any) -> Any:
    """The type of a value's tangents."""
    return jax.typeof(x).to_tangent_aval()  # on every aval, 0.10 to 0.12


_NOT_PROFILED = contextlib.nullcontext()


def profiled_as(label: str) -> contextlib.AbstractContextManager[Any]:
    """Show a block in the profiler's trace, if there is one."""
    enabled = jax.profiler.TraceAnnotation.is_enabled()  # of the base class, 0.10 to 0.12
    return jax.profiler.TraceAnnotation(label) if enabled else _NOT_PROFILED


def is_export(ctx: Any) -> bool:
    """Whether a lowering is for `jax.export`."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def device_count(ctx: Any) -> int:
    """Over how many devices a lowering is partitioned automatically.

    1 inside `shard_map`, where a program is written for one device.
    """
    axis_context = ctx.module_context.axis_context
    return axis_context.num_devices if isinstance(axis_context, mlir.ShardingContext) else 1


def platforms(ctx: Any) -> tuple[str, ...]:
    """What a lowering is for; several names only for `jax.export`."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def is_packed(dtype: Any) -> bool:
    """Whether several values share a byte in XLA's memory."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return bool(jax.numpy.iinfo(dtype).bits < 8)
    return bool(jax.dtypes.issubdtype(dtype, np.floating) and jax.numpy.finfo(dtype).bits < 8)


def with_transfers(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that brings values to the device on purpose, as `jax.device_put` does.

    A transfer guard of "disallow" or "log" is about other transfers.
    """
    guard = jax.config.jax_transfer_guard_host_to_device  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
    if guard not in ("disallow", "log"):
        return function(*args)
    with jax.transfer_guard_host_to_device("allow"):
        return function(*args)


# ------------------------------------------------------------------------ effects


def _effects_of(**kwargs: Any) -> Any:
    sds = jax.ShapeDtypeStruct((), "float32")
    traced = jax.make_jaxpr(lambda: jax.experimental.io_callback(lambda: 0.0, sds, **kwargs))()
    return next(iter(traced.effects))


_IO = _effects_of()
_ORDERED_IO = _effects_of(ordered=True)

# Where JAX 0.10 to 0.12 look for io_callback's effects in order to refuse them.
_REFUSING = {
    "_cond_batching_rule": "vmap of a cond",
    "_while_loop_batching_rule": "vmap of a while_loop (ordered, or of a length that differs by element)",
}


class _OpEffect:
    """The effect of one stateful op; mixed into the classes of io_callback's.

    JAX allows and refuses it exactly where it allows and refuses that of
    `io_callback`: a subclass is found by isinstance, an equal by membership.
    Where JAX prints the effects that it refuses, this one says what to do.
    """

    like: Any  # io_callback's effect

    def __init__(self, title: str, cure: str) -> None:
        self.title = title
        self.cure = cure

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        if other is self.like and (refusing := _refusing_caller()) is not None:
            # JAX's own error would not name the op.
            raise NotImplementedError(f"a {refusing} cannot hold {self}")
        return self is other or other is self.like

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


def _refusing_caller() -> str | None:
    frame = sys._getframe(2)
    for _ in range(4):  # the membership test may sit in a generator expression
        if frame is None:
            return None
        if frame.f_code.co_name in _REFUSING:
            return _REFUSING[frame.f_code.co_name]
        frame = frame.f_back
    return None


# ------------------------------------------------------- shard_map's varying axes


def varying_axes(x: Any) -> frozenset[str]:
    """The mesh axes over which a value differs between shards."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def cast_to_common_axes(args: Sequence[Any]) -> list[Any]:
    """Give all values the same varying axes, as `shard_map` asks of operands."""
    axes = [varying_axes(a) for a in args]
    union = frozenset().union(*axes)
    if not union:
        return list(args)
    return [jax.lax.pcast(a, tuple(union - own), to="varying") if union - own else a for a, own in zip(args, axes)]


def result_aval(shape: Sequence[int], dtype: Any, operands: Sequence[Any]) -> Any:
    """A result's aval, replicated, with the varying axes of its operands."""
    aval = ShapedArray(tuple(shape), np.dtype(dtype))
    for operand in operands:
        if operand.manual_axis_type.varying:
            sharding = NamedSharding(operand.sharding.mesh, PartitionSpec(*[None] * len(shape)))
            return aval.update(sharding=sharding, manual_axis_type=operand.manual_axis_type)
    return aval


def shard_as(x: Any, aval: Any) -> Any:
    """Shard a value as its type on an explicit mesh says; elsewhere as it is."""
    wanted = aval.sharding
    if all(axis is None for axis in wanted.spec) or jax.typeof(x).sharding == wanted:
        return x
    return jax.sharding.reshard(x, wanted)


def forget_failed_programs() -> None:
    """Drop the tokens of programs that failed.

    An ordered program would raise its predecessor's error, which has been seen (0.10 to 0.12).
    """
    try:
        _dispatch.runtime_tokens.block_until_ready()  # no public name up to 0.12
    except jax.errors.JaxRuntimeError:
        _dispatch.runtime_tokens.clear()


def wants_devices(primitive: Any) -> None:
    """Have a primitive's lowering told its devices, as `pure_callback`'s is."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)  # no public name up to 0.12


class Everywhere:
    """All devices of a lowering, each with the whole of a value."""

    def __init__(self, ctx: Any) -> None:
        devices = ctx.module_context.axis_context.device_assignment
        self._mesh = Mesh(np.array(devices), ("device",))

    def spread(self, x: Any) -> Any:
        """Bring a value, wherever it is, to all devices."""
        # On an explicit mesh a constraint is no more than an assertion.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return jax.lax.with_sharding_constraint(x, NamedSharding(self._mesh, PartitionSpec()))

    def run(self, func: Callable[..., Any], *args: Any) -> Any:
        """Run a function once on each device, on values that are everywhere."""
        each = PartitionSpec()
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return jax.shard_map(func, mesh=self._mesh, in_specs=each, out_specs=each, check_vma=False)(*args)

"""The one place that touches JAX below its documented surface.

Everything here is importable from JAX 0.10 on; each name says what it needs.
Nothing else in the package imports ``jax.core``, ``jax.extend`` or
``jax.interpreters``. What effects and their tokens need is in `effects`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as _extend
import jax.extend.linear_util as _linear_util
import jax.extend.source_info_util as _source_info
import jax.interpreters.ad
import jax.interpreters.batching
import jax.interpreters.mlir
import jax.interpreters.partial_eval
import numpy as np
from jax._src import config as _jax_config
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import traceback_util as _traceback_util
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import partial_eval as _partial_eval
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxpyop._jaxcore.effects import OrderedEffect as OrderedEffect
from jaxpyop._jaxcore.effects import StatefulEffect as StatefulEffect
from jaxpyop._jaxcore.effects import combining_caller as combining_caller
from jaxpyop._jaxcore.effects import forget_failed_programs as forget_failed_programs
from jaxpyop._jaxcore.effects import lowered_buffer_callback as lowered_buffer_callback
from jaxpyop._jaxcore.effects import ordered_buffer_callback as ordered_buffer_callback

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


def settings_of_traces() -> tuple[Any, ...]:
    """Every setting of JAX's that a function may trace differently under, as its caches have them in their keys."""
    return _jax_config.trace_context()  # no public name up to 0.12


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


def at_top_level() -> bool:
    """True when no transformation is active, and no axis has a name: as in a new thread."""
    return bool(_core.trace_ctx.is_top_level())  # no public name up to 0.12


_AS_IT_IS = contextlib.nullcontext()


def without_axes() -> contextlib.AbstractContextManager[None]:
    """Hide the axis names that an eager `vmap` has bound: what runs in it is not inside of it."""
    return _AS_IT_IS if _core.trace_ctx.axis_env is _core.top_axis_env else _without_axes()


@contextlib.contextmanager
def _without_axes() -> Iterator[None]:
    names = _core.trace_ctx.axis_env
    _core.trace_ctx.set_axis_env(_core.top_axis_env)  # no public name up to 0.12
    try:
        yield
    finally:
        _core.trace_ctx.set_axis_env(names)


def is_live(x: Any) -> bool:
    """Whether a value is traced by a transformation that may still run.

    A body that keeps its inputs may keep our tracers of earlier runs, which
    say that they are over; those of `jit` do not (0.10 to 0.12).
    """
    return isinstance(x, Tracer) and bool(x._trace.is_valid())  # no public name up to 0.12


# JAX leaves these files' frames out of tracebacks, and out of what it shows as an
# operation's source line (in jaxprs, residuals and HLO), as it does its own.
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_traceback_util.register_exclusion(PACKAGE)  # no public name up to 0.12
_source_info.register_exclusion(PACKAGE)

JAX_VERSION = tuple(int(part) for part in jax.__version__.split(".")[:2])
# One class on 0.12 (`ClosedJaxpr is Jaxpr`), two until 0.11.
JAXPR_TYPES = tuple({_extend.Jaxpr, _extend.ClosedJaxpr})
# Primitives in jax.extend.core.primitives on all of 0.10 to 0.12.
jit_p = _extend.primitives.jit_p
JITTED = type(jax.jit(lambda: None))  # no public name
CUSTOM_CALLS = (_extend.primitives.custom_jvp_call_p, _extend.primitives.custom_vjp_call_p)

# `_paths` re-wraps the rules of custom_jvp calls, and replays recorded
# equations with the user's source lines and named scopes: both are in
# jax.extend, on 0.10 and on 0.12.
transformation2 = _linear_util.transformation2
current_name_stack = _source_info.current_name_stack
user_context = _source_info.user_context


def opened(closed: Any) -> tuple[Any, list[Any]]:
    """A closed jaxpr as one whose first inputs are its constants, and these."""
    # No public name on 0.10. On 0.12 a jaxpr holds its constants itself.
    return _partial_eval.convert_constvars_jaxpr(closed.jaxpr), list(closed.consts)


def with_equations(closed: Any, eqns: Sequence[Any]) -> Any:
    """A closed jaxpr with some of its equations."""
    changes = {"eqns": list(eqns), "effects": frozenset().union(*(eqn.effects for eqn in eqns))}
    if len(JAXPR_TYPES) == 1:
        return closed.replace(**changes)
    return closed.replace(jaxpr=closed.jaxpr.replace(**changes))


def record(function: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Any:
    """The closed jaxpr of a function of a flat list of values that returns one.

    What `jax.make_jaxpr` gives, in a third of the time: nothing is flattened, named or looked up.
    """
    avals = [jax.api_util.shaped_abstractify(x) for x in args]
    # Exported for writing interpreters, without a promise of stability.
    wrapped = _linear_util.wrap_init(function, debug_info=_UNNAMED)
    jaxpr, _, consts = jax.interpreters.partial_eval.trace_to_jaxpr_dynamic(wrapped, avals)
    closed: Any = getattr(jaxpr, "with_consts", None)  # from 0.12 a jaxpr has its constants
    return closed(consts) if closed else _extend.ClosedJaxpr(jaxpr, consts)


_UNNAMED = jax.api_util.debug_info("jaxpyop", record, (), {})._replace(arg_names=None, result_paths=None)


def run_cond(predicate: Any, yes: Any, no: Any, operands: Sequence[Any]) -> list[Any]:
    """`jax.lax.cond` of two closed jaxprs that have no constants and no effects, and results of the same types."""
    index = jax.lax.convert_element_type(predicate, np.int32)
    return jax.lax.cond_p.bind(index, *operands, branches=(no, yes))


def run_jaxpr(jaxpr: Any, *args: Any) -> list[Any]:
    """Evaluate a jaxpr that has no constants, under the current trace."""
    return jax.core.eval_jaxpr(jaxpr, (), *args)


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
    if primitive is jit_p:  # the most frequent, of which the types say nothing
        return bool(params["jaxpr"].is_high if len(JAXPR_TYPES) == 1 else params["jaxpr"].jaxpr.is_high)
    if getattr(primitive.is_high, "__func__", None) is Primitive.is_high:
        return False
    return bool(primitive.is_high(*map(jax.typeof, args), **params))


def is_of_high_type(x: Any) -> bool:
    """Whether a value's type is one that JAX makes into others first (0.10 to 0.12)."""
    return bool(getattr(jax.typeof(x), "is_high", False))


def compiled(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """What evaluates a primitive on concrete arrays: the jitted function that JAX's own call looks up each time."""
    if getattr(primitive.impl, "func", None) is _dispatch.apply_primitive:  # no public names up to 0.12
        return _dispatch.xla_primitive_callable(primitive, **params)
    return functools.partial(primitive.impl, **params)


@functools.cache
def differentiated() -> Any:
    """Something that `jax.closure_convert` takes for differentiated, and so what holds it by its `_contents()`.

    That is how it tells (0.10 to 0.12) which values a function closes over have to be its arguments.
    """
    tracer = jax.interpreters.ad.JVPTracer.__new__(jax.interpreters.ad.JVPTracer)
    tracer.aval, tracer.tangent = ShapedArray((), np.dtype(np.float32)), None  # which is not a zero
    return tracer


# The results, which of them have tangents, and what makes all tangents of those of the operands.
Linearized = tuple[list[Any], list[bool], Callable[[Sequence[Any]], Sequence[Any]]]


def set_linearization(primitive: Any, rule: Callable[..., Linearized]) -> None:
    """Have `jax.grad` and `jax.linearize` ask a rule, instead of tracing the primitive's JVP and taking that apart.

    Args:
        primitive: with several results.
        rule: called with which operands have tangents, with the operands, and with the parameters.
    """
    names = _ad.LinearizeTrace.__init__.__code__.co_names
    structured = "structured_residuals" in names  # one residual more, from 0.11.1

    def linearize(is_vjp: bool, moves: Sequence[bool], *operands: Any, **params: Any) -> Any:
        outs, moved, push = rule(moves, operands, **params)
        if structured:
            return outs, moved, [], None, lambda residuals, other, *tangents: push(tangents)
        return outs, moved, [], lambda residuals, *tangents: push(tangents)

    _ad.primitive_linearizations[primitive] = linearize


def tangent_aval(x: Any) -> Any:
    """The type of a value's tangents."""
    return jax.typeof(x).to_tangent_aval()  # on every aval, 0.10 to 0.12


# Also the operands of a jaxpr that its results need.
dce_jaxpr = jax.interpreters.partial_eval.dce_jaxpr


_NOT_PROFILED = contextlib.nullcontext()


def profiled_as(label: str) -> contextlib.AbstractContextManager[Any]:
    """Show a block in the profiler's trace, if there is one."""
    enabled = jax.profiler.TraceAnnotation.is_enabled()  # of the base class, 0.10 to 0.12
    return jax.profiler.TraceAnnotation(label) if enabled else _NOT_PROFILED


def is_export(ctx: Any) -> bool:
    """Whether a lowering is for `jax.export`."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def keeps_dead_code(ctx: Any) -> bool:
    """Whether a lowering may be of an operation whose results nobody uses.

    JAX drops those before, but not from the body of a while_loop: that has no rule for it before 0.12, and a lowering
    does not see what else the body holds.
    """
    return JAX_VERSION < (0, 12) and "while" in str(ctx.name_stack)


def device_count(ctx: Any) -> int:
    """Over how many devices a lowering is partitioned automatically.

    1 inside `shard_map`, where a program is written for one device.
    """
    axis_context = ctx.module_context.axis_context
    return axis_context.num_devices if isinstance(axis_context, mlir.ShardingContext) else 1


def platforms(ctx: Any) -> tuple[str, ...]:
    """What a lowering is for; several names only for `jax.export`."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


@functools.cache
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


# Part of the key of every program (jax.make_user_context, from 0.8; to be called before threads start).
_programs_of = jax.make_user_context(None)


def with_programs_of(owner: Any) -> contextlib.AbstractContextManager[Any]:
    """A block whose programs are compiled for it alone, and those of blocks with an equal owner; None for all."""
    return _programs_of(owner)


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


from jaxpyop._jaxcore.traces import KnownTrace as KnownTrace  # noqa: E402
from jaxpyop._jaxcore.unusable import Unusable as Unusable  # noqa: E402

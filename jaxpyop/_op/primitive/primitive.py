"""The primitive `python_call`, and its rules for tracing, direct calls, `vmap` and lowering: a call is bound here.

A direct call runs at once, on the caller's thread, and nothing is compiled. A call under `vmap` is the same call with
one more batch axis. The rules for derivatives are in `differentiate`. No rule runs Python code before the program does,
except that a result's shape may have to be inferred.

The rule for compiled programs, the lowering, chooses which transport takes a call to the host, because the platform and
the number of devices are known there. On one CPU device the transport is JAX's zero-copy `buffer_callback`, with XLA's
own token if order matters. Everywhere else it is `pure_callback` or `io_callback`.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._host import NO_BATCH, Batch, Host, Shared, lend, metrics, results_of_elements, run_once, take_back
from jaxpyop._jaxcore import Unusable
from jaxpyop._op.body import element_structs
from jaxpyop._op.primitive.call_protocol import Call, structs_of
from jaxpyop._op.primitive.records import RECORDS, HandedRecord
from jaxpyop._op.values import Struct, anchor_of, copy_to_jax, give_to_jax, show_shape


class _PythonCall(_jaxcore.Primitive):
    multiple_results = True
    # The tape asks for this attribute.
    calls_python = True


python_call_p = _PythonCall("python_call")


def bind(call: Call, *args: Any, batch: Batch = NO_BATCH) -> list[Any]:
    """Run a call on the host: at once, or, under a transformation, when the program runs.

    JAX goes on in the rule of the transformation: `jax.grad` in `_linearize` of `differentiate`.
    """
    if any(isinstance(a, Unusable) for a in args) and (refusal := call.refusal) is not None:
        return [Unusable(s.shape, s.dtype, refusal) for s in call.result_structs(args, batch)]
    return python_call_p.bind(*_jaxcore.cast_to_common_axes(args), call=call, batch=batch)


def _impl(*args: Any, call: Call, batch: Batch) -> list[Any]:
    # JAX hands Python scalars through as they are.
    arrays = [a if isinstance(a, (jax.Array, np.ndarray)) else _jaxcore.with_transfers(jnp.asarray, a) for a in args]
    if (refusal := call.refusal) is not None:
        return [Unusable(s.shape, s.dtype, refusal) for s in call.result_structs(arrays, batch)]
    outs = run_now(call, arrays, batch)
    call.note_shapes(
        structs_of(arrays, batch), element_structs(outs[: len(outs) - len(call.operands.extra_results)], batch.sizes)
    )
    return outs


def _abstract_eval(*avals: Any, call: Call, batch: Batch) -> tuple[list[Any], set[Any]]:
    effects: set[Any] = set()
    if call.stateful:
        kind = _jaxcore.OrderedEffect if call.ordered else _jaxcore.StatefulEffect
        effects.add(kind(call.title, call.op.stateless_advice))
    # A shape that nobody gave is found here, by a run of the function on abstract values.
    return [_jaxcore.result_aval(s.shape, s.dtype, avals) for s in call.result_structs(avals, batch)], effects


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, call: Call, batch: Batch) -> tuple[list[Any], list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    mapped = args
    args = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]
    method, operands = call.batching.method, call.operands
    block = method.whole_batch and batch.block == bool(batch.sizes)
    if operands.conditional and dims[0] is not None and (block or batch.block):
        raise ValueError(
            f"{call.title}: when= differs by element here, and vmap_method={call.op.vmap_method.name!r} hands func the "
            "batch; pass vmap_method='sequential', or one when= for all elements"
        )
    if block:
        args = [a if d is not None else jnp.expand_dims(a, 0) for a, d in zip(args, dims)]
        # `broadcast_all` gives every input the size of the batch, except for the leading ones, which keep axes of size
        # 1: the flag of `when=`, and a receipt, where size 1 means that `fwd` did not run per element of this axis.
        # Other methods broadcast only a rule's tangents or cotangents, because their axes of size 1 would show up in
        # the results.
        first = operands.leading_inputs if method.broadcasts else len(args) - operands.rule_inputs
        args[first:] = [jnp.broadcast_to(a, (size, *a.shape[1:])) for a in args[first:]]
    mask = tuple(block or d is not None for d in dims)
    outs = bind(call, *args, batch=Batch((size, *batch.sizes), (mask, *batch.masks), block))
    return _jaxcore.shard_batch_like(outs, mapped, dims), [0] * len(outs)


# ----------------------------------------------------------------- direct calls


def run_now(
    call: Call, args: Sequence[Any], batch: Batch = NO_BATCH, *, hold_records: bool = True, keep_numpy: bool = False
) -> list[Any]:
    """Run a call at once, on the caller's thread.

    Args:
        call: the call.
        args: its inputs. The first may be a `HandedRecord`.
        batch: the `vmap`s around it.
        hold_records: whether the records of this call live as long as the array of their receipts. A program that goes
            on with a copy of the receipts needs them for longer.
        keep_numpy: whether NumPy results may stay NumPy arrays, of a call without a batch and `executor=`.

    Returns:
        jax.Arrays on the devices of the inputs. A `HandedRecord` is passed through.
    """
    if call.ordered:
        _wait_for_ordered()
    began, route = time.perf_counter() if metrics.reports else None, "direct" if hold_records else "cut"
    if call.operands.writes_out:
        # The shapes have to be known before anything runs, and in workers.
        call.shapes(structs_of(args, batch))
    if not call.on_jax and call.copy:
        arrays = [a if type(a) is HandedRecord else np.array(a, order="C") for a in args]
    elif not call.on_jax:
        arrays = [lend(np.asarray(a)) for a in args]
    elif batch.sizes:
        # Slicing a jax.Array would cost a dispatch.
        arrays = [np.asarray(a) for a in args]
    else:
        # One by one, so that nothing is compiled for these shapes.
        arrays = [copy_to_jax(a) if isinstance(a, np.ndarray) else a for a in args]
        if call.op.executor is not None:
            # The arrays may come from an op that waits for the same thread.
            jax.block_until_ready(arrays)
    like = anchor_of(args)
    try:
        with jax.profiler.TraceAnnotation(call.label), _jaxcore.without_axes():
            if batch.sizes or call.op.executor is not None:
                outs = _run(call, arrays, batch, like)
            else:
                outs = _copied(call(arrays), call, like, keep_numpy)
    except BaseException as error:
        if began is not None:
            metrics.note_call(call, route, batch, began, error=error)
        raise
    if began is not None:
        metrics.note_call(call, route, batch, began, (metrics.nbytes(arrays), metrics.nbytes(outs)))
    if not call.on_jax and not call.copy:
        take_back(arrays, call)
    if hold_records and call.operands.extra_results:
        # These records live as long as the array of their receipts.
        RECORDS.hold(np.asarray(outs[-1])[..., 0].flat, outs[-1])
    return outs


def _copied(values: Sequence[Any], call: Call, like: Any, keep_numpy: bool = False) -> list[Any]:
    # The function may keep the arrays that it returned, so NumPy arrays are copied.
    if keep_numpy:
        return [np.array(value, order="C") for value in values]
    try:
        return [copy_to_jax(value, like) if isinstance(value, (np.ndarray, np.generic)) else value for value in values]
    except FloatingPointError as error:
        # JAX raises this, and does not know to which op the values belong.
        raise FloatingPointError(f"{call.title}: func returned a value that jax_debug_nans forbids: {error}") from None


def _run(call: Call, arrays: list[Any], batch: Batch, like: Any) -> list[Any]:
    if batch.sizes and not batch.block:
        return _run_elements(call, arrays, batch, like)
    found: list[Any] = []
    run_once(call, arrays, batch.sizes, lambda values: found.extend(_copied(values, call, like)))
    for k, value in enumerate(found if batch.block else ()):
        if value.shape[: len(batch.sizes)] != batch.sizes:
            call.check(k, value.shape, call.shapes(structs_of(arrays, batch))[k].shape, batch.sizes)
    return found


def _run_elements(call: Call, arrays: list[Any], batch: Batch, like: Any) -> list[Any]:
    """Run each element. The first one decides which shapes the results have."""
    columns: list[Any] = list(zip(*results_of_elements(call, arrays, batch)))
    if not batch.count:
        columns = [np.empty((0, *s.shape), s.dtype) for s in call.shapes(structs_of(arrays, batch))]
    for k, column in enumerate(columns):
        for value in column:
            if value.shape != column[0].shape:
                raise ValueError(
                    f"{call.title}: {call.op.origin_of_array(k)} the shapes {show_shape(column[0].shape)} and "
                    f"{show_shape(value.shape)} for elements of one vmap; return one shape"
                )
    # These arrays are not used elsewhere, so JAX may take over their memory.
    stacked = [c if isinstance(c, np.ndarray) else np.stack(c) for c in columns]
    return [give_to_jax(c.reshape(*batch.sizes, *c.shape[1:]), like) for c in stacked]


def _wait_for_ordered() -> None:
    # A direct call would overtake the ordered calls of a program in flight (seen on 0.12).
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        # This op did not fail. The error is raised where the result of the failed op is used.
        warnings.warn(f"an earlier ordered op failed: {error}", RuntimeWarning, stacklevel=2)


# -------------------------------------------------------------------- lowering


def _check_lowering(ctx: Any, call: Call) -> None:
    if _jaxcore.is_export(ctx):
        raise NotImplementedError(
            f"{call.title}: a Python function belongs to its process, so jax.export cannot write it down; "
            "export the parts around it, or use a py_function with mode='traced'"
        )
    if (refusal := call.refusal) is not None and not _jaxcore.keeps_dead_code(ctx):
        raise refusal()
    if (backend := _jaxcore.backend_without_callbacks(ctx)) is not None:
        raise NotImplementedError(
            f"{call.title}: compiled programs of this backend ({backend}) cannot call Python; use jaxpyop.jit in place "
            "of jax.jit, which cuts the program at its Python calls (its method explain says why one is not cut), or a "
            "py_function with mode='traced'"
        )
    if call.stateful and _jaxcore.is_partly_manual(ctx):
        raise NotImplementedError(
            f"{call.title}: a stateful op is inside a shard_map over some axes of a mesh only, where XLA would run it "
            "once for each device; leave axis_names= out, or pass stateful=False if it may run any number of times"
        )


def _refuse_in_combiner(operation: str, call: Call, batch: Batch) -> None:
    # XLA would end the process (0.10 to 0.12).
    raise NotImplementedError(
        f"{call.title}: the function of {operation} is part of one XLA operation, which cannot call Python; call "
        "it on the whole array, or once per element in jax.lax.scan, or use a py_function with mode='traced'"
    )


def _lowering(ctx: Any, *operands: Any, call: Call, batch: Batch) -> Any:
    _check_lowering(ctx, call)
    # On several devices, and on a mesh, the results of the two branches would have to be sharded alike.
    has_no_mesh = _jaxcore.device_count(ctx) == 1 and jax.sharding.get_abstract_mesh().empty
    if has_no_mesh and call.operands.conditional and math.prod(ctx.avals_in[0].shape) == 1:
        return _jaxcore.mlir.lower_fun(_branch, multiple_results=True)(ctx, *operands, call=call, batch=batch)
    results = [Struct(a.shape, a.dtype) for a in ctx.avals_out]
    # XLA skips a call whose results are all empty, so a stateful call gets a byte to return.
    padding = int(call.stateful and not any(math.prod(r.shape) for r in results))
    results += [Struct((), np.uint8)] * padding
    host = Host(call, batch, ctx.avals_in, results, padding)
    if _takes_buffers(ctx, call):
        return _lower_to_buffers(ctx, host, operands, results)[: len(ctx.avals_out)]
    devices = None if _jaxcore.device_count(ctx) == 1 else _jaxcore.AllDevices(ctx)
    on_cpu = _jaxcore.platforms(ctx) == ("cpu",)

    def run(*args: Any) -> list[Any]:
        if devices is not None and on_cpu:
            outs = _spread(devices, host, results, args)
        else:
            outs = _call_back(call, host.on_arrays, results, args)
            outs = outs if devices is None else map(devices.replicate, outs)
        return list(outs)[: len(ctx.avals_out)]

    return _jaxcore.mlir.lower_fun(run, multiple_results=True)(ctx, *operands)


def _branch(flag: Any, *args: Any, call: Call, batch: Batch) -> list[Any]:
    """Enter Python only where the flag of `when=` is true, which takes less time than to test it in Python.

    The branch is made when the program is lowered, because `vmap` and the derivatives of a `cond` would run both of its
    branches, and refuse effects.
    """
    taken, inner = call.without_flag(), batch.with_inputs(lambda mask: mask[1:])
    shapes = call.result_structs([flag, *args], batch)
    pairs = list(zip(shapes, itertools.chain(call.body.absent_fills, itertools.repeat(0))))
    absent = lambda: [jnp.full(s.shape, fill, s.dtype) for s, fill in pairs]
    return jax.lax.cond(flag.reshape(()), lambda: bind(taken, *args, batch=inner), absent)


def _lower_to_buffers(ctx: Any, host: Host, operands: Sequence[Any], results: list[Struct]) -> Sequence[Any]:
    host.route = "buffer"
    callback, call = host.on_buffers, host.call
    if _jaxcore.device_count(ctx) > 1 and not call.ordered:
        here = sum(device.process_index == jax.process_index() for device in _jaxcore.devices_of(ctx))
        callback = Shared(host, here).on_buffers
    return _jaxcore.lowered_buffer_callback(ctx, callback, operands, results, call.stateful, call.ordered)


def _takes_buffers(ctx: Any, call: Call) -> bool:
    """Tell whether the transport can be a buffer callback, which copies nothing."""
    if _jaxcore.PORTABLE or config.transport != "auto" or _jaxcore.platforms(ctx) != ("cpu",):
        return False
    # On several devices a buffer callback runs once per device. A stateless op can share one run among them. A stateful
    # op has to run once, and so do its derivatives, in the process that has its record.
    if call.op.stateful and _jaxcore.device_count(ctx) > 1:
        return False
    # XLA packs 4-bit and 2-bit values, which a buffer callback would see as bytes (0.10 to 0.12).
    return not any(_jaxcore.is_packed(a.dtype) for a in (*ctx.avals_in, *ctx.avals_out))


def _call_back(call: Call, run: Callable[..., Any], results: list[Struct], args: Sequence[Any]) -> Sequence[Any]:
    """The transport of a call that cannot have a buffer callback."""
    if call.stateful:
        return io_callback(run, results, *args, ordered=call.ordered)
    return jax.pure_callback(run, results, *args)


def _spread(devices: _jaxcore.AllDevices, host: Host, results: list[Struct], args: Sequence[Any]) -> Sequence[Any]:
    # A callback's result lives on one device, in a sharding that eager operations on explicit meshes refuse (0.10 to
    # 0.12). So it is spread over the devices, and the other devices wait for it. If the body's exception were raised on
    # the calling device alone, they would wait forever. So it is raised on all of them.
    structs = [Struct((), np.uint32), *results]
    found = _call_back(host.call, host.on_arrays_deferring_errors, structs, args)
    # An empty result ends the process while XLA compiles (0.11), and need not be spread.
    has_values = [math.prod(s.shape) > 0 for s in structs]
    spread = [r for r, mark in zip(results, has_values[1:]) if mark]
    raising = buffer_callback(
        host.raise_deferred,
        spread,
        has_side_effect=host.call.stateful,
        input_output_aliases={1 + k: k for k in range(len(spread))},
    )
    # Without the barrier the constraint would reach the callback itself, which XLA refuses (0.12).
    kept = jax.lax.optimization_barrier(tuple(x for x, mark in zip(found, has_values) if mark))
    outs = iter(devices.run(raising, *map(devices.replicate, kept)))
    return [next(outs) if mark else jnp.zeros(r.shape, r.dtype) for r, mark in zip(results, has_values[1:])]


python_call_p.def_impl(_impl)
python_call_p.def_effectful_abstract_eval(_abstract_eval)
_jaxcore.batching.primitive_batchers[python_call_p] = _batch
_jaxcore.mlir.register_lowering(python_call_p, _lowering, cacheable=False)
_jaxcore.set_rules_of_programs(python_call_p, _refuse_in_combiner)

"""The primitive `python_call`, and its rules for tracing, `vmap` and lowering: a call is bound here.

A call under `vmap` is the same call with one more batch axis. The rules for derivatives are in `differentiate`. No rule
runs Python code before the program does, except that a result's shape may have to be inferred.

The rule for compiled programs, the lowering, chooses which transport takes a call to the host, because the platform and
the number of devices are known there. On one CPU device the transport is JAX's zero-copy `buffer_callback`, with XLA's
own token if order matters. Everywhere else it is `pure_callback` or `io_callback`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._host import NO_BATCH, Batch, Host, Shared
from jaxpyop._jaxcore import Unusable
from jaxpyop._op.body import element_structs
from jaxpyop._op.primitive.call_protocol import Call, structs_of
from jaxpyop._op.primitive.direct import run_now
from jaxpyop._op.values import Struct


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
        # 1: the flag of `when=`, and a receipt. Other methods broadcast only a rule's tangents or cotangents, because
        # their axes of size 1 would show up in the results.
        first = operands.leading_inputs if method.broadcasts else len(args) - operands.rule_inputs
        args[first:] = [jnp.broadcast_to(a, (size, *a.shape[1:])) for a in args[first:]]
    mask = tuple(block or d is not None for d in dims)
    outs = bind(call, *args, batch=Batch((size, *batch.sizes), (mask, *batch.masks), block))
    return _jaxcore.shard_batch_like(outs, mapped, dims), [0] * len(outs)


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

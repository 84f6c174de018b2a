"""The rule of the primitive for compiled programs: it chooses which transport takes a call to the host.

The platform and the number of devices are known here. On one CPU device the transport is JAX's zero-copy
`buffer_callback`, with XLA's own token if order matters. A function that Numba compiled is called there without Python.
Everywhere else the transport is `pure_callback` or `io_callback`.
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

from jaxpyop import _config, _dtypes, _jaxcore, _settings, _sharding
from jaxpyop._host import Batch, Host, HostCall, Shared
from jaxpyop._op.primitive.call import Call
from jaxpyop._op.primitive.native import lowered_natively
from jaxpyop._op.primitive.primitive import bind, python_call_p
from jaxpyop._values import Struct


def _check_lowering(ctx: Any, call: Call) -> None:
    if _jaxcore.is_export(ctx):
        raise NotImplementedError(
            f"{call.title}: a Python function belongs to its process, so jax.export cannot write it down; "
            "use jaxpyop.export, export the parts around it, or use a py_function with mode='traced'"
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
    _jaxcore.refuse_in_combiner(python_call_p, _refuse_in_combiner)
    # On several devices, and on a mesh, the results of the two branches would have to be sharded alike.
    has_no_mesh = _jaxcore.device_count(ctx) == 1 and jax.sharding.get_abstract_mesh().empty
    if has_no_mesh and call.operands.is_conditional and math.prod(ctx.avals_in[0].shape) == 1:
        return _jaxcore.mlir.lower_fun(_branch, multiple_results=True)(ctx, *operands, call=call, batch=batch)
    results = [Struct(a.shape, a.dtype) for a in ctx.avals_out]
    # XLA skips a call whose results are all empty, so a stateful call gets a byte to return.
    padding = int(call.stateful and not any(math.prod(r.shape) for r in results))
    results += [Struct((), np.uint8)] * padding
    host = Host(call, batch, ctx.avals_in, results, padding)
    if _takes_buffers(ctx, call):
        if (found := lowered_natively(ctx, host, operands)) is not None:
            return found
        return _lower_to_buffers(ctx, host, operands, results)[: len(ctx.avals_out)]
    if not _dtypes.HANDS_OVER_PACKED and _has_packed(ctx):
        raise NotImplementedError(
            f"{call.title}: this version of JAX hands over wrong values of int4 and other packed dtypes; convert them "
            "with x.astype(jnp.int8), or update JAX to 0.10.2"
        )
    devices = None if _jaxcore.device_count(ctx) == 1 else _sharding.AllDevices(_jaxcore.devices_of(ctx))
    on_cpu = _jaxcore.platforms(ctx) == ("cpu",)

    def run(*args: Any) -> list[Any]:
        if devices is not None:
            outs = _spread(devices, host, results, args, on_cpu)
        else:
            outs = _call_back(call, host.on_arrays, results, args)
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
    # The types of what is absent may be those of a block with settings of its own.
    with _settings.with_thread_settings(call.environment.settings):
        return jax.lax.cond(flag.reshape(()), lambda: bind(taken, *args, batch=inner), absent)


def _lower_to_buffers(ctx: Any, host: Host, operands: Sequence[Any], results: list[Struct]) -> Sequence[Any]:
    host.route = "buffer" if host.fill is None else "native"
    callback, call = host.on_buffers, host.call
    if _jaxcore.device_count(ctx) > 1 and not call.ordered:
        here = sum(device.process_index == jax.process_index() for device in _jaxcore.devices_of(ctx))
        callback = Shared(host, here).on_buffers
    return _jaxcore.lowered_buffer_callback(ctx, callback, operands, results, call.stateful, call.ordered)


def _takes_buffers(ctx: Any, call: Call) -> bool:
    """Tell whether the transport can be a buffer callback, which copies nothing."""
    if _config.TRANSPORT != "auto" or _jaxcore.platforms(ctx) != ("cpu",) or not _jaxcore.has("lent memory"):
        return False
    # On several devices a buffer callback runs once per device. A stateless op can share one run among them. A stateful
    # op has to run once, and so do its derivatives, in the process that has its record.
    if call.op.stateful and _jaxcore.device_count(ctx) > 1:
        return False
    # XLA packs 4-bit and 2-bit values, which a buffer callback would see as bytes (0.10 to 0.12).
    return not _has_packed(ctx)


def _has_packed(ctx: Any) -> bool:
    return any(_dtypes.is_packed(a.dtype) for a in (*ctx.avals_in, *ctx.avals_out))


def _call_back(call: HostCall, run: Callable[..., Any], results: list[Struct], args: Sequence[Any]) -> Sequence[Any]:
    """The transport of a call that cannot have a buffer callback."""
    if call.stateful:
        return io_callback(run, results, *args, ordered=call.ordered)
    return jax.pure_callback(run, results, *args)


def _spread(
    devices: _sharding.AllDevices, host: Host, results: list[Struct], args: Sequence[Any], on_cpu: bool
) -> Sequence[Any]:
    # A callback's result lives on one device, in a sharding that eager operations on explicit meshes refuse (0.10 to
    # 0.12). So it is spread over the devices, and the other devices wait for it. If the body's exception were raised on
    # the calling device alone, they would wait forever. So it is raised on all of them.
    structs = [Struct((), np.uint32), *results]
    found = _call_back(host.call, host.on_arrays_deferring_errors, structs, args)
    # An empty result ends the process while XLA compiles (0.11), and need not be spread.
    has_values = [math.prod(s.shape) > 0 for s in structs]
    spread = [r for r, mark in zip(results, has_values[1:]) if mark]
    raising = _raise_with_number(host)
    if on_cpu:
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


def _raise_with_number(host: Host) -> Callable[..., Any]:
    """Return what raises a deferred error on a device whose memory Python cannot read: it gets the number alone."""

    def raising(number: Any, *values: Any) -> list[Any]:
        call_back = io_callback if host.call.stateful else jax.pure_callback
        checked = call_back(host.raise_number, Struct((), np.uint32), number)
        # The results depend on the call, which would otherwise be dropped.
        return [jnp.where(checked == 0, value, jnp.zeros_like(value)) for value in values]

    return raising


_jaxcore.mlir.register_lowering(python_call_p, _lowering, cacheable=False)
_jaxcore.set_rules_of_programs(python_call_p)

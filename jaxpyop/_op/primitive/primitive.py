"""The primitive `python_call`, and its rules for tracing, `vmap`, derivatives and lowering: a call is bound here.

For `vmap`, a batched call is the same call with one more batch axis. For derivatives, they say which calls make up a
derivative, and on which operands. No rule runs Python code before the program does, except that a result's shape may
have to be inferred.

The rule for compiled programs, the lowering, chooses which transport takes a call to the host, because the platform and
the number of devices are known there. On one CPU device the transport is JAX's zero-copy `buffer_callback`, with XLA's
own token if order matters. Everywhere else it is `pure_callback` or `io_callback`.
"""

from __future__ import annotations

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
from jaxpyop._jaxcore import Unusable, ad, is_inexact
from jaxpyop._op.body import element_structs
from jaxpyop._op.primitive.call_protocol import Call, derived, masks_and_added_axes, note_origin, structs_of
from jaxpyop._op.primitive.direct import run_now
from jaxpyop._op.values import Struct


class _PythonCall(_jaxcore.Primitive):
    multiple_results = True
    # The tape asks for this attribute.
    calls_python = True


python_call_p = _PythonCall("python_call")


def bind(call: Call, *args: Any, batch: Batch = NO_BATCH) -> list[Any]:
    """Run a call on the host: at once, or, under a transformation, when the program runs."""
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
    outs = bind(call, *args, batch=batch.inside(size, mask, block))
    return _jaxcore.shard_batch_like(outs, mapped, dims), [0] * len(outs)


# ------------------------------------------------------------------ derivatives
#
# The derivative of a call is another call, linear in its last operands. The transpose of that is a third call.

# From the inputs' tangents, some of which are ad.Zero, to the results' tangents.
_Pushforward = Callable[[Sequence[Any]], list[Any]]


def _is_zero(tangent: Any) -> bool:
    # JAX hands Python numbers through as they are.
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == jax.dtypes.float0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, batch: Batch) -> tuple[list[Any], list[Any]]:
    outs, pushforward = _linearized(primals, [not _is_zero(t) for t in tangents], call, batch)
    return outs, pushforward(tangents)


def _linearize(perturbed: Sequence[bool], primals: Sequence[Any], *, call: Call, batch: Batch) -> _jaxcore.Linearized:
    perturbed = [p and is_inexact(x) for p, x in zip(perturbed, primals)]
    outs, pushforward = _linearized(primals, perturbed, call, batch)
    return outs, [is_inexact(o) for o in outs], pushforward


def _linearized(
    primals: Sequence[Any], perturbed: Sequence[bool], call: Call, batch: Batch
) -> tuple[list[Any], _Pushforward]:
    """The results, and the pushforward from the inputs that `perturbed` marks."""
    first = len(primals) - call.operands.rule_inputs
    of_rule_alone = first < len(primals) and not any(perturbed[:first])
    if not any(map(is_inexact, call.op.spec.leaves)):
        tangents_of: Callable[[Sequence[Any]], Sequence[Any]] = lambda tangents: []
    elif call.is_declared_linear:
        tangents_of = lambda tangents: _push_through_linear(primals, tangents, call, batch)
    elif of_rule_alone and call.is_own_derivative:
        # A rule is linear in its tangents or cotangents. If these alone are perturbed, it is its own derivative.
        tangents_of = lambda tangents: bind(
            call, *primals[:first], *map(ad.instantiate_zeros, tangents[first:]), batch=batch
        )
    elif (program := call.program(primals, batch)) is not None:
        # Only a user's rule that is an op itself has one.
        return _by_program(program, primals, perturbed)
    else:
        return _by_linearization(primals, tuple(perturbed), call, batch)
    return _with_pushforward(bind(call, *primals, batch=batch), tangents_of)


def _with_pushforward(
    outs: list[Any], tangents_of: Callable[[Sequence[Any]], Sequence[Any]]
) -> tuple[list[Any], _Pushforward]:
    def pushforward(tangents: Sequence[Any]) -> list[Any]:
        found = iter(tangents_of(tangents))
        return [next(found) if is_inexact(o) else ad.Zero(_jaxcore.tangent_aval(o)) for o in outs]

    return outs, pushforward


def _by_linearization(
    primals: Sequence[Any], perturbed: tuple[bool, ...], call: Call, batch: Batch
) -> tuple[list[Any], _Pushforward]:
    """Bind the two calls of `Call.linearize`: the forward call now, and the linear call once there are tangents."""
    plan = call.linearize(perturbed)
    for step, part in (("forward", plan.forward), ("linear", plan.linear)):
        # A saved program names its calls by how they were made.
        note_origin(part, call, step, perturbed)
    fitting, inner_batch, fit = _batch_of_derivative(primals, call, batch)
    inputs, inner_batch = fitting[plan.skip :], inner_batch.with_inputs(lambda mask: mask[plan.skip :])
    if plan.forward is call:
        outs = bind(call, *primals, batch=batch)
    else:
        outs = bind(plan.forward, *inputs, batch=inner_batch)
    count = len(outs) - len(plan.forward.operands.extra_results)
    extra, results = outs[count:], outs[:count] if plan.with_results else []

    def mask_of_operands(mask: tuple[bool, ...]) -> tuple[bool, ...]:
        of_tangents = (axis for axis, p in zip(mask, perturbed[plan.skip :]) if p)
        return (*(True for _ in extra), *mask, *(True for _ in results), *of_tangents)

    def tangents_of(tangents: Sequence[Any]) -> list[Any]:
        nonzero = [fit(k, tangent) for k, (tangent, p) in enumerate(zip(tangents, perturbed)) if p]
        return bind(plan.linear, *extra, *inputs, *results, *nonzero, batch=inner_batch.with_inputs(mask_of_operands))

    return _with_pushforward(outs[: count + len(call.operands.extra_results)], tangents_of)


def _by_program(
    program: Callable[..., list[Any]], primals: Sequence[Any], perturbed: Sequence[bool]
) -> tuple[list[Any], _Pushforward]:
    """Let JAX differentiate a program that gives the results of the call."""

    def of_perturbed(*inputs: Any) -> list[Any]:
        found = iter(inputs)
        return program(*(next(found) if p else x for x, p in zip(primals, perturbed)))

    outs, push = jax.linearize(of_perturbed, *(x for x, p in zip(primals, perturbed) if p))
    return _with_pushforward(outs, lambda tangents: push(*(t for t, p in zip(tangents, perturbed) if p)))


def _batch_of_derivative(
    primals: Sequence[Any], call: Call, batch: Batch
) -> tuple[Sequence[Any], Batch, Callable[[int, Any], Any]]:
    """Return how the derivative of a batched call is batched.

    Returns:
        The inputs of the call, as the derivative takes them; the batch over these; and a function that gives the
        tangent of input `k` the batch axes that the derivative expects.
    """
    if not batch.block:
        return primals, batch, lambda k, tangent: tangent
    sizes = batch.sizes
    if call.batching.block_derivative:
        # A rule gets tangents with all batch axes in full size.
        return primals, batch, lambda k, tangent: jnp.broadcast_to(tangent, (*sizes, *tangent.shape[len(sizes) :]))
    # A record belongs to one element, so a differentiated block becomes a loop. The axes of size 1 that a block method
    # added are taken away again.
    masks, added = masks_and_added_axes(primals, sizes)
    squeezed = [jnp.squeeze(p, axes) for p, axes in zip(primals, added)]
    return squeezed, Batch(sizes, masks), lambda k, tangent: jnp.squeeze(tangent, added[k])


def _push_through_linear(primals: Sequence[Any], tangents: Sequence[Any], call: Call, batch: Batch) -> list[Any]:
    # JAX hands a scalar constant over as the Python number that it is.
    floating = tuple(is_inexact(jax.typeof(x)) for x in primals)
    operands = [ad.instantiate_zeros(t) if f else p for p, t, f in zip(primals, tangents, floating)]
    batch = batch.with_inputs(lambda mask: _floating_last(mask, floating))
    return bind(derived(call, "linear_part", floating), *_floating_last(operands, floating), batch=batch)


def _floating_last(values: Sequence[Any], floating: Sequence[bool]) -> tuple[Any, ...]:
    """The values in the order of a linear part's inputs."""
    return (*(v for v, f in zip(values, floating) if not f), *(v for v, f in zip(values, floating) if f))


# ------------------------------------------------------------------- transpose


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Call, batch: Batch) -> list[Any]:
    if call.is_declared_linear:
        return _transpose_linear(cotangents, operands, call, batch)
    nonzero = tuple(type(ct) is not ad.Zero for ct in cotangents)
    if not any(nonzero):
        return [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands]
    back = derived(call, "transposed", nonzero)
    # Residuals come before the tangents.
    first = len(operands) - call.body.linear_inputs
    known = [ct for ct in cotangents if type(ct) is not ad.Zero]
    batch_of_back = batch.with_inputs(lambda mask: (*mask[:first], *(True for _ in known)))
    found = bind(back, *operands[:first], *known, batch=batch_of_back)
    return [None] * first + [
        _cotangent_of(x, ct, first + k, batch) for k, (x, ct) in enumerate(zip(operands[first:], found))
    ]


def _transpose_linear(cotangents: Sequence[Any], operands: Sequence[Any], call: Call, batch: Batch) -> list[Any]:
    avals = [x.aval if ad.is_undefined_primal(x) else jax.typeof(x) for x in operands]
    floating = tuple(map(is_inexact, avals))
    known = [ad.instantiate_zeros(ct) for ct in cotangents if type(ct) is not ad.Zero or is_inexact(ct.aval)]
    fixed = [x for x, f in zip(operands, floating) if not f]
    structs = _floating_last(structs_of(avals, batch), floating)
    back = derived(derived(call, "linear_part", floating), "transposed_linear_part", structs)

    def mask_of_operands(mask: tuple[bool, ...]) -> tuple[bool, ...]:
        return (*_floating_last(mask, floating)[: len(fixed)], *(True for _ in known))

    found = iter(bind(back, *fixed, *known, batch=batch.with_inputs(mask_of_operands)))
    return [_cotangent_of(x, next(found), k, batch) if f else None for k, (x, f) in enumerate(zip(operands, floating))]


def _cotangent_of(operand: Any, cotangent: Any, k: int, batch: Batch) -> Any:
    """The cotangent of operand `k`, summed over the batch axes that it does not have; None if it is not asked for."""
    if not ad.is_undefined_primal(operand):
        return None
    if axes := tuple(axis for axis, mask in enumerate(batch.masks) if not mask[k]):
        cotangent = jnp.sum(cotangent, axes)
    # A block method added axes of size 1.
    shape = operand.aval.shape
    if axes := tuple(axis for axis, (a, b) in enumerate(zip(cotangent.shape, shape)) if a != b):
        cotangent = jnp.sum(cotangent, axes, keepdims=True)
    return _jaxcore.shard_as(cotangent, operand.aval)


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
    fills = [*(leaf.fill for leaf in call.op.spec.leaves), *(0 for _ in call.operands.extra_results)]
    shapes = call.result_structs([flag, *args], batch)
    absent = lambda: [jnp.full(s.shape, fill, s.dtype) for s, fill in zip(shapes, fills, strict=True)]
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
ad.primitive_jvps[python_call_p] = _jvp  # where jax.jvp enters
_jaxcore.set_linearize_rule(python_call_p, _linearize)  # where jax.grad enters
ad.primitive_transposes[python_call_p] = _transpose

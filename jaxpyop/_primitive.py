"""The JAX side of a call: one primitive with all of its rules.

`python_call` runs a call on the host. How it gets there is decided when it is
lowered, where the platform and the number of devices are known: the zero-copy
`buffer_callback` on one CPU device, `pure_callback` or `io_callback` otherwise.
Its derivative is another `python_call`, linear in its last operands; the
transpose of that is a third. Nothing here runs Python before run time, except
that a result's shape may have to be inferred.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from jaxpyop import _jaxcore
from jaxpyop._batching import BLOCK_METHODS, NO_BATCH, Batch, run_elements
from jaxpyop._bodies import Struct, is_inexact
from jaxpyop._calls import Plain
from jaxpyop._config import config
from jaxpyop._jaxcore import ad
from jaxpyop._spec import show_shape
from jaxpyop._transport import Host, lend, take_back


class _PythonCall(_jaxcore.Primitive):
    multiple_results = True
    calls_python = True  # which the tape asks


python_call_p = _PythonCall("python_call")


def bind(call: Plain, *args: Any, batch: Batch = NO_BATCH) -> list[Any]:
    """Run a call on the host, now or, under a transformation, when it runs."""
    return python_call_p.bind(*_jaxcore.cast_to_common_axes(args), call=call, batch=batch)


# ----------------------------------------------------------------- direct calls


def run_now(call: Plain, args: Sequence[Any], batch: Batch = NO_BATCH) -> list[Any]:
    """Run a call on the caller's thread, without compilation."""
    if call.ordered:
        _wait_for_ordered()
    arrays: list[Any] = list(args)
    if not call.on_jax:
        arrays = [np.array(a, order="C") for a in arrays] if call.copy else lend(map(np.asarray, arrays))
    elif batch.sizes:
        arrays = [np.asarray(a) for a in arrays]  # slicing a jax.Array costs a dispatch
    with _jaxcore.profiled_as(call.label):
        outs = [_own(v) for v in _run(call, arrays, batch)]
    if not call.on_jax and not call.copy:
        take_back(arrays, call.title)
    return outs


def _own(value: Any) -> jax.Array:
    # The body may keep what it returned, and jnp.asarray may alias: copy.
    return value if isinstance(value, jax.Array) else _jaxcore.with_transfers(jnp.asarray, np.array(value))


def _run(call: Plain, arrays: list[Any], batch: Batch) -> list[Any]:
    if not batch.sizes:
        return call(arrays)
    if batch.block:
        return _checked_block(call, call(arrays, batch.sizes), arrays, batch)
    numbered = run_elements(call, arrays, batch)
    if not call.on_jax:  # a body may return one buffer each time
        numbered = ((number, [np.array(v) for v in values]) for number, values in numbered)
    rows = [values for _, values in sorted(numbered, key=operator.itemgetter(0))]
    if not rows:
        return [np.empty((*batch.sizes, *s.shape), s.dtype) for s in call.shapes(_structs(arrays, batch))]
    return [_stack(call, k, column, batch) for k, column in enumerate(zip(*rows))]


def _checked_block(call: Plain, values: list[Any], arrays: list[Any], batch: Batch) -> list[Any]:
    for k, value in enumerate(values):
        if value.shape[: len(batch.sizes)] != batch.sizes:
            wanted = call.shapes(_structs(arrays, batch))[k].shape
            call.check(k, value.shape, wanted, batch.sizes)
    return values


def _stack(call: Plain, k: int, column: Sequence[Any], batch: Batch) -> np.ndarray[Any, Any]:
    parts = [np.asarray(value) for value in column]
    for part in parts:
        if part.shape != parts[0].shape:
            raise ValueError(
                f"{call.title}: {call.op.which(k)} the shapes {show_shape(parts[0].shape)} "
                f"and {show_shape(part.shape)} for elements of one vmap; return one shape"
            )
    return np.stack(parts).reshape(*batch.sizes, *parts[0].shape)


def _wait_for_ordered() -> None:
    # A direct call would overtake the ordered calls of a program in flight (seen on 0.12).
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        # Not this op's failure; where its result is waited for, it is raised.
        warnings.warn(f"an earlier ordered op failed: {error}", RuntimeWarning, stacklevel=2)


def _impl(*args: Any, call: Plain, batch: Batch) -> list[Any]:
    # JAX hands Python scalars through as they are.
    arrays = [a if isinstance(a, (jax.Array, np.ndarray)) else _jaxcore.with_transfers(jnp.asarray, a) for a in args]
    outs = run_now(call, arrays, batch)
    own = outs[: len(outs) - call.adds]
    call.learn(_structs(arrays, batch), [Struct(o.shape[len(batch.sizes) :], o.dtype) for o in own])
    return outs


python_call_p.def_impl(_impl)

# -------------------------------------------------------------------- avals


def _structs(args: Sequence[Any], batch: Batch) -> list[Struct]:
    return [Struct(batch.element_shape(i, a.shape), a.dtype) for i, a in enumerate(args)]


def _abstract_eval(*avals: Any, call: Plain, batch: Batch) -> tuple[list[Any], set[Any]]:
    effects = set()
    if call.stateful:
        effects.add(
            (_jaxcore.OrderedEffect if call.ordered else _jaxcore.StatefulEffect)(call.title, call.op.stateless_cure)
        )
    shapes = call.shapes(_structs(avals, batch))
    return [_jaxcore.result_aval((*batch.sizes, *s.shape), s.dtype, avals) for s in shapes], effects


python_call_p.def_effectful_abstract_eval(_abstract_eval)

# ------------------------------------------------------------------------- vmap


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], *, call: Plain, batch: Batch
) -> tuple[list[Any], list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    args = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]
    block = call.vmap_method in BLOCK_METHODS and batch.block == bool(batch.sizes)
    if block:
        args = [a if d is not None else jnp.expand_dims(a, 0) for a, d in zip(args, dims)]
        if call.vmap_method == "broadcast_all":
            args = [jnp.broadcast_to(a, (size, *a.shape[1:])) for a in args]
    mask = tuple(block or d is not None for d in dims)
    outs = bind(call, *args, batch=batch.inside(size, mask, block))
    return outs, [0] * len(outs)


_jaxcore.batching.primitive_batchers[python_call_p] = _batch

# ------------------------------------------------------------------ derivatives


def _is_zero(tangent: Any) -> bool:
    # JAX hands Python numbers through as they are.
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == jax.dtypes.float0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Any, batch: Batch) -> tuple[list[Any], list[Any]]:
    whole, block = primals, batch
    if batch.block:
        primals, tangents, batch = _as_loop(primals, tangents, batch)
    moving = tuple(not _is_zero(t) for t in tangents)
    plan = call.linearize(moving)
    primals, moving = primals[plan.skip :], moving[plan.skip :]
    batch = batch.with_inputs(lambda mask: mask[plan.skip :])
    if plan.forward is call:
        outs = bind(call, *whole, batch=block)
    else:
        outs = bind(plan.forward, *primals, batch=batch)
    own = len(outs) - plan.forward.adds
    extra = outs[own:]
    results = outs if plan.with_results else []
    moved = [t for t in tangents if not _is_zero(t)]

    def mask_of_all(mask: tuple[bool, ...]) -> tuple[bool, ...]:
        of_moved = (axis for axis, moves in zip(mask, moving) if moves)
        return (*(True for _ in extra), *mask, *(True for _ in results), *of_moved)

    operands = [*extra, *primals, *results, *moved]
    found = iter(bind(plan.linear, *operands, batch=batch.with_inputs(mask_of_all)))
    outs = outs[: own + call.adds]
    return outs, [next(found) if is_inexact(o) else ad.Zero(_jaxcore.tangent_aval(o)) for o in outs]


def _as_loop(primals: Sequence[Any], tangents: Sequence[Any], batch: Batch) -> tuple[list[Any], list[Any], Batch]:
    # A record belongs to one element, so a differentiated batch is looped
    # over: axes of size 1 that a block method added are taken away again.
    masks = tuple(tuple(p.shape[axis] == size and size != 1 for p in primals) for axis, size in enumerate(batch.sizes))
    gone = [tuple(axis for axis, mask in enumerate(masks) if not mask[i]) for i in range(len(primals))]
    primals = [jnp.squeeze(p, axes) for p, axes in zip(primals, gone)]
    tangents = [t if _is_zero(t) else jnp.squeeze(t, axes) for t, axes in zip(tangents, gone)]
    return primals, tangents, Batch(batch.sizes, masks)


ad.primitive_jvps[python_call_p] = _jvp


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Any, batch: Batch) -> list[Any]:
    unknown = [ad.is_undefined_primal(x) for x in operands]
    if not hasattr(call.body, "transposed"):
        raise NotImplementedError(f"{call.title}: jax.linear_transpose does not know it as linear; use jax.vjp")
    given = tuple(type(ct) is not ad.Zero for ct in cotangents)
    if not any(given):
        return [ad.Zero(x.aval) if u else None for x, u in zip(operands, unknown)]
    first = len(operands) - sum(call.body.moving)  # of the tangents; before it are residuals
    residuals, of_residuals = operands[:first], slice(0, first)
    known = [ct for ct, g in zip(cotangents, given) if g]
    found = bind(
        call.transposed(given),
        *residuals,
        *known,
        batch=batch.with_inputs(lambda mask: (*mask[of_residuals], *(True for _ in known))),
    )
    summed = [_sum_unbatched(ct, first + k, batch) for k, ct in enumerate(found)]
    asked = zip(summed, operands[first:], unknown[first:])
    return [None] * first + [_jaxcore.shard_as(ct, x.aval) if u else None for ct, x, u in asked]


def _sum_unbatched(cotangent: Any, operand: int, batch: Batch) -> Any:
    axes = tuple(axis for axis, mask in enumerate(batch.masks) if not mask[operand])
    return jnp.sum(cotangent, axes) if axes else cotangent


ad.primitive_transposes[python_call_p] = _transpose

# --------------------------------------------------------------------- lowering


def _lowering(ctx: Any, *operands: Any, call: Plain, batch: Batch) -> Any:
    if _jaxcore.is_export(ctx):
        raise NotImplementedError(
            f"{call.title}: a Python function belongs to its process, so jax.export cannot write it down; "
            "export the parts around it, or use a py_function with mode='traced'"
        )
    results = [Struct(a.shape, a.dtype) for a in ctx.avals_out]
    # XLA skips a call whose results are all empty: a stateful one gets a byte to return.
    padding = int(call.stateful and not any(math.prod(r.shape) for r in results))
    results += [Struct((), np.uint8)] * padding
    host = Host(call, batch, ctx.avals_in, results, padding)
    emit = _route(ctx, call)

    def run(*args: Any) -> list[Any]:
        return list(emit(host, results, args))[: len(ctx.avals_out)]

    return _jaxcore.mlir.lower_fun(run, multiple_results=True)(ctx, *operands)


_Emit = Callable[[Host, list[Struct], Sequence[Any]], Sequence[Any]]


def _route(ctx: Any, call: Plain) -> _Emit:
    """How this call reaches the host from the program being lowered."""
    several = _jaxcore.device_count(ctx) > 1
    buffers = config.transport == "auto" and _jaxcore.platforms(ctx) == ("cpu",) and not call.ordered
    # XLA packs 4-bit and 2-bit values, and a buffer callback sees them as bytes (0.10 to 0.12).
    buffers = buffers and not any(_jaxcore.is_packed(a.dtype) for a in (*ctx.avals_in, *ctx.avals_out))
    # On several devices a buffer callback runs once per device. A stateful op
    # runs once; so do its derivatives, in the process that has its record.
    if buffers and not (call.op.stateful and several):
        return lambda host, results, args: buffer_callback(host.on_buffers, results, has_side_effect=call.stateful)(
            *args
        )
    emit = _io_callback if call.stateful else _pure_callback
    if not several:
        return lambda host, results, args: emit(host.on_arrays, results, args, host.call.ordered)
    everywhere = _jaxcore.Everywhere(ctx)
    if _jaxcore.platforms(ctx) == ("cpu",):
        return lambda host, results, args: _spread(emit, everywhere, host, results, args)
    return lambda host, results, args: [
        everywhere.spread(out) for out in emit(host.on_arrays, results, args, host.call.ordered)
    ]


def _spread(
    emit: Any, everywhere: _jaxcore.Everywhere, host: Host, results: list[Struct], args: Sequence[Any]
) -> Sequence[Any]:
    # A callback's result lives on one device, in a sharding that eager
    # operations on explicit meshes refuse (0.10 to 0.12), so it is spread. That
    # makes the other devices wait for it: were the body's exception raised on
    # the one that called, they would wait for good. It is raised on all.
    found = emit(host.on_arrays_later, [Struct((), np.uint32), *results], args, host.call.ordered)
    raising = buffer_callback(
        host.raise_now,
        results,
        has_side_effect=host.call.stateful,
        input_output_aliases={1 + k: k for k in range(len(results))},
    )
    # Without the barrier the constraint reaches the callback itself, which XLA refuses (0.12).
    return everywhere.run(raising, *map(everywhere.spread, jax.lax.optimization_barrier(tuple(found))))


def _io_callback(func: Any, results: list[Struct], args: Sequence[Any], ordered: bool) -> Sequence[Any]:
    return io_callback(func, results, *args, ordered=ordered)


def _pure_callback(func: Any, results: list[Struct], args: Sequence[Any], ordered: bool) -> Sequence[Any]:
    return jax.pure_callback(func, results, *args)


_jaxcore.wants_devices(python_call_p)
_jaxcore.mlir.register_lowering(python_call_p, _lowering, cacheable=False)

"""The JAX side of a call: one primitive with all of its rules.

`python_call` runs a call on the host. How it gets there is decided when it is
lowered, where the platform and the number of devices are known: the zero-copy
`buffer_callback` on one CPU device (with a token, where order matters),
`pure_callback` or `io_callback` otherwise.
Its derivative is another `python_call`, linear in its last operands; the
transpose of that is a third. Nothing here runs Python before run time, except
that a result's shape may have to be inferred.
"""

from __future__ import annotations

import math
import threading
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
from jaxpyop._host import BLOCK_METHODS, NO_BATCH, Batch, Host, Shared, lend, run_elements, run_once, take_back
from jaxpyop._jaxcore import Unusable
from jaxpyop._op.body import Struct, differs_in_block
from jaxpyop._op.primitive.call import Call
from jaxpyop._op.primitive.records import RECORDS, Handed
from jaxpyop._op.values import anchor_of, copy_to_jax, show_shape, taken_over


class _PythonCall(_jaxcore.Primitive):
    multiple_results = True
    calls_python = True  # which the tape asks


python_call_p = _PythonCall("python_call")


def bind(call: Call, *args: Any, batch: Batch = NO_BATCH) -> list[Any]:
    """Run a call on the host, now or, under a transformation, when it runs."""
    if (missing := call.missing) is not None and any(isinstance(a, Unusable) for a in args):
        return [Unusable(s.shape, s.dtype, missing) for s in _result_structs(args, call, batch)]
    return python_call_p.bind(*_jaxcore.cast_to_common_axes(args), call=call, batch=batch)


# ----------------------------------------------------------------- direct calls


def run_now(call: Call, args: Sequence[Any], batch: Batch = NO_BATCH, *, hold: bool = True) -> list[Any]:
    """Run a call on the caller's thread, without compilation.

    Args:
        call: what to run.
        args: its inputs, of which the first may be a `Handed` record.
        batch: the `vmap`s around it.
        hold: whether records go when the array of their tokens does. Not where a program goes on with a copy of it.

    Returns:
        jax.Arrays on the devices of the inputs; a `Handed` record is passed through.
    """
    if call.ordered:
        _wait_for_ordered()
    if call.writes_out:
        call.shapes(structs_of(args, batch))  # known before anything runs, and in workers
    arrays: list[Any] = list(args)
    if not call.on_jax:
        arrays = [np.array(a, order="C") for a in arrays] if call.copy else lend(map(np.asarray, arrays))
    elif batch.sizes:
        arrays = [np.asarray(a) for a in arrays]  # slicing a jax.Array costs a dispatch
    elif call.op.executor is not None:
        jax.block_until_ready(arrays)  # they may come from an op that waits for the same thread
    like = anchor_of(args)
    with _jaxcore.profiled_as(call.label), _jaxcore.without_axes():
        outs = _owned(_run(call, arrays, batch, like), call, like)
    if not call.on_jax and not call.copy:
        take_back(arrays, call.title)
    if hold and call.extra_results:  # tokens, which live here as long as somebody holds them
        RECORDS.hold(np.asarray(outs[-1]).flat, outs[-1])
    return outs


def _owned(values: Sequence[Any], call: Call, like: Any) -> list[Any]:
    try:
        # The body may keep what it returned.
        return [value if isinstance(value, (jax.Array, Handed)) else copy_to_jax(value, like) for value in values]
    except FloatingPointError as error:  # JAX's, which does not know whose values they are
        raise FloatingPointError(f"{call.title}: func returned a value that jax_debug_nans forbids: {error}") from None


def _run(call: Call, arrays: list[Any], batch: Batch, like: Any) -> list[Any]:
    if batch.sizes and not batch.block:
        results = _Rows(call, batch)
        run_elements(call, arrays, batch, results.take)
        return results.stacked(arrays, like)
    found: list[Any] = []
    run_once(call, arrays, batch.sizes, lambda values: found.extend(_owned(values, call, like)))
    return _checked_block(call, found, arrays, batch) if batch.block else found


def _checked_block(call: Call, values: list[Any], arrays: list[Any], batch: Batch) -> list[Any]:
    for k, value in enumerate(values):
        if value.shape[: len(batch.sizes)] != batch.sizes:
            wanted = call.shapes(structs_of(arrays, batch))[k].shape
            call.check(k, value.shape, wanted, batch.sizes)
    return values


class _Rows:
    """The results of a batch outside `jit`, whose first element says what shape they have."""

    def __init__(self, call: Call, batch: Batch) -> None:
        self._call = call
        self._batch = batch
        self._lock = threading.Lock()
        self._columns: list[np.ndarray[Any, Any]] | None = None

    def take(self, at: int | slice, values: Sequence[Any]) -> None:
        """Take an element's results, or those of several, stacked; on any thread."""
        skip = int(isinstance(at, slice))
        if self._columns is None:
            with self._lock:
                if self._columns is None:
                    self._columns = [np.empty((self._batch.count, *v.shape[skip:]), v.dtype) for v in values]
        for k, (column, value) in enumerate(zip(self._columns, values)):
            if value.shape[skip:] != column.shape[1:]:
                raise ValueError(
                    f"{self._call.title}: {self._call.op.origin_of_array(k)} the shapes {show_shape(column.shape[1:])} "
                    f"and {show_shape(value.shape[skip:])} for elements of one vmap; return one shape"
                )
            column[at, ...] = value

    def stacked(self, arrays: Sequence[Any], like: Any) -> list[Any]:
        """All of them, with the batch axes in front."""
        sizes = self._batch.sizes
        columns = self._columns
        if columns is None:
            columns = [np.empty((0, *s.shape), s.dtype) for s in self._call.shapes(structs_of(arrays, self._batch))]
        return [taken_over(c.reshape(*sizes, *c.shape[1:]), like) for c in columns]


def _wait_for_ordered() -> None:
    # A direct call would overtake the ordered calls of a program in flight (seen on 0.12).
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        # Not this op's failure; where its result is waited for, it is raised.
        warnings.warn(f"an earlier ordered op failed: {error}", RuntimeWarning, stacklevel=2)


def _impl(*args: Any, call: Call, batch: Batch) -> list[Any]:
    # JAX hands Python scalars through as they are.
    arrays = [a if isinstance(a, (jax.Array, np.ndarray)) else _jaxcore.with_transfers(jnp.asarray, a) for a in args]
    if (missing := call.missing) is not None:
        return [Unusable(s.shape, s.dtype, missing) for s in _result_structs(arrays, call, batch)]
    outs = run_now(call, arrays, batch)
    own = outs[: len(outs) - call.extra_results]
    call.learn(structs_of(arrays, batch), [Struct(o.shape[len(batch.sizes) :], o.dtype) for o in own])
    return outs


python_call_p.def_impl(_impl)

# -------------------------------------------------------------------- avals


def structs_of(args: Sequence[Any], batch: Batch) -> list[Struct]:
    """One element's shapes and dtypes."""
    return [Struct(batch.element_shape(i, a.shape), a.dtype) for i, a in enumerate(args)]


def _result_structs(args: Sequence[Any], call: Call, batch: Batch) -> list[Struct]:
    found = call.shapes(structs_of(args, batch))
    return [Struct((*batch.sizes, *s.shape), s.dtype) for s in found] if batch.sizes else found


def _abstract_eval(*avals: Any, call: Call, batch: Batch) -> tuple[list[Any], set[Any]]:
    effects = set()
    if call.stateful:
        effects.add(
            (_jaxcore.OrderedEffect if call.ordered else _jaxcore.StatefulEffect)(call.title, call.op.stateless_advice)
        )
    return [_jaxcore.result_aval(s.shape, s.dtype, avals) for s in _result_structs(avals, call, batch)], effects


python_call_p.def_effectful_abstract_eval(_abstract_eval)

# ------------------------------------------------------------------------- vmap


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, call: Call, batch: Batch) -> tuple[list[Any], list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    args = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]
    block = call.vmap_method in BLOCK_METHODS and batch.block == bool(batch.sizes)
    if call.conditional and dims[0] is not None and (block or batch.block):
        raise ValueError(differs_in_block(call.op))
    if block:
        args = [a if d is not None else jnp.expand_dims(a, 0) for a, d in zip(args, dims)]
        # All but tokens, whose axes say with which axes `fwd` ran; or at least a rule's tangents: what it returns then
        # has no axes of size 1.
        first = call.leading_inputs if call.vmap_method == "broadcast_all" else len(args) - call.linear
        args[first:] = [jnp.broadcast_to(a, (size, *a.shape[1:])) for a in args[first:]]
    mask = tuple(block or d is not None for d in dims)
    outs = bind(call, *args, batch=batch.inside(size, mask, block))
    return outs, [0] * len(outs)


_jaxcore.batching.primitive_batchers[python_call_p] = _batch

# --------------------------------------------------------------------- lowering


def _check_lowering(ctx: Any, call: Call) -> None:
    if _jaxcore.is_export(ctx):
        raise NotImplementedError(
            f"{call.title}: a Python function belongs to its process, so jax.export cannot write it down; "
            "export the parts around it, or use a py_function with mode='traced'"
        )
    if call.missing is not None and not _jaxcore.keeps_dead_code(ctx):
        raise call.missing()
    if (combining := _jaxcore.combining_caller()) is not None:  # XLA ends the process (0.10 to 0.12)
        raise NotImplementedError(
            f"{call.title}: the function of {combining} is part of one XLA operation, which cannot call Python; call "
            "it on the whole array, or once per element in jax.lax.scan, or use a py_function with mode='traced'"
        )


def _lowering(ctx: Any, *operands: Any, call: Call, batch: Batch) -> Any:
    _check_lowering(ctx, call)
    results = [Struct(a.shape, a.dtype) for a in ctx.avals_out]
    # XLA skips a call whose results are all empty: a stateful one gets a byte to return.
    padding = int(call.stateful and not any(math.prod(r.shape) for r in results))
    results += [Struct((), np.uint8)] * padding
    host = Host(call, batch, ctx.avals_in, results, padding)
    if _takes_buffers(ctx, call):
        return _lower_to_buffers(ctx, host, operands, results)[: len(ctx.avals_out)]
    emit = _route(ctx, call)

    def run(*args: Any) -> list[Any]:
        return list(emit(host, results, args))[: len(ctx.avals_out)]

    return _jaxcore.mlir.lower_fun(run, multiple_results=True)(ctx, *operands)


def _lower_to_buffers(ctx: Any, host: Host, operands: Sequence[Any], results: list[Struct]) -> Sequence[Any]:
    callback, call = host.on_buffers, host.call
    if call.ordered:
        return _jaxcore.ordered_buffer_callback(ctx, callback, operands, results)
    if _jaxcore.device_count(ctx) > 1:
        assigned = ctx.module_context.axis_context.device_assignment
        here = sum(device.process_index == jax.process_index() for device in assigned)
        callback = Shared(host, here).on_buffers
    return _jaxcore.lowered_buffer_callback(ctx, callback, operands, results, call.stateful)


_Emit = Callable[[Host, list[Struct], Sequence[Any]], Sequence[Any]]


def _takes_buffers(ctx: Any, call: Call) -> bool:
    """Whether a buffer callback, which copies nothing, can be taken here."""
    if config.transport != "auto" or _jaxcore.platforms(ctx) != ("cpu",):
        return False
    # On several devices a buffer callback runs once per device; those of a stateless op share one run. A stateful
    # op runs once; so do its derivatives, in the process that has its record.
    if call.op.stateful and _jaxcore.device_count(ctx) > 1:
        return False
    # XLA packs 4-bit and 2-bit values, and a buffer callback sees them as bytes (0.10 to 0.12).
    return not any(_jaxcore.is_packed(a.dtype) for a in (*ctx.avals_in, *ctx.avals_out))


def _route(ctx: Any, call: Call) -> _Emit:
    """How this call reaches the host from the program being lowered."""
    emit = _io_callback if call.stateful else _pure_callback
    if _jaxcore.device_count(ctx) == 1:
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

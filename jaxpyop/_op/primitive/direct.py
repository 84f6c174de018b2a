"""Direct calls: a call runs at once, on the caller's thread, and nothing is compiled."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import NO_BATCH, Batch, lend, metrics, results_of_elements, run_once, take_back
from jaxpyop._op.primitive.call_protocol import Call, structs_of
from jaxpyop._op.primitive.records import RECORDS, HandedRecord
from jaxpyop._op.values import anchor_of, copy_to_jax, give_to_jax, show_shape


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
    began = time.perf_counter() if metrics.reports else None
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
            metrics.note_call(call, "direct" if hold_records else "cut", batch, began, error=error)
        raise
    if began is not None:
        nbytes = metrics.nbytes(arrays), metrics.nbytes(outs)
        metrics.note_call(call, "direct" if hold_records else "cut", batch, began, nbytes)
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

"""The primitive `python_call`, and its rules for tracing, direct calls and `vmap`: a call is bound here.

A direct call runs at once, on the caller's thread, and nothing is compiled. A call under `vmap` is the same call with
one more batch axis. The rule for compiled programs is in `lowering`, and those for derivatives are in `differentiate`.
No rule runs Python code before the program does, except that a result's shape may have to be inferred.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore, _settings, _sharding
from jaxpyop._host import NO_BATCH, Batch, lend, metrics, results_of_elements, run_once, take_back
from jaxpyop._jaxcore import Unusable
from jaxpyop._op.body import element_structs
from jaxpyop._op.primitive.call import Call, structs_of
from jaxpyop._op.primitive.records import RECORDS
from jaxpyop._values import anchor_of, copy_to_jax, give_to_jax, show_shape


class _PythonCall(_jaxcore.Primitive):
    multiple_results = True
    # The tape asks for this attribute.
    calls_python = True


python_call_p = _PythonCall("python_call")


def bind(call: Call, *args: Any, batch: Batch = NO_BATCH) -> list[Any]:
    """Run a call on the host: at once, or, under a transformation, when the program runs.

    JAX goes on in the rule of the transformation: `jax.grad` in `_linearize` of `differentiate`.
    """
    _jaxcore.prepare()
    if any(isinstance(a, Unusable) for a in args) and (refusal := call.refusal) is not None:
        return [Unusable(s.shape, s.dtype, refusal) for s in call.result_structs(args, batch)]
    return python_call_p.bind(*_jaxcore.cast_to_common_axes(args), call=call, batch=batch)


def _impl(*args: Any, call: Call, batch: Batch) -> list[Any]:
    # JAX hands Python scalars through as they are.
    arrays = [a if isinstance(a, (jax.Array, np.ndarray)) else _settings.with_transfers(jnp.asarray, a) for a in args]
    if (refusal := call.refusal) is not None:
        return [Unusable(s.shape, s.dtype, refusal) for s in call.result_structs(arrays, batch)]
    # A pullback may be called after the block with 64-bit types in which it was made.
    with _dtypes.as_wide_as(arrays):
        outs = run_now(call, arrays, batch)
    results = outs[: len(outs) - len(call.operands.extra_results)]
    call.note_shapes(structs_of(arrays, batch), element_structs(results, batch.sizes))
    return outs


def _abstract_eval(*avals: Any, call: Call, batch: Batch) -> tuple[list[Any], set[Any]]:
    effects: set[Any] = set()
    if call.stateful:
        effects.add(_jaxcore.effect_of_op(call.title, call.op.stateless_advice, call.ordered))
    # A shape that nobody gave is found here, by a run of the function on abstract values.
    return [_jaxcore.result_aval(s.shape, s.dtype, avals) for s in call.result_structs(avals, batch)], effects


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, call: Call, batch: Batch) -> tuple[list[Any], list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    mapped = args
    args = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]
    method, operands = call.method, call.operands
    # All axes of a batch are those of a block, or none is.
    block = method.whole_batch and batch.block == bool(batch.sizes)
    if operands.is_conditional and dims[0] is not None and (block or batch.block):
        raise ValueError(
            f"{call.title}: when= differs by element here, and vmap_method={call.op.vmap_method.name!r} hands func the "
            "batch; pass vmap_method='sequential', or one when= for all elements"
        )
    if block:
        args = [a if d is not None else jnp.expand_dims(a, 0) for a, d in zip(args, dims)]
        # `broadcast_all` gives every input the size of the batch, except for the flag of `when=`, which keeps an axis
        # of size 1. Other methods broadcast only a rule's tangents or cotangents, because their axes of size 1 would
        # show up in the results.
        first = operands.leading if method.broadcasts else len(args) - operands.linear_inputs
        args[first:] = [jnp.broadcast_to(a, (size, *a.shape[1:])) for a in args[first:]]
    mask = tuple(block or d is not None for d in dims)
    outs = bind(call, *args, batch=Batch((size, *batch.sizes), (mask, *batch.masks), block))
    return _sharding.shard_batch_like(outs, mapped, dims), [0] * len(outs)


# ----------------------------------------------------------------- direct calls


def run_now(
    call: Call, args: Sequence[Any], batch: Batch = NO_BATCH, *, hold_records: bool = True, keep_numpy: bool = False
) -> list[Any]:
    """Run a call at once, on the caller's thread.

    Args:
        call: the call.
        args: its inputs.
        batch: the `vmap`s around it.
        hold_records: whether the records of this call live as long as the array of their receipts. A program that goes
            on with a copy of the receipts needs them for longer.
        keep_numpy: whether NumPy results may stay NumPy arrays, of a call without a batch and `executor=`.

    Returns:
        jax.Arrays on the devices of the inputs.
    """
    if call.ordered:
        _wait_for_ordered()
    if call.operands.writes_out:
        # The shapes have to be known before anything runs, and in workers.
        call.shapes(structs_of(args, batch))
    began = metrics.begin(call.op.name) if metrics.reports else None
    route = "direct" if hold_records else "cut"
    if not call.on_jax:
        arrays = [np.array(a, order="C") if call.copy else lend(np.asarray(a)) for a in args]
    elif batch.sizes:
        # Slicing a jax.Array would cost a dispatch.
        arrays = [np.asarray(a) for a in args]
    else:
        # One by one, so that nothing is compiled for these shapes.
        arrays = [copy_to_jax(a) if isinstance(a, np.ndarray) else a for a in args]
        if call.op.executor is not None:
            # The arrays may come from an op that waits for the same thread.
            jax.block_until_ready(arrays)
    like = anchor_of(args, call.operands.leading)
    try:
        # A backward pass may run outside of the block with settings of JAX in which the op was called.
        settings = _settings.with_debug_nans_of_here(call.environment.settings)
        entered = _settings.with_thread_settings(settings)
        with jax.profiler.TraceAnnotation(call.label), _jaxcore.without_axes(), entered:
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
        return _run_and_stack(call, arrays, batch, like)
    found: list[Any] = []
    run_once(call, arrays, batch.sizes, lambda values: found.extend(_copied(values, call, like)))
    for k, value in enumerate(found if batch.block else ()):
        if value.shape[: len(batch.sizes)] != batch.sizes:
            call.check_shape(k, value.shape, call.shapes(structs_of(arrays, batch))[k].shape, batch.sizes)
    return found


def _run_and_stack(call: Call, arrays: list[Any], batch: Batch, like: Any) -> list[Any]:
    """Run each element, and stack their results, all of which have the shapes of the first one."""
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


python_call_p.def_impl(_impl)
python_call_p.def_effectful_abstract_eval(_abstract_eval)
_jaxcore.batching.primitive_batchers[python_call_p] = _batch

"""Runs one host call, for one element, a block or a whole batch, where `executor=` says.

Looping methods take the elements in batch order. Block methods hand the batch over as it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host.errors import note_index
from jaxpyop._host.host_call import Batch, Environment, HostCall, elements
from jaxpyop._host.pools import (
    OWN_THREADS,
    Store,
    call_on_thread,
    executor_of,
    has_threads,
    is_own_thread,
    run_elements_in_workers,
    run_on_threads,
    run_one_by_one_in_workers,
)


def runs_in_this_process(op: Any) -> bool:
    """Tell whether an op's function runs in this process, on whatever thread."""
    executor = executor_of(op)
    return executor is None or has_threads(executor)


def run_once(
    call: HostCall, arrays: Sequence[Any], lead: tuple[int, ...], store: Callable[[Sequence[Any]], None]
) -> None:
    """Run a call on one element, or on a whole block, where `executor=` says.

    Args:
        call: what to run.
        arrays: the inputs.
        lead: the batch axes that they have in front.
        store: takes the results, on the thread that has them, before that thread can do anything else.
    """
    executor = executor_of(call.op) if call.body.goes_to_executor else None
    if executor is None:
        store(call(arrays, lead))
    elif has_threads(executor):
        call_on_thread(executor, lambda: store(call(arrays, lead)), call.environment, call.title)
    else:
        one = iter([(0, arrays)])
        run_one_by_one_in_workers(executor, call, one, None, lambda at, values: store(values), at_once=False, lead=lead)


def call_where_op_runs(op: Any, func: Callable[[], Any]) -> Any:
    """Call a function on a thread of an op's executor, or here if its workers are not threads of this process."""
    executor = executor_of(op)
    if executor is None or not has_threads(executor):
        return func()
    return call_on_thread(executor, func, Environment(), op.title)


def run_each(call: HostCall, each: Iterator[Sequence[Any]], count: int, index_name: str) -> list[list[Any]]:
    """Run a call on lists of inputs as on the elements of a batch.

    Args:
        call: what to run.
        each: the lists of inputs, which the call may keep and change.
        count: how many there are.
        index_name: what errors call the number of a list.

    Returns:
        The results of each list, in order.
    """
    if runs_in_this_process(call.op):
        return results_of_elements(call, [], Batch((count,), index_name=index_name), each)
    arrays = [np.stack([np.asarray(v) for v in values]) for values in zip(*each)]
    return results_of_elements(call, arrays, Batch((count,), ((True,) * len(arrays),), index_name=index_name))


def run_in_parts(call: HostCall, count: int, run: Callable[[slice], Any]) -> list[Any]:
    """Run a function on parts of a batch, on this thread and on further ones of ours; returns what it returned."""
    # Elements take unequal time, so that each processor takes several parts.
    processors = os.cpu_count() or 1
    bounds = np.linspace(0, count, 1 + min(count, 4 * processors), dtype=int)
    found: list[Any] = []
    keep = lambda number, part: found.append(run(part))
    run_on_threads(
        OWN_THREADS, enumerate(map(slice, bounds, bounds[1:])), keep, call.environment, call.title, processors
    )
    return found


def results_of_elements(
    call: HostCall, arrays: Sequence[Any], batch: Batch, each: Iterator[Sequence[Any]] | None = None
) -> list[list[Any]]:
    """Do what `run_elements` does, and return the results of each element, in order."""
    found: list[list[Any]] = [[]] * batch.count

    def store(at: int | slice, values: Sequence[Any]) -> None:
        if isinstance(at, slice):
            found[at] = [[v[k, ...] for v in values] for k in range(len(found[at]))]
        else:
            found[at] = [np.array(v) for v in values]

    run_elements(call, arrays, batch, store, each)
    return found


def run_elements(
    call: HostCall, arrays: Sequence[Any], batch: Batch, store: Store, each: Iterator[Sequence[Any]] | None = None
) -> None:
    """Run a call on each element of a looping batch, where `executor=` says.

    Args:
        call: what to run.
        arrays: the inputs with their batch axes in front.
        batch: the batch.
        store: takes the number and the results of an element, or a slice and the stacked results of several elements.
            It is called on any thread.
        each: the inputs of each element, instead of `arrays`.

    Raises:
        BaseException: what the first failing element raised, with a note of its index. Nothing runs any more by then.
    """
    if not batch.count:
        return
    with contextlib.ExitStack() as stack:
        if call.op.failures is not None:
            stack.enter_context(call.op.failures.in_batch())
        _run_elements(call, arrays, batch, store, each)


def _run_elements(
    call: HostCall, arrays: Sequence[Any], batch: Batch, store: Store, each: Iterator[Sequence[Any]] | None
) -> None:
    at_once = call.method.at_once and not call.ordered
    if call.op.executor is not None:
        executor = executor_of(call.op) if call.body.goes_to_executor else None
    else:
        executor = OWN_THREADS if at_once and not is_own_thread(OWN_THREADS) else None
    numbered = enumerate(elements(arrays, batch) if each is None else each)
    # Several elements share the memory of an input without all batch axes, and each body may write into its inputs.
    copied = [not all(mask[i] for mask in batch.masks) for i in range(len(arrays))]
    copies = any(copied) and call.copy and not call.on_jax

    def run(number: int, inputs: Sequence[Any]) -> None:
        try:
            store(number, call([a.copy() if c else a for a, c in zip(inputs, copied)] if copies else inputs))
        except BaseException as error:
            note_index(error, number, batch, title=call.title)
            raise

    if executor is not None and has_threads(executor):
        threads = batch.count if at_once else 1
        run_on_threads(executor, numbered, run, call.environment, call.title, threads)
    elif executor is not None and call.one_by_one:
        run_one_by_one_in_workers(executor, call, numbered, batch, store, at_once=at_once)
    elif executor is not None and (given := call.for_worker(arrays)) is not None:
        dropped = len(arrays) - len(given)
        batch = batch.with_inputs(lambda mask: mask[dropped:])
        run_elements_in_workers(executor, call, given, batch, store, at_once)
    else:
        for number, inputs in numbered:
            run(number, inputs)

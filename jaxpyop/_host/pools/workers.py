"""Runs elements in workers that share no memory with the caller: processes, machines, whatever an executor has.

Nothing is recorded in a worker, so a backward pass runs the body again. A few jobs are under way at a time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import pickle
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import metrics
from jaxpyop._host.errors import add_note, note_index
from jaxpyop._host.host_call import Batch, BatchedInput, HostCall
from jaxpyop._host.pools.chunks import Chunks
from jaxpyop._host.pools.engines import Engine, engine_of, means_lost_worker
from jaxpyop._host.pools.executors import Executor
from jaxpyop._host.pools.job import Job, Outcome, UnreadableBodyError, job_for

# Takes the number of an element and its results, or a slice and the results of several elements, stacked.
Store = Callable[[int | slice, Sequence[Any]], None]

# A job, the elements that it runs if they belong to a batch, and the function that takes its outcome and the seconds
# after which it was back.
_Task = tuple[Job, slice, Callable[[Outcome, float], None]]


def run_elements_in_workers(
    executor: Executor, call: HostCall, arrays: Sequence[Any], batch: Batch, store: Store, at_once: bool
) -> None:
    """Run a call on each element of a looping batch, in chunks.

    Args:
        executor: the executor.
        call: what to run.
        arrays: the inputs with their batch axes in front, as `call.for_worker` returned them.
        batch: the batch over these inputs.
        store: takes the results.
        at_once: whether chunks may run at the same time.
    """
    inputs = [BatchedInput(np.asarray(a), i, batch) for i, a in enumerate(arrays)]
    engine = engine_of(executor)
    chunks = Chunks(batch.count, call.op.chunksize, call.pace)

    def checked(values: list[Any], number: int) -> list[Any]:
        return call.from_worker(values, [i.one(number) for i in inputs])

    def finish(at: slice, outcome: Outcome, took: float) -> None:
        chunks.learn(at.stop - at.start, outcome.seconds, took)
        call.pace, found = chunks.pace, outcome.results
        if not (found and isinstance(found[0], list)):
            # The elements have the same shapes: the check of the first one holds for all.
            if len(checked([column[0, ...] for column in found], at.start)) == len(found):
                store(at, found)
                return
            # The call adds results that differ from element to element.
            found = [[column[k, ...] for column in found] for k in range(at.stop - at.start)]
        for number, values in zip(range(at.start, at.stop), found):
            with _noting(batch, slice(number, number + 1)):
                store(number, checked(values, number))

    def tasks() -> Iterator[_Task]:
        with _noting(batch, slice(0, 1)):
            job = job_for(executor, call)
        job = dataclasses.replace(job, batch=batch, rows=[not i.is_shared_by_all for i in inputs])
        start = 0
        while chunks.left:
            at = slice(start, start := start + chunks.next(engine.workers() if at_once else 1))
            sent = [i.array if i.is_shared_by_all else i.rows(at.start, at.stop) for i in inputs]
            chunk = dataclasses.replace(job, arrays=sent, first=at.start, count=at.stop - at.start)
            yield chunk, at, functools.partial(finish, at)

    _run(engine, call, tasks(), batch, at_once)


def run_one_by_one_in_workers(
    executor: Executor,
    call: HostCall,
    elements: Iterator[tuple[int, Sequence[Any]]],
    batch: Batch | None,
    store: Store,
    *,
    at_once: bool,
    lead: tuple[int, ...] = (),
) -> None:
    """Run a call on each element, or once on a block, with a job for each.

    Args:
        executor: the executor.
        call: what to run. Its `for_worker` and `from_worker` are asked for each element.
        elements: the number and the inputs of each element.
        batch: the batch that they belong to; None for a single call.
        store: takes the results.
        at_once: whether elements may run at the same time.
        lead: the batch axes that the inputs of a block have in front.
    """

    def tasks() -> Iterator[_Task]:
        job = None
        for number, inputs in elements:
            at = slice(number, number + 1)
            with _noting(batch, at):
                given = call.for_worker(inputs)
                if given is None:
                    store(number, call(inputs, lead))
                    continue
                job = job or dataclasses.replace(job_for(executor, call), lead=lead)
                arrays = [np.asarray(a) for a in given]
                sent = dataclasses.replace(job, arrays=arrays, rows=[False] * len(arrays))
            yield sent, at, functools.partial(finish, number, inputs)

    def finish(number: int, inputs: Sequence[Any], outcome: Outcome, _: float) -> None:
        store(number, call.from_worker(outcome.results[0], inputs, lead))

    _run(engine_of(executor), call, tasks(), batch, at_once)


def _run(engine: Engine, call: HostCall, tasks: Iterator[_Task], batch: Batch | None, at_once: bool) -> None:
    """Send jobs, two for each worker at a time, or one if not `at_once`, and hand on their results as they come."""
    under_way: dict[Any, tuple[slice, Callable[[Outcome, float], None], float]] = {}
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def finish() -> None:
        future = done.get()
        at, take, sent = under_way[future]
        took = time.perf_counter() - sent
        with _noting(batch, at):
            try:
                outcome = future.result()
            except BaseException as error:
                metrics.add_attached(error)
                raise
            del under_way[future]
            if outcome.failures:
                call.op.failures.add(outcome.failures)
            metrics.add_counted(outcome.counted)
            take(outcome, took)

    try:
        for job, at, take in tasks:
            with _noting(batch, at):
                sent = time.perf_counter()
                future = engine.submit(job)
            under_way[future] = at, take, sent
            future.add_done_callback(done.put)
            while len(under_way) >= (2 * engine.workers() if at_once else 1):
                finish()
        while under_way:
            finish()
    except BaseException as error:
        if (shown := _explained(error, call.title)) is error:
            raise
        for note in getattr(error, "__notes__", ()):
            add_note(shown, note)
        raise shown from error
    finally:
        # No job may read the inputs after this. A cancelled job never runs, and one of Dask's never counts as done.
        concurrent.futures.wait([future for future in under_way if not engine.cancel(future)])


# ---------------------------------------------------------------------------- errors


@contextlib.contextmanager
def _noting(batch: Batch | None, at: slice) -> Iterator[None]:
    """Note in an error which elements it is about, unless the worker has done so."""
    try:
        yield
    except BaseException as error:
        noted = batch is None or any(n.startswith(f"at {batch.index_name}") for n in getattr(error, "__notes__", ()))
        if not noted:
            note_index(error, at.start, batch, at.stop - 1)
        raise


def _explained(error: BaseException, title: str) -> BaseException:
    """An error that says what to do if the executor is at fault, and otherwise the error itself."""
    if means_lost_worker(error):
        return RuntimeError(
            f"{title}: a worker of executor= died ({error}), which may end its pool; give a new one, or a function "
            "that returns the pool to use, executor=lambda: pool"
        )
    if isinstance(error, UnreadableBodyError):
        return TypeError(
            f"{title}: a worker of executor= cannot find func ({error}); define it at the top of a module that workers "
            "can import, not in a notebook or at a prompt, or use threads"
        )
    # Python 3.13 says "Can't get local object" without the word "pickle".
    text = _texts(error)
    unpicklable = "pickle" in text or "Can't get local object" in text
    if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)) and unpicklable:
        return TypeError(
            f"{title}: func or its inputs cannot be pickled for executor= ({error}); "
            "define func at the top of a module, or use threads"
        )
    return error


def _texts(error: BaseException | None) -> str:
    return "" if error is None else f"{error} {_texts(error.__cause__ or error.__context__)}"

"""Runs elements in workers that share no memory with the caller: processes, machines, whatever an executor has.

Nothing is recorded in a worker, so a backward pass runs the body again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host.host_call import Batch, BatchedInput, HostCall
from jaxpyop._host.pools.chunks import Chunks
from jaxpyop._host.pools.executors import Executor
from jaxpyop._host.pools.job import Outcome, job_for
from jaxpyop._host.pools.sending import Sending, Task, noting, numbers_in

# Takes the number of an element and its results, or a slice and the results of several elements, stacked.
Store = Callable[[int | slice, Sequence[Any]], None]


def run_elements_in_workers(
    executor: Executor | list[Executor],
    call: HostCall,
    arrays: Sequence[Any],
    batch: Batch,
    store: Store,
    at_once: bool,
) -> None:
    """Run a call on each element of a looping batch, in chunks.

    Args:
        executor: the executor, or a list with one for each element in turn.
        call: what to run.
        arrays: the inputs with their batch axes in front, as `call.for_worker` returned them.
        batch: the batch over these inputs.
        store: takes the results.
        at_once: whether chunks may run at the same time.
    """
    _Chunked(Sending(executor, call, batch, at_once), executor, call, arrays, batch, store).run()


class _Chunked:
    """The elements of a batch as tasks. The arguments are those of `run_elements_in_workers`."""

    def __init__(
        self,
        sending: Sending,
        executor: Executor | list[Executor],
        call: HostCall,
        arrays: Sequence[Any],
        batch: Batch,
        store: Store,
    ) -> None:
        self._sending = sending
        self._executors = executor if isinstance(executor, list) else [executor]
        self._call = call
        self._batch = batch
        self._store = store
        self._inputs = [BatchedInput(np.asarray(a), i, batch) for i, a in enumerate(arrays)]
        self._chunks = Chunks(batch.count, call.op.chunksize, call.pace)

    def run(self) -> None:
        """Run all of them."""
        self._sending.run(self._tasks())

    def _tasks(self) -> Iterator[Task]:
        with noting(self._batch, slice(0, 1)):
            rows = [not i.is_shared_by_all for i in self._inputs]
            self._job = dataclasses.replace(job_for(self._executors[0], self._call), batch=self._batch, rows=rows)
        count, homes = self._batch.count, len(self._executors)
        if homes > 1:
            # The elements of a worker are known, so they go in one chunk, unless elements run in batch order.
            span = homes * (self._call.op.chunksize or count) if self._sending.at_once else 1
            for first in range(0, count, span):
                for start in range(first, min(first + homes, first + span, count)):
                    yield self._task(slice(start, min(first + span, count), homes))
            return
        while self._chunks.left:
            start = count - self._chunks.left
            yield self._task(slice(start, start + self._chunks.next(self._sending.workers())))

    def _task(self, at: slice) -> Task:
        numbers = numbers_in(at)
        rows = [i.rows(at) for i in self._inputs if not i.is_shared_by_all]
        return Task(
            dataclasses.replace(self._job, arrays=rows, numbers=numbers),
            [i.array for i in self._inputs if i.is_shared_by_all],
            at,
            functools.partial(self._take, at),
            functools.partial(self._halves, at),
            lambda error: self._call.body.results_if_lost(error, self._inputs_of(at.start)),
            home=at.start % len(self._executors),
        )

    def _halves(self, at: slice) -> list[Task]:
        if len(numbers := numbers_in(at)) == 1:
            return []
        middle = numbers[len(numbers) // 2]
        return [self._task(slice(at.start, middle, at.step)), self._task(slice(middle, at.stop, at.step))]

    def _inputs_of(self, number: int) -> list[Any]:
        return [i.one(number) for i in self._inputs]

    def _take(self, at: slice, outcome: Outcome, took: float) -> None:
        if outcome.seconds:
            self._chunks.learn(len(numbers_in(at)), outcome.seconds, took)
            self._call.pace = self._chunks.pace
        each: list[Any] = outcome.results
        if not (each and isinstance(each[0], list)):
            columns = outcome.results
            # The elements have the same shapes: the check of the first one holds for all.
            first = [column[0, ...] for column in columns]
            if len(self._call.from_worker(first, self._inputs_of(at.start))) == len(columns):
                self._store(at, columns)
                return
            # The call adds results that differ from element to element.
            each = [[column[k, ...] for column in columns] for k in range(len(numbers_in(at)))]
        for number, values in zip(numbers_in(at), each):
            with noting(self._batch, slice(number, number + 1)):
                self._store(number, self._call.from_worker(values, self._inputs_of(number)))


def run_one_by_one_in_workers(
    executor: Executor | list[Executor],
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
        executor: the executor, or a list with one for each element in turn.
        call: what to run. Its `for_worker` and `from_worker` are asked for each element.
        elements: the number and the inputs of each element.
        batch: the batch that they belong to; None for a single call.
        store: takes the results.
        at_once: whether elements may run at the same time.
        lead: the batch axes that the inputs of a block have in front.
    """

    def tasks() -> Iterator[Task]:
        job, executors = None, executor if isinstance(executor, list) else [executor]
        for number, inputs in elements:
            at = slice(number, number + 1)
            with noting(batch, at):
                given = call.for_worker(inputs)
                if given is None:
                    store(number, call(inputs, lead))
                    continue
                job = job or dataclasses.replace(job_for(executors[0], call), lead=lead)
                arrays = [np.asarray(a) for a in given]
                sent = dataclasses.replace(job, rows=[False] * len(arrays))
            # The function must not run here, which it would to find the element of a block that fails.
            fills = None if lead else functools.partial(call.body.results_if_lost, arrays=arrays)
            home = number % len(executors)
            yield Task(sent, arrays, at, functools.partial(finish, number, inputs), fills=fills, home=home)

    def finish(number: int, inputs: Sequence[Any], outcome: Outcome, _: float) -> None:
        store(number, call.from_worker(outcome.results[0], inputs, lead))

    Sending(executor, call, batch, at_once).run(tasks())

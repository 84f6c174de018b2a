"""Runs elements in workers that share no memory with the caller: processes, machines, whatever an executor has.

Nothing is recorded in a worker, so a backward pass runs the body again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host.host_call import Batch, BatchedInput, HostCall
from jaxpyop._host.pools.executors import Executor
from jaxpyop._host.pools.job import job_for
from jaxpyop._host.pools.sending import Sending, Store, Task, noting

# The bytes of inputs that a chunk may have, unless one element has more. A larger one does not travel faster, and a
# worker waits for all of it.
_MOST_BYTES = 1 << 22


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
    inputs = [BatchedInput(np.asarray(a), i, batch) for i, a in enumerate(arrays)]
    own = [each for each in inputs if not each.is_shared_by_all]
    shared = [each.array for each in inputs if each.is_shared_by_all]
    most = max(1, _MOST_BYTES // max(1, sum(each.one(0).nbytes for each in own)))
    sending = Sending(executor, call, batch, store, at_once, most)

    def rows_of(numbers: range) -> list[Any]:
        return [each.rows(slice(numbers.start, numbers.stop, numbers.step)) for each in own]

    def tasks() -> Iterator[Task]:
        with noting(batch, range(1)):
            rows = [not each.is_shared_by_all for each in inputs]
            job = dataclasses.replace(job_for(executor, call), batch=batch, rows=rows)
        # On several executors, elements that run in batch order go one at a time.
        in_order = sending.executor_count > 1 and not at_once
        for first in range(batch.count if in_order else min(sending.executor_count, batch.count)):
            numbers = range(first, first + 1 if in_order else batch.count, sending.executor_count)
            yield Task(job, shared, numbers, rows_of, lambda number: [each.one(number) for each in inputs])

    sending.run(tasks())


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
        job = None
        for number, inputs in elements:
            numbers = range(number, number + 1)
            with noting(batch, numbers):
                given = call.for_worker(inputs, lead)
                if given is None:
                    store(number, call(inputs, lead))
                    continue
                job = job or dataclasses.replace(job_for(executor, call), lead=lead)
                # The inputs of an element travel with its job. What is shared has to live until the end of the call.
                arrays = list(map(np.asarray, given))
                # They are read-only, so that the worker copies them: elements may share the memory of an input.
                own, shared = ([np.broadcast_to(a, (1, *a.shape)) for a in arrays], []) if batch else ([], arrays)
                sent = dataclasses.replace(job, rows=[batch is not None] * len(arrays))
            yield Task(sent, shared, numbers, lambda _, own=own: own, lambda _, inputs=inputs: inputs)

    Sending(executor, call, batch, store, at_once).run(tasks())

"""Elements in other workers one by one: of calls that have something of their own to send with each."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host.batch import Batch
from jaxpyop._host.errors import note_index
from jaxpyop._host.pools.executors import Executor, workers_of
from jaxpyop._host.pools.workers import Settings, Store, body_for, explaining, run_once

_Task = tuple[int, Sequence[Any], Any]  # an element's number, its inputs, and its future


def run_apart(
    executor: Executor, call: Any, each: Iterator[tuple[int, Any]], batch: Batch, store: Store, at_once: bool
) -> None:
    """Run a call on each element, a few of which are under way.

    Args:
        executor: of the workers.
        call: what to run; its `for_worker` and `from_worker` are asked for each element.
        each: the elements.
        batch: which they are of.
        store: takes the results.
        at_once: whether elements may run at the same time.
    """
    under_way: collections.deque[_Task] = collections.deque()
    window = 2 * workers_of(executor) if at_once else 1
    number = 0

    def finish() -> None:
        nonlocal number
        number, inputs, future = under_way[0]
        values = future.result()
        under_way.popleft()
        store(number, call.from_worker(values, inputs))

    try:
        with explaining(call.title):
            for number, inputs in each:
                if (given := call.for_worker(inputs)) is None:
                    store(number, call(inputs))
                    continue
                arrays = [np.asarray(a) for a in given]
                body, settings = body_for(executor, call), Settings(executor, call)
                under_way.append((number, inputs, executor.submit(run_once, body, arrays, (), settings)))
                if len(under_way) >= window:
                    finish()
            while under_way:
                finish()
    except BaseException as error:
        note_index(error, number, batch)
        raise
    finally:
        concurrent.futures.wait([future for _, _, future in under_way if not future.cancel()])

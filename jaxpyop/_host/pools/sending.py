"""Sends jobs to workers, a few at a time, and takes their results; what was lost with a worker is sent again.

If a worker dies, only the elements that it ran may be to blame. `Engine.suspects` says which jobs these are. If such a
job has several elements, they are sent again one at a time. If a pool does not know which of its jobs it was, half as
many of them run at a time.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import math
import pickle
import queue
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import metrics
from jaxpyop._host.errors import add_note, note_index
from jaxpyop._host.host_call import Batch, HostCall
from jaxpyop._host.pools.engines import Engine, UnfitWorkersError, engine_of, means_lost_worker
from jaxpyop._host.pools.executors import UNENDABLE, Executor, new_executor_of, number_of
from jaxpyop._host.pools.job import Job, Outcome, UnreadableBodyError

# Takes the number of an element and its results, or a slice and the results of several elements, stacked.
Store = Callable[[int | slice, Sequence[Any]], None]


@dataclasses.dataclass(eq=False)
class Task:
    """A job to send.

    Attributes:
        job: the job, without the inputs of its elements.
        shared: the inputs that all elements share, in one list for all tasks that have the same ones.
        numbers: the elements that it runs.
        rows_of: the inputs of some elements, stacked, without those that all share.
        inputs_of: the inputs of the call for an element, by its number.
        losses: how many workers died that ran it.
        engine: where it was sent to.
    """

    job: Job
    shared: Sequence[Any]
    numbers: range
    rows_of: Callable[[range], Sequence[Any]]
    inputs_of: Callable[[int], Sequence[Any]]
    losses: int = 0
    engine: Engine = dataclasses.field(init=False)

    def part(self, part: slice) -> Task:
        """A task that runs some of the elements."""
        return dataclasses.replace(self, numbers=self.numbers[part])

    def job_with_inputs(self) -> Job:
        """The job of these elements."""
        return dataclasses.replace(self.job, arrays=self.rows_of(self.numbers), numbers=self.numbers)


# Seconds without a worker after which there is a warning, and how often workers may die in turn that ran no element.
_WARN = 5.0
_UNEXPLAINED = 3

# A chunk has at most so many times as many elements as the chunk before had time for.
_GROWTH = 4


class Sending:
    """Sends the tasks of one call.

    Args:
        executor: the executor, or a list with one for each element of a batch in turn.
        call: what they run.
        batch: the batch that they belong to; None for a single call.
        store: takes the results.
        at_once: whether they may run at the same time.
        most: how many elements a chunk may have, unless the user gives a number.

    Attributes:
        executor_count: how many executors there are. Element n runs on executor n modulo this number.
    """

    def __init__(
        self,
        executor: Executor | list[Executor],
        call: HostCall,
        batch: Batch | None,
        store: Store,
        at_once: bool,
        most: int = 1,
    ) -> None:
        self._call = call
        self._batch = batch
        self._store = store
        self._at_once = at_once
        self._most_in_chunk = most
        self._repeats = bool(call.op.retries or call.op.timeout)
        self._engines = list(map(self._engine_of, executor if isinstance(executor, list) else [executor]))
        self._all_engines = [*self._engines]
        self.executor_count = len(self._engines)
        self._under_way: dict[Any, Task] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # What is sent after the tasks that never were.
        self._waiting: collections.deque[Task] = collections.deque()
        self._put_back = self._waiting.append if at_once else self._waiting.appendleft
        # While one of several suspects is to be found, only these are sent, and so many may be under way.
        self._suspects: collections.deque[Task] = collections.deque()
        self._most = math.inf
        self._unexplained = 0.0
        # How many elements a chunk has where they are fast, and 0 before that is known.
        self._share = 0

    def _engine_of(self, executor: Any) -> Engine:
        engine = engine_of(executor, self._repeats, self._call.stateful)
        if self._repeats and not engine.can_repeat:
            raise TypeError(f"{self._call.title}: {UNENDABLE}")
        return engine

    def _workers(self) -> int:
        """How many tasks run at once."""
        return sum(engine.workers() for engine in self._engines) if self._at_once else 1

    def run(self, tasks: Iterator[Task]) -> None:
        """Send tasks, in chunks, and hand on what comes back, until all are done.

        Raises:
            BaseException: what the first failing element raised, with a note of its index. No job runs by then.
        """
        at_once = False
        try:
            self._send(tasks)
            while self._under_way:
                self._finish(self._next_done())
                self._send(tasks)
        except BaseException as error:
            # An interrupt does not wait for the end of a body, and nothing ends where no worker is.
            at_once = not isinstance(error, Exception) or isinstance(error, UnfitWorkersError)
            if (shown := _explained(error, self._call.title)) is error:
                raise
            for note in getattr(error, "__notes__", ()):
                add_note(shown, note)
            raise shown from error
        finally:
            # No job may read the inputs after this.
            for engine in self._all_engines:
                if futures := [future for future, task in self._under_way.items() if task.engine is engine]:
                    engine.stop(futures, at_once)
                engine.close()

    def _next_done(self) -> Any:
        seen, has_warned = time.monotonic(), False
        while True:
            with contextlib.suppress(queue.Empty):
                return self._done.get(timeout=1)
            engines = {task.engine for task in self._under_way.values()}
            if not (empty := [engine for engine in engines if engine.is_empty()]):
                seen = time.monotonic()
            elif (waited := time.monotonic() - seen) >= empty[0].patience:
                with noting(self._batch, next(iter(self._under_way.values())).numbers):
                    raise UnfitWorkersError(f"no worker came for {waited:.0f} seconds")
            elif waited >= _WARN and not has_warned:
                has_warned = True
                text = f"executor= has no worker, and the call waits {empty[0].patience:.0f} seconds for one"
                warnings.warn(f"{self._call.title}: {text}", RuntimeWarning, stacklevel=2)

    # ------------------------------------------------------------------ chunks

    # A worker begins no element of a chunk after a tenth of a second, and the rest of the chunk is sent again. So a
    # chunk of slow elements has one, and one of fast elements has many, without a guess at how long they take. What is
    # left is divided by twice the number of workers, so that no worker waits for another one at the end: once, and
    # again after a chunk that took too long.

    def _send(self, tasks: Iterator[Task]) -> None:
        while len(self._under_way) < min(2 * self._workers() if self._at_once else 1, self._most):
            if (task := self._next(tasks)) is None:
                return
            with noting(self._batch, task.numbers):
                future = self._submitted(task)
            self._under_way[future] = task
            future.add_done_callback(self._done.put)

    def _next(self, tasks: Iterator[Task]) -> Task | None:
        if self._most < math.inf and (self._suspects or self._under_way):
            return self._suspects.popleft() if self._suspects else None
        self._most = math.inf
        if (task := next(tasks, None)) is None:
            if not (left := self._suspects or self._waiting):
                return None
            task = left.popleft()
        size = self._size_of_chunk(task)
        if len(task.numbers) > size:
            self._put_back(task.part(slice(size, None)))
        return task.part(slice(size))

    def _size_of_chunk(self, task: Task) -> int:
        if given := self._call.op.chunksize:
            return given
        if self.executor_count > 1:
            # The elements of a worker are known, so they go in one chunk.
            return len(task.numbers)
        if not self._share:
            left = len(task.numbers) + sum(len(each.numbers) for each in self._waiting)
            self._share = -(-left // (2 * self._workers()))
        # An element that takes too long is known at once if it is alone.
        most = 1 if self._call.op.timeout else min(self._call.chunk, self._most_in_chunk)
        return max(1, min(most, self._share))

    def _submitted(self, task: Task) -> Any:
        job, index = task.job_with_inputs(), task.numbers.start % self.executor_count
        while True:
            task.engine = engine = self._engines[index]
            try:
                return engine.submit(dataclasses.replace(job, number=number_of(engine.executor)), task.shared)
            except Exception as error:
                # The pool broke before it took the job.
                if not means_lost_worker(error) or not self._renew(index):
                    raise

    def _renew(self, index: int) -> bool:
        """Go on with another executor, if the function that the user gave returns one."""
        executor = new_executor_of(self._call.op, self._engines[index].executor, index)
        if executor is not None:
            self._engines[index] = self._engine_of(executor)
            self._all_engines.append(self._engines[index])
        return executor is not None

    def _finish(self, future: Any) -> None:
        if (task := self._under_way.pop(future, None)) is None:
            # It was lost together with another one.
            return
        with noting(self._batch, task.numbers):
            try:
                outcome: Outcome = future.result()
            except BaseException as error:
                if self._repeats and means_lost_worker(error):
                    self._lose(task, future, error)
                    return
                raise
            self._unexplained = 0.0
            if outcome.failures:
                self._call.op.failures.add(outcome.failures)
            metrics.add_counted(outcome.counted)
            is_early = outcome.done < len(task.numbers)
            self._call.chunk = max(_GROWTH * outcome.done, 0 if is_early else self._call.chunk)
            if is_early:
                self._share = 0
                self._put_back(task.part(slice(outcome.done, None)))
            self._take(task.part(slice(outcome.done)), outcome.results)

    def _take(self, task: Task, results: list[Any]) -> None:
        for k, number in enumerate(task.numbers):
            with noting(self._batch, range(number, number + 1)):
                values = [column[k, ...] for column in results]
                values = self._call.from_worker(values, task.inputs_of(number), task.job.lead)
                if len(task.numbers) > 1 and len(values) == len(results):
                    # The elements have the same shapes: the check of the first one holds for all.
                    self._store(slice(task.numbers.start, task.numbers.stop, task.numbers.step), results)
                    return
                # The call may add results that differ from element to element.
                self._store(number, values)

    # ------------------------------------------------------------------ lost workers

    def _lose(self, task: Task, future: Any, error: BaseException) -> None:
        engine, lost = task.engine, {future: task}
        if is_pool := isinstance(error, concurrent.futures.BrokenExecutor):
            lost |= self._lost_with(engine)
        suspects, is_sure = engine.suspects(list(lost), error)
        index = task.numbers.start % self.executor_count
        if is_pool and engine is self._engines[index] and not self._renew(index):
            raise error
        # Workers may die again and again before they run anything, such as by their initializer.
        self._unexplained = 0.0 if suspects else self._unexplained + (1 if is_pool else 1 / (2 * self._workers()))
        if self._unexplained > _UNEXPLAINED:
            raise error
        found = [lost.pop(suspect) for suspect in suspects]
        self._waiting.extend(lost.values())
        singles = [each.part(slice(k, k + 1)) for each in found for k in range(len(each.numbers))]
        if not is_sure and len(singles) > 1:
            self._suspects.extendleft(singles)
            self._most = max(1, len(singles) // 2)
            return
        # The other suspects are none.
        self._most = math.inf
        for each in singles:
            each.losses += len(singles) == len(found)
            if each.losses > self._call.op.retries:
                self._give_up(each, error)
            else:
                self._waiting.appendleft(each)

    def _lost_with(self, engine: Engine) -> dict[Any, Task]:
        """The other tasks that were in a pool that broke, without those that were done before."""
        there = [future for future, other in self._under_way.items() if other.engine is engine]
        concurrent.futures.wait(there, timeout=10)
        lost = [future for future in there if not future.done() or future.exception() is not None]
        return {future: self._under_way.pop(future) for future in lost}

    def _give_up(self, task: Task, error: BaseException) -> None:
        op, said = self._call.op, str(error).partition("\n")[0]
        died = f"died with this element {task.losses} time{'' if task.losses == 1 else 's'} ({said})"
        failure = RuntimeError(f"{op.title}: a worker of executor= {died}")
        if op.timeout:
            failure = TimeoutError(f"func took longer than timeout=, or a worker of executor= {died}")
        if op.failures is None:
            with noting(self._batch, task.numbers):
                raise failure
        arrays = self._call.for_worker(task.inputs_of(task.numbers.start)) or ()
        values = self._call.in_worker.after_failure(failure, arrays)
        self._take(task, [np.asarray(v)[None] for v in values])


# ---------------------------------------------------------------------------- errors


@contextlib.contextmanager
def noting(batch: Batch | None, numbers: range) -> Iterator[None]:
    """Note in an error which elements it is about, unless the worker has done so."""
    try:
        yield
    except BaseException as error:
        noted = batch is None or any(n.startswith(f"at {batch.index_name}") for n in getattr(error, "__notes__", ()))
        if not noted:
            note_index(error, numbers, batch)
        raise


def _explained(error: BaseException, title: str) -> BaseException:
    """An error that says what to do if the executor is at fault, and otherwise the error itself."""
    if means_lost_worker(error):
        return RuntimeError(
            f"{title}: a worker of executor= died ({error}), which may end its pool; give a new one, or a function "
            "that returns the pool to use, executor=lambda: pool; jaxpyop.Workers(lambda: pool, retries=1) runs again "
            "what was lost"
        )
    if isinstance(error, UnfitWorkersError):
        return RuntimeError(f"{title}: {error}")
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
            "define func at the top of a module, under a name that no decorator takes, or use threads"
        )
    return error


def _texts(error: BaseException | None) -> str:
    return "" if error is None else f"{error} {_texts(error.__cause__ or error.__context__)}"

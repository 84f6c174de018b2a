"""Sends jobs to workers, a few at a time, and takes their results; what was lost with a worker is sent again.

If a worker dies, only the element that it ran may be to blame, which workers on this machine note. Elsewhere the
elements of a lost chunk are sent one at a time. If a pool leaves several suspects, half as many run at a time.
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
from jaxpyop._host.pools.executors import Executor, new_executor_of
from jaxpyop._host.pools.job import ElementTimeoutError, Job, UnreadableBodyError
from jaxpyop._host.pools.shared import Notes, Running

# Takes the number of an element and its results, or a slice and the results of several elements, stacked.
Store = Callable[[int | slice, Sequence[Any]], None]


@dataclasses.dataclass(eq=False)
class Task:
    """A job to send.

    Attributes:
        job: the job.
        shared: the inputs that all elements share.
        numbers: the elements that it runs.
        inputs_of: the inputs of the call for an element, by its number.
        losses: how many workers died that ran it.
        sent: when it was sent.
        engine: where it was sent to.
    """

    job: Job
    shared: Sequence[Any]
    numbers: range
    inputs_of: Callable[[int], Sequence[Any]]
    losses: int = 0
    sent: float = 0.0
    engine: Engine = dataclasses.field(init=False)

    def part(self, part: slice) -> Task:
        """A task that runs some of the elements."""
        numbers = self.numbers[part]
        job = dataclasses.replace(self.job, arrays=[a[part] for a in self.job.arrays], numbers=numbers)
        return dataclasses.replace(self, job=job, numbers=numbers)


# Seconds without a worker after which there is a warning, and how often workers may die in turn that ran no element.
_WARN = 5.0
_UNEXPLAINED = 3


class Sending:
    """Sends the tasks of one call.

    Args:
        executor: the executor, or a list with one for each element of a batch in turn.
        call: what they run.
        batch: the batch that they belong to; None for a single call.
        store: takes the results.
        at_once: whether they may run at the same time.

    Attributes: `homes` executors, and `chunks`, what is known of the time that elements take.
    """

    def __init__(
        self, executor: Executor | list[Executor], call: HostCall, batch: Batch | None, store: Store, at_once: bool
    ) -> None:
        self._engines = list(map(engine_of, executor if isinstance(executor, list) else [executor]))
        self._call = call
        self._batch = batch
        self._store = store
        self.at_once = at_once
        self.homes = len(self._engines)
        self.chunks = Chunks(batch.count if batch else 1, call.op.chunksize, call.pace)
        self._repeats = bool(call.op.retries or call.op.timeout)
        self._under_way: dict[Any, Task] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._again: collections.deque[Task] = collections.deque()
        # How many tasks may be under way while one of them is to be found that breaks the pool.
        self._most = math.inf
        self._notes = Notes() if self._repeats else None
        self._unexplained = 0.0

    def workers(self) -> int:
        """How many tasks run at once."""
        return sum(engine.workers() for engine in self._engines) if self.at_once else 1

    def run(self, tasks: Iterator[Task]) -> None:
        """Send tasks, and hand on what comes back, until all are done.

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
            for engine in self._engines:
                if futures := [future for future, task in self._under_way.items() if task.engine is engine]:
                    engine.stop(futures, at_once)
                engine.close()
            if self._notes:
                self._notes.close()

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

    def _send(self, tasks: Iterator[Task]) -> None:
        if not self._again and not self._under_way:
            self._most = math.inf
        while len(self._under_way) < min(2 * self.workers() if self.at_once else 1, self._most):
            if self._again:
                task = self._again.popleft()
            elif (task := None if self._most < math.inf else next(tasks, None)) is None:
                return
            with noting(self._batch, task.numbers):
                task.sent = time.perf_counter()
                future = self._submitted(task)
            self._under_way[future] = task
            future.add_done_callback(self._done.put)

    def _submitted(self, task: Task) -> Any:
        if self._notes:
            task.job = dataclasses.replace(task.job, note=self._notes.new())
        home, stateful = task.numbers.start % self.homes, self._call.stateful
        task.engine = self._engines[home]
        try:
            return task.engine.submit(task.job, task.shared, self._repeats or stateful, stateful)
        except Exception as error:
            # The pool broke before it took the job.
            if not means_lost_worker(error) or not self._renew(home):
                raise
            task.engine = self._engines[home]
            return task.engine.submit(task.job, task.shared, self._repeats or stateful, stateful)

    def _renew(self, home: int) -> bool:
        """Go on with another executor, if the function that the user gave returns one."""
        gone = self._engines[home]
        executor = new_executor_of(self._call.op, gone.executor, home)
        if executor is not None:
            self._engines[home] = engine_of(executor)
            gone.close()
        return executor is not None

    def _finish(self, future: Any) -> None:
        if (task := self._under_way.pop(future, None)) is None:
            # It was lost together with another one.
            return
        took = time.perf_counter() - task.sent
        with noting(self._batch, task.numbers):
            try:
                outcome = future.result()
            except BaseException as error:
                if self._repeats and means_lost_worker(error):
                    self._lose(task, future, error)
                    return
                raise
            self._unexplained = 0.0
            if outcome.failures:
                self._call.op.failures.add(outcome.failures)
            metrics.add_counted(outcome.counted)
            if outcome.seconds:
                self._call.pace = self.chunks.learn(len(task.numbers), outcome.seconds, took)
            self._take(task, outcome.results)

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
        lost, engine, alone = [task], task.engine, not self._under_way
        is_pool = isinstance(error, concurrent.futures.BrokenExecutor)
        if is_pool:
            lost += self._lost_with(task)
            alone = len(lost) == 1
            home = task.numbers.start % self.homes
            if engine is self._engines[home] and not self._renew(home):
                raise error
        engine.lost_worker()
        ended = engine.ended_by_themselves() if is_pool else set()
        was_running = engine.was_running(future, error)
        suspects = [found for each in lost for found in self._suspects(each, was_running)]
        ran_one = engine.has_one_job_each() and (was_running or any(running for _, running in suspects))
        blamed: list[Task] = []
        if ended or (len(suspects) == 1 and (alone or is_pool or ran_one)):
            blamed = [each for each, running in suspects if not ended or (running and running.process in ended)]
        elif suspects and (is_pool or not ran_one):
            self._most = max(1, (len(suspects) + len(self._under_way)) // 2)
        # Workers may die again and again before they run anything, such as by their initializer.
        unexplained = self._unexplained + (1 if is_pool else 1 / (2 * self.workers()))
        self._unexplained = unexplained if not (blamed if ended else suspects) else 0.0
        if self._unexplained > _UNEXPLAINED:
            raise error
        for each, running in suspects:
            each.losses += each in blamed
            if each.losses > self._call.op.retries:
                self._give_up(each, error, running)
            else:
                self._again.appendleft(each)

    def _suspects(self, task: Task, was_running: bool | None) -> list[tuple[Task, Running | None]]:
        """The elements of a lost task that may be to blame, with what workers noted. The others are sent again."""
        if running := self._notes and self._notes.read(task.job.note):
            at = running.element
            self._again += [part for part in (task.part(slice(at)), task.part(slice(at + 1, None))) if part.numbers]
            return [(task.part(slice(at, at + 1)), running)]
        if was_running is False:
            self._again.append(task)
            return []
        return [(task.part(slice(k, k + 1)), None) for k in range(len(task.numbers))]

    def _lost_with(self, task: Task) -> list[Task]:
        """The other tasks that were in a pool that broke, without those that were done before."""
        there = [future for future, other in self._under_way.items() if other.engine is task.engine]
        concurrent.futures.wait(there, timeout=10)
        lost = [future for future in there if not future.done() or future.exception() is not None]
        return [self._under_way.pop(future) for future in lost]

    def _give_up(self, task: Task, error: BaseException, running: Running | None) -> None:
        # The other suspects are none.
        self._most = math.inf
        op, said = self._call.op, str(error).partition("\n")[0]
        how_often = f"{task.losses} time{'' if task.losses == 1 else 's'}"
        is_late = running and running.deadline <= time.monotonic()
        late = f", or func took longer than timeout={op.timeout} and did not end" if op.timeout else ""
        if op.failures is None:
            with noting(self._batch, task.numbers):
                if is_late:
                    raise ElementTimeoutError
                raise RuntimeError(
                    f"{op.title}: a worker of executor= died with this element {how_often}{late} ({said})"
                )
        try:
            raise ElementTimeoutError if is_late else RuntimeError(f"its worker died {how_often}{late} ({said})")
        except (RuntimeError, ElementTimeoutError) as failure:
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
            "that returns the pool to use, executor=lambda: pool"
        )
    if isinstance(error, UnfitWorkersError):
        return RuntimeError(f"{title}: {error}; executor= needs workers with the same Python, JAX and jaxpyop")
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


# -------------------------------------------------------------- how many elements go to a worker at a time

# A chunk runs for about ten times as long as the way to a worker and back takes. It runs for at least ten milliseconds,
# since this process has work for each chunk too, and for at most a second, since the way seems to be long while workers
# start. The first chunks are small, unless an earlier batch of the same call has shown both times. No chunk is so large
# that some workers wait for another one at the end.

_TIMES_THE_WAY = 10
_LEAST_SECONDS, _MOST_SECONDS = 0.01, 1.0

# How many times smaller than the others the last chunks may be.
_TAIL = 4


class Chunks:
    """The sizes of a batch's chunks.

    Args:
        count: how many elements there are.
        given: the user's `chunksize=`.
        pace: the `pace` of an earlier batch, if there was one.

    Attributes:
        left: how many elements are in no chunk yet.
        most: how many a chunk may have, unless that is given.
        pace: the seconds that an element took in the last chunk, and the seconds of the way to a worker and back. A
            task may have to wait for a worker, so the shortest way counts.
    """

    def __init__(self, count: int, given: int | None, pace: tuple[float, float] | None = None) -> None:
        self._given = given
        self._count = self.most = count
        self._size = given or (_fitting(*pace) if pace else 1)
        self._way = pace[1] if pace else math.inf
        self.left = count
        self.pace = pace

    def next(self, workers: int) -> int:
        """The size of the next chunk, if so many chunks run at once."""
        size = min(self._size, self.left)
        if not self._given:
            seconds, way = self.pace or (math.inf, 0.0)
            # Nothing is won by a chunk that takes less time than the way to the worker.
            shortest = math.ceil(min(way / max(seconds, 1e-9), self._count / workers))
            fair, least = math.ceil(self.left / (2 * workers)), self._count // (2 * _TAIL * workers)
            size = min(size, self.most, max(fair, shortest, min(self._size // _TAIL, least)))
        self.left -= size
        return size

    def learn(self, size: int, inside: float, took: float) -> tuple[float, float]:
        """Learn how long a chunk was in the function, and from being sent to being back. Returns the new pace."""
        self._way = min(self._way, max(took - inside, 0.0))
        self.pace = inside / size, self._way
        if not self._given:
            self._size = min(_fitting(*self.pace), 8 * max(size, self._size // 8))
        return self.pace


def _fitting(seconds: float, way: float) -> int:
    aim = min(max(_LEAST_SECONDS, _TIMES_THE_WAY * way), _MOST_SECONDS)
    return max(1, int(aim / max(seconds, 1e-9)))

"""Sends jobs to workers, a few at a time, and takes their outcomes; what was lost with a worker is sent again.

If a worker dies, its chunk is sent again in halves, until the element that kills its worker is alone. The death of one
worker breaks a pool of processes, and all chunks under way are lost. Half as many of them are then under way in the
next pool, and so on, until it is certain which one it is.
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxpyop._host import metrics
from jaxpyop._host.errors import add_note, note_index
from jaxpyop._host.host_call import Batch, HostCall
from jaxpyop._host.pools.engines import Engine, engine_of, means_lost_worker
from jaxpyop._host.pools.executors import Executor, new_executor_of
from jaxpyop._host.pools.job import Job, Outcome, UnreadableBodyError


def numbers_in(at: slice) -> range:
    """The numbers of the elements in a slice."""
    return range(at.start, at.stop, at.step or 1)


@dataclasses.dataclass(eq=False)
class Task:
    """A job to send.

    Attributes:
        job: the job.
        shared: the inputs that all elements share.
        at: the elements that it runs.
        take: takes its outcome, and the seconds after which it was back.
        halves: makes two tasks of it that run half of the elements each.
        fills: the results of its body, if `on_error=` can replace them. It is called with the error.
        losses: how many workers died that had it.
        home: the number of its executor, if the user gave a list.
        sent: when it was sent.
        engine: where it was sent to.
    """

    job: Job
    shared: Sequence[Any]
    at: slice
    take: Callable[[Outcome, float], None]
    halves: Callable[[], list[Task]] = list
    fills: Callable[[Exception], list[Any]] | None = None
    losses: int = 0
    home: int = 0
    sent: float = 0.0
    engine: Engine = dataclasses.field(init=False)


class Sending:
    """Sends the tasks of one call.

    Args:
        executor: the executor, or a list with one for each element of a batch in turn.
        call: what they run.
        batch: the batch that they belong to; None for a single call.
        at_once: whether they may run at the same time.
    """

    def __init__(self, executor: Executor | list[Executor], call: HostCall, batch: Batch | None, at_once: bool) -> None:
        self._engines = list(map(engine_of, executor if isinstance(executor, list) else [executor]))
        self._call = call
        self._batch = batch
        self.at_once = at_once
        self._repeats = bool(call.op.retries or call.op.timeout)
        self._under_way: dict[Any, Task] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._again: collections.deque[Task] = collections.deque()
        # How many tasks may be under way while one of them is to be found that breaks the pool.
        self._most = math.inf

    def workers(self) -> int:
        """How many tasks run at once."""
        return sum(engine.workers() for engine in self._engines) if self.at_once else 1

    def run(self, tasks: Iterator[Task]) -> None:
        """Send tasks, and hand on what comes back, until all are done.

        Raises:
            BaseException: what the first failing element raised, with a note of its index. No job runs by then.
        """
        try:
            self._send(tasks)
            while self._under_way:
                self._finish(self._done.get())
                self._send(tasks)
        except BaseException as error:
            if not isinstance(error, Exception):
                # An interrupt does not wait for the end of a body.
                for engine in self._engines:
                    engine.kill([future for future, task in self._under_way.items() if task.engine is engine])
            if (shown := _explained(error, self._call.title)) is error:
                raise
            for note in getattr(error, "__notes__", ()):
                add_note(shown, note)
            raise shown from error
        finally:
            # No job may read the inputs after this.
            concurrent.futures.wait([f for f, task in self._under_way.items() if not task.engine.cancel(f)])
            for engine in self._engines:
                engine.close()

    def _send(self, tasks: Iterator[Task]) -> None:
        if not self._again and not self._under_way:
            self._most = math.inf
        while len(self._under_way) < min(2 * self.workers() if self.at_once else 1, self._most):
            if self._again:
                task = self._again.popleft()
            elif (task := None if self._most < math.inf else next(tasks, None)) is None:
                return
            with noting(self._batch, task.at):
                task.sent = time.perf_counter()
                future = self._submitted(task)
            self._under_way[future] = task
            future.add_done_callback(self._done.put)

    def _submitted(self, task: Task) -> Any:
        once = self._repeats or self._call.stateful
        task.engine = self._engines[task.home]
        try:
            return task.engine.submit(task.job, task.shared, once)
        except Exception as error:
            # The pool broke before it took the job.
            if not means_lost_worker(error) or not self._renew(task.home):
                raise
            task.engine = self._engines[task.home]
            return task.engine.submit(task.job, task.shared, once)

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
        with noting(self._batch, task.at):
            try:
                outcome = future.result()
            except BaseException as error:
                if self._repeats and means_lost_worker(error):
                    self._lose(task, error)
                    return
                metrics.add_attached(error)
                raise
            if outcome.failures:
                self._call.op.failures.add(outcome.failures)
            metrics.add_counted(outcome.counted)
            task.take(outcome, took)

    # ------------------------------------------------------------------ lost workers

    def _lose(self, task: Task, error: BaseException) -> None:
        lost = [task]
        if isinstance(error, concurrent.futures.BrokenExecutor):
            lost += self._lost_with(task)
            if task.engine is self._engines[task.home] and not self._renew(task.home):
                raise error
            is_alone = len(lost) == 1
        else:
            task.engine.lost_worker()
            is_alone = task.engine.has_one_job_each() or not self._under_way
        if not is_alone:
            self._most = max(1, (len(lost) + len(self._under_way)) // 2)
        for task in reversed(lost):
            task.losses += 1
            if halves := task.halves():
                for half in reversed(halves):
                    half.losses = task.losses
                    self._again.appendleft(half)
            elif is_alone and task.losses > self._call.op.retries:
                self._give_up(task, error)
            else:
                self._again.appendleft(task)

    def _lost_with(self, task: Task) -> list[Task]:
        """The other tasks that were in a pool that broke, without those that were done before."""
        there = [future for future, other in self._under_way.items() if other.engine is task.engine]
        concurrent.futures.wait(there, timeout=10)
        lost = [future for future in there if not future.done() or future.exception() is not None]
        return [self._under_way.pop(future) for future in lost]

    def _give_up(self, task: Task, error: BaseException) -> None:
        # The other suspects are none.
        self._most = math.inf
        op, said = self._call.op, str(error).partition("\n")[0]
        how_often = f"{task.losses} time{'' if task.losses == 1 else 's'}"
        if op.failures is None or task.fills is None:
            late = f", or func took longer than timeout={op.timeout} and did not end" if op.timeout else ""
            raise RuntimeError(f"{op.title}: a worker of executor= died with this element {how_often}{late} ({said})")
        try:
            raise RuntimeError(f"its worker died {how_often} ({said})")
        except RuntimeError as failure:
            values = task.fills(failure)
        task.take(Outcome(0.0, [values], None, {}), 0.0)


# ---------------------------------------------------------------------------- errors


@contextlib.contextmanager
def noting(batch: Batch | None, at: slice) -> Iterator[None]:
    """Note in an error which elements it is about, unless the worker has done so."""
    try:
        yield
    except BaseException as error:
        noted = batch is None or any(n.startswith(f"at {batch.index_name}") for n in getattr(error, "__notes__", ()))
        if not noted:
            note_index(error, at.start, batch, numbers_in(at)[-1])
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

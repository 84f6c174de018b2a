"""Elements on the threads of a pool: each thread takes the next one when it is free.

So elements begin in batch order, and the inputs of those that have not begun
take no memory. The caller waits, and never runs an element of a user's pool
itself, unless it is a thread of that pool.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxpyop._host.environment import Environment
from jaxpyop._host.pools.executors import Executor, default_executor, workers_of
from jaxpyop._host.pools.places import Stuck, join_chain, keeps_waiting, note_beginning, slot_of, working_for

Element = tuple[int, Any]  # its number, and its inputs
_PATIENCE = 1.0  # seconds until the caller does what no thread of ours has begun


class Taking:
    """Elements for any number of threads to take.

    Args:
        each: the elements.
        run: called with each, on some thread.
        environment: of their body.
        slot: of the pool.
        step: how many elements a thread takes at a time.
    """

    def __init__(
        self, each: Iterator[Element], run: Callable[[int, Any], None], environment: Environment, slot: int, step: int
    ) -> None:
        self._each = each
        self._run = run
        self._environment = environment
        self._slot = slot
        self._step = step
        self._context = contextvars.copy_context()
        self._context.run(join_chain, slot)
        self._lock = threading.Lock()
        self._over = False  # nobody takes any more
        self._active = 0
        self.promised = 0  # tasks that were submitted and are not done
        self.begun = False
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take elements until there are no more."""
        if not self._begin():
            return
        try:
            self._context.copy().run(self._work)
        except BaseException as error:
            self.stop(error)
        finally:
            self._leave()

    def _work(self) -> None:
        note_beginning(self._slot)
        with working_for(self._slot), self._environment.entered():
            context = contextvars.copy_context()
            while taken := self._take():
                while taken:
                    context.copy().run(self._run, *taken.pop(0))  # nothing holds on to it here

    def _begin(self) -> bool:
        with self._lock:
            if not self._over:
                self._active += 1
                self.begun = True
            return not self._over

    def _take(self) -> list[Element]:
        with self._lock:
            taken = [] if self._over else list(itertools.islice(self._each, self._step))
            self._over = self._over or not taken
            return taken

    def _leave(self) -> None:
        with self._lock:
            self._active -= 1
            if self._over and not self._active:
                self.ended.set()

    def stop(self, error: BaseException | None = None) -> None:
        """Let nobody take another element; of several errors the first counts."""
        with self._lock:
            self._over = True
            self._each = iter(())
            if self.error is None:
                self.error = error
            if not self._active:
                self.ended.set()

    def task_is_done(self, future: concurrent.futures.Future[Any]) -> None:
        """Where no task is left, as in a pool that is shut down, nobody will take the rest."""
        with self._lock:
            self.promised -= 1
            lost = not self.promised and not self._over
        if lost:
            error = None if future.cancelled() else future.exception()
            self.stop(error or RuntimeError("executor= was shut down before the function could run"))


def run_on_threads(
    executor: Executor,
    each: Iterator[Element],
    run: Callable[[int, Any], None],
    environment: Environment,
    title: str,
    at_once: int,
    step: int,
    tick: Callable[[], None] | None,
) -> None:
    """Run a function on each element, on threads of a pool, and wait for that.

    Args:
        executor: the pool.
        each: the elements.
        run: called with each.
        environment: of what runs.
        title: of the op, for an error.
        at_once: how many threads are to take elements, at most.
        step: how many elements a thread takes at a time.
        tick: called now and then while they run.

    Raises:
        BaseException: what `run` raised first; nothing runs any more by then.
    """
    taking = Taking(each, run, environment, slot_of(executor), step)
    futures: list[concurrent.futures.Future[Any]] = []
    try:
        _submit(executor, taking, min(at_once, workers_of(executor)), futures)
        _wait(executor, taking, title, tick)
    finally:
        # The inputs are gone when the call is: let nothing run that still reads them.
        taking.stop()
        for future in futures:
            future.cancel()
        taking.ended.wait()
    if taking.error is not None:
        try:
            raise taking.error
        finally:
            taking.error = None  # which would hold this frame


def _submit(executor: Executor, taking: Taking, count: int, futures: list[concurrent.futures.Future[Any]]) -> None:
    taking.promised = count
    for _ in range(count):
        try:
            future = executor.submit(taking.work)
        except RuntimeError:
            # Nobody but the interpreter shuts our own threads down: at exit, where a
            # program in flight still has to end.
            if executor is not default_executor():
                raise
            taking.work()
            return
        futures.append(future)
        future.add_done_callback(taking.task_is_done)


def _wait(executor: Executor, taking: Taking, title: str, tick: Callable[[], None] | None) -> None:
    if executor is default_executor():
        # All of its threads may wait for programs that run elements on it.
        late = time.monotonic() + _PATIENCE
        while not taking.begun and not taking.ended.wait(0.1):
            if time.monotonic() > late:
                taking.work()
    elif keeps_waiting(executor):
        with Stuck(executor, title) as stuck:
            while not taking.begun and not taking.ended.wait(0.05):
                stuck.check()
    while not taking.ended.wait(0.1 if tick else None):
        if tick:
            tick()

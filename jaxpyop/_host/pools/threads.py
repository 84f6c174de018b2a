"""Runs elements on the threads of an executor: each thread takes the next element when it is free.

So elements begin in batch order, and the inputs of elements that have not begun take no memory. The caller waits, and
never runs an element on a user's executor itself, unless it is a thread of that executor.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxpyop._host.host_call import Environment
from jaxpyop._host.pools.executors import (
    OWN_THREADS,
    Executor,
    is_waited_for,
    number_of,
    wait_for_thread,
    workers_of,
    working_for,
)

# The number of an element and its inputs.
Element = tuple[int, Any]

# Seconds after which the caller itself runs the elements, if no thread of our own has begun.
_PATIENCE = 1.0


@dataclasses.dataclass(eq=False)
class _SharedElements:
    """Elements from which any number of threads take the next ones.

    Attributes:
        elements: the elements.
        run: called with each element, on some thread.
        environment: what `run` sees of the caller.
        number: the number of the threads' executor.
        step: how many elements a thread takes at a time.
        tasks: how many tasks were submitted and have not ended.
        begun: whether a thread has begun.
        active: how many threads run elements.
        is_over: whether no thread may take another element.
        ended: set when no element runs and none will.
        error: what the first element that failed raised.
    """

    elements: Iterator[Element]
    run: Callable[[int, Any], None]
    environment: Environment
    number: int
    step: int
    tasks: int = 0
    begun: bool = False
    active: int = 0
    is_over: bool = False
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    error: BaseException | None = None
    context: contextvars.Context = dataclasses.field(default_factory=contextvars.copy_context)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def work(self) -> None:
        """Take elements until there are no more."""
        with self.lock:
            if self.is_over:
                return
            self.active += 1
            self.begun = True
        try:
            self.context.copy().run(self._work)
        except BaseException as error:
            self.stop(error)
        finally:
            with self.lock:
                self.active -= 1
                if self.is_over and not self.active:
                    self.ended.set()

    def _work(self) -> None:
        with working_for(self.number), self.environment.entered():
            context = contextvars.copy_context()
            while taken := self._take():
                while taken:
                    # Once an element is popped, nothing here holds its inputs any more.
                    context.copy().run(self.run, *taken.pop(0))

    def _take(self) -> list[Element]:
        with self.lock:
            taken = [] if self.is_over else list(itertools.islice(self.elements, self.step))
            self.is_over = self.is_over or not taken
            return taken

    def stop(self, error: BaseException | None = None) -> None:
        """End the run: no further element is taken. Of several errors the first one is kept."""
        with self.lock:
            self.is_over = True
            self.elements = iter(())
            if self.error is None:
                self.error = error
            if not self.active:
                self.ended.set()

    def forget(self) -> None:
        """Drop the function, which refers to the inputs: an executor may keep its tasks."""
        self.run = lambda *_: None

    def end_task(self, future: concurrent.futures.Future[Any]) -> None:
        """Note that a task has ended. If the last one leaves elements, as at a shutdown, the run fails."""
        with self.lock:
            self.tasks -= 1
            lost = not self.tasks and not self.is_over
        if lost:
            error = None if future.cancelled() else future.exception()
            self.stop(error or RuntimeError("executor= was shut down before the function could run"))


def call_on_thread(executor: Executor, func: Callable[[], Any], environment: Environment, title: str) -> Any:
    """Call a function on a thread of an executor, and wait for its result."""
    found: list[Any] = []
    run_on_threads(executor, iter([(0, None)]), lambda *_: found.append(func()), environment, title)
    return found[0]


def run_on_threads(
    executor: Executor,
    elements: Iterator[Element],
    run: Callable[[int, Any], None],
    environment: Environment,
    title: str,
    threads: int = 1,
    step: int = 1,
    tick: Callable[[], None] | None = None,
) -> None:
    """Run a function on each element, on threads of an executor, and wait for all of them.

    Args:
        executor: the executor.
        elements: the elements.
        run: called with each element.
        environment: what `run` sees of the caller.
        title: the op's name, for errors.
        threads: how many threads may take elements.
        step: how many elements a thread takes at a time.
        tick: called now and then meanwhile.

    Raises:
        BaseException: what `run` raised first. Nothing runs any more by then.
    """
    shared = _SharedElements(elements, run, environment, number_of(executor), step)
    futures: list[concurrent.futures.Future[Any]] = []
    try:
        _submit(executor, shared, min(threads, workers_of(executor)), futures)
        _wait(executor, shared, title, tick)
    finally:
        # The inputs are gone when the call is over, so nothing may run that still reads them.
        shared.stop()
        for future in futures:
            future.cancel()
        shared.ended.wait()
        shared.forget()
    if shared.error is not None:
        try:
            raise shared.error
        finally:
            # The error holds this frame, which must not hold the error.
            shared.error = None


def _submit(
    executor: Executor, shared: _SharedElements, count: int, futures: list[concurrent.futures.Future[Any]]
) -> None:
    shared.tasks = count
    for _ in range(count):
        try:
            future = executor.submit(shared.work)
        except RuntimeError:
            # Only the interpreter shuts our own threads down: at exit, while a program in flight still has to end.
            if executor is not OWN_THREADS:
                raise
            shared.work()
            return
        futures.append(future)
        future.add_done_callback(shared.end_task)


def _wait(executor: Executor, shared: _SharedElements, title: str, tick: Callable[[], None] | None) -> None:
    if executor is OWN_THREADS:
        # All of its threads may wait for programs that run elements on it.
        late = time.monotonic() + _PATIENCE
        while not shared.begun and not shared.ended.wait(0.1):
            if time.monotonic() > late:
                shared.work()
    elif is_waited_for(executor):
        wait_for_thread(executor, title, lambda: shared.begun or shared.ended.wait(0.05))
    while not shared.ended.wait(0.1 if tick else None):
        if tick:
            tick()

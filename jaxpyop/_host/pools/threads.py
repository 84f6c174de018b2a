"""Runs elements on the threads of an executor: each thread takes the next element when it is free.

So elements begin in batch order, and the inputs of elements that have not begun take no memory. The caller waits, and
never runs an element on a user's executor itself, unless it is a thread of that executor.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import itertools
import queue
import threading
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
from jaxpyop._host.small_numbers import keeping_small_numbers

# The number of an element and its inputs.
Element = tuple[int, Any]


@dataclasses.dataclass(eq=False)
class _Elements:
    """Elements from which any number of threads take the next ones.

    Attributes:
        elements: the elements that no thread has taken.
        run: called with each element, on some thread.
        environment: what `run` sees of the caller.
        number: the number of the threads' executor.
        begun: set when a thread has begun.
        errors: what was raised, the first error first.
    """

    elements: Iterator[Element]
    run: Callable[[int, Any], None]
    environment: Environment
    number: int
    begun: threading.Event = dataclasses.field(default_factory=threading.Event)
    errors: list[BaseException] = dataclasses.field(default_factory=list)
    context: contextvars.Context = dataclasses.field(default_factory=contextvars.copy_context)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def work(self) -> None:
        """Run elements until there are no more, or one fails."""
        self.begun.set()
        try:
            self.context.copy().run(self._work)
        except BaseException as error:
            self.errors.append(error)
            self.drop()

    def _work(self) -> None:
        # The thread may have started inside a program that was not ours.
        with keeping_small_numbers(), working_for(self.number), self.environment.entered():
            context = contextvars.copy_context()
            while taken := self._take():
                # Once an element is popped, nothing here holds its inputs any more.
                context.copy().run(self.run, *taken.pop())

    def _take(self) -> list[Element]:
        with self.lock:
            return list(itertools.islice(self.elements, 1))

    def drop(self) -> None:
        """Leave out the elements that no thread has taken. The executor may keep its tasks, but not their inputs."""
        with self.lock:
            self.elements = iter(())


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
) -> None:
    """Run a function on each element, on threads of an executor, and wait for all of them.

    Args:
        executor: the executor.
        elements: the elements.
        run: called with each element.
        environment: what `run` sees of the caller.
        title: the op's name, for errors.
        threads: how many threads may take elements.

    Raises:
        BaseException: what `run` raised first. Nothing runs any more by then.
    """
    shared = _Elements(elements, run, environment, number_of(executor))
    futures: list[concurrent.futures.Future[Any]] = []
    try:
        # This thread is one more for our own threads, since all of them may wait for programs that run elements.
        is_here = executor is OWN_THREADS
        _submit(executor, shared, min(threads - is_here, workers_of(executor)), futures)
        if is_here:
            shared.work()
        else:
            _wait_for_one(executor, shared, title, futures)
    finally:
        # The inputs are gone when the call is over, so nothing may run that still reads them.
        shared.drop()
        concurrent.futures.wait([future for future in futures if not future.cancel()])
    if shared.errors:
        try:
            raise shared.errors[0]
        finally:
            # The error holds this frame, which must not hold the error.
            shared.errors.clear()


def _submit(executor: Executor, shared: _Elements, count: int, futures: list[concurrent.futures.Future[Any]]) -> None:
    try:
        for _ in range(count):
            futures.append(executor.submit(shared.work))
    except RuntimeError:
        # Only the interpreter shuts our own threads down: at exit, while a program in flight still has to end.
        if executor is not OWN_THREADS:
            raise


def _wait_for_one(
    executor: Executor, shared: _Elements, title: str, futures: list[concurrent.futures.Future[Any]]
) -> None:
    """Wait until a thread has found no further element, or has failed."""
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(done.put)
    if is_waited_for(executor):
        wait_for_thread(executor, title, lambda: shared.begun.wait(0.05) or not done.empty())
    if all(done.get().cancelled() for _ in futures):
        raise RuntimeError("executor= was shut down before the function could run")

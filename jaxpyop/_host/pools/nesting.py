"""Calls inside bodies: where a call runs, and when all threads of an executor wait for one another.

A body that calls an op of its own executor would wait for a thread that waits for the body. So on a thread of the
executor such an op runs in place. On any other thread, such as one of XLA's, it waits for a free thread of the
executor. Once all threads of the executor are known to wait for such ops, one of these ops raises an error.

The context variable `_outer` tells which executors have threads that wait for this code. A compiled program keeps the
context in which it was traced, so every combination of outer executors has programs of its own.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import enum
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from jaxpyop import _jaxcore
from jaxpyop._host.pools.executors import Executor, default_executor, has_threads, workers_of

# Seconds after which the waiting bodies count as stuck, if no task begins meanwhile.
_PATIENCE = 2.0

# The number of each executor. A new executor gets the number of one that is gone, and with it the programs that were
# compiled for bodies on that one.
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_free_numbers: list[int] = []
_new_numbers = itertools.count(1)
_lock = threading.RLock()


def number_of(executor: Any) -> int:
    """The number of an executor."""
    with _lock:
        try:
            number = _numbers.get(executor)
            if number is None:
                number = _numbers[executor] = _free_numbers.pop() if _free_numbers else next(_new_numbers)
                weakref.finalize(executor, _free_numbers.append, number).atexit = False
        except TypeError:
            # The executor cannot be referred to weakly.
            return id(executor)
        return number


_outer: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("jaxpyop_outer_executors", default=frozenset())
_thread = threading.local()


class Place(enum.Enum):
    """Where a call runs: on the calling thread, on a thread of the executor, or in a worker that shares no memory."""

    HERE = enum.auto()
    THREADS = enum.auto()
    WORKERS = enum.auto()


def place_of(executor: Executor | None) -> Place:
    """Where a call with this executor runs, from here."""
    if executor is None or _is_worker(executor):
        return Place.HERE
    return Place.THREADS if has_threads(executor) else Place.WORKERS


def _is_worker(executor: Executor) -> bool:
    """Tell whether this thread is one of the executor's, whoever gave it its task."""
    if number_of(executor) in getattr(_thread, "works_for", ()):
        return True
    # A ThreadPoolExecutor has no public name for its threads.
    threads = getattr(executor, "_threads", None)
    return isinstance(threads, set) and _jaxcore.python_thread() in threads


@contextlib.contextmanager
def working_for(number: int) -> Iterator[None]:
    """Mark this thread as one of an executor's for a block, which has to run in a context of its own."""
    _outer.set(_outer.get() | {number})
    before = getattr(_thread, "works_for", frozenset())
    _thread.works_for = before | {number}
    with _lock:
        _begun[number] += 1
    try:
        # jaxpyop's own threads cannot deadlock. So the default executor is left out here, and bodies on its threads use
        # the same compiled programs as code outside of any executor.
        with _jaxcore.with_programs_of(_outer.get() - {number_of(default_executor())} or None):
            yield
    finally:
        _thread.works_for = before


# ---------------------------------------------------------------------- all threads wait

# For the number of each executor: how many calls wait for one of its threads while a thread of it waits for them, and
# how many tasks have begun on its threads.
_waiting: collections.Counter[int] = collections.Counter()
_begun: collections.Counter[int] = collections.Counter()


def is_waited_for(executor: Any) -> bool:
    """Tell whether a thread of the executor waits, or may wait, for this code."""
    return number_of(executor) in _outer.get()


class DeadlockWatch:
    """Detects that this code waits for a thread of an executor while all of its threads wait for code like this."""

    def __init__(self, executor: Any, title: str) -> None:
        self._number = number_of(executor)
        self._threads = workers_of(executor)
        self._title = title
        self._begun, self._since = -1, 0.0

    def __enter__(self) -> DeadlockWatch:
        with _lock:
            _waiting[self._number] += 1
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            _waiting[self._number] -= 1

    def check(self) -> None:
        """Raise if every thread of the executor has waited for long.

        Raises:
            RuntimeError: it names the op, and the ways out.
        """
        now, begun = time.monotonic(), _begun[self._number]
        if begun != self._begun or _waiting[self._number] < self._threads:
            self._begun, self._since = begun, now
        elif now - self._since > _PATIENCE:
            raise RuntimeError(
                f"{self._title}: it waits for a thread of executor=, and all {self._threads} of them run bodies that "
                "wait for it; give an op that is called from a body on its own pool another executor, or a larger one"
            )

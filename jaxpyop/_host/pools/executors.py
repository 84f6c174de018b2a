"""What `executor=` takes, and the executor on which an op runs. What differs between engines is in `engines`.

Without `executor=` a function runs where it is called, and the elements of a parallel batch run on threads of our own.
With it, the function runs on that executor and nowhere else. The second half is about calls inside bodies.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

# At exit this import would fail.
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from jaxpyop import _jaxcore
from jaxpyop._host.host_call import python_thread

Executor = concurrent.futures.Executor

# What `executor=` takes.
Pool: TypeAlias = Executor | Callable[[], Executor]


# The threads of our own, for `vmap_method="parallel"` without an executor. The first element starts the first of them.
OWN_THREADS = ThreadPoolExecutor(min(32, (os.cpu_count() or 1) + 4), thread_name_prefix="jaxpyop")


def check_executor(executor: Any, title: str) -> None:
    """Check the argument `executor=` of an op, which is not None.

    Raises:
        TypeError: it is neither an executor, nor a function that may return one.
    """
    if hasattr(executor, "get_executor"):
        raise TypeError(f"{title}: executor is a Dask client, whose futures are its own; pass client.get_executor()")
    if not (hasattr(executor, "submit") or callable(executor)):
        raise TypeError(
            f"{title}: executor is {executor!r}; expected a concurrent.futures.Executor, or a function that returns one"
        )


def executor_of(op: Any) -> Executor | None:
    """The executor that an op's function is sent to, None if it runs on the calling thread.

    Raises:
        TypeError: a function given as `executor=` returned something else.
    """
    given = op.executor
    if given is None:
        return None
    found: Any = given() if callable(given) and not isinstance(given, Executor) else given
    if not hasattr(found, "submit") or isinstance(found, type):
        raise TypeError(f"{op.title}: executor= gave {found!r}; expected a concurrent.futures.Executor")
    return None if is_own_thread(found) else found


def has_threads(executor: Executor) -> bool:
    """Tell whether an executor's workers are threads of this process, which can share memory with the caller."""
    return isinstance(executor, ThreadPoolExecutor)


def needs_pickled_body(executor: Executor) -> bool:
    """Tell whether a worker that cannot read a function breaks the executor.

    A worker of the standard library's process pool then dies. So it gets bytes, and says itself what it cannot read.
    Other executors pickle in ways of their own, which can do more.
    """
    # The import takes time, so it is left to whoever uses the pool.
    module = sys.modules.get("concurrent.futures.process")
    return module is not None and isinstance(executor, module.ProcessPoolExecutor)


def workers_of(executor: Any) -> int:
    """How many tasks an executor of concurrent.futures runs at once, as far as that can be known."""
    # The executors of the standard library and of loky have no public name for this.
    known = getattr(executor, "_max_workers", None)
    return known if isinstance(known, int) else os.cpu_count() or 1


# ------------------------------------------------------------------------ calls inside bodies

# A body that calls an op of its own executor would wait for a thread that waits for the body. So on a thread of the
# executor such an op runs in place. On any other thread, such as one of XLA's, it waits for a free thread of the
# executor. Once all threads of the executor are known to wait for such ops, one of these ops raises an error.
#
# The context variable `_outer` tells which executors have threads that wait for this code. A compiled program keeps the
# context in which it was traced, so every combination of outer executors has programs of its own.


@dataclasses.dataclass(eq=False)
class _Load:
    """What is known of an executor.

    Attributes:
        number: its number. A new executor gets the number of one that is gone, and with it the programs that were
            compiled for bodies on that one.
        waiting: how many calls wait for one of its threads while one of its threads waits for them.
        begun: how many tasks began on it.
    """

    number: int
    waiting: int = 0
    begun: int = 0


_loads: weakref.WeakKeyDictionary[Any, _Load] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def _load_of(executor: Any) -> _Load:
    with _lock:
        try:
            if (load := _loads.get(executor)) is None:
                used = {load.number for load in _loads.values()}
                load = _loads[executor] = _Load(next(n for n in itertools.count(1) if n not in used))
        except TypeError:
            # The executor cannot be referred to weakly. No pool of threads is so.
            return _Load(id(executor))
        return load


def number_of(executor: Any) -> int:
    """The number of an executor."""
    return _load_of(executor).number


_outer: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("jaxpyop_outer_executors", default=frozenset())
_thread = threading.local()


def is_own_thread(executor: Executor) -> bool:
    """Tell whether this thread is one of the executor's, whoever gave it its task."""
    if number_of(executor) in getattr(_thread, "works_for", ()):
        return True
    # A ThreadPoolExecutor has no public name for its threads.
    threads = getattr(executor, "_threads", None)
    return isinstance(threads, set) and python_thread() in threads


@contextlib.contextmanager
def working_for(number: int) -> Iterator[None]:
    """Mark this thread as one of an executor's for a block, which has to run in a context of its own."""
    _outer.set(_outer.get() | {number})
    before = getattr(_thread, "works_for", frozenset())
    _thread.works_for = before | {number}
    with _lock:
        for load in _loads.values():
            load.begun += load.number == number
    try:
        # jaxpyop's own threads cannot deadlock. So the default executor is left out here, and bodies on its threads use
        # the same compiled programs as code outside of any executor.
        with _jaxcore.with_programs_of(_outer.get() - {number_of(OWN_THREADS)} or None):
            yield
    finally:
        _thread.works_for = before


# ---------------------------------------------------------------------- all threads wait

# Seconds after which the waiting bodies count as stuck, if no task begins meanwhile.
_PATIENCE = 2.0


def is_waited_for(executor: Any) -> bool:
    """Tell whether a thread of the executor waits, or may wait, for this code."""
    return number_of(executor) in _outer.get()


def wait_for_thread(executor: Any, title: str, has_begun: Callable[[], bool]) -> None:
    """Wait until a thread of an executor has begun, unless all of its threads wait for code like this.

    Args:
        executor: the executor.
        title: the op's name.
        has_begun: waits a little, and tells whether a thread has begun.

    Raises:
        RuntimeError: every thread of the executor has waited for long. The error names the ways out.
    """
    load, threads = _load_of(executor), workers_of(executor)
    begun, since = load.begun, time.monotonic()
    with _lock:
        load.waiting += 1
    try:
        while not has_begun():
            if begun != load.begun or load.waiting < threads:
                begun, since = load.begun, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                raise RuntimeError(
                    f"{title}: it waits for a thread of executor=, and all {threads} of them run bodies that wait for "
                    "it; give an op that is called from a body on its own pool another executor, or a larger one"
                )
    finally:
        with _lock:
            load.waiting -= 1

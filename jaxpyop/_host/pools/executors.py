"""The kinds of executor, and what is known about each: threads, processes, Dask and others. A new kind is added here.

Without `executor=` a function runs where it is called, and the elements of a parallel batch run on threads of our own.
With it, the function runs on that executor and nowhere else.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import sys
from collections.abc import Callable

# At exit this import would fail.
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

Executor = concurrent.futures.Executor

# What `executor=` takes.
Pool: TypeAlias = Executor | Callable[[], Executor]


@functools.cache
def default_executor() -> Executor:
    """The threads of our own, for `vmap_method="parallel"` without an executor."""
    workers = min(32, (os.cpu_count() or 1) + 4)
    return ThreadPoolExecutor(workers, thread_name_prefix="jaxpyop")


def check_executor(executor: Any, title: str) -> None:
    """Check the argument `executor=` of an op.

    Raises:
        TypeError: it is neither an executor, nor a function that may return one.
    """
    if executor is None:
        return
    if hasattr(executor, "get_executor"):
        raise TypeError(f"{title}: executor is a Dask client, whose futures are its own; pass client.get_executor()")
    if not (hasattr(executor, "submit") or callable(executor)):
        raise TypeError(
            f"{title}: executor is {executor!r}; expected a concurrent.futures.Executor, or a function that returns one"
        )


def executor_of(op: Any) -> Executor | None:
    """The executor that an op asks for, None for the calling thread.

    Raises:
        TypeError: a function given as `executor=` returned something else.
    """
    given = op.executor
    if given is None:
        return None
    found: Any = given() if callable(given) and not isinstance(given, Executor) else given
    if not hasattr(found, "submit") or isinstance(found, type):
        raise TypeError(f"{op.title}: executor= gave {found!r}; expected a concurrent.futures.Executor")
    return found


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
    """How many tasks an executor runs at once, as far as that can be known."""
    # The executors of the standard library and of loky have no public name for this.
    known = getattr(executor, "_max_workers", None)
    if isinstance(known, int):
        return known
    try:
        # An executor of Dask's.
        return sum(executor._client.nthreads().values())
    except Exception:
        return os.cpu_count() or 1


def means_lost_worker(error: BaseException) -> bool:
    """Tell whether an error of a task says that a worker died."""
    # The second is Dask's, which need not be installed.
    return isinstance(error, concurrent.futures.BrokenExecutor) or type(error).__name__ == "KilledWorker"

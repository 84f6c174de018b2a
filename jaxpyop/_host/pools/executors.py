"""Which executor runs a call: what `executor=` gives, or threads of our own.

Without `executor=` a function runs where it is called, and the elements of a
parallel batch on threads of our own. With it the function runs there and
nowhere else (`places`): on its `threads`, or in other `workers`.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor  # now: importing it at exit fails
from typing import Any, TypeAlias

Executor = concurrent.futures.Executor
Pool: TypeAlias = Executor | Callable[[], Executor]  # what `executor=` takes


@functools.cache
def default_executor() -> Executor:
    """The threads that `vmap_method="parallel"` takes when no executor is given."""
    workers = min(32, (os.cpu_count() or 1) + 4)
    return ThreadPoolExecutor(workers, thread_name_prefix="jaxpyop")


def executor_of(op: Any) -> Executor | None:
    """Where an op, or the elements of its batch, are to run; None for here."""
    return None if op.executor is None else resolve(op.executor, op.title)


def resolve(executor: Pool, title: str) -> Executor:
    """The executor to use now.

    Raises:
        TypeError: a function that does not return one.
    """
    found = executor if isinstance(executor, Executor) or not callable(executor) else executor()
    if not hasattr(found, "submit") or isinstance(found, type):
        raise TypeError(f"{title}: executor= gave {found!r}; expected a concurrent.futures.Executor")
    return found


def is_local(executor: Executor) -> bool:
    """Whether its workers are threads of this process."""
    return isinstance(executor, ThreadPoolExecutor)


def workers_of(executor: Any) -> int:
    """How many tasks an executor runs at once, as far as that can be known."""
    known = getattr(executor, "_max_workers", None)  # of the standard library's and loky's; no public name
    if isinstance(known, int):
        return known
    try:
        return sum(executor._client.nthreads().values())  # Dask's
    except Exception:
        return os.cpu_count() or 1

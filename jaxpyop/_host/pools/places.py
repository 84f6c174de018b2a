"""On which pools this code runs, or keeps a thread waiting.

A body that calls an op of its own pool would wait for a thread that waits for
it. On a thread of the pool such an op runs in place. On another thread, which
is one of XLA's or of another pool, it waits for a free thread of the pool, and
once all of them are known to wait for such ops, one of these is an error.

What tells is the `chain`, the pools that the code around has threads of. A
compiled program has the chain that it was traced in, so each chain has
programs of its own.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from jaxpyop import _jaxcore
from jaxpyop._host.pools.executors import default_executor, workers_of

_PATIENCE = 2.0  # seconds without a beginning, until waiting bodies count as stuck

# Pools by number: a new pool gets that of one that is gone, and with it the programs of its chains.
_slots: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_free: list[int] = []
_fresh = itertools.count(1)
_lock = threading.RLock()


def slot_of(executor: Any) -> int:
    """The number of an executor."""
    with _lock:
        try:
            slot = _slots.get(executor)
            if slot is None:
                slot = _slots[executor] = _free.pop() if _free else next(_fresh)
                weakref.finalize(executor, _free.append, slot).atexit = False
        except TypeError:  # cannot be referred to weakly
            return id(executor)
        return slot


_chain: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("jaxpyop_chain", default=frozenset())
_thread = threading.local()
_THREADS: dict[int, Any] = vars(threading)["_active"]  # current_thread() would make XLA's threads known


def is_worker(executor: Any) -> bool:
    """Whether this thread is one of the executor's, whoever gave it its task."""
    if slot_of(executor) in getattr(_thread, "slots", ()):
        return True
    threads = getattr(executor, "_threads", None)  # of a ThreadPoolExecutor; no public name
    return isinstance(threads, set) and _THREADS.get(threading.get_ident()) in threads


def keeps_waiting(executor: Any) -> bool:
    """Whether a thread of the executor waits, or may wait, for this code."""
    return slot_of(executor) in _chain.get()


def join_chain(slot: int) -> None:
    """Add a pool to the chain of the current context."""
    _chain.set(_chain.get() | {slot})


@contextlib.contextmanager
def working_for(slot: int) -> Iterator[None]:
    """Say of this thread that it is one of a pool's, for a block; the context has the pool in its chain."""
    before = getattr(_thread, "slots", frozenset())
    _thread.slots = before | {slot}
    try:
        # Our own threads never stick, so that their bodies can share the programs of all others.
        with _jaxcore.with_programs_of(_chain.get() - {slot_of(default_executor())} or None):
            yield
    finally:
        _thread.slots = before


# ------------------------------------------------------------------- who is stuck

_unbegun: collections.Counter[int] = collections.Counter()  # waits by pool, of code that keeps its threads waiting
_begun: collections.Counter[int] = collections.Counter()  # tasks by pool


def note_beginning(slot: int) -> None:
    """Take note that a thread of a pool has begun something."""
    with _lock:
        _begun[slot] += 1


class Stuck:
    """Watches a wait for a pool that has threads waiting for this code."""

    def __init__(self, executor: Any, title: str) -> None:
        self._slot = slot_of(executor)
        self._threads = workers_of(executor)
        self._title = title
        self._since = (-1, 0.0)

    def __enter__(self) -> Stuck:
        with _lock:
            _unbegun[self._slot] += 1
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            _unbegun[self._slot] -= 1

    def check(self) -> None:
        """Raise when every thread of the pool has long been kept waiting.

        Raises:
            RuntimeError: names the op, and the ways out.
        """
        now = time.monotonic()
        begun, since = self._since
        if _begun[self._slot] != begun or _unbegun[self._slot] < self._threads:
            self._since = _begun[self._slot], now
        elif now - since > _PATIENCE:
            raise RuntimeError(
                f"{self._title}: it waits for a thread of executor=, and all {self._threads} of them run bodies that "
                "wait for it; give an op that is called from a body on its own pool another executor, or a larger one"
            )

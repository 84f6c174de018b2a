"""A bounded cache of compiled functions, and the types of values as parts of its keys."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax

from jaxpyop import _jaxcore

_SEEN: Any = object()
_T = TypeVar("_T")


class Cache:
    """A thread-safe mapping that evicts its least recently used entries.

    A lookup writes its time into the entry, which takes no lock and one hash. In return an eviction has to search for
    the oldest entries, so it drops an eighth of all entries at once.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        # Each key has a list of its value and the time of its last use.
        self._entries: dict[Hashable, list[Any]] = {}
        self._clock = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """Returns the value of `key`, None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry[1] = next(self._clock)
        return entry[0]

    def holds(self, key: Hashable, value: Any) -> bool:
        """Tells whether `value` is stored under `key`."""
        entry = self._entries.get(key)
        return entry is not None and entry[0] is value

    def put(self, key: Hashable, value: Any) -> None:
        """Sets the value of `key`."""
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._bound:
                oldest = heapq.nsmallest(max(1, self._bound // 8), self._entries, key=lambda k: self._entries[k][1])
                for k in oldest:
                    del self._entries[k]
            self._entries[key] = [value, next(self._clock)]

    def compiled(self, key: Hashable, make: Callable[[], _T]) -> _T | None:
        """Returns what `make` makes for `key`, but None when the key is seen for the first time.

        Compiling takes as long as thousands of evaluations, so it does not pay for a key that never comes again.
        """
        found = self.get(key)
        if found is _SEEN:
            found = make()
            self.put(key, found)
        elif found is None:
            self.put(key, _SEEN)
        return found


def value_type(value: Any) -> Hashable:
    """Returns the type of a value that a compiled function is specialized on."""
    try:
        # JAX interns the avals of arrays, so that they are hashed quickly.
        return value.aval
    except AttributeError:
        if isinstance(value, _jaxcore.ShapedArray):
            return value
        return type(value), jax.typeof(value)

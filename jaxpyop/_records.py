"""The bounded store of gradient records, from token to record.

A forward pass under `jit` leaves its record here and passes the token on, as
an array of type uint32, to the backward pass. Nothing tells whether that pass
will come, once, twice or never, so reading does not consume a record: the
store is bounded by its size, and the oldest record goes first.
"""

from __future__ import annotations

import threading
from typing import Any

_LAST_TOKEN = 2**32 - 2  # tokens travel as uint32, and the last is `_calls.NO_RECORD`


class Records:
    """Records by token, bounded by count and by bytes; thread-safe.

    The record that was put in first is evicted, not the one that was read least
    recently: a forward pass runs all of a batch or a scan before the first
    backward step reads anything, backward passes read in reverse, and a record
    once read is more likely done with than wanted again.

    A record larger than the bound of bytes is kept, as the only one: the
    backward pass that follows at once finds it, and the memory is that of
    one step, which was needed anyway. It goes as soon as another comes.

    Attributes:
        max_count: how many records at most.
        max_bytes: how many bytes of arrays (`record.nbytes`) at most.

    Example:
        >>> class Taken: nbytes = 8
        >>> records = Records(max_count=2, max_bytes=1000)
        >>> first, second, third = (records.put(Taken()) for _ in range(3))
        >>> records.get(first) is None, records.get(third) is None
        (True, False)
    """

    def __init__(self, max_count: int, max_bytes: int, *, first: int = 1) -> None:
        self._lock = threading.Lock()
        self._records: dict[int, tuple[Any, int]] = {}  # in order of arrival
        self._nbytes = 0
        self._evicted = 0
        self._next = first
        self.max_count, self.max_bytes = _bounds(max_count, max_bytes)

    def put(self, record: Any) -> int:
        """Store a record.

        Returns:
            Its token, from 1 to 2**32 - 2, and never that of a record that is
            still stored.
        """
        nbytes = int(record.nbytes)
        with self._lock:
            token = self._free_token()
            self._records[token] = (record, nbytes)
            self._nbytes += nbytes
            evicted = self._shrink()
        del evicted  # outside the lock: freeing arrays can run other code
        return token

    def get(self, token: int) -> Any | None:
        """The record of a token, or None if it was evicted or never stored."""
        with self._lock:
            found = self._records.get(int(token))
        return None if found is None else found[0]

    def resize(self, max_count: int | None = None, max_bytes: int | None = None) -> None:
        """Change the bounds, evicting what no longer fits."""
        with self._lock:
            self.max_count, self.max_bytes = _bounds(
                self.max_count if max_count is None else max_count,
                self.max_bytes if max_bytes is None else max_bytes,
            )
            evicted = self._shrink()
        del evicted  # as in put

    def clear(self) -> None:
        """Forget all records; tokens go on from where they were."""
        with self._lock:
            evicted, self._records = self._records, {}
            self._nbytes = 0
        del evicted  # as in put

    def stats(self) -> dict[str, int]:
        """How full the store is; `evicted` counts those pushed out so far."""
        with self._lock:
            return {
                "count": len(self._records),
                "nbytes": self._nbytes,
                "max_count": self.max_count,
                "max_bytes": self.max_bytes,
                "evicted": self._evicted,
            }

    def _free_token(self) -> int:
        # Called under the lock. Live tokens are few, so this ends quickly.
        token = self._next
        while token in self._records:
            token = token % _LAST_TOKEN + 1
        self._next = token % _LAST_TOKEN + 1
        return token

    def _shrink(self) -> list[Any]:
        # Called under the lock; the newest record always stays.
        evicted: list[Any] = []
        while len(self._records) > 1 and (len(self._records) > self.max_count or self._nbytes > self.max_bytes):
            oldest, nbytes = self._records.pop(next(iter(self._records)))
            evicted.append(oldest)
            self._nbytes -= nbytes
        self._evicted += len(evicted)
        return evicted


def _bounds(max_count: int, max_bytes: int) -> tuple[int, int]:
    if max_count < 1:
        raise ValueError(f"max_count must be at least 1, got {max_count}")
    if max_bytes < 0:
        raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
    return int(max_count), int(max_bytes)

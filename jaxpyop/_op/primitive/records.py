"""The bounded store of what runs keep for their derivatives, from token to record.

A forward pass under `jit` leaves its record here and passes a receipt with its token on to the backward pass, as an
array of type uint32. Nothing tells whether that pass will come once, twice or never, so reading does not consume a
record. But a record that was read is most likely not needed any more, and is evicted first. If somebody holds the array
of a token, the record goes when that array does.
"""

from __future__ import annotations

import collections
import secrets
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._config import config, on_change
from jaxpyop._host import metrics
from jaxpyop._op.request import Op
from jaxpyop._refusal import refusal
from jaxpyop._values import Struct

TOKEN = np.dtype(np.uint32)
# The receipt of a run, which a program carries from the forward pass to the backward pass: the token of its record, the
# fingerprint of its results, and a hash of what ran. If the record is gone by then, the function runs again, and the
# fingerprint tells whether its results are the same. JAX hands what the branches of a `cond` keep over in the same
# arrays, so the hash tells whether the run was that of this branch.
RECEIPT = Struct((3,), TOKEN)
# The token of an element that did not run, or that failed. No store hands it out.
NO_RUN = 0
# The fingerprint beside that token, if the element failed.
FAILED = 1
# The token of a run that kept nothing, or that was in another process. No store hands it out.
NO_RECORD = np.iinfo(TOKEN).max
# Tokens travel as uint32, and the last number is NO_RECORD.
_LAST_TOKEN = 2**32 - 2
# Records that were read may fill 1/READ_SHARE of the bound, and at most 8 MB, because they are rarely needed again. At
# most MAX_READ of them are kept, because the size of an object that only C knows cannot be measured.
READ_SHARE = 32
_MAX_READ_BYTES = 8 * 2**20
MAX_READ = 64


# A record, its bytes, whether it cannot be made again, and the name of its op.
_Entry = tuple[Any, int, bool, str]


class _Shelf:
    """Some of the records by token, in order of arrival, and how many bytes they hold."""

    def __init__(self) -> None:
        self.records: dict[int, _Entry] = {}
        self.nbytes = 0

    def add(self, token: int, entry: _Entry) -> None:
        self.records[token] = entry
        self.nbytes += entry[1]

    def take(self, token: int) -> _Entry | None:
        entry = self.records.pop(token, None)
        if entry is not None:
            self.nbytes -= entry[1]
        return entry

    def take_oldest(self) -> Any:
        return self.take(next(iter(self.records)))


class Records:
    """Records by token, bounded by their bytes; thread-safe.

    Records that no backward pass has read are kept within the bound, and the oldest is evicted first. A forward pass
    runs all of a batch or a scan before the first backward step reads anything. Records that were read may fill a
    thirty-second part of the bound, and the one whose reading is longest ago is evicted first. This happens when the
    next record is put in or `make_room` is called, because the backward passes of one program may read a record many
    times (`jacrev`, a pullback called again).

    A stateful op's record cannot be made again, so it is worth more. Once read, it is evicted before the records that
    were not read, but only if the bound itself is exceeded.

    A record larger than the bound of bytes is kept as the only one. The backward pass that follows at once finds it,
    and the memory is that of one step, which was needed anyway. It goes as soon as another record comes.

    Attributes:
        max_bytes: how many bytes (`record.nbytes`) at most.

    Example:
        >>> class Taken: nbytes = 8
        >>> records = Records(max_bytes=16)
        >>> first, second, third = (records.put(Taken()) for _ in range(3))
        >>> records.get(first) is None, records.get(third) is None
        (True, False)
    """

    def __init__(self, max_bytes: int, *, first: int = 1) -> None:
        self._lock = threading.Lock()
        self._shelves = self._unread, self._read_once_made, self._read = _Shelf(), _Shelf(), _Shelf()
        # Tokens whose array was freed.
        self._dropped: collections.deque[int] = collections.deque()
        self._evicted = 0
        self._next = self._cleared_to = first
        self.max_bytes = max_bytes

    def put(self, record: Any, *, once_made: bool = False, owner: str = "") -> int:
        """Store a record.

        Args:
            record: anything with `nbytes`.
            once_made: whether it cannot be made again.
            owner: the name of its op, for reports.

        Returns:
            Its token, from 1 to 2**32 - 2, and never that of a record that is
            still stored.
        """
        entry = record, int(record.nbytes), once_made, owner
        with self._lock:
            token = self._free_token()
            self._unread.add(token, entry)
            gone = self._shrink()
        # This frees arrays, which can run other code, so the lock must be free.
        del gone
        if metrics.reports:
            metrics.note(owner, records=1)
        return token

    def get(self, token: int) -> Any | None:
        """The record of a token, or None if it was evicted or never stored."""
        with self._lock:
            for shelf in self._shelves:
                if (entry := shelf.take(token)) is not None:
                    (self._read_once_made if entry[2] else self._read).add(token, entry)
                    return entry[0]
        return None

    def make_room(self) -> None:
        """Evict the records that were read and exceed their share, before a new record is made."""
        with self._lock:
            gone = self._shrink()
        del gone

    def hold(self, tokens: Iterable[int], holder: Any) -> None:
        """Tie records to the array of their tokens.

        When the array goes, records that were read go with it. The others count as read from then on, because the
        array may have been copied, as a `vmap` does.
        """
        weakref.finalize(holder, self._drop, list(tokens)).atexit = False

    def resize(self, max_bytes: int) -> None:
        """Change the bound, evicting what no longer fits."""
        self.max_bytes = max_bytes
        self.make_room()

    def clear(self) -> None:
        """Forget all records; tokens go on from where they were."""
        with self._lock:
            gone = self._shelves
            self._shelves = self._unread, self._read_once_made, self._read = _Shelf(), _Shelf(), _Shelf()
            self._cleared_to = self._next
        del gone

    def was_issued(self, token: int) -> bool:
        """Tell whether this store, and not that of another process, issued a token since the last `clear`."""
        return (token - self._cleared_to) % 2**32 < (self._next - self._cleared_to) % 2**32

    def stats(self) -> dict[str, int]:
        """How full the store is. `evicted` counts the records so far that were evicted before anything read them."""
        with self._lock:
            return {"count": self._count(), "nbytes": self._nbytes(), "evicted": self._evicted}

    # The methods below are called under the lock, except for `_drop`.

    def _count(self) -> int:
        return sum(len(shelf.records) for shelf in self._shelves)

    def _nbytes(self) -> int:
        return sum(shelf.nbytes for shelf in self._shelves)

    def _free_token(self) -> int:
        # Few tokens are taken, so the loop ends quickly.
        token = self._next
        while any(token in shelf.records for shelf in self._shelves):
            token = token % _LAST_TOKEN + 1
        self._next = token % _LAST_TOKEN + 1
        return token

    def _drop(self, tokens: list[int]) -> None:
        # The garbage collector calls this at any time, even while this very thread has the lock.
        self._dropped.extend(tokens)
        if self._lock.acquire(blocking=False):
            try:
                gone = self._take_dropped()
            finally:
                self._lock.release()
            del gone

    def _take_dropped(self) -> list[Any]:
        gone: list[Any] = []
        while self._dropped:
            token = self._dropped.popleft()
            gone += [self._read.take(token), self._read_once_made.take(token)]
            if (entry := self._unread.take(token)) is not None:
                (self._read_once_made if entry[2] else self._read).add(token, entry)
        return gone

    def _shrink(self) -> list[Any]:
        gone = self._take_dropped()
        nbytes = min(self.max_bytes // READ_SHARE, _MAX_READ_BYTES)
        while len(self._read.records) > MAX_READ or self._read.nbytes > nbytes:
            gone.append(self._read.take_oldest())
        while self._nbytes() > self.max_bytes and self._count() > 1:
            shelf = next(shelf for shelf in (self._read, self._read_once_made, self._unread) if shelf.records)
            gone.append(entry := shelf.take_oldest())
            if shelf is self._unread:
                self._evicted += 1
                metrics.note(entry[3], pushed_out=1)
        return gone


# Processes that compute together have a store each. The first token is random, so that a store does not take the tokens
# of another one for its own.
RECORDS = Records(config.max_record_bytes, first=1 + secrets.randbelow(2**31))


on_change(lambda: RECORDS.resize(config.max_record_bytes))


def find_record(op: Op, token: int) -> Any | None:
    """Return the record of a token, or None if the function has to run again for it.

    It warns once for each op that its records do not fit, but not if the user cleared them, or a worker has them.

    Args:
        op: the op.
        token: the token.

    Raises:
        RuntimeError: the op is stateful, so that its function cannot run again.
    """
    if (record := RECORDS.get(token)) is not None:
        return record
    if op.stateful:
        text = (
            f"{op.title}: the record of this step's forward pass is gone, or another process had it, which keeps "
            "none, and a stateful op cannot be run again; increase jaxpyop.config.max_record_bytes (see "
            "python -m jaxpyop doctor), use threads, or pass stateful=False"
        )
        raise refusal(RuntimeError(text))
    metrics.note(op.name, recomputed=1)
    if RECORDS.was_issued(token):
        text = (
            f"{op.title}: records of forward passes were pushed out before the backward pass came, so it runs the "
            "function again, at the price of another forward pass each; increase jaxpyop.config.max_record_bytes "
            "(see python -m jaxpyop doctor)"
        )
        _jaxcore.warn_once(("records", op.title), text)
    return None


def clear_records() -> None:
    """Drop all records that ``py_function`` keeps for later backward passes.

    :func:`jax.clear_caches` does the same with compiled programs. A record holds the
    arrays of a forward pass, within the limit ``config.max_record_bytes``. A backward
    pass whose record is gone calls the function again. TensorFlow's ``tf.py_function``
    keeps a tape for each forward pass in the same way, and cannot drop it.

    Returns:
        None.

    Raises:
        RuntimeError: raised later, by the backward pass of a stateful op, whose
            function cannot be called again.

    Example:
        >>> import jax, jax.numpy as jnp, jaxpyop
        >>> f = lambda x: jaxpyop.py_function(lambda x: x**2, [x], jnp.float32)
        >>> y, pullback = jax.vjp(jax.jit(f), 3.0)
        >>> jaxpyop.clear_records()
        >>> print(pullback(1.0)[0])
        6.0
    """
    RECORDS.clear()

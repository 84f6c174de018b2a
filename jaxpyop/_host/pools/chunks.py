"""How many elements go to a worker together.

A chunk should run for about as long as it takes to send. The first chunks are small, since nothing is known of the time
that an element takes, unless an earlier batch of the same call has shown it. No chunk is so large that some workers
wait for another one at the end.
"""

from __future__ import annotations

import math

# How long a chunk should run, in seconds.
_AIM = 0.01

# How many times smaller than the others the last chunks may be. Each chunk takes time to send.
_TAIL = 4


class Chunks:
    """The sizes of a batch's chunks.

    Args:
        count: how many elements there are.
        given: the user's `chunksize=`.
        workers: how many chunks run at once.
        shared: bytes that every chunk takes along.
        pace: the seconds that an element took in an earlier batch, if there was one.

    Attributes:
        left: how many elements are in no chunk yet.
        pace: the seconds that an element took in the last chunk.
    """

    def __init__(self, count: int, given: int | None, workers: int, shared: int, pace: float | None = None) -> None:
        self._given = given
        self._workers = workers
        # A gigabyte takes about a second to send.
        self._aim = _AIM + shared / 1e9
        self._least = count // (2 * _TAIL * workers)
        self._size = given or (self._fitting(pace) if pace else 1)
        self.left = count
        self.pace = pace

    def _fitting(self, pace: float) -> int:
        return max(1, int(self._aim / max(pace, 1e-9)))

    def next(self) -> int:
        """The size of the next chunk."""
        fair = math.ceil(self.left / (2 * self._workers))
        size = self._size if self._given else min(self._size, max(fair, min(self._size // _TAIL, self._least)))
        size = min(size, self.left)
        self.left -= size
        return size

    def learn(self, seconds: float, size: int) -> None:
        """Learn how long a chunk took."""
        self.pace = seconds / size
        if not self._given:
            self._size = min(self._fitting(self.pace), 8 * max(size, self._size // 8))

"""How many elements go to a worker together.

As many as take about as long as it takes to send them: few at first, where nothing is known of what an element takes,
and what an earlier batch of the same call took afterwards. Never so many that some workers wait for one at the end.
"""

from __future__ import annotations

import math

_AIM = 0.01  # seconds
_TAIL = 4  # the last chunks are so many times smaller at most: to send them takes longer


class Chunks:
    """The sizes of a batch's chunks.

    Args:
        count: how many elements there are.
        given: `chunksize=`.
        workers: how many chunks run at once.
        shared: bytes that each chunk takes along.
        pace: the seconds that an element took before, if that is known.

    Attributes:
        left: how many elements are in none yet.
        pace: the seconds that an element took in the last chunk.
    """

    def __init__(self, count: int, given: int | None, workers: int, shared: int, pace: float | None = None) -> None:
        self._given = given
        self._workers = workers
        self._aim = _AIM + shared / 1e9  # a GB takes about a second
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
        """Take note of how long a chunk took."""
        self.pace = seconds / size
        if not self._given:
            self._size = min(self._fitting(self.pace), 8 * max(size, self._size // 8))

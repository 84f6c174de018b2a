"""How many elements of a batch go to a worker at a time."""

from __future__ import annotations

import math

# The way to a worker and back should be small beside the time in the function: a chunk runs for about ten times as long
# as the way takes. It runs for at least ten milliseconds, since this process has work for each chunk too, and for at
# most a second, since the way seems to be long while workers start. The first chunks are small, since nothing is known
# of either time, unless an earlier batch of the same call has shown them. No chunk is so large that some workers wait
# for another one at the end.

_TIMES_THE_WAY = 10
_LEAST_SECONDS, _MOST_SECONDS = 0.01, 1.0

# How many times smaller than the others the last chunks may be.
_TAIL = 4


class Chunks:
    """The sizes of a batch's chunks.

    Args:
        count: how many elements there are.
        given: the user's `chunksize=`.
        pace: the `pace` of an earlier batch, if there was one.

    Attributes:
        left: how many elements are in no chunk yet.
        pace: the seconds that an element took in the last chunk, and the seconds of the way to a worker and back. A
            task may have to wait for a worker, so the shortest way counts.
    """

    def __init__(self, count: int, given: int | None, pace: tuple[float, float] | None = None) -> None:
        self._given = given
        self._count = count
        self._size = given or (_fitting(*pace) if pace else 1)
        self._way = pace[1] if pace else math.inf
        self.left = count
        self.pace = pace

    def next(self, workers: int) -> int:
        """The size of the next chunk, if so many chunks run at once."""
        size = min(self._size, self.left)
        if not self._given:
            seconds, way = self.pace or (math.inf, 0.0)
            # Nothing is won by a chunk that takes less time than the way to the worker.
            shortest = math.ceil(min(way / max(seconds, 1e-9), self._count / workers))
            fair, least = math.ceil(self.left / (2 * workers)), self._count // (2 * _TAIL * workers)
            size = min(size, max(fair, shortest, min(self._size // _TAIL, least)))
        self.left -= size
        return size

    def learn(self, size: int, inside: float, took: float) -> tuple[float, float]:
        """Learn how long a chunk was in the function, and from being sent to being back. Returns the new pace."""
        self._way = min(self._way, max(took - inside, 0.0))
        self.pace = inside / size, self._way
        if not self._given:
            self._size = min(_fitting(*self.pace), 8 * max(size, self._size // 8))
        return self.pace


def _fitting(seconds: float, way: float) -> int:
    aim = min(max(_LEAST_SECONDS, _TIMES_THE_WAY * way), _MOST_SECONDS)
    return max(1, int(aim / max(seconds, 1e-9)))

"""What differs between the engines behind `executor=`: how many workers there are, and what says that one died.

A new engine is a class here, and a line in `engine_of`.
"""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

from jaxpyop._host.pools.executors import workers_of

# Seconds for which a cluster's number of workers is taken to be the same, because to ask for it is a round trip.
_SAME = 1.0

# The errors of engines that need not be installed: Dask, Ray and Parsl.
_LOST_WORKER = {"KilledWorker", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "WorkerLost", "ManagerLost"}


def means_lost_worker(error: BaseException) -> bool:
    """Tell whether an error of a task says that a worker died."""
    return isinstance(error, concurrent.futures.BrokenExecutor) or type(error).__name__ in _LOST_WORKER


class Engine:
    """Any executor of concurrent.futures."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def workers(self) -> int:
        """How many tasks run at once now. Workers of a cluster come and go."""
        return workers_of(self.executor)

    def submit(self, job: Any) -> Any:
        """Send a job. Returns a future of concurrent.futures."""
        return self.executor.submit(job)

    def cancel(self, future: Any) -> bool:
        """Take back a job that does not run yet, if that is possible."""
        try:
            return future.cancel()
        except Exception:
            # Parsl raises NotImplementedError.
            return False


class Dask(Engine):
    """The executor of a client of Dask's."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self._asked = -_SAME
        self._known = 1

    def workers(self) -> int:
        if time.monotonic() - self._asked >= _SAME:
            # A cluster may have no worker yet. Dask keeps tasks until one comes.
            self._known = max(1, sum(self.executor._client.nthreads().values()))
            self._asked = time.monotonic()
        return self._known

    def submit(self, job: Any) -> Any:
        # Dask takes calls of one function with equal arguments for one call, unless it is told not to.
        return self.executor.submit(job, pure=False)


def engine_of(executor: Any) -> Engine:
    """The engine behind an executor."""
    return Dask(executor) if hasattr(getattr(executor, "_client", None), "nthreads") else Engine(executor)

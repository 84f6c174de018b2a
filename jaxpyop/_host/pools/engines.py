"""What differs between the engines behind `executor=`: how a job is sent, and what becomes of it if its worker dies.

A new engine is a class here, and a line in `engine_of`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
import uuid
from typing import Any

from jaxpyop._host.pools.executors import workers_of

# Seconds for which a cluster's number of workers is taken to be the same, because to ask for it is a round trip.
_SAME = 1.0

# The errors of engines that need not be installed: Dask, Ray and Parsl.
_LOST_WORKER = {"KilledWorker", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "WorkerLost", "ManagerLost"}


class LostWorkerError(Exception):
    """The worker on which a job began is gone."""


def means_lost_worker(error: BaseException) -> bool:
    """Tell whether an error of a job says that a worker died."""
    known = isinstance(error, (concurrent.futures.BrokenExecutor, LostWorkerError))
    return known or type(error).__name__ in _LOST_WORKER


class Engine:
    """Any executor of concurrent.futures."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def workers(self) -> int:
        """How many jobs run at once now. Workers of a cluster come and go."""
        return workers_of(self.executor)

    def submit(self, job: Any, once: bool) -> Any:
        """Send a job.

        Args:
            job: the job.
            once: whether it must not run again if its worker dies.

        Returns:
            A future of concurrent.futures.
        """
        return self.executor.submit(job)

    def has_one_job_each(self) -> bool:
        """Tell whether a worker that dies has one job only, so that this job is why it died."""
        return True

    def cancel(self, future: Any) -> bool:
        """Take back a job that does not run yet. Tells whether nothing has to be waited for."""
        try:
            return future.cancel()
        except Exception:
            # Parsl raises NotImplementedError.
            return False

    def kill(self) -> None:
        """End the jobs that run, if that is possible."""

    def close(self) -> None:
        """Forget what belongs to one call."""


class Processes(Engine):
    """A pool of processes of this machine: of the standard library, or of loky. A worker that dies breaks the pool."""

    def kill(self) -> None:
        # Before Python 3.14 there is no public way.
        for process in list((self.executor._processes or {}).values()):
            process.kill()
        # The pool ends all futures now, and would fail at one that is cancelled at the same time.
        self.cancel = lambda future: False


class Dask(Engine):
    """A client of Dask's, or its executor, whose own futures never end if a result is lost and cannot be made again."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self._client = getattr(executor, "_client", executor)
        self._options: dict[str, Any] = getattr(executor, "_kwargs", {})
        self._asked = -_SAME
        self._known: list[int] = []
        self._begun: list[str] = []

    def workers(self) -> int:
        if time.monotonic() - self._asked >= _SAME:
            self._known = list(self._client.nthreads().values())
            self._asked = time.monotonic()
        # A cluster may have no worker yet. Dask keeps jobs until one comes.
        return max(1, sum(self._known))

    def has_one_job_each(self) -> bool:
        return all(threads == 1 for threads in self._known)

    def submit(self, job: Any, once: bool) -> Any:
        # Dask takes calls of one function with equal arguments for one call, unless it is told not to.
        options = self._options | {"pure": False}
        if once:
            # Dask gives a job whose worker died to the next one, and has no option against that.
            name = f"jaxpyop-{uuid.uuid4().hex}"
            self._begun.append(name)
            theirs = self._client.submit(_run_once, name, job, **options | {"retries": 0})
        else:
            theirs = self._client.submit(job, **options)
        ours: Any = concurrent.futures.Future()
        ours.theirs = theirs

        async def hand_on() -> None:
            try:
                ours.set_result(await self._client.gather(theirs, asynchronous=True))
            except BaseException as error:
                ours.set_exception(error)

        self._client.loop.add_callback(hand_on)
        return ours

    def cancel(self, future: Any) -> bool:
        future.theirs.cancel()
        return True

    def close(self) -> None:
        async def clear() -> None:
            for name in self._begun:
                await self._client.scheduler.event_clear(name=name)

        if self._begun:
            with contextlib.suppress(Exception):
                self._client.sync(clear)


def _run_once(name: str, job: Any) -> Any:
    """Run a job in a worker of Dask's, unless it has begun on another one before."""
    # The package does not need Dask.
    from distributed import Event

    begun = Event(name)
    if begun.is_set():
        raise LostWorkerError("it began on a worker of Dask's that is gone")
    begun.set()
    return job()


def engine_of(executor: Any) -> Engine:
    """The engine behind an executor."""
    if hasattr(getattr(executor, "_client", executor), "nthreads"):
        return Dask(executor)
    return (Processes if isinstance(getattr(executor, "_processes", None), dict) else Engine)(executor)

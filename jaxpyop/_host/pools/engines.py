"""What differs between the engines behind `executor=`: how jobs and shared inputs are sent, and workers are lost.

A new engine is a class here, and a line in `engine_of`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxpyop._host.pools.executors import dask_client_of, is_ray, runs_here, workers_of
from jaxpyop._host.pools.job import raise_in

# Seconds for which a cluster's number of workers is taken to be the same, because to ask for it is a round trip.
_SAME = 1.0

# The errors of engines that need not be installed: Dask, Ray and Parsl.
# Dask cancels a job if a shared input was only on workers that are gone.
_LOST_WORKER = {
    *("KilledWorker", "FutureCancelledError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError"),
    *("WorkerLost", "ManagerLost"),
}

# The bytes of an input that all elements share, from which on it goes to each worker once, and not with each job.
_LARGE = 1 << 18


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
        self._shared: dict[int, Any] = {}
        self._asked = -_SAME
        self._known: list[int] = []

    def workers(self) -> int:
        """How many jobs run at once now. Workers of a cluster come and go, and it may have none yet."""
        if time.monotonic() - self._asked >= _SAME:
            self._known, self._asked = self._threads(), time.monotonic()
        return max(1, sum(self._known))

    def _threads(self) -> list[int]:
        """How many jobs run at once in each worker."""
        return [1] * workers_of(self.executor)

    def submit(self, job: Any, shared: Sequence[np.ndarray[Any, Any]], once: bool) -> Any:
        """Send a job.

        Args:
            job: the job, which is called with the shared inputs.
            shared: the inputs that all elements share. They must not change before `close`.
            once: whether it must not run again if its worker dies.

        Returns:
            A future of concurrent.futures.
        """
        return self._send(job, [self._put_once(array) for array in shared], once)

    def _put_once(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes < _LARGE:
            return array
        if (found := self._shared.get(id(array))) is None:
            found = self._shared[id(array)] = self._put(array)
        return found

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        """Put a large input where workers have it, and return what becomes the array there, as an argument of a job."""
        return array

    def _send(self, job: Any, shared: Sequence[Any], once: bool) -> Any:
        return self.executor.submit(job, *shared)

    def lost_worker(self) -> None:
        """Put shared inputs again, which may be lost."""
        self._shared = {}

    def has_one_job_each(self) -> bool:
        """Tell whether a worker that dies has one job only, so that this job is why it died."""
        return all(threads == 1 for threads in self._known)

    def cancel(self, future: Any) -> bool:
        """Take back a job that does not run yet. Tells whether nothing has to be waited for."""
        try:
            return future.cancel()
        except Exception:
            # Parsl raises NotImplementedError.
            return False

    def kill(self, futures: Iterable[Any]) -> None:
        """End jobs that run, if that is possible."""

    def close(self) -> None:
        """Forget what belongs to one call."""


class Processes(Engine):
    """A pool of processes of this machine: of the standard library, or of loky. A worker that dies breaks the pool."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self._files: list[str] = []

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        found = _MappedFile(array)
        self._files.append(found.path)
        return found

    def kill(self, futures: Iterable[Any]) -> None:
        # Before Python 3.14 there is no public way. On Windows any signal ends a process.
        for number in list(self.executor._processes or ()):
            with contextlib.suppress(OSError):
                os.kill(number, getattr(signal, "SIGKILL", signal.SIGTERM))
        # The pool ends all futures now, and would fail at one that is cancelled at the same time.
        self.cancel = lambda future: False

    def close(self) -> None:
        for path in self._files:
            # Windows keeps a file that is mapped.
            with contextlib.suppress(OSError):
                os.unlink(path)


class _MappedFile:
    """An array in a temporary file, which is a read-only array over the file in another process."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        number, self.path = tempfile.mkstemp(prefix="jaxpyop-")
        with open(number, "wb") as file:
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(file)
        self._kind = array.dtype, array.shape

    def __reduce__(self) -> Any:
        return _mapped, (self.path, *self._kind)


def _mapped(path: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    return np.asarray(np.memmap(path, np.uint8, "r")).view(dtype).reshape(shape)


class Dask(Engine):
    """A client of Dask's, or its executor, whose own futures never end if a result is lost and cannot be made again."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self._client = dask_client_of(executor)
        self._is_here = runs_here(executor)
        self._options: dict[str, Any] = getattr(executor, "_kwargs", {})
        self._call = f"jaxpyop-{uuid.uuid4().hex}"
        self._begun: list[str] = []

    def _threads(self) -> list[int]:
        return list(self._client.nthreads().values())

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        # Dask waits for a worker to scatter to, and gives up after a while.
        return self._client.scatter(array, broadcast=True, hash=False) if self._known else array

    def _send(self, job: Any, shared: Sequence[Any], once: bool) -> Any:
        # Dask takes calls with one key, which it makes of the function and equal arguments, for one call.
        options = self._options | {"key": f"{job!r}-{uuid.uuid4()}"}
        begun = None
        if once:
            # Dask gives a job whose worker died to the next one, and has no option against that.
            begun = options["key"]
            self._begun.append(begun)
            options["retries"] = 0
        theirs = self._client.submit(_run_for, self._call, begun, job, *shared, **options)
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
        if self._is_here:
            # A body that goes on reads the memory of this call.
            return False
        # The client may be closed.
        with contextlib.suppress(Exception):
            future.theirs.cancel()
        return True

    def kill(self, futures: Iterable[Any]) -> None:
        # Dask has no way to end a body: its worker would not take anything else until it ends by itself.
        with contextlib.suppress(Exception):
            self._client.run(_end_call, self._call, on_error="ignore", callback_timeout=1)

    def close(self) -> None:
        async def clear() -> None:
            for name in self._begun:
                await self._client.scheduler.event_clear(name=name)

        if self._begun:
            with contextlib.suppress(Exception):
                self._client.sync(clear)


# What runs in this process, a worker of Dask's: the thread of each job with the call to which it belongs. And the calls
# that were interrupted.
_running: dict[int, str] = {}
_interrupted: set[str] = set()
_lock = threading.Lock()


class _Interrupt(BaseException):
    """Ends a body in a worker whose call was interrupted. Python makes it without arguments."""


def _run_for(call: str, begun: str | None, job: Any, *shared: Any) -> Any:
    """Run a job in a worker of Dask's.

    Args:
        call: the call to which it belongs.
        begun: if it must not run again, the name of the event that says that it has begun on some worker.
        job: the job.
        *shared: its inputs.
    """
    if begun:
        # The package does not need Dask.
        event = importlib.import_module("distributed").Event(begun)
        if event.is_set():
            raise LostWorkerError("it began on a worker of Dask's that is gone")
        event.set()
    thread = threading.get_ident()
    with _lock:
        if call in _interrupted:
            raise _Interrupt
        _running[thread] = call
    try:
        return job(*shared)
    finally:
        with _lock:
            _running.pop(thread)
        if call in _interrupted:
            # The error may be on its way to this thread, which must not go back to Dask before it comes.
            time.sleep(0.1)


def _end_call(call: str) -> None:
    """End the jobs of a call in this worker, where they run Python code, and let none begin."""
    with _lock:
        _interrupted.add(call)
        for thread, running in _running.items():
            if running == call:
                raise_in(thread, _Interrupt)


class Ray(Engine):
    """The module `ray`, after ray.init()."""

    def _threads(self) -> list[int]:
        return [1] * int(self.executor.cluster_resources().get("CPU", 1))

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        return self.executor.put(array)

    def _send(self, job: Any, shared: Sequence[Any], once: bool) -> Any:
        options = {"max_retries": 0} if once else {}
        reference = _task_of_ray(self.executor).options(name=repr(job), **options).remote(job, *shared)
        ours: Any = concurrent.futures.Future()
        ours.reference = reference

        def hand_on(theirs: Any) -> None:
            if (error := theirs.exception()) is None:
                ours.set_result(theirs.result())
            else:
                # What a job raised is the cause of Ray's own error.
                ours.set_exception(getattr(error, "cause", None) or error)

        reference.future().add_done_callback(hand_on)
        return ours

    def cancel(self, future: Any) -> bool:
        # Ray cannot take back a job without ending one that runs.
        return False

    def kill(self, futures: Iterable[Any]) -> None:
        for future in futures:
            self.executor.cancel(future.reference, force=True)


@functools.cache
def _task_of_ray(ray: Any) -> Any:
    return ray.remote(_run)


def _run(job: Any, *shared: Any) -> Any:
    return job(*shared)


def engine_of(executor: Any) -> Engine:
    """The engine behind an executor, a client of Dask's, or the module of Ray."""
    if is_ray(executor):
        return Ray(executor)
    if dask_client_of(executor):
        return Dask(executor)
    return (Processes if isinstance(getattr(executor, "_processes", None), dict) else Engine)(executor)

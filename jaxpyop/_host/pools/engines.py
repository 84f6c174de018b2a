"""What differs between the engines behind `executor=`: how jobs and shared inputs are sent, and workers are lost.

A new engine is a class here, and a line in `engine_of`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib
import os
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jaxpyop._host.pools.executors import dask_client_of, is_ray, needs_pickled_body, runs_here, workers_of
from jaxpyop._host.pools.job import raise_in
from jaxpyop._host.pools.shared import SharedArray

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

# Seconds that a call waits for the first worker of a cluster.
_PATIENCE = 300.0


class LostWorkerError(Exception):
    """The worker on which a job began is gone."""


class UnfitWorkersError(Exception):
    """There are no workers, or they have other versions of what jobs need."""


def means_lost_worker(error: BaseException) -> bool:
    """Tell whether an error of a job says that a worker died."""
    known = isinstance(error, (concurrent.futures.BrokenExecutor, LostWorkerError))
    return known or type(error).__name__ in _LOST_WORKER


class Engine:
    """Any executor of concurrent.futures.

    Attributes:
        patience: how many seconds a call waits where there is no worker.
    """

    patience = _PATIENCE

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

    def is_empty(self) -> bool:
        """Tell whether a cluster has no worker."""
        self.workers()
        return not self._known

    def submit(self, job: Any, shared: Sequence[np.ndarray[Any, Any]], once: bool, stateful: bool) -> Any:
        """Send a job.

        Args:
            job: the job, which is called with the shared inputs.
            shared: the inputs that all elements share. They must not change before `close`.
            once: whether it must not run again if its worker dies while it runs.
            stateful: whether it must not run again after it has ended either.

        Returns:
            A future of concurrent.futures.
        """
        return self._send(job, [self._put_once(array) for array in shared], once, stateful)

    def _put_once(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes < _LARGE:
            return array
        if (found := self._shared.get(id(array))) is None:
            found = self._shared[id(array)] = self._put(array)
        return found

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        """Put a large input where workers have it, and return what becomes the array there, as an argument of a job."""
        return array

    def _send(self, job: Any, shared: Sequence[Any], once: bool, stateful: bool) -> Any:
        return self.executor.submit(job, *shared)

    # ------------------------------------------------------------------ lost workers

    def lost_worker(self) -> None:
        """Put shared inputs again, which may be lost."""
        self._shared = {}

    def has_one_job_each(self) -> bool:
        """Tell whether a worker that dies has one job only, so that this job is why it died."""
        return all(threads == 1 for threads in self._known)

    def was_running(self, future: Any, error: BaseException) -> bool | None:
        """Tell whether a lost job ran when its worker died. None if nobody knows."""
        return None

    def ended_by_themselves(self) -> set[int]:
        """The processes whose deaths broke a pool, without those that the pool ended then; empty if nobody knows."""
        return set()

    # ------------------------------------------------------------------ the end of a call

    def stop(self, futures: Collection[Any], at_once: bool) -> None:
        """Take back the jobs that do not run yet, and wait for the others. `at_once` ends these where possible."""
        concurrent.futures.wait([future for future in futures if not self._cancel(future)])

    def _cancel(self, future: Any) -> bool:
        try:
            return future.cancel()
        except Exception:
            # Parsl raises NotImplementedError.
            return False

    def close(self) -> None:
        """Forget what belongs to one call."""


class Processes(Engine):
    """A pool of processes of this machine: of the standard library, or of loky. A worker that dies breaks the pool."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self._arrays: list[SharedArray] = []
        self._processes: dict[int, Any] = {}

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        self._arrays.append(SharedArray(array))
        return self._arrays[-1]

    def _send(self, job: Any, shared: Sequence[Any], once: bool, stateful: bool) -> Any:
        future = super()._send(job, shared, once, stateful)
        # Before Python 3.14 there is no public way. A pool that breaks may forget them.
        self._processes |= self.executor._processes or {}
        return future

    def was_running(self, future: Any, error: BaseException) -> bool | None:
        # It would have said so.
        return False

    def ended_by_themselves(self) -> set[int]:
        if thread := getattr(self.executor, "_executor_manager_thread", None):
            # It ends the others: that of the standard library by SIGTERM, loky by SIGKILL, which may also be why the
            # first one died.
            thread.join(5)
        ended = -(signal.SIGTERM if needs_pickled_body(self.executor) else getattr(signal, "SIGKILL", signal.SIGTERM))
        return {number for number, each in self._processes.items() if each.exitcode not in (None, 0, ended)}

    def stop(self, futures: Collection[Any], at_once: bool) -> None:
        for number in list(self.executor._processes or ()) if at_once else ():
            with contextlib.suppress(OSError):
                # On Windows any signal ends a process.
                os.kill(number, getattr(signal, "SIGKILL", signal.SIGTERM))
        # A pool whose workers were killed ends all futures, and would fail at one that is cancelled at the same time.
        super().stop([] if at_once else futures, at_once)

    def close(self) -> None:
        for array in self._arrays:
            array.close()


# What a worker has to have, as an expression which workers without jaxpyop can evaluate, too. Nothing is imported: that
# would take seconds, for which the worker could not answer.
_ENVIRONMENT = """{"Python": "%d.%d" % __import__("sys").version_info[:2]} | {
    name: next((each.version for each in __import__("importlib.metadata").metadata.distributions(name=name)), "?")
    if __import__("importlib.util").util.find_spec(name) else "none" for name in ("jax", "jaxpyop")
}"""
# The machines of each client on which these are known to be ours.
_fit: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


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
        workers = self._client.nthreads()
        self._check_environments({address.rpartition(":")[0]: address for address in workers})
        return list(workers.values())

    def _check_environments(self, worker_on: dict[str, str]) -> None:
        """Compare what jobs need on each machine, before the first one goes there."""
        fit = _fit.setdefault(self._client, set())
        if not (new := {host: worker for host, worker in worker_on.items() if host not in fit}):
            return
        ours = eval(_ENVIRONMENT)
        found = self._client.run(eval, _ENVIRONMENT, workers=list(new.values()), on_error="ignore")
        for worker, theirs in found.items():
            differing = [name for name, own in ours.items() if theirs[name] != own and "?" not in (theirs[name], own)]
            if differing:
                shown = ", ".join(f"{name} {theirs[name]} (here {ours[name]})" for name in differing)
                raise UnfitWorkersError(f"the worker {worker} has {shown}")
        fit.update(host for host, worker in new.items() if worker in found)

    @property
    def patience(self) -> float:
        dask = importlib.import_module("dask")
        seconds = dask.config.get("distributed.scheduler.no-workers-timeout", None)
        return _PATIENCE if seconds is None else importlib.import_module("dask.utils").parse_timedelta(seconds)

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        # Dask waits for a worker to scatter to, and gives up after a while.
        return self._client.scatter(array, broadcast=True, hash=False) if self._known else array

    def _send(self, job: Any, shared: Sequence[Any], once: bool, stateful: bool) -> Any:
        # Dask takes calls with one key, which it makes of the function and equal arguments, for one call.
        options = self._options | {"key": f"{job!r}-{uuid.uuid4()}"}
        begun = None
        if once:
            # Dask gives a job whose worker died to the next one, and has no option against that.
            begun = options["key"]
            self._begun.append(begun)
            options["retries"] = 0
        theirs = self._client.submit(_run_for, self._call, begun, stateful, job, *shared, **options)
        ours: Any = concurrent.futures.Future()
        ours.theirs, ours.begun = theirs, begun

        async def hand_on() -> None:
            try:
                ours.set_result(await self._client.gather(theirs, asynchronous=True))
            except BaseException as error:
                ours.set_exception(error)

        self._client.loop.add_callback(hand_on)
        return ours

    def was_running(self, future: Any, error: BaseException) -> bool | None:
        if isinstance(error, LostWorkerError):
            return True
        # Dask gives up a job after some deaths of workers, also if it was only in their queues.
        return importlib.import_module("distributed").Event(future.begun, self._client).is_set()

    def stop(self, futures: Collection[Any], at_once: bool) -> None:
        # The client may be closed.
        with contextlib.suppress(Exception):
            ours = {future.theirs.key for future in futures}
            workers = [worker for worker, keys in self._client.processing().items() if ours.intersection(keys)]
            self._client.cancel([future.theirs for future in futures])
            # In this process a body that goes on reads the memory of this call.
            waits = not at_once or self._is_here
            options = {"workers": workers, "on_error": "ignore", "callback_timeout": None if waits else 1}
            self._client.run(_end_call, self._call, at_once, waits, **options)

    def close(self) -> None:
        async def clear() -> None:
            for name in self._begun:
                await self._client.scheduler.event_clear(name=name)

        if self._begun:
            with contextlib.suppress(Exception):
                self._client.sync(clear)


# What runs in this process, a worker of Dask's: the thread of each job with the call to which it belongs. And the calls
# that are over.
_running: dict[int, str] = {}
_ended: set[str] = set()
_lock = threading.Lock()


class _Interrupt(BaseException):
    """Ends a body in a worker whose call was interrupted. Python makes it without arguments."""


def _run_for(call: str, begun: str | None, stateful: bool, job: Any, *shared: Any) -> Any:
    """Run a job in a worker of Dask's.

    Args:
        call: the call to which it belongs.
        begun: if it must not run again, the name of the event that says that it has begun on some worker.
        stateful: whether it must not run again after it has ended either. Its result may be lost with the worker.
        job: the job.
        *shared: its inputs.
    """
    event: Any = None
    if begun:
        # The package does not need Dask.
        event = importlib.import_module("distributed").Event(begun)
        if event.is_set():
            raise LostWorkerError("it began on a worker of Dask's that is gone")
        event.set()
    thread = threading.get_ident()
    with _lock:
        if call in _ended:
            raise _Interrupt
        _running[thread] = call
    try:
        return job(*shared)
    finally:
        with _lock:
            _running.pop(thread)
        if call in _ended:
            # The error may be on its way to this thread, which must not go back to Dask before it comes.
            time.sleep(0.1)
        if event and not stateful:
            event.clear()


async def _end_call(call: str, at_once: bool, waits: bool) -> None:
    """Let no job of a call begin in this worker, and end or wait for those that run."""
    with _lock:
        _ended.add(call)
        for thread, running in _running.items():
            if at_once and running == call:
                raise_in(thread, _Interrupt)
    while waits and call in list(_running.values()):
        await asyncio.sleep(0.01)


class Ray(Engine):
    """The module `ray`, after ray.init()."""

    def _threads(self) -> list[int]:
        return [1] * int(self.executor.cluster_resources().get("CPU", 0))

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        return self.executor.put(array)

    def _send(self, job: Any, shared: Sequence[Any], once: bool, stateful: bool) -> Any:
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

    def stop(self, futures: Collection[Any], at_once: bool) -> None:
        if at_once:
            for future in futures:
                self.executor.cancel(future.reference, force=True)
        # Ray cannot take back a job without ending one that runs.
        concurrent.futures.wait(futures)


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

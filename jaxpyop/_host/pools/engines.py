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
import time
import uuid
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jaxpyop._host.pools.executors import dask_client_of, is_ray, needs_pickled_body, workers_of
from jaxpyop._host.pools.shared import Notes, SharedArray, run_noting

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
    """There are no workers, or they are not as jobs need them."""


def means_lost_worker(error: BaseException) -> bool:
    """Tell whether an error of a job says that a worker died."""
    known = isinstance(error, (concurrent.futures.BrokenExecutor, LostWorkerError))
    return known or type(error).__name__ in _LOST_WORKER


class Engine:
    """Any executor of concurrent.futures.

    Args:
        executor: what the user gave.
        repeats: whether jobs whose worker died are sent again (`retries=`, `timeout=`), so that nobody else may.
        stateful: whether no job may run again, even if it had ended and its result is lost.

    Attributes:
        patience: how many seconds a call waits where there is no worker.
        can_repeat: whether the engine tells which jobs a worker ran that died.
    """

    patience = _PATIENCE
    can_repeat = False

    def __init__(self, executor: Any, repeats: bool, stateful: bool) -> None:
        self.executor = executor
        self._repeats = repeats
        self._stateful = stateful
        self._shared: Sequence[np.ndarray[Any, Any]] = ()
        self._puts: list[Any] = []
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

    def submit(self, job: Any, shared: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Send a job, and return a future of concurrent.futures.

        Args:
            job: the job, which is called with the shared inputs.
            shared: the inputs that all elements share, in the same list for all jobs that have the same ones.
        """
        if shared is not self._shared:
            self._shared = shared
            self._puts = [array if array.nbytes < _LARGE else self._put(array) for array in shared]
        return self._send(job, self._puts)

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        """Put a large input where workers have it, and return what becomes the array there, as an argument of a job."""
        return array

    def _send(self, job: Any, shared: Sequence[Any]) -> Any:
        return self.executor.submit(job, *shared)

    def suspects(self, lost: Sequence[Any], error: BaseException) -> tuple[Sequence[Any], bool]:
        """Return which lost jobs may be why a worker died, and whether that is sure of each of them.

        Args:
            lost: the futures of the jobs that were lost at once.
            error: their error.
        """
        # Shared inputs may be lost, too.
        self._shared = ()
        return lost, True

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

    can_repeat = True

    def __init__(self, executor: Any, repeats: bool, stateful: bool) -> None:
        super().__init__(executor, repeats, stateful)
        self._arrays: list[SharedArray] = []
        self._notes = Notes() if repeats and Notes.works else None
        self._places: dict[Any, int] = {}
        self._processes: dict[int, Any] = {}

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        if not SharedArray.works:
            return array
        self._arrays.append(SharedArray(array))
        return self._arrays[-1]

    def _send(self, job: Any, shared: Sequence[Any]) -> Any:
        if self._notes:
            place = self._notes.new_place()
            future = super()._send(functools.partial(run_noting, self._notes.path, place, job), shared)
            self._places[future] = place
        else:
            future = super()._send(job, shared)
        # Before Python 3.14 there is no public way. A pool that breaks may forget them.
        self._processes |= self.executor._processes or {}
        return future

    def suspects(self, lost: Sequence[Any], error: BaseException) -> tuple[Sequence[Any], bool]:
        """Return the jobs of the processes that died by themselves; if nobody knows these, all that ran."""
        if self._notes is None:
            return lost, False
        if thread := getattr(self.executor, "_executor_manager_thread", None):
            # It ends the others: that of the standard library by SIGTERM, loky by SIGKILL, which may also be why the
            # first one died.
            thread.join(5)
        ended = -(signal.SIGTERM if needs_pickled_body(self.executor) else signal.SIGKILL)
        dead = {number for number, each in self._processes.items() if each.exitcode not in (None, 0, ended)}
        ran = {future: self._notes.process_at(self._places[future]) for future in lost}
        return [future for future, number in ran.items() if number and (number in dead or not dead)], bool(dead)

    def stop(self, futures: Collection[Any], at_once: bool) -> None:
        for number in list(self.executor._processes or ()) if at_once else ():
            with contextlib.suppress(OSError):
                # On Windows any signal ends a process.
                os.kill(number, getattr(signal, "SIGKILL", signal.SIGTERM))
        # A pool whose workers were killed ends all futures, and would fail at one that is cancelled at the same time.
        super().stop([] if at_once else futures, at_once)

    def close(self) -> None:
        for file in (*self._arrays, *([self._notes] if self._notes else ())):
            file.close()


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

    def __init__(self, executor: Any, repeats: bool, stateful: bool) -> None:
        super().__init__(executor, repeats, stateful)
        self._client = dask_client_of(executor)
        # The workers of a cluster in this process are threads.
        self.can_repeat = not self._client.scheduler.address.startswith("inproc")
        self._options: dict[str, Any] = getattr(executor, "_kwargs", {})
        self._begun: list[str] = []

    def _threads(self) -> list[int]:
        workers = self._client.nthreads()
        self._check_environments({address.rpartition(":")[0]: address for address in workers})
        if self._repeats and any(threads > 1 for threads in workers.values()):
            raise UnfitWorkersError(
                "a worker of Dask's with several threads ends all their elements when it dies; for retries= and "
                "timeout= start workers with one thread, such as LocalCluster(threads_per_worker=1)"
            )
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
                needs = "executor= needs workers with the same Python, JAX and jaxpyop"
                raise UnfitWorkersError(f"the worker {worker} has {shown}; {needs}")
        fit.update(host for host, worker in new.items() if worker in found)

    @property
    def patience(self) -> float:
        dask = importlib.import_module("dask")
        seconds = dask.config.get("distributed.scheduler.no-workers-timeout", None)
        return _PATIENCE if seconds is None else importlib.import_module("dask.utils").parse_timedelta(seconds)

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        # Dask waits for a worker to scatter to, and gives up after a while.
        return self._client.scatter(array, broadcast=True, hash=False) if self._known else array

    def _send(self, job: Any, shared: Sequence[Any]) -> Any:
        # Dask takes calls with one key, which it makes of the function and equal arguments, for one call.
        options = self._options | {"key": f"{job!r}-{uuid.uuid4()}"}
        if self._repeats or self._stateful:
            # Dask gives a job whose worker died to the next one, and has no option against that.
            self._begun += [options["key"]] if self._stateful else []
            options["retries"] = 0
            job = functools.partial(_run_unless_begun, options["key"], self._stateful, job)
        theirs = self._client.submit(job, *shared, **options)
        ours: Any = concurrent.futures.Future()
        ours.theirs = theirs

        async def hand_on() -> None:
            try:
                ours.set_result(await self._client.gather(theirs, asynchronous=True))
            except BaseException as error:
                ours.set_exception(error)

        self._client.loop.add_callback(hand_on)
        return ours

    def suspects(self, lost: Sequence[Any], error: BaseException) -> tuple[Sequence[Any], bool]:
        """Return those that had begun: after some deaths, Dask also gives up a job that only waited there."""
        super().suspects(lost, error)
        self._begun += [future.theirs.key for future in lost]
        event = importlib.import_module("distributed").Event
        ran = isinstance(error, LostWorkerError)
        return [future for future in lost if ran or event(future.theirs.key, self._client).is_set()], True

    def stop(self, futures: Collection[Any], at_once: bool) -> None:
        # The client may be closed.
        with contextlib.suppress(Exception):
            if at_once and self.can_repeat:
                ours = {future.theirs.key for future in futures}
                workers = [worker for worker, keys in self._client.processing().items() if ours.intersection(keys)]
                self._client.cancel([future.theirs for future in futures])
                # Dask starts them again.
                self._client.run(os._exit, 1, workers=workers, on_error="ignore", callback_timeout=1)
                return
            # Dask cannot take back a job without leaving one that runs. Where no worker is, nothing runs.
            while concurrent.futures.wait(futures, timeout=1).not_done and not self.is_empty():
                pass

    def close(self) -> None:
        async def clear() -> None:
            for name in self._begun:
                await self._client.scheduler.event_clear(name=name)

        if self._begun:
            with contextlib.suppress(Exception):
                self._client.sync(clear)


def _run_unless_begun(key: str, stateful: bool, job: Any, *shared: Any) -> Any:
    """Run a job in a worker of Dask's, unless it began on another one, which is gone.

    Args:
        key: the name of the event that says so.
        stateful: whether it must not run again after it has ended either, if its result is lost with the worker.
        job: the job.
        *shared: its inputs.
    """
    # The package does not need Dask.
    event = importlib.import_module("distributed").Event(key)
    if event.is_set():
        raise LostWorkerError("it began on a worker of Dask's that is gone")
    event.set()
    try:
        return job(*shared)
    finally:
        if not stateful:
            event.clear()


class Ray(Engine):
    """The module `ray`, after ray.init()."""

    can_repeat = True

    def _threads(self) -> list[int]:
        return [1] * int(self.executor.cluster_resources().get("CPU", 0))

    def _put(self, array: np.ndarray[Any, Any]) -> Any:
        return self.executor.put(array)

    def _send(self, job: Any, shared: Sequence[Any]) -> Any:
        options = {"max_retries": 0} if self._repeats or self._stateful else {}
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


def engine_of(executor: Any, repeats: bool, stateful: bool) -> Engine:
    """The engine behind an executor, a client of Dask's, or the module of Ray; `Engine` says what the arguments are."""
    if is_ray(executor):
        kind: type[Engine] = Ray
    elif dask_client_of(executor):
        kind = Dask
    else:
        kind = Processes if isinstance(getattr(executor, "_processes", None), dict) else Engine
    return kind(executor, repeats, stateful)

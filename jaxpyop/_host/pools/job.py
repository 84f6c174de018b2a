"""What one job does in a worker: it runs a body on one element, on a block, or on a chunk of elements.

A worker may be another process, so a job carries the body by pickle, and NumPy arrays both ways.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import faulthandler
import functools
import itertools
import math
import os
import pickle
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from jaxpyop import _config, _settings
from jaxpyop._host import metrics
from jaxpyop._host.errors import add_note, note_index
from jaxpyop._host.host_call import Batch, HostCall
from jaxpyop._host.pools.executors import Executor, needs_pickled_body, working_for
from jaxpyop._host.small_numbers import keeping_small_numbers

# Seconds after which a worker begins no further element of a chunk. It is long beside the way to a worker and back, and
# short for whoever waits for the chunk, because an element failed or the worker died.
_SECONDS = 0.1


# Processes of several machines, or containers, may have the same number. A forked one has the same token.
_TOKEN = secrets.token_hex(8)


class UnreadableBodyError(Exception):
    """A worker cannot read the body that it was given."""


class Outcome(NamedTuple):
    """What a job returns.

    Attributes:
        done: how many elements ran. The others are to be sent again, as their time was over.
        results: an array for each result, with those of all elements that ran.
        failures: with `on_error=`, how many elements failed, and the first failure.
        counted: what a worker process counted for reports.
    """

    done: int
    results: list[Any]
    failures: tuple[int, str] | None
    counted: dict[str, dict[str, Any]]


# What a function sees of its process, in which a worker is to be like the caller.
_OF_JAXPYOP = ("mode", "constants", "errors")
_entered: list[Sequence[Any]] = []
_entering = threading.Lock()


def _settings_of_process() -> Sequence[Any]:
    return (*_settings.process_settings(), *(getattr(_config.config, name) for name in _OF_JAXPYOP))


def _set_settings_of_process(values: Sequence[Any]) -> None:
    for name, value, now in zip((*_settings.OF_PROCESS, *_OF_JAXPYOP), values, _settings_of_process()):
        if value != now and name in _OF_JAXPYOP:
            setattr(_config.config, name, value)
        elif value != now:
            jax.config.update(name, value)


@contextlib.contextmanager
def _with_settings_of_process(values: Sequence[Any]) -> Iterator[None]:
    """Give a worker process the settings of the caller's while a job runs; of several jobs, the last one restores."""
    with _entering:
        _entered.append(_settings_of_process())
        _set_settings_of_process(values)
    try:
        yield
    finally:
        with _entering:
            before = _entered.pop()
            if not _entered:
                _set_settings_of_process(before)


def job_for(executor: Executor | list[Executor], call: HostCall) -> Job:
    """A job for a worker of an executor, or of one of a list, without inputs."""
    # The elements of a worker of a list wait for no other one.
    is_whole = isinstance(executor, list) or call.op.chunksize is not None
    executor = executor[0] if isinstance(executor, list) else executor
    body = pickle.dumps(call.in_worker) if needs_pickled_body(executor) else call.in_worker
    return Job(
        call.title,
        body,
        call.on_jax,
        call.copy,
        math.inf if is_whole else _SECONDS,
        call.op.timeout,
        call.environment.settings,
        _settings_of_process(),
        (os.getpid(), _TOKEN),
        bool(metrics.reports),
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Job:
    """A body with inputs.

    Attributes:
        title: the op's name.
        body: the body, or its pickle.
        on_jax: whether it takes jax.Arrays.
        copy: whether it gets NumPy arrays of its own, not read-only views.
        seconds: after how many seconds no further element begins.
        timeout: the seconds that an element may take, if there is a bound.
        settings: JAX's settings of the caller's thread.
        settings_of_process: those of the caller's process.
        home: the caller's process.
        is_reported: whether a report is open there.
        arrays: the inputs of which each element has a row.
        lead: batch axes of a block.
        rows: for each input, whether it has a row for each element; the elements share the others.
        numbers: the numbers of the elements in the batch.
        number: the number of the executor that it is sent to, in the caller's process.
        batch: the batch that they belong to, for errors; None for one element or block.
    """

    title: str
    body: Any
    on_jax: bool
    copy: bool
    seconds: float
    timeout: float | None
    settings: Sequence[Any]
    settings_of_process: Sequence[Any]
    home: tuple[int, str]
    is_reported: bool = False
    arrays: Sequence[np.ndarray[Any, Any]] = ()
    lead: tuple[int, ...] = ()
    rows: Sequence[bool] = ()
    numbers: range = range(1)
    number: int = 0
    batch: Batch | None = None

    def __repr__(self) -> str:
        # Dask asks for a name of each task, for which the text of the arrays would take long.
        return self.title

    def __call__(self, *shared: np.ndarray[Any, Any]) -> Outcome:
        """Run the body on each element, with the inputs that all elements share."""
        with keeping_small_numbers():
            return contextvars.copy_context().run(self._run, iter(shared))

    def _run(self, shared: Iterator[np.ndarray[Any, Any]]) -> Outcome:
        if not self._is_at_home:
            _end_with_parent()
            if self.is_reported:
                metrics.count_in_worker()
        body = _unpickled(self.body) if isinstance(self.body, bytes) else self.body
        run = functools.partial(body, lead=self.lead) if self.lead else body
        columns: list[np.ndarray[Any, Any]] = []
        late, done = time.monotonic() + self.seconds, 0
        there = working_for(self.number) if self._is_at_home else _with_settings_of_process(self.settings_of_process)
        with there, _settings.with_thread_settings(self.settings):
            own = iter(self.arrays)
            each = [self._each(next(own if row else shared), row) for row in self.rows]
            try:
                for _, *inputs in zip(self.numbers, *each):
                    with _ending_after(self.timeout) if self.timeout else contextlib.nullcontext():
                        values = run(*inputs)
                    columns = self._with_row(columns, done, values)
                    done += 1
                    if time.monotonic() > late:
                        break
            except BaseException as error:
                if self.batch is not None:
                    note_index(error, self.numbers[done], self.batch)
                self._raise(error)
        failures = body.op.failures
        counted = {} if self._is_at_home else metrics.counted_in_worker()
        return Outcome(done, [column[:done] for column in columns], failures and failures.of_job(), counted)

    @property
    def _is_at_home(self) -> bool:
        return self.home == (os.getpid(), _TOKEN)

    def _each(self, array: np.ndarray[Any, Any], row: bool) -> Iterator[Any]:
        """An input of each element."""
        if self.on_jax:
            return map(jax.numpy.asarray, _rows(array)) if row else itertools.repeat(jax.numpy.asarray(array))
        if not self.copy:
            # At home it is the caller's memory, and the body may keep what it gets.
            lent = array.copy() if self._is_at_home else array[...]
            lent.flags.writeable = False
            return _rows(lent) if row else itertools.repeat(lent)
        if not row:
            return (array.copy() for _ in itertools.count())
        # What was sent may be read-only, and a body may write into its inputs.
        return _rows(array if array.flags.writeable else array.copy())

    def _with_row(self, columns: list[np.ndarray[Any, Any]], k: int, values: Sequence[Any]) -> list[Any]:
        """The results of the elements so far, with those of one more. A body may return the same memory each time."""
        count = len(self.numbers)
        if count == 1:
            # A copy, since a function may fill one array in each call: Dask keeps what a job returned in the worker,
            # and an executor of this process keeps the object itself.
            return [np.array(v)[None] for v in values]
        columns = columns or [np.empty((count, *v.shape), v.dtype) for v in values]
        for column, value in zip(columns, values):
            if value.shape != column.shape[1:]:
                raise ValueError(
                    f"{self.title}: func returned the shapes {column.shape[1:]} and {value.shape} for elements of one "
                    "vmap; return one shape"
                )
            column[k, ...] = value
        return columns

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise an error so that it reaches the caller.

        SystemExit would end the caller, and no future takes StopIteration. An error that pickles but does not unpickle
        would break the pool.
        """
        # No result carries what this chunk counted.
        metrics.counted_in_worker()
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        if isinstance(error, (SystemExit, StopIteration)):
            shown = RuntimeError(f"func raised {error!r} in a worker")
        elif self._is_at_home or self._travels(error):
            raise error
        else:
            shown = RuntimeError(f"{kind}, which cannot be pickled, was raised in a worker: {error}")
        for note in getattr(error, "__notes__", ()):
            add_note(shown, note)
        raise shown from error

    def _travels(self, error: BaseException) -> bool:
        # An executor that gets the body itself pickles by cloudpickle, where that is installed.
        pickler: Any = pickle if isinstance(self.body, bytes) else sys.modules.get("cloudpickle", pickle)
        try:
            pickle.loads(pickler.dumps(error))
        except Exception:
            return False
        return True


def _rows(array: np.ndarray[Any, Any]) -> Iterator[Any]:
    # An index with an ellipsis makes arrays of scalars too.
    return (array[k, ...] for k in range(len(array)))


def _unpickled(body: bytes) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        raise UnreadableBodyError(f"{type(error).__name__}: {error}") from error


@functools.cache
def _end_with_parent() -> None:
    """Have this process ended when the one that started it has ended: a pool's workers would wait for ever."""
    # Where this runs, the module is there. The import of jaxpyop does not need it.
    from multiprocessing import parent_process

    parent, its_number = parent_process(), os.getppid()
    if parent is None:
        return

    def end() -> None:
        try:
            parent.join()
        except ValueError:
            # A worker of loky's has nothing to wait for, but gets another parent.
            while os.getppid() == its_number:
                time.sleep(1)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


# ------------------------------------------------------------------------------- `timeout=`

# On a main thread an alarm raises TimeoutError in the function. It ends a wait: for a lock, for a file, for time to
# pass. A function that goes on for another second, since it holds Python's lock or swallows the error, ends with its
# process. On any other thread, where Dask runs tasks, nothing ends a wait, so its process ends at once. It is ended by
# a thread without Python, which shows in the standard error where it was. A process runs one such function at a time.
_STDERR = 2


def _raise_late(*_: Any) -> None:
    raise TimeoutError("func took longer than timeout=")


@contextlib.contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """Have the function that runs in a block of code ended after some seconds, by an error or with the process."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        with _ending_process_after(seconds):
            yield
        return
    before: Any = signal.signal(signal.SIGALRM, _raise_late)
    try:
        with _ending_process_after(seconds + 1):
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


@contextlib.contextmanager
def _ending_process_after(seconds: float) -> Iterator[None]:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()

"""Elements in other workers: processes, machines, whatever an executor has.

A worker may be another process, so it gets the body by pickle and NumPy
arrays, and returns NumPy arrays; nothing is recorded there, and a backward
pass runs the body again. Elements go in `chunks`, a few under way at a time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import importlib
import io
import itertools
import os
import pickle
import queue
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from jaxpyop._host.batch import Batch, Column
from jaxpyop._host.errors import add_note, note_index
from jaxpyop._host.pools.chunks import Chunks
from jaxpyop._host.pools.executors import Executor, workers_of
from jaxpyop._host.pools.places import join_chain, slot_of, working_for

Store = Callable[[int | slice, Sequence[Any]], None]  # takes an element's results, or those of several, stacked

# ------------------------------------------------------------------ in the worker


class Settings:
    """What a worker needs to know besides the body and its inputs."""

    def __init__(self, executor: Executor, call: Any) -> None:
        self.on_jax: bool = call.on_jax
        self.x64: bool = call.environment.x64
        self.home = os.getpid(), slot_of(executor)
        self.unique = uuid.uuid4().hex  # keeps Dask from merging calls with equal arguments


@contextlib.contextmanager
def _set(settings: Settings) -> Iterator[None]:
    import jax  # only here, so that this module says nothing of JAX

    process, slot = settings.home
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(settings.x64))
        if process == os.getpid():
            join_chain(slot)
            stack.enter_context(working_for(slot))
        yield


def _as_jax(array: np.ndarray[Any, Any], row: bool, k: int) -> Any:
    import jax

    return jax.numpy.asarray(array[k, ...] if row else array)


def _element(array: np.ndarray[Any, Any], row: bool, k: int) -> np.ndarray[Any, Any]:
    return array[k, ...] if row else array.copy()


def run_once(body: Any, arrays: Sequence[Any], lead: tuple[int, ...], settings: Settings) -> list[Any]:
    """Run a body once in a worker; both ways as NumPy arrays."""
    return contextvars.copy_context().run(_run_once, body, arrays, lead, settings)


def _run_once(body: Any, arrays: Sequence[Any], lead: tuple[int, ...], settings: Settings) -> list[Any]:
    found = _unpickled(body) if isinstance(body, bytes) else body
    with _set(settings):
        inputs = [(_as_jax if settings.on_jax else _element)(a, False, 0) for a in arrays]
        try:
            return [np.asarray(value) for value in (found(*inputs, lead=lead) if lead else found(*inputs))]
        except Exception as error:
            _raise_so_that_it_travels(error, isinstance(body, bytes))


def run_rows(
    body: Any, arrays: Sequence[Any], rows: Sequence[bool], where: tuple[int, int, Batch], settings: Settings
) -> tuple[float, list[Any] | list[list[Any]]]:
    """Run a body on a chunk of elements in a worker.

    Args:
        body: the body, or its pickle.
        arrays: its inputs.
        rows: which of them have a row for each element; the elements share the others.
        where: the first element, the one after the last, and the batch.
        settings: for the worker.

    Returns:
        How long it took, and the results: stacked, or, where an element's shapes are others, element by element.
    """
    return contextvars.copy_context().run(_run_rows, body, arrays, rows, where, settings)


def _run_rows(body: Any, arrays: Any, rows: Any, where: Any, settings: Settings) -> Any:
    found = _unpickled(body) if isinstance(body, bytes) else body
    first, stop, batch = where
    results = _Stacked(stop - first)
    columns = [(a if a.flags.writeable or not row else a.copy(), row) for a, row in zip(arrays, rows)]
    make = _as_jax if settings.on_jax else _element
    with _set(settings):
        began, k = time.perf_counter(), 0
        try:
            for k in range(stop - first):
                results.add(k, [np.asarray(value) for value in found(*[make(a, row, k) for a, row in columns])])
        except Exception as error:
            note_index(error, first + k, batch)
            _raise_so_that_it_travels(error, isinstance(body, bytes))
    return time.perf_counter() - began, results.found


class _Stacked:
    """Results of the elements of a chunk: arrays for as long as all have the same shapes and dtypes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._shapes: list[Any] | None = None
        self.found: list[Any] = []

    def add(self, k: int, values: list[np.ndarray[Any, Any]]) -> None:
        shapes = [(v.shape, v.dtype) for v in values]
        if self._shapes is None and k == 0:
            self._shapes = shapes
            self.found = [np.empty((self._count, *v.shape), v.dtype) for v in values]
        elif shapes != self._shapes and self._shapes is not None:
            self.found = [[column[j, ...] for column in self.found] for j in range(k)]
            self._shapes = None
        if self._shapes is None:
            self.found.append([v.copy() for v in values])
            return
        for column, value in zip(self.found, values):
            column[k, ...] = value


class _NotFoundError(Exception):
    """A worker cannot read the body that it was given."""


def _unpickled(body: bytes) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        raise _NotFoundError(f"{type(error).__name__}: {error}") from error


def _raise_so_that_it_travels(error: Exception, pickled: bool) -> NoReturn:
    # An exception that can be written but not read ends a process pool. Others have their own ways.
    if not pickled:
        raise error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        shown = RuntimeError(f"{kind}, which cannot be pickled, was raised in a worker: {error}")
        for note in getattr(error, "__notes__", ()):
            add_note(shown, note)
        raise shown from error
    raise error


# ---------------------------------------------------------------- from the caller


def _is_process_pool(executor: Executor) -> bool:
    module = sys.modules.get("concurrent.futures.process")  # which takes time to import
    return module is not None and isinstance(executor, module.ProcessPoolExecutor)


def body_for(executor: Executor, call: Any) -> Any:
    """A call's body as an executor's workers take it."""
    # A worker of this pool that cannot read what it is given dies; `run_rows` says so. Others pickle in their own way.
    return _pickled(call.body) if _is_process_pool(executor) else call.body


def run_once_elsewhere(executor: Executor, call: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
    """Run a call in a worker, and wait for it.

    Args:
        executor: whose worker.
        call: what to run.
        arrays: its inputs, as `call.for_worker` says.
        lead: batch axes that the arrays have in front.
    """
    with explaining(call.title):
        inputs = [np.asarray(a) for a in arrays]
        future = executor.submit(run_once, body_for(executor, call), inputs, lead, Settings(executor, call))
        try:
            values = future.result()
        finally:
            concurrent.futures.wait([] if future.cancel() else [future])
    return call.from_worker(values, arrays, lead)


class Elsewhere:
    """A batch whose elements run in workers, in chunks.

    Args:
        executor: of the workers.
        call: what to run.
        arrays: its inputs with their batch axes in front, as `call.for_worker` says.
        batch: a looping batch over these.
        store: takes the results.
        at_once: whether chunks may run at the same time.
    """

    def __init__(
        self, executor: Executor, call: Any, arrays: Sequence[Any], batch: Batch, store: Store, at_once: bool
    ) -> None:
        self._executor = executor
        self._call = call
        self._batch = batch
        self._store = store
        self._columns = [Column(np.asarray(a), i, batch) for i, a in enumerate(arrays)]
        workers = workers_of(executor) if at_once else 1
        shared = sum(column.array.nbytes for column in self._columns if column.shared)
        self._chunks = Chunks(batch.count, call.op.chunksize, workers, shared, call.seconds_per_element)
        self._window = 2 * workers if at_once else 1
        self._under_way: dict[Any, slice] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self, tick: Callable[[], None] | None) -> None:
        """Run all elements.

        Raises:
            BaseException: what the first failing element raised, with a note of its index.
        """
        start = 0
        with self._noting(slice(0, 1)):
            body = body_for(self._executor, self._call)
        try:
            while self._chunks.left or self._under_way:
                while self._chunks.left and len(self._under_way) < self._window:
                    start = self._submit(body, start)
                self._take(self._done.get())
                if tick:
                    tick()
        finally:
            # Nothing runs that still reads the inputs. What was cancelled never runs (and Dask's never counts as done).
            concurrent.futures.wait([future for future in self._under_way if not future.cancel()])

    def _submit(self, body: Any, start: int) -> int:
        stop = start + self._chunks.next()
        inputs = [column.array if column.shared else column.rows(start, stop) for column in self._columns]
        rows = [not column.shared for column in self._columns]
        where = start, stop, self._batch
        with self._noting(slice(start, stop)):
            future = self._executor.submit(run_rows, body, inputs, rows, where, Settings(self._executor, self._call))
        self._under_way[future] = slice(start, stop)
        future.add_done_callback(self._done.put)
        return stop

    def _take(self, future: Any) -> None:
        at = self._under_way[future]
        with self._noting(at):
            seconds, found = future.result()
        del self._under_way[future]
        self._chunks.learn(seconds, at.stop - at.start)
        self._call.seconds_per_element = self._chunks.pace
        if found and isinstance(found[0], list):
            for k, values in enumerate(found):
                with self._noting(slice(at.start + k, at.start + k + 1)):
                    self._store(at.start + k, self._checked(values, at.start + k))
            return
        with self._noting(at):
            checked = self._checked([column[0, ...] for column in found], at.start)
            self._store(
                at, [*found, *(np.broadcast_to(v, (at.stop - at.start, *v.shape)) for v in checked[len(found) :])]
            )

    def _checked(self, values: list[Any], number: int) -> list[Any]:
        return self._call.from_worker(values, [column.one(number) for column in self._columns])

    @contextlib.contextmanager
    def _noting(self, at: slice) -> Iterator[None]:
        try:
            with explaining(self._call.title):
                yield
        except BaseException as error:
            if not any(note.startswith(f"at {self._batch.of}") for note in getattr(error, "__notes__", ())):
                note_index(error, at.start, self._batch, at.stop - 1)
            raise


@contextlib.contextmanager
def explaining(title: str) -> Iterator[None]:
    """Raise the errors of workers as what says most."""
    try:
        yield
    except BaseException as error:
        shown = explained(error, title)
        if shown is error:
            raise
        for note in getattr(error, "__notes__", ()):
            add_note(shown, note)
        raise shown from error


def _pickled(body: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(body)
    return file.getvalue()


_MAX_WRAPPERS = 32  # a function may be wrapped in a circle


class _Pickler(pickle.Pickler):
    """Finds a decorated function behind the decorator that has its name."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType) and obj.__module__ in sys.modules:
            for depth, found in enumerate(itertools.islice(_wrapped(obj.__module__, obj.__qualname__), _MAX_WRAPPERS)):
                if found is obj and depth:
                    return _behind, (obj.__module__, obj.__qualname__, depth)
        return NotImplemented


def _wrapped(module: str, name: str) -> Iterator[Any]:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    while found is not None:
        yield found
        found = getattr(found, "__wrapped__", None)


def _behind(module: str, name: str, depth: int) -> Any:
    return next(itertools.islice(_wrapped(module, name), depth, None))


def explained(error: BaseException, title: str) -> BaseException:
    """The error of a worker, or, where the pool is at fault, one that says what to do."""
    if isinstance(error, concurrent.futures.BrokenExecutor) or type(error).__name__ == "KilledWorker":  # Dask's
        return RuntimeError(
            f"{title}: a worker of executor= died ({error}), which may end its pool; give a new one, or a function "
            "that returns the pool to use, executor=lambda: pool"
        )
    if isinstance(error, _NotFoundError):
        return TypeError(
            f"{title}: a worker of executor= cannot find func ({error}); define it at the top of a module that workers "
            "can import, not in a notebook or at a prompt, or use threads"
        )
    # Python 3.13 says "Can't get local object" without the word.
    text = _texts(error)
    unpicklable = "pickle" in text or "Can't get local object" in text
    if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)) and unpicklable:
        return TypeError(
            f"{title}: func or its inputs cannot be pickled for executor= ({error}); "
            "define func at the top of a module, or use threads"
        )
    return error


def _texts(error: BaseException | None) -> str:
    return "" if error is None else f"{error} {_texts(error.__cause__ or error.__context__)}"

"""Where the elements of a parallel batch run.

A thread pool runs the call itself. Any other executor may be another process
or machine, so it gets the body by pickle and NumPy arrays, and returns NumPy
arrays; nothing is recorded there, and a backward pass runs the body again.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
import importlib
import io
import itertools
import os
import pickle
import queue
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor  # now: importing it at exit fails
from typing import Any

import numpy as np

Executor = concurrent.futures.Executor


@functools.cache
def default_executor() -> Executor:
    """The threads that `vmap_method="parallel"` takes when no executor is given."""
    workers = min(32, (os.cpu_count() or 1) + 4)
    return ThreadPoolExecutor(workers, thread_name_prefix="jaxpyop")


def resolve(executor: Executor | Callable[[], Executor] | None, title: str) -> Executor:
    """The executor to use now.

    Raises:
        TypeError: a function that does not return one.
    """
    if executor is None:
        return default_executor()
    found = executor if isinstance(executor, Executor) or not callable(executor) else executor()
    if not hasattr(found, "submit") or isinstance(found, type):
        raise TypeError(f"{title}: executor= gave {found!r}; expected a concurrent.futures.Executor")
    return found


def is_local(executor: Executor) -> bool:
    """Whether its workers are threads of this process."""
    return isinstance(executor, ThreadPoolExecutor)


_PATIENCE = 1.0  # seconds without a thread that begins an element

# The thread pools whose workers this code runs on. An element that starts a
# batch on its own pool would wait for elements queued behind it.
_pools: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("jaxpyop_pools", default=frozenset())


def is_busy_here(executor: Executor) -> bool:
    """Whether this runs on a worker of that pool already."""
    return id(executor) in _pools.get()


def submit(executor: Executor, call: Any, arrays: Sequence[Any]) -> concurrent.futures.Future[Any]:
    """Start a call on one element's inputs."""
    if is_local(executor):
        try:
            return executor.submit(contextvars.copy_context().run, _in_thread, id(executor), call, arrays)
        except RuntimeError:
            if executor is not default_executor():
                raise
            return _left_to_us()
    inputs = call.for_worker(arrays)
    if inputs is None:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_result(call(arrays))  # a record of this process
        return done
    # The last argument keeps Dask from merging calls with equal arguments.
    inputs = [np.asarray(a) for a in inputs]
    # A worker of this pool that cannot read what it is given dies; `run_body` says so. Others pickle in their own way.
    body = _pickled(call.body) if _is_process_pool(executor) else call.body
    return executor.submit(run_body, body, inputs, call.on_jax, call.environment.x64, uuid.uuid4().hex)


def _is_process_pool(executor: Executor) -> bool:
    module = sys.modules.get("concurrent.futures.process")  # which takes time to import
    return module is not None and isinstance(executor, module.ProcessPoolExecutor)


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


def _left_to_us() -> concurrent.futures.Future[Any]:
    # Nobody but the interpreter shuts our own threads down: at exit, where a
    # program in flight still has to end.
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.cancel()
    future.set_running_or_notify_cancel()
    return future


def completed(
    futures: Iterable[concurrent.futures.Future[Any]], local: bool
) -> Iterator[concurrent.futures.Future[Any]]:
    """The futures as they are done; of threads also one that nobody begins.

    Where all threads of a pool wait for programs that run elements on it, none
    is left to begin one: then it is for us.
    """
    pending = set(futures)
    patience = _PATIENCE if local else None
    done: queue.SimpleQueue[concurrent.futures.Future[Any]] = queue.SimpleQueue()
    for future in tuple(pending):
        future.add_done_callback(done.put)
    while pending:
        try:
            future = done.get(timeout=patience)
        except queue.Empty:
            if not any(future.running() for future in pending) and next(iter(pending)).cancel():
                patience = 0.0
            continue
        pending.remove(future)
        yield future


def result_of(
    future: concurrent.futures.Future[Any], executor: Executor, call: Any, arrays: Sequence[Any]
) -> list[Any]:
    """Wait for what `submit` started."""
    if future.cancelled():  # by `completed`, or at exit: for us to run
        return _in_thread(id(executor), call, arrays)
    values = future.result()
    return values if is_local(executor) else call.from_worker(values, arrays)


def _in_thread(pool: int, call: Any, arrays: Sequence[Any]) -> Any:
    _pools.set(_pools.get() | {pool})  # in this element's copy of the context
    with call.environment.entered():
        # Copies: this thread's next element may return the same buffer before these are read.
        return [value.copy() if isinstance(value, np.ndarray) else value for value in call(arrays)]


def run_body(
    body: Any, arrays: Sequence[np.ndarray[Any, Any]], on_jax: bool, x64: bool, unique: str
) -> list[np.ndarray[Any, Any]]:
    """Run a body in a worker; both ways as NumPy arrays."""
    import jax  # only here, so that this module says nothing of JAX

    pickled = isinstance(body, bytes)
    body = _unpickled(body) if pickled else body
    with jax.enable_x64(x64):
        inputs = [jax.numpy.asarray(a) if on_jax else a.copy() for a in arrays]
        try:
            return [np.asarray(value) for value in body(*inputs)]
        except Exception as error:
            if pickled:
                _check_travels(error)
            raise


class _NotFoundError(Exception):
    """A worker cannot read the body that it was given."""


def _unpickled(body: bytes) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        raise _NotFoundError(f"{type(error).__name__}: {error}") from error


def _check_travels(error: Exception) -> None:
    # An exception that can be written but not read ends a process pool. Others have their own ways.
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        raise RuntimeError(f"{kind}, which cannot be pickled, was raised in a worker: {error}") from error


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

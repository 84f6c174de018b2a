"""What one task does in a worker: it runs a body on one element, on a block, or on a chunk of elements.

A worker may be another process, so a job carries the body by pickle, and NumPy arrays both ways.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import importlib
import io
import itertools
import os
import pickle
import sys
import time
import types
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import metrics
from jaxpyop._host.errors import add_note, note_index
from jaxpyop._host.host_call import Batch, HostCall
from jaxpyop._host.pools.executors import Executor, needs_pickled_body, number_of, working_for


class UnreadableBodyError(Exception):
    """A worker cannot read the body that it was given."""


class Outcome(NamedTuple):
    """What a job returns.

    Attributes:
        seconds: how long it took.
        results: those of all elements, stacked. If the elements' shapes differ or there is but one element, a list of
            results for each.
        failures: with `on_error=`, how many elements failed, and the first failure.
        counted: what a worker process counted for reports.
    """

    seconds: float
    results: list[Any]
    failures: tuple[int, str] | None
    counted: dict[str, dict[str, Any]]


def job_for(executor: Executor, call: HostCall) -> Job:
    """A job for a worker of an executor, without inputs."""
    body = _pickled(call.body) if needs_pickled_body(executor) else call.body
    home = os.getpid(), number_of(executor)
    return Job(body, call.on_jax, call.copy, call.environment.settings, home, bool(metrics.reports))


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A body with inputs.

    Attributes:
        body: the body, or its pickle.
        on_jax: whether it takes jax.Arrays.
        copy: whether it gets NumPy arrays of its own, not read-only views.
        settings: JAX's settings of the caller's thread.
        home: the caller's process, and the number of the executor there.
        is_reported: whether a report is open there.
        arrays: the inputs.
        lead: batch axes of a block.
        rows: for each input, whether it has a row for each element; the elements share the others.
        count: how many elements there are.
        batch: the batch that they belong to, for errors; None for one element or block.
        first: the number of the first element in the batch.
        unique: keeps Dask from merging calls with equal arguments.
    """

    body: Any
    on_jax: bool
    copy: bool
    settings: Sequence[Any]
    home: tuple[int, int]
    is_reported: bool = False
    arrays: Sequence[np.ndarray[Any, Any]] = ()
    lead: tuple[int, ...] = ()
    rows: Sequence[bool] = ()
    count: int = 1
    batch: Batch | None = None
    first: int = 0
    unique: str = dataclasses.field(init=False, default_factory=lambda: uuid.uuid4().hex)

    def __call__(self) -> Outcome:
        """Run the body on each element."""
        return contextvars.copy_context().run(self._run)

    def _run(self) -> Outcome:
        if self.is_reported and not self._is_at_home:
            metrics.count_in_worker()
        body = _unpickled(self.body) if isinstance(self.body, bytes) else self.body
        keywords = {"lead": self.lead} if self.lead else {}
        results: list[list[np.ndarray[Any, Any]]] = []
        at_home = working_for(self.home[1]) if self._is_at_home else contextlib.nullcontext()
        with _jaxcore.with_thread_settings(self.settings), at_home:
            arrays = [self._received(a, row) for a, row in zip(self.arrays, self.rows)]
            began = time.perf_counter()
            try:
                for k in range(self.count):
                    values = body(*[self._input(a, row, k) for a, row in zip(arrays, self.rows)], **keywords)
                    # A body may return the same memory for each element.
                    results.append([np.array(v) if self.count > 1 else np.asarray(v) for v in values])
            except BaseException as error:
                if self.batch is not None:
                    note_index(error, self.first + len(results), self.batch)
                self._raise(error)
        seconds, failures = time.perf_counter() - began, body.op.failures
        counted = {} if self._is_at_home else metrics.counted_in_worker()
        return Outcome(seconds, _stacked(results), failures and failures.taken(), counted)

    @property
    def _is_at_home(self) -> bool:
        return self.home[0] == os.getpid()

    def _received(self, array: np.ndarray[Any, Any], row: bool) -> Any:
        """An input of all elements, of which each element gets a part or a copy."""
        if self.on_jax:
            return array if row else jax.numpy.asarray(array)
        if self.copy:
            # What was sent may be read-only, and a body may write into its inputs.
            return array.copy() if row and not array.flags.writeable else array
        # At home it is the caller's memory, and the body may keep what it gets.
        lent = array.copy() if self._is_at_home else array[...]
        lent.flags.writeable = False
        return lent

    def _input(self, array: np.ndarray[Any, Any], row: bool, k: int) -> Any:
        if row:
            return jax.numpy.asarray(array[k, ...]) if self.on_jax else array[k, ...]
        return array.copy() if self.copy and not self.on_jax else array

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise an error so that it reaches the caller.

        An error that pickles but does not unpickle would break the pool.
        """
        if self._is_at_home:
            raise error
        # An executor that gets the body itself pickles by cloudpickle, where that is installed.
        pickler: Any = pickle if isinstance(self.body, bytes) else sys.modules.get("cloudpickle", pickle)
        metrics.attach_counted(error)
        try:
            pickle.loads(pickler.dumps(error))
        except Exception:
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            shown = RuntimeError(f"{kind}, which cannot be pickled, was raised in a worker: {error}")
            for note in getattr(error, "__notes__", ()):
                add_note(shown, note)
            raise shown from error
        raise error


def _stacked(results: list[list[np.ndarray[Any, Any]]]) -> list[Any]:
    """The results of all elements as one array each, if the elements have equal shapes and dtypes."""
    if len(results) == 1 or len({tuple((v.shape, v.dtype) for v in values) for values in results}) > 1:
        return results
    return [np.stack(column) for column in zip(*results)]


# ------------------------------------------------------------------------- pickles of bodies


def _unpickled(body: bytes) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        raise UnreadableBodyError(f"{type(error).__name__}: {error}") from error


def _pickled(body: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(body)
    return file.getvalue()


# A function may be wrapped in a circle.
_MAX_WRAPPERS = 32


class _Pickler(pickle.Pickler):
    """Finds a decorated function behind the decorator that has taken its name."""

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

"""`Host`, which a compiled program calls: a call with its batch, its buffers and its environment."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import metrics
from jaxpyop._host.buffers.lending import copy_of, lend, read_only, take_back, view_of
from jaxpyop._host.buffers.memory import LARGE, SCRATCH, SMALL, expect_writing
from jaxpyop._host.elements import Batch
from jaxpyop._host.errors import PythonBodyError, body_error, defer, deferred_error
from jaxpyop._host.guard import running
from jaxpyop._host.host_call import HostCall
from jaxpyop._host.run_batch import run_elements, run_once, runs_in_this_process

# XLA's threads are unknown to Python, or have a dummy once `threading.current_thread()` was called on them.
_XLA_THREADS = (type(None), threading._DummyThread)


def _nbytes(struct: Any) -> int:
    return math.prod(struct.shape) * np.dtype(struct.dtype).itemsize


class Host:
    """What XLA holds and calls.

    Args:
        call: what to run.
        batch: the elements to run it on.
        inputs: shape and dtype of the arrays that come.
        results: shape and dtype of the arrays to return.
        padding: how many results at the end do not come from the call.

    Attributes:
        route: what reports call the transport.
    """

    route = "callback"

    def __init__(
        self, call: HostCall, batch: Batch, inputs: Sequence[Any], results: Sequence[Any], padding: int = 0
    ) -> None:
        self.call = call
        self.batch = batch
        self.padding = padding
        self.results = [(tuple(r.shape), np.dtype(r.dtype)) for r in results]
        self.has_large_results = any(_nbytes(r) >= LARGE for r in results)
        # A block is handed over as it is.
        shape_of: Any = (lambda i, shape: shape) if batch.block else batch.element_shape
        self._inputs = [jax.ShapeDtypeStruct(shape_of(i, x.shape), x.dtype) for i, x in enumerate(inputs)]
        self._is_plain = not (batch.sizes or call.operands.writes_out) and call.op.executor is None
        small = self._is_plain and all(_nbytes(x) < SMALL for x in inputs)
        self._take, self._release = _lending(call, small)
        self._running = running()
        self._nbytes = sum(map(_nbytes, inputs)), sum(map(_nbytes, results[: len(results) - padding]))

    def on_buffers(self, ctx: Any, outs: Sequence[Any], *buffers: Any) -> None:
        """The body of a `buffer_callback`."""
        if self.has_large_results:
            for out in outs:
                expect_writing(view_of(out))
        self.enter(buffers, outs)

    def on_arrays(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """The body of a `pure_callback` or `io_callback`."""
        outs = [np.empty(shape, dtype) for shape, dtype in self.results]
        self.enter(arrays, outs)
        return outs

    def on_arrays_deferring_errors(self, *arrays: Any) -> list[Any]:
        """Do what `on_arrays` does, but return the number of an error as the first result, for `raise_deferred`."""
        try:
            return [np.uint32(0), *self.on_arrays(*arrays)]
        except PythonBodyError as error:
            return [np.uint32(defer(error)), *(np.zeros(shape, dtype) for shape, dtype in self.results)]

    def raise_deferred(self, ctx: Any, outs: Sequence[Any], number: Any, *aliased: Any) -> None:
        """The body of a `buffer_callback` that raises a deferred error."""
        if found := int(np.asarray(number)):
            raise deferred_error(found, self.call.title)

    def enter(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run the call on arrays or buffers, into others.

        Raises:
            PythonBodyError: whatever the body raised.
        """
        call, environment, ticket = self.call, self.call.environment, None
        began = time.perf_counter() if metrics.reports else None
        try:
            if self._running is not None:
                ticket = self._running.enter(call)
            with _jaxcore.profiled_as(call.label):
                if isinstance(_jaxcore.python_thread(), _XLA_THREADS):
                    # The context of XLA's threads is empty.
                    environment.context.copy().run(self._in_environment, arrays, outs)
                elif environment.is_current():
                    self._fill(arrays, outs)
                else:
                    self._in_environment(arrays, outs)
            if began is not None:
                metrics.note_call(call, self.route, self.batch, began, self._nbytes)
            return
        except BaseException as error:
            if began is not None:
                metrics.note_call(call, self.route, self.batch, began, error=error)
            # KeyboardInterrupt too is caught, since XLA knows no exceptions, only text. The text shows what the inputs
            # should have been, because the buffers themselves may be wrong.
            failed = body_error(call.title, call.func, call.groups(self._inputs), error)
        finally:
            if ticket is not None and self._running is not None:
                self._running.leave(ticket)
        raise failed

    def _in_environment(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        with self.call.environment.entered():
            self._fill(arrays, outs)

    def _fill(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        inputs = [self._take(a) for a in arrays]
        if self._is_plain:
            # The kinds of calls are in `_op`: `UserCall`, `RecordingCall`, `ReplayCall`, and those of the user's rules.
            self._store(outs, self.call(inputs))
        else:
            self._run(inputs, outs)
        if self._release is not None:
            self._release(inputs)

    def _run(self, arrays: list[Any], outs: Sequence[Any]) -> None:
        call, batch = self.call, self.batch
        own = outs[: len(outs) - self.padding]
        if call.operands.writes_out and runs_in_this_process(call.op):
            arrays = [*arrays, *map(view_of, own)]
            batch = batch.with_inputs(lambda mask: (*mask, *(True for _ in own)))
        if not batch.sizes or batch.block:
            run_once(call, arrays, batch.sizes, functools.partial(self._store, outs))
            return
        rows = [view.reshape(batch.count, *view.shape[len(batch.sizes) :]) for view in map(view_of, own)]
        run_elements(call, arrays, batch, functools.partial(self._store_rows, rows))

    def _store_rows(self, rows: Sequence[Any], at: int | slice, values: Sequence[Any]) -> None:
        leading = int(isinstance(at, slice))
        for k, (out, value) in enumerate(zip(rows, values)):
            if value.shape[leading:] != out.shape[1:]:
                self.call.check(k, value.shape[leading:], out.shape[1:])
            # An index without the ellipsis would convert a bfloat16 scalar to a Python float.
            out[at, ...] = value

    def _store(self, outs: Sequence[Any], values: Sequence[Any]) -> None:
        for k, value in enumerate(values):
            shape = self.results[k][0]
            if value.shape != shape:
                self.call.check(k, value.shape, shape)
            array = np.asarray(value)
            # No name refers to this view of a buffer: `view_of` says why.
            np.asarray(outs[k])[...] = array


_Take = Callable[[Any], Any]
_Release = Callable[[list[Any]], None]


def _lending(call: HostCall, small: bool) -> tuple[_Take, _Release | None]:
    """Return the function that makes an input of a buffer, and the one that releases the inputs after the call."""
    take_back_all = functools.partial(take_back, title=call.title)
    if small:
        return (copy_of, None) if call.copy or call.on_jax else (lambda b: read_only(copy_of(b)), take_back_all)
    if call.on_jax:
        return view_of, None
    if call.copy:
        return lambda buffer: SCRATCH.copy_of(view_of(buffer)), SCRATCH.recycle
    return lambda buffer: lend(view_of(buffer)), take_back_all

"""`Host`, which a compiled program calls: a call with its batch, its buffers and its environment.

`Shared` stands in front of it in a program over several devices, each of which calls with the same inputs.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import at_exit, guard, metrics
from jaxpyop._host.errors import PythonBodyError, body_error, deferred_error
from jaxpyop._host.host_call import Batch, HostCall, python_thread
from jaxpyop._host.memory import LARGE, SCRATCH, expect_writing, kept_of, lend, view_of, view_or_copy
from jaxpyop._host.run_batch import run_elements, run_once, runs_in_this_process
from jaxpyop._host.small_numbers import flush_again, leave_flushing

# XLA's threads are unknown to Python, or have a dummy once `threading.current_thread()` was called on them.
_XLA_THREADS = (type(None), threading._DummyThread)


def store(
    targets: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    at: Any,
    values: Sequence[Any],
    check: Callable[[int, tuple[int, ...], tuple[int, ...]], None],
) -> None:
    """Write results into the arrays or buffers that a call has to fill.

    Args:
        targets: an array or a buffer for each result.
        shapes: the shape that each result of one element must have.
        at: which part of the targets to fill: the row of an element by its number, the rows of several elements by a
            slice, or everything by an ellipsis.
        values: the results. Those of several elements are stacked.
        check: called with the number of a result that has another shape, its shape, and the one that it must have.
    """
    # Without the ellipsis a scalar of bfloat16 would be converted to a Python float.
    index = at if at is ... else (at, ...)
    is_stacked = type(at) is slice
    for k, value in enumerate(values):
        shape = value.shape[1:] if is_stacked else value.shape
        if shape != shapes[k]:
            check(k, shape, shapes[k])
        array = np.asarray(value)
        # No name refers to this view of a buffer: `view_of` says why.
        np.asarray(targets[k])[index] = array


# -------------------------------------------------------------------------------- Host


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
        fill: fills the results from the inputs, if there is a way without the function of Python, and tells whether it
            could.
    """

    route = "callback"
    fill: Callable[[Sequence[Any], Sequence[Any]], bool] | None = None

    def __init__(
        self, call: HostCall, batch: Batch, inputs: Sequence[Any], results: Sequence[Any], padding: int = 0
    ) -> None:
        at_exit.state["used"] = True
        self.call = call
        self.batch = batch
        self.padding = padding
        self.results = [(tuple(r.shape), np.dtype(r.dtype)) for r in results]
        self.has_large_results = any(_nbytes(r) >= LARGE for r in results)
        # A block is handed over as it is, and its results are stored as they are.
        shape_of: Any = (lambda i, shape: shape) if batch.block else batch.element_shape
        self._inputs = [jax.ShapeDtypeStruct(shape_of(i, x.shape), x.dtype) for i, x in enumerate(inputs)]
        self._shapes = [shape[0 if batch.block else len(batch.sizes) :] for shape, _ in self.results]
        self._is_plain = not (batch.sizes or call.operands.writes_out) and call.op.executor is None
        self._may_wait = _jaxcore.JAX_VERSION < (0, 12) and guard.may_wait_for_others(call)
        self._lends = not (call.on_jax or call.copy)
        # A body that takes jax.Arrays copies its inputs itself.
        self._take: Callable[[Any], Any] = lend if self._lends else view_or_copy if call.on_jax else SCRATCH.copy_of
        self._nbytes = sum(map(_nbytes, inputs)), sum(map(_nbytes, results[: len(results) - padding]))

    def on_buffers(self, ctx: Any, *buffers: Any) -> tuple[()]:
        """What a `buffer_callback` calls, with the buffers of the inputs, and then those of the results."""
        inputs, outs = self.divided(buffers)
        if self.has_large_results:
            for out in outs:
                expect_writing(view_of(out))
        self.enter(inputs, outs)
        return ()

    def divided(self, buffers: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The buffers of the inputs, and those of the results."""
        count = len(self._inputs)
        return buffers[:count], buffers[count:]

    def on_arrays(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """What a `pure_callback` or `io_callback` calls."""
        outs = [np.empty(shape, dtype) for shape, dtype in self.results]
        self.enter(arrays, outs)
        return outs

    def on_arrays_deferring_errors(self, *arrays: Any) -> list[Any]:
        """Do what `on_arrays` does, but return the number of an error as the first result, for `raise_deferred`."""
        try:
            return [np.uint32(0), *self.on_arrays(*arrays)]
        except PythonBodyError as error:
            return [np.uint32(error.number), *(np.zeros(shape, dtype) for shape, dtype in self.results)]

    def raise_deferred(self, ctx: Any, outs: Sequence[Any], number: Any, *aliased: Any) -> None:
        """What a `buffer_callback` calls that raises a deferred error."""
        self.raise_number(number)

    def raise_number(self, number: Any) -> Any:
        """Raise the error that was deferred under a number, or return the number 0."""
        if found := int(np.asarray(number)):
            raise deferred_error(found, self.call.title)
        return np.uint32(0)

    def enter(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run the call on arrays or buffers, into others.

        Raises:
            PythonBodyError: whatever the body raised.
        """
        call = self.call
        at_exit.running.append(threading.get_ident())
        # The results are stored in the same mode, and what starts threads here gives it to them.
        flushed = leave_flushing()
        began = metrics.begin(call.op.name) if metrics.reports else None
        # An annotation that nobody records would take a twentieth of the time of a small call.
        run = self._annotated if jax.profiler.TraceAnnotation.is_enabled() else self._in_context
        try:
            if at_exit.state["over"]:
                raise RuntimeError(f"{call.title}: Python exits, and no function can begin any more")
            if self._may_wait:
                guard.begin(call)
                try:
                    run(arrays, outs)
                finally:
                    guard.end()
            else:
                run(arrays, outs)
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
            if flushed:
                flush_again()
            at_exit.running.remove(threading.get_ident())
        raise failed

    def _annotated(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        with jax.profiler.TraceAnnotation(self.call.label):
            self._in_context(arrays, outs)

    def _in_context(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        if isinstance(python_thread(), _XLA_THREADS):
            # The context of XLA's threads is empty.
            self.call.environment.context.copy().run(self._in_environment, arrays, outs)
        else:
            self._in_environment(arrays, outs)

    def _in_environment(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        environment = self.call.environment
        if environment.is_current():
            self._fill(arrays, outs)
        else:
            with environment.entered():
                self._fill(arrays, outs)

    def _fill(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        if self.fill is not None and self.fill([*map(view_of, arrays)], [*map(view_of, outs)]):
            return
        inputs = [self._take(a) for a in arrays]
        if self._is_plain:
            # The kinds of calls are in `_op`: `UserCall`, `RecordingCall`, `ReplayCall`, and those of the user's rules.
            store(outs, self._shapes, ..., self.call(inputs), self.call.check_shape)
        else:
            self._run(inputs, outs)
        if self._lends:
            take_back(inputs, self.call)

    def _run(self, arrays: list[Any], outs: Sequence[Any]) -> None:
        call, batch = self.call, self.batch
        own = outs[: len(outs) - self.padding]
        if call.operands.writes_out and runs_in_this_process(call.op):
            arrays = [*arrays, *map(view_of, own)]
            batch = batch.with_inputs(lambda mask: (*mask, *(True for _ in own)))
        if not batch.sizes or batch.block:
            whole = lambda values: store(outs, self._shapes, ..., values, call.check_shape)
            run_once(call, arrays, batch.sizes, whole)
            return
        rows = [view.reshape(batch.count, *view.shape[len(batch.sizes) :]) for view in map(view_of, own)]
        run_elements(call, arrays, batch, lambda at, values: store(rows, self._shapes, at, values, call.check_shape))


def take_back(lent: list[Any], call: HostCall) -> None:
    """Warn if a function kept an input that `copy=False` lent to it. Empties the list."""
    # A worker gets copies of these arrays, and its executor may keep them with the task.
    if (call.op.executor is None or runs_in_this_process(call.op)) and kept_of(lent):
        warnings.warn(
            f"{call.title}: func kept an input that copy=False lends for the call only; "
            "its values are undefined from now on: keep a copy, or pass copy=True",
            RuntimeWarning,
            stacklevel=2,
        )


# ------------------------------------------------------------- one run for all devices

# A program over several devices calls a buffer callback on each of them. Nothing says which calls belong to one
# execution. But the results of a stateless op depend on its inputs alone, so any call with equal inputs may have them.
# Each run serves as many calls as the process has devices, and is then forgotten.

# The largest number of runs that wait for calls. The calls of an execution that failed elsewhere never come.
_MAX_RUNS = 64


class _Run:
    """A run of the body, and the calls that it has served."""

    def __init__(self, inputs: list[bytes], host: Host) -> None:
        self.inputs = inputs
        self.outs = [np.empty(shape, dtype) for shape, dtype in host.results]
        self.error: PythonBodyError | None = None
        self.served = 1
        self.ended = threading.Event()


class Shared:
    """A host that is called once for `devices` calls with equal inputs."""

    def __init__(self, host: Host, devices: int) -> None:
        at_exit.awaiting.add(self)
        self.host = host
        self.devices = devices
        self._lock = threading.Lock()
        self._runs: list[_Run] = []

    def on_buffers(self, ctx: Any, *buffers: Any) -> tuple[()]:
        """What a `buffer_callback` calls, with the buffers of the inputs, and then those of the results."""
        inputs, outs = self.host.divided(buffers)
        at_exit.running.append(threading.get_ident())
        try:
            self._fill(inputs, outs)
        finally:
            at_exit.running.remove(threading.get_ident())
        return ()

    def is_awaiting(self) -> bool:
        """Tell whether some devices have not called yet."""
        return bool(self._runs)

    def _fill(self, inputs: Sequence[Any], outs: Sequence[Any]) -> None:
        run, is_first = self._join([np.asarray(buffer).tobytes() for buffer in inputs])
        if is_first:
            try:
                self.host.enter(inputs, run.outs)
            except PythonBodyError as failed:
                run.error = failed
            finally:
                run.ended.set()
        run.ended.wait()
        if (error := run.error) is not None:
            # Each device raises the error, since a device that went on would wait for the others.
            raise error.again()
        for out, value in zip(outs, run.outs):
            # No name refers to this view of a buffer: `view_of` says why.
            np.asarray(out)[...] = value

    def _join(self, inputs: list[bytes]) -> tuple[_Run, bool]:
        with self._lock:
            for run in self._runs:
                if run.inputs == inputs:
                    run.served += 1
                    if run.served == self.devices:
                        self._runs.remove(run)
                    return run, False
            run = _Run(inputs, self.host)
            if self.devices > 1:
                self._runs.append(run)
                del self._runs[:-_MAX_RUNS]
            return run, True

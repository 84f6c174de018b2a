"""The host side of a compiled call: one wrapper, several ways to reach it.

XLA's buffers are views that are garbage once the call is over, and writing
them corrupts XLA's memory. So a body gets private copies, where they are large
in `memory` that is used again: one memcpy, no page faults.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from numpy.lib.stride_tricks import as_strided

from jaxpyop import _jaxcore
from jaxpyop._host.batch import Batch
from jaxpyop._host.buffers.memory import FREE, LARGE, SCRATCH, SMALL, expect_writing, references
from jaxpyop._host.environment import Environment
from jaxpyop._host.errors import PythonBodyError, body_error, defer, deferred_error
from jaxpyop._host.guard import running
from jaxpyop._host.run import run_elements, run_once, runs_here


class HostCall(Protocol):
    """The members of a call that the host reads. `_op.primitive.Call` says what each of them means."""

    title: str
    label: str
    op: Any
    func: Any
    on_jax: bool
    copy: bool
    effects: Any
    batching: Any
    operands: Any
    seconds_per_element: float | None
    environment: Environment

    def __call__(self, arrays: list[Any], lead: tuple[int, ...] = ()) -> list[Any]: ...

    def check(self, index: int, shape: tuple[int, ...], expected: tuple[int, ...]) -> None: ...


# threading.current_thread() makes a thread it does not know known; looking it up does not.
_THREADS: dict[int, Any] = vars(threading)["_active"]
_UNKNOWN = (type(None), threading._DummyThread)  # a dummy once somebody asked threading for it


def _on_xla_thread() -> bool:
    return isinstance(_THREADS.get(threading.get_ident()), _UNKNOWN)


class Host:
    """What XLA holds and calls: a call with its batch and result buffers.

    Args:
        call: what to run.
        batch: over which elements.
        inputs: shape and dtype of the arrays that come.
        results: shape and dtype of the arrays to return.
        padding: how many of them, at the end, are not the call's.
    """

    def __init__(
        self, call: HostCall, batch: Batch, inputs: Sequence[Any], results: Sequence[Any], padding: int = 0
    ) -> None:
        self.call = call
        self.batch = batch
        self.padding = padding
        self.results = [(tuple(r.shape), np.dtype(r.dtype)) for r in results]
        self._inputs = [(batch.element_shape(i, x.shape), x.dtype) for i, x in enumerate(inputs)]
        self.large = any(math.prod(shape) * dtype.itemsize >= LARGE for shape, dtype in self.results)
        self.fill = self._choose_fill(inputs)
        self.running = running()

    def _choose_fill(self, inputs: Sequence[Any]) -> Callable[[Sequence[Any], Sequence[Any]], None]:
        large = any(math.prod(i.shape) * np.dtype(i.dtype).itemsize >= SMALL for i in inputs)
        plain = self.call.op.executor is None and not (large or self.batch.sizes or self.call.operands.writes_out)
        if plain:
            return self._fill_small if self.call.copy or self.call.on_jax else self._fill_small_lent
        if self.call.on_jax:
            return self._fill_views
        return self._fill_scratch if self.call.copy else self._fill_lent

    def on_buffers(self, ctx: Any, outs: Sequence[Any], *buffers: Any) -> None:
        """The body of a `buffer_callback`."""
        if self.large:
            for out in outs:
                expect_writing(view_of(out))
        self.enter(buffers, outs)

    def on_arrays(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """The body of a `pure_callback` or `io_callback`."""
        outs = [np.empty(shape, dtype) for shape, dtype in self.results]
        self.enter(arrays, outs)
        return outs

    def on_arrays_later(self, *arrays: Any) -> list[Any]:
        """As `on_arrays`; of an exception only the number is returned, for `raise_now`."""
        try:
            return [np.uint32(0), *self.on_arrays(*arrays)]
        except PythonBodyError as error:
            return [np.uint32(defer(error)), *(np.zeros(shape, dtype) for shape, dtype in self.results)]

    def raise_now(self, ctx: Any, outs: Sequence[Any], number: Any, *aliased: Any) -> None:
        """The body of a `buffer_callback` that raises what was put off."""
        if found := int(np.asarray(number)):
            raise deferred_error(found, self.call.title)

    def enter(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run the call on arrays or buffers, into others.

        Raises:
            PythonBodyError: whatever the body raised.
        """
        environment = self.call.environment
        ticket = None
        try:
            if self.running is not None:
                ticket = self.running.enter(self.call)
            with _jaxcore.profiled_as(self.call.label):
                if _on_xla_thread():  # whose context is empty
                    environment.context.copy().run(self._in_environment, arrays, outs)
                elif environment.is_current():
                    self.fill(arrays, outs)
                else:
                    self._in_environment(arrays, outs)
            return
        except BaseException as error:  # also KeyboardInterrupt: XLA knows no exceptions, only text
            # What a failing body is said to have got; its buffers may be the failure.
            first = self.call.operands.leading_inputs
            given = [jax.ShapeDtypeStruct(*shape_and_dtype) for shape_and_dtype in self._inputs[first:]]
            failed = body_error(self.call.title, self.call.func, given, error)
        finally:
            if ticket is not None and self.running is not None:
                self.running.leave(ticket)
        raise failed

    def _in_environment(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        with self.call.environment.entered():
            self.fill(arrays, outs)

    def _fill_small(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        self._store(self.call([np.asarray(a).copy() for a in arrays]), outs)

    def _fill_small_lent(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        lent = [_read_only(np.asarray(a).copy()) for a in arrays]  # a view takes five times as long
        self._store(self.call(lent), outs)
        take_back(lent, self.call.title)

    def _fill_views(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        self._run([view_of(a) for a in arrays], outs)

    def _fill_lent(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        lent = lend([view_of(a) for a in arrays])
        self._run(lent, outs)
        take_back(lent, self.call.title)

    def _fill_scratch(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        copies = [SCRATCH.copy_of(view_of(a)) for a in arrays]
        self._run(copies, outs)
        SCRATCH.recycle(copies)

    def _run(self, arrays: list[Any], outs: Sequence[Any]) -> None:
        call, batch = self.call, self.batch
        if call.operands.writes_out and runs_here(call.op):
            results = [view_of(out) for out in outs[: len(outs) - self.padding]]
            arrays = [*arrays, *results]
            batch = batch.with_inputs(lambda mask: (*mask, *(True for _ in results)))
        if not batch.sizes or batch.block:
            run_once(call, arrays, batch.sizes, lambda values: self._store(values, outs))
            return
        flat = [view_of(out) for out in outs[: len(outs) - self.padding]]
        flat = [out.reshape(batch.count, *out.shape[len(batch.sizes) :]) for out in flat]
        run_elements(call, arrays, batch, functools.partial(self._store_rows, flat))

    def _store_rows(self, flat: Sequence[Any], at: int | slice, values: Sequence[Any]) -> None:
        skip = 1 + isinstance(at, slice)  # of the axes of one element, or of several
        for k, value in enumerate(values):
            out = flat[k]
            if value.shape[skip - 1 :] != out.shape[1:]:
                self.call.check(k, value.shape[skip - 1 :], out.shape[1:])
            out[at, ...] = value  # [at] alone asks a bfloat16 scalar for its float

    def _store(self, values: Sequence[Any], outs: Sequence[Any]) -> None:
        for k, value in enumerate(values):
            shape = self.results[k][0]
            if value.shape != shape:
                self.call.check(k, value.shape, shape)
            array = np.asarray(value)
            np.asarray(outs[k])[...] = array  # see view_of: nothing holds on to this view


def view_of(buffer: Any) -> np.ndarray[Any, Any]:
    """An array over the memory of a callback's buffer, with no tie to the buffer itself.

    What `numpy.asarray` of a buffer returns is tied to an object that jaxlib
    (0.10 to 0.12) has registered at an address of the stack. While that lives,
    in a traceback for example, or during a nested call, a callback whose buffers
    come to lie at that address gets it in place of each of them.
    """
    array = np.asarray(buffer)
    if isinstance(buffer, (np.ndarray, jax.Array)):
        return array
    if not array.nbytes:
        return np.empty(array.shape, array.dtype)
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    return np.ndarray(array.shape, array.dtype, memory)


def lend(views: Iterable[Any]) -> list[Any]:
    """Read-only arrays over the same memory, or small copies, for `take_back` to watch."""
    return [_lent(view) for view in views]


def _lent(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # What NumPy makes so is the base of its own slices, unlike view[...]: who keeps one is noticed too.
    if view.nbytes < SMALL:
        return _read_only(view.copy())
    return as_strided(view, view.shape, view.strides, writeable=False)


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.setflags(write=False)
    return array


def lend_results(views: Iterable[Any]) -> list[Any]:
    """Arrays over the same memory, for `take_back_results` to watch."""
    return [as_strided(view, view.shape, view.strides) for view in views]


def take_back_results(lent: list[Any]) -> bool:
    """End the time in which a body may write to what `out=True` lent; empties the list.

    An array that somebody holds gets memory of its own, with what is in it now. Of its slices nobody knows.

    Returns:
        Whether somebody holds one.
    """
    kept = False
    while lent:
        array = lent.pop()
        if references(array) > FREE:
            array.__setstate__((1, array.shape, array.dtype, False, array.tobytes()))
            kept = True
    return kept


def take_back(lent: list[Any], title: str) -> None:
    """Warn when a body kept an input of `copy=False`; empties the list."""
    while lent:
        array = lent.pop()
        if references(array) > FREE:
            warnings.warn(
                f"{title}: func kept an input that copy=False lends for the call only; "
                "its values are undefined from now on: keep a copy, or pass copy=True",
                RuntimeWarning,
                stacklevel=2,
            )

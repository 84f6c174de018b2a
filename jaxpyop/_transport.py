"""The host side of a compiled call: one wrapper, several ways to reach it.

XLA's buffers are views that are garbage once the call is over, and writing
them corrupts XLA's memory. So a body gets private copies, into recycled
scratch arrays where they are large: one memcpy, no page faults. A scratch
array is used again only when nobody else holds it.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from numpy.lib.stride_tricks import as_strided

from jaxpyop import _errors, _jaxcore
from jaxpyop._batching import Batch, run_elements

_SMALL = 1 << 14  # bytes; below it malloc is faster than recycling


class Call(Protocol):
    """What a compiled program calls on the host; see `_calls`."""

    title: str
    label: str
    func: Any
    on_jax: bool  # makes jax.Arrays, copies, of the views that it needs
    copy: bool
    stateful: bool
    ordered: bool
    hidden: int
    environment: Environment

    def __call__(self, arrays: list[Any], lead: tuple[int, ...] = ()) -> list[Any]: ...

    def check(self, index: int, shape: tuple[int, ...], expected: tuple[int, ...]) -> None: ...


@functools.cache
def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


# By these ipykernel 7 knows which notebook cell gets an output or answers `input()`. A program outlives
# the cell that traced it; without them ipykernel takes the cell that runs.
_OF_A_CELL = frozenset({"parent_header", "shell_parent", "shell_parent_ident"})


def _without_cell(context: contextvars.Context) -> contextvars.Context:
    if all(variable.name not in _OF_A_CELL for variable in context):
        return context
    kept = contextvars.Context()
    for variable, value in context.items():
        if variable.name not in _OF_A_CELL:
            kept.run(variable.set, value)
    return kept


class Environment:
    """What a body sees of its caller: context variables and x64."""

    __slots__ = ("context", "x64")

    def __init__(self) -> None:
        self.context = _without_cell(contextvars.copy_context())
        self.x64: bool = _jaxcore.x64_enabled()

    def is_current(self) -> bool:
        """Whether a body may simply be called, here and now."""
        return _jaxcore.x64_enabled() == self.x64 and _jaxcore.is_eager() and _on_cpu()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Set what is set by thread in JAX."""
        with contextlib.ExitStack() as stack:
            if not _jaxcore.is_eager():  # a program can run while another is traced
                stack.enter_context(_jaxcore.eval_context())
            if _jaxcore.x64_enabled() != self.x64:
                stack.enter_context(jax.enable_x64(self.x64))
            if not _on_cpu():  # a body's own JAX operations stay where it runs
                stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
            yield


def _references(array: Any) -> int:
    return sys.getrefcount(array)


def _held_by_nobody() -> int:
    arrays = [np.empty(1)]
    array = arrays.pop()
    return _references(array)


_FREE = _held_by_nobody()  # what the count is when only our own names are left


class Scratch:
    """Arrays to copy into, one free list per input."""

    def __init__(self, count: int) -> None:
        self._free: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(count)]

    def copy_of(self, i: int, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A private, writable, contiguous copy of the view."""
        if view.nbytes < _SMALL:
            return view.copy()
        try:
            array = self._free[i].pop()
        except IndexError:
            return view.copy()
        if array.shape != view.shape or array.dtype != view.dtype or not array.flags.carray:
            return view.copy()  # a body may have changed these in place
        np.copyto(array, view)
        return array

    def recycle(self, copies: list[Any]) -> None:
        """Take back the copies that nobody else holds; empties the list."""
        for i in range(len(copies) - 1, -1, -1):
            array = copies.pop()
            if array.nbytes >= _SMALL and _references(array) <= _FREE:
                self._free[i].append(array)


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
        self, call: Call, batch: Batch, inputs: Sequence[Any], results: Sequence[Any], padding: int = 0
    ) -> None:
        self.call = call
        self.batch = batch
        self.padding = padding
        self.results = [(tuple(r.shape), np.dtype(r.dtype)) for r in results]
        # What a failing body is said to have got; its buffers may be the failure.
        structs = [jax.ShapeDtypeStruct(batch.element_shape(i, x.shape), x.dtype) for i, x in enumerate(inputs)]
        self.inputs = structs[call.hidden :]
        self.scratch = Scratch(len(inputs))
        self.fill = self._choose_fill(inputs)

    def _choose_fill(self, inputs: Sequence[Any]) -> Callable[[Sequence[Any], Sequence[Any]], None]:
        if self.call.on_jax:
            return self._fill_views
        if not self.call.copy:
            return self._fill_lent
        large = any(int(np.prod(i.shape)) * np.dtype(i.dtype).itemsize >= _SMALL for i in inputs)
        return self._fill_scratch if large or self.batch.sizes else self._fill_small

    def on_buffers(self, ctx: Any, outs: Sequence[Any], *buffers: Any) -> None:
        """The body of a `buffer_callback`."""
        self._enter(buffers, outs)

    def on_arrays(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """The body of a `pure_callback` or `io_callback`."""
        outs = [np.empty(shape, dtype) for shape, dtype in self.results]
        self._enter(arrays, outs)
        return outs

    def on_arrays_later(self, *arrays: Any) -> list[Any]:
        """As `on_arrays`; of an exception only the number is returned, for `raise_now`."""
        try:
            return [np.uint32(0), *self.on_arrays(*arrays)]
        except _errors.PythonBodyError as error:
            return [np.uint32(_errors.put_off(error)), *(np.zeros(shape, dtype) for shape, dtype in self.results)]

    def raise_now(self, ctx: Any, outs: Sequence[Any], number: Any, *aliased: Any) -> None:
        """The body of a `buffer_callback` that raises what was put off."""
        if found := int(np.asarray(number)):
            raise _errors.taken_up(found, self.call.title)

    def _enter(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        environment = self.call.environment
        try:
            with _jaxcore.profiled_as(self.call.label):
                if _on_xla_thread():  # whose context is empty
                    environment.context.copy().run(self._in_environment, arrays, outs)
                elif environment.is_current():
                    self.fill(arrays, outs)
                else:
                    self._in_environment(arrays, outs)
            return
        except BaseException as error:  # also KeyboardInterrupt: XLA knows no exceptions, only text
            failed = _errors.body_error(self.call.title, self.call.func, self.inputs, error)
        raise failed

    def _in_environment(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        with self.call.environment.entered():
            self.fill(arrays, outs)

    def _fill_small(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        self._store(self.call([np.asarray(a).copy() for a in arrays]), outs)

    def _fill_views(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        self._run([view_of(a) for a in arrays], outs)

    def _fill_lent(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        lent = lend([view_of(a) for a in arrays])
        self._run(lent, outs)
        take_back(lent, self.call.title)

    def _fill_scratch(self, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
        copies = [self.scratch.copy_of(i, view_of(a)) for i, a in enumerate(arrays)]
        self._run(copies, outs)
        self.scratch.recycle(copies)

    def _run(self, arrays: list[Any], outs: Sequence[Any]) -> None:
        call, batch = self.call, self.batch
        if not batch.sizes or batch.block:
            self._store(call(arrays, batch.sizes), outs)
            return
        flat = [view_of(out) for out in outs[: len(outs) - self.padding]]
        flat = [out.reshape(math.prod(batch.sizes), *out.shape[len(batch.sizes) :]) for out in flat]
        shapes = [out.shape[1:] for out in flat]
        with contextlib.closing(run_elements(call, arrays, batch)) as results:
            for number, values in results:
                for k, value in enumerate(values):
                    if value.shape != shapes[k]:
                        call.check(k, value.shape, shapes[k])
                    flat[k][number, ...] = value  # [number] alone asks a bfloat16 scalar for its float

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
    """Read-only arrays over the same memory, for `take_back` to watch."""
    # What NumPy makes so is the base of its own slices, unlike view[...]: who keeps one is noticed too.
    return [as_strided(view, view.shape, view.strides, writeable=False) for view in views]


def take_back(lent: list[Any], title: str) -> None:
    """Warn when a body kept an input of `copy=False`; empties the list."""
    while lent:
        array = lent.pop()
        if _references(array) > _FREE:
            warnings.warn(
                f"{title}: func kept an input that copy=False lends for the call only; "
                "its values are undefined from now on: keep a copy, or pass copy=True",
                RuntimeWarning,
                stacklevel=2,
            )

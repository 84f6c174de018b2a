"""The memory of a call's arrays: views of XLA's buffers, and memory of our own for copies of large inputs.

XLA's buffers are garbage once the call is over, and writing to its inputs corrupts XLA's memory. So a function gets
copies, or with `copy=False` and `out=True` arrays that are lent to it for the time of the call.

Fresh memory costs more than the data that is written into it, because the system hands it out by the page, at the first
touch of each. `SCRATCH` keeps the memory of large copies, and uses it again once nothing else refers to it. It serves
all programs together, up to `_MAX_SCRATCH_BYTES`. `expect_writing` asks for huge pages, as NumPy does for its own
arrays.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
import sysconfig
import threading
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from numpy.lib.stride_tricks import as_strided

# The bytes of a smaller buffer are copied in a fifth of the time that a view of it takes.
SMALL = 1 << 14

# From this size in bytes on, memory is used again, and NumPy too asks for huge pages.
LARGE = 1 << 22

# XLA's CPU buffers begin at a multiple of this address.
ALIGNMENT = 64


def _references_of_a_local() -> int:
    arrays = [np.empty(1)]
    array = arrays.pop()
    return sys.getrefcount(array)


# The reference count of an array that only a local variable of ours refers to.
FREE = _references_of_a_local()

# Whether a count tells who else refers to an array. Python without its global lock counts for each thread apart, and
# not at all for some objects, so that nothing is lent or used again there: a function gets copies.
COUNTS_ARE_EXACT = not sysconfig.get_config_var("Py_GIL_DISABLED")


def _can_lend(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of a dtype are lent, and not copied."""
    return COUNTS_ARE_EXACT and _is_known_by_text(dtype)


@functools.cache
def _is_known_by_text(dtype: np.dtype[Any]) -> bool:
    # By its text `as_strided` knows a dtype. That of float8_e5m2 is none of NumPy's.
    with contextlib.suppress(TypeError):
        return np.dtype(dtype.str).itemsize == dtype.itemsize
    return False


# ------------------------------------------------------------------ XLA's buffers, lent for the time of a call


def view_of(buffer: Any) -> np.ndarray[Any, Any]:
    """An array over the memory of a callback's buffer, with no tie to the buffer itself.

    The array that `numpy.asarray` makes of a buffer is tied to an object that jaxlib (0.10 to 0.12) has registered at
    an address of the stack. That object may live on, in a traceback for example or during a nested call. If the buffer
    objects of another callback lie at that address, it gets the old object instead of its own buffers.
    """
    array = np.asarray(buffer)
    if isinstance(buffer, (np.ndarray, jax.Array)):
        return array
    if not array.nbytes:
        return np.empty(array.shape, array.dtype)
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    return np.ndarray(array.shape, array.dtype, memory)


def view_or_copy(buffer: Any) -> np.ndarray[Any, Any]:
    """A view of a large buffer, or a copy of a small one."""
    array = np.asarray(buffer)
    return array.copy() if array.nbytes < SMALL or not _can_lend(array.dtype) else view_of(buffer)


def lend(buffer: Any) -> np.ndarray[Any, Any]:
    """A read-only array over the same memory, or a small copy, for `kept_of` to watch."""
    view = view_or_copy(buffer)
    if view.nbytes < SMALL or not _can_lend(view.dtype):
        view.setflags(write=False)
        return view
    # NumPy makes this array the base of its own slices, unlike view[...]. So a
    # slice that the body keeps counts as a reference to it.
    return as_strided(view, view.shape, view.strides, writeable=False)


def lend_results(views: Iterable[Any]) -> list[Any]:
    """Arrays over the same memory for a body to fill, for `kept_of` to watch; or copies, for `return_results`."""
    return [as_strided(view, view.shape, view.strides) if _can_lend(view.dtype) else view.copy() for view in views]


def return_results(lent: Iterable[Any], views: Iterable[Any]) -> None:
    """Bring home what a body filled, where `lend_results` lent copies."""
    for array, view in zip(lent, views):
        if not _can_lend(view.dtype):
            np.copyto(view, array)


def kept_of(lent: list[Any]) -> list[Any]:
    """Return the arrays of a list that a body kept: what only garbage refers to was not kept. Empties the list."""
    kept: list[Any] = []
    if not COUNTS_ARE_EXACT:
        lent.clear()
    while lent:
        array = lent.pop()
        # An exception that a function caught holds its frame in a cycle. Such garbage is young most of the time, and
        # the young objects are collected in no time.
        generation = 0
        while sys.getrefcount(array) > FREE and generation < 3:
            gc.collect(generation)
            generation += 1
        if sys.getrefcount(array) > FREE:
            kept.append(array)
    return kept


# ---------------------------------------------------------------------------- memory that is used again


class Scratch:
    """Memory to copy into, of at most `bound` bytes. What was used longest ago goes first."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.nbytes = 0
        self._lock = threading.Lock()
        self._kept: list[np.ndarray[Any, Any]] = []

    def copy_of(self, buffer: Any) -> np.ndarray[Any, Any]:
        """A private, writable, contiguous copy, which may be held for any time.

        A copy that is not small is aligned like XLA's buffers, so that XLA takes it over.
        """
        array = np.asarray(buffer)
        if array.nbytes < SMALL:
            return array.copy()
        memory = self._memory(array.nbytes + ALIGNMENT)
        start = -memory.__array_interface__["data"][0] % ALIGNMENT
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy

    def _memory(self, nbytes: int) -> np.ndarray[Any, Any]:
        if not LARGE <= nbytes <= self.bound or not COUNTS_ARE_EXACT:
            return np.empty(nbytes, np.uint8)
        with self._lock:
            for k in range(len(self._kept)):
                memory = self._kept[k]
                # The list holds one reference more.
                if memory.nbytes == nbytes and sys.getrefcount(memory) <= FREE + 1:
                    self._kept.append(self._kept.pop(k))
                    return memory
            memory = np.empty(nbytes, np.uint8)
            self._kept.append(memory)
            self.nbytes += nbytes
            self._shrink()
            return memory

    def _shrink(self) -> None:
        while self.nbytes > self.bound:
            # Memory that is still in use leaves the list, and then lives as long as its array.
            self.nbytes -= self._kept.pop(0).nbytes


# Scratch arrays of at most so many bytes are kept for later calls, in all programs together.
_MAX_SCRATCH_BYTES = 128 * 2**20

SCRATCH = Scratch(_MAX_SCRATCH_BYTES)

_PAGE = 1 << 12
_MADV_HUGEPAGE = 14
_madvise: Any = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def expect_writing(array: np.ndarray[Any, Any]) -> None:
    """Ask for huge pages under an array that is about to be written for the first time. The system may refuse."""
    if _madvise is None or array.nbytes < LARGE:
        return
    start: int = array.__array_interface__["data"][0]
    first = -(-start // _PAGE) * _PAGE
    _madvise(ctypes.c_void_p(first), ctypes.c_size_t(start + array.nbytes - first), ctypes.c_int(_MADV_HUGEPAGE))

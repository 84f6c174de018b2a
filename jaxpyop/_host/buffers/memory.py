"""Memory for large arrays: recycled memory for copies of inputs, huge pages for results.

Fresh memory costs more than the data that is written into it, because the system hands it out by the page, at the first
touch of each. `SCRATCH` keeps the copies that bodies got, once no reference to them is left. It serves all programs
together, up to `config.max_scratch_bytes`. NumPy arrays come back after the call; the memory of a jax.Array is free
when its last owner goes. `expect_writing` asks for huge pages, as NumPy does for its own arrays.
"""

from __future__ import annotations

import collections
import ctypes
import sys
import threading
from typing import Any

import numpy as np

from jaxpyop._config import config, on_change

# Arrays of fewer bytes than this are faster to allocate than to recycle.
SMALL = 1 << 14

# From this size in bytes on, NumPy too asks for huge pages.
LARGE = 1 << 22

# XLA's CPU buffers begin at a multiple of this address.
ALIGNMENT = 64


def references(array: Any) -> int:
    """The reference count of an array, as Python counts it."""
    return sys.getrefcount(array)


def _references_of_a_local() -> int:
    arrays = [np.empty(1)]
    array = arrays.pop()
    return references(array)


# The reference count of an array that only a local variable of ours refers to.
FREE = _references_of_a_local()


class Scratch:
    """Arrays to copy into, of at most `bound` bytes. The arrays that were used longest ago go first."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.nbytes = 0
        self._lock = threading.Lock()
        self._free: collections.OrderedDict[Any, list[np.ndarray[Any, Any]]] = collections.OrderedDict()
        self._lasting: list[np.ndarray[Any, Any]] = []

    def copy_of(self, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A private, writable, contiguous copy of the view."""
        if view.nbytes < SMALL or (array := self._take((view.shape, view.dtype))) is None:
            return view.copy()
        np.copyto(array, view)
        return array

    def _take(self, key: Any) -> np.ndarray[Any, Any] | None:
        with self._lock:
            if (arrays := self._free.get(key)) is None:
                return None
            array = arrays.pop()
            if not arrays:
                del self._free[key]
            self.nbytes -= array.nbytes
            return array

    def recycle(self, copies: list[Any]) -> None:
        """Take back the copies that have no other reference. Empties the list."""
        while copies:
            array = copies.pop()
            # A body may have changed the shape or the strides in place.
            usable = SMALL <= array.nbytes <= self.bound and array.flags.carray
            if usable and references(array) <= FREE:
                self._put(array)

    def _put(self, array: np.ndarray[Any, Any]) -> None:
        with self._lock:
            key = array.shape, array.dtype
            self._free.setdefault(key, []).append(array)
            self._free.move_to_end(key)
            self.nbytes += array.nbytes
            self._shrink()

    def lasting_copy_of(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy that is aligned like XLA's buffers, so that XLA takes it over. It may be held for any time."""
        memory = self._memory(array.nbytes + ALIGNMENT)
        start = -memory.__array_interface__["data"][0] % ALIGNMENT
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy

    def _memory(self, nbytes: int) -> np.ndarray[Any, Any]:
        if not LARGE <= nbytes <= self.bound:
            return np.empty(nbytes, np.uint8)
        with self._lock:
            for memory in self._lasting:
                # The list holds one reference more.
                if memory.nbytes == nbytes and references(memory) <= FREE + 1:
                    return memory
            memory = np.empty(nbytes, np.uint8)
            self._lasting.append(memory)
            self.nbytes += nbytes
            self._shrink()
            return memory

    def resize(self, bound: int) -> None:
        """Set the bound."""
        with self._lock:
            self.bound = bound
            self._shrink()

    def _shrink(self) -> None:
        while self.nbytes > self.bound and self._free:
            key, arrays = next(iter(self._free.items()))
            self.nbytes -= arrays.pop().nbytes
            if not arrays:
                del self._free[key]
        while self.nbytes > self.bound:
            # Memory that is still in use leaves the list, and then lives as long as its array.
            self.nbytes -= self._lasting.pop(0).nbytes


SCRATCH = Scratch(config.max_scratch_bytes)
on_change(lambda: SCRATCH.resize(config.max_scratch_bytes))

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

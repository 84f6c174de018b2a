"""Where the large arrays of a call lie: copies in memory that is used again, results in huge pages.

Fresh memory costs more than what is written into it: the system hands it out
by the page, at the first touch of each. `SCRATCH` keeps the copies that bodies
have got and nobody holds any more, for all programs together, at most
``config.max_scratch_bytes``: NumPy arrays, which come back after the call, and
the memory of jax.Arrays, which is free when their last owner goes. `expect_writing` asks for large pages, as NumPy
does for its own arrays.
"""

from __future__ import annotations

import collections
import ctypes
import sys
import threading
from typing import Any

import numpy as np

from jaxpyop._config import config, on_change

SMALL = 1 << 14  # bytes; below it malloc is faster than recycling
LARGE = 1 << 22  # bytes, from which NumPy too asks for huge pages
ALIGNMENT = 64  # of XLA's CPU buffers


def references(array: Any) -> int:
    return sys.getrefcount(array)


def _held_by_nobody() -> int:
    arrays = [np.empty(1)]
    array = arrays.pop()
    return references(array)


FREE = _held_by_nobody()  # what the count is when only our own names are left


class Scratch:
    """Arrays to copy into; at most as many bytes as `bound` says, those that were used longest ago go first."""

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
        """Take back the copies that nobody else holds; empties the list."""
        while copies:
            array = copies.pop()
            usable = SMALL <= array.nbytes <= self.bound and array.flags.carray  # a body may have changed it in place
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
        """A copy that lies as XLA's buffers do, for it to take over; it may be held for as long as anyone likes."""
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
                if memory.nbytes == nbytes and references(memory) <= FREE + 1:  # ours in the list
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
            self.nbytes -= self._lasting.pop(0).nbytes  # where it is in use, it is no longer ours


SCRATCH = Scratch(config.max_scratch_bytes)
on_change(lambda: SCRATCH.resize(config.max_scratch_bytes))

_PAGE = 1 << 12
_HUGE_PAGES = 14  # MADV_HUGEPAGE
_madvise: Any = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def expect_writing(array: np.ndarray[Any, Any]) -> None:
    """Ask for huge pages under an array that is about to be written for the first time; it is only a wish."""
    if _madvise is None or array.nbytes < LARGE:
        return
    start: int = array.__array_interface__["data"][0]
    first = -(-start // _PAGE) * _PAGE
    _madvise(ctypes.c_void_p(first), ctypes.c_size_t(start + array.nbytes - first), ctypes.c_int(_HUGE_PAGES))

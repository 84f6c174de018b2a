"""Arrays over XLA's buffers, lent to a body for the time of a call.

XLA's buffers are garbage once the call is over, and writing to its inputs corrupts XLA's memory.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from numpy.lib.stride_tricks import as_strided

from jaxpyop._host.buffers.memory import FREE, SMALL, references


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


def copy_of(buffer: Any) -> np.ndarray[Any, Any]:
    """A copy of a small buffer, which takes a fifth of the time of a view."""
    return np.asarray(buffer).copy()


def lend(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A read-only array over the same memory, or a small copy, for `take_back` to watch."""
    if view.nbytes < SMALL:
        return read_only(view.copy())
    # NumPy makes this array the base of its own slices, unlike view[...]. So a
    # slice that the body keeps counts as a reference to it.
    return as_strided(view, view.shape, view.strides, writeable=False)


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array itself, which can no longer be written to."""
    array.setflags(write=False)
    return array


def take_back(lent: list[Any], title: str) -> None:
    """Warn if a body kept an input that `copy=False` lent. Empties the list."""
    while lent:
        array = lent.pop()
        if references(array) > FREE:
            warnings.warn(
                f"{title}: func kept an input that copy=False lends for the call only; "
                "its values are undefined from now on: keep a copy, or pass copy=True",
                RuntimeWarning,
                stacklevel=2,
            )


def lend_results(views: Iterable[Any]) -> list[Any]:
    """Arrays over the same memory for a body to fill, for `take_back_results` to watch."""
    return [as_strided(view, view.shape, view.strides) for view in views]


def take_back_results(lent: list[Any]) -> bool:
    """End the time in which a body may write to what `out=True` lent. Empties the list.

    An array that the body kept gets memory of its own, with its present values. Slices of it still refer to the lent
    memory.

    Returns:
        Whether the body kept one.
    """
    kept = False
    while lent:
        array = lent.pop()
        if references(array) > FREE:
            array.__setstate__((1, array.shape, array.dtype, False, array.tobytes()))
            kept = True
    return kept

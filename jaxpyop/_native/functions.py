"""Which functions can be native, and what a native call is: without an import of Numba, which few programs have."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


class Ordinary(Exception):  # noqa: N818  # This is no error.
    """Says why a call takes the ordinary way through Python."""


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """An argument that is no array: a number of Python, or None.

    Attributes:
        value: the argument.
        text: by which two are compared, because 1 equals 1.0, and 0.0 equals -0.0.
    """

    value: Any = dataclasses.field(compare=False)
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Zeros:
    """An argument that is an array of zeros, of the shape and dtype of an input, whose number is given."""

    like: int


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """An argument that is the memory of a result, by its number. It is zero at first, and the function fills it."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """A native call: a function with the types of its inputs and results.

    A part of an argument is the number of an array, a `Constant`, `Zeros`, `Filled`, or a tuple of parts.

    Attributes:
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments, as pairs.
        inputs: the dtype of each array that it gets, and the number of its axes.
        results: the same of each result.
        returns: what it returns: the number of a result, or a tuple of these; None if it fills them.
        cast: gives the least and the greatest number that a dtype may become another dtype with, the least above the
            greatest if any may, and raises `Ordinary` if it may not.
        masks: for each axis of a batch that the kernel loops over, which arrays have it.
        is_rule: whether it is a derivative rule, for which None stands for zeros and a number for an array.
        copy: whether it gets copies of its inputs.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    returns: Any
    cast: Callable[[Any, np.dtype[Any]], tuple[Any, Any]]
    masks: tuple[tuple[bool, ...], ...] = ()
    is_rule: bool = False
    copy: bool = True

    @property
    def axes(self) -> int:
        return len(self.masks)


# The dtypes that Numba has.
DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    + ["float32", "float64", "complex64", "complex128"]
)


def _class_of(module: str, name: str) -> Any:
    # A function of Numba's cannot be there before these modules are.
    return getattr(sys.modules.get(module), name, ())


def is_ufunc(func: Any) -> bool:
    """Tell whether a function is one of `numba.vectorize` or `numba.guvectorize`."""
    kinds = _class_of("numba.np.ufunc.dufunc", "DUFunc"), _class_of("numba.np.ufunc.gufunc", "GUFunc")
    return issubclass(type(func), kinds)


def is_compiled(func: Any) -> bool:
    """Tell whether Numba compiled a function: by `njit`, `vectorize` or `guvectorize`."""
    return is_ufunc(func) or issubclass(type(func), _class_of("numba.core.dispatcher", "Dispatcher"))


def is_native(func: Any) -> bool:
    """Tell whether Numba compiled a function, or the function inside `functools.partial`."""
    while type(func) is functools.partial:
        func = func.func
    return is_compiled(func)

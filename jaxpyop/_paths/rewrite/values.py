"""Tells which Python objects the program can hold as values, and changes the types of values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import ARRAY, PYTHON, PathTracer, bool_kind_of, types_of, weakened, with_bool_kind
from jaxpyop._paths.rewrite.context import noted_number

# Objects of subclasses, such as the members of an `enum.IntEnum`, have methods that a value of the program lacks.
_NUMBERS = (bool, int, float, complex)


def is_value(x: Any) -> bool:
    """Tells whether the program can hold an object."""
    if isinstance(x, (np.ndarray, np.generic)):
        # NumPy computes with its own integers in 64 bits, until they meet an array of JAX. A program would use 32 bits,
        # so they are not values.
        return x.dtype.kind not in "iuUSOV"
    return type(x) in _NUMBERS or isinstance(x, jax.Array)


def is_same_object(a: Any, b: Any) -> bool:
    """Tells whether Python code cannot distinguish two objects. Numbers and strings only have to be equal."""
    if type(a) in (*_NUMBERS, str, bytes):
        # `repr` tells 0.0 from -0.0, which are equal.
        return a is b or (type(a) is type(b) and a == b and (isinstance(a, int) or repr(a) == repr(b)))
    return a is b


def type_of(leaf: Any) -> Any:
    """Returns the type of a value. It is weak for a Python number or bool, and for what stands for one in a program."""
    aval = jax.typeof(leaf)
    weak = aval.weak_type or (aval.dtype == bool and bool_kind_of(leaf) == PYTHON)
    return core.ShapedArray(aval.shape, aval.dtype, weak_type=weak)


def is_mergeable(a: Any, b: Any) -> bool:
    """Tells whether one variable of the program can hold values of two types, one on each of two paths.

    After the paths meet, the program computes in a dtype that fits both values. An array of another dtype would then
    give other results than on its own path. A Python number gives the same results, if the array's dtype is as wide as
    the dtype that JAX gives to Python numbers.
    """
    if a.dtype == b.dtype or (a.weak_type and b.weak_type):
        return True
    weak, strong = (a, b) if a.weak_type else (b, a)
    return weak.weak_type and is_wide(strong.dtype) and "bifc".find(weak.dtype.kind) <= "bifc".find(strong.dtype.kind)


def is_wide(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "ifc" and dtype.itemsize >= 4


def cast(x: Any, dtype: Any, weak: bool) -> Any:
    """Returns a value with this dtype. With `weak`, it gives way to the dtype of others, as a Python number does."""
    x = jax.lax.convert_element_type(x, dtype)
    return weakened(x) if weak else x


def with_type(x: Any, aval: Any, leaf: Any, bool_kind: str) -> Any:
    """Returns a value of a loop's state as the kind of value that Python has in the variable.

    Args:
        x: the value.
        aval: the type of the state, which may be weak.
        leaf: what the variable held before the loop.
        bool_kind: if it is a bool, whether it counts as Python's or as an array's (see `bool_kind_of`).
    """
    if isinstance(x, bool):
        return x
    x = with_origin(with_bool_kind(weakened(x) if aval.weak_type else x, bool_kind), leaf)
    types = types_of(leaf) | {(aval.dtype, aval.weak_type)}
    is_number = any(weak for _, weak in types) and bool_kind_of(leaf) == ARRAY
    return noted_number(x, types) if is_number else x


def with_origin(x: Any, *leaves: Any) -> Any:
    """Returns a new value of the program, and notes whether Python has an array of NumPy's in its place."""
    if isinstance(x, PathTracer):
        x.is_merged = True
        x.is_numpy = any(getattr(leaf, "is_numpy", isinstance(leaf, (np.ndarray, np.generic))) for leaf in leaves)
    return x


def zero_like(aval: Any, leaf: Any) -> Any:
    zero = np.zeros(aval.shape, aval.dtype)
    is_number = aval.weak_type or (aval.dtype == bool and bool_kind_of(leaf) != ARRAY)
    return zero.item() if is_number and not aval.shape else zero

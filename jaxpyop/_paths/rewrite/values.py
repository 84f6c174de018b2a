"""Which Python objects the program can hold as values, and how their types are changed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def is_value(x: Any) -> bool:
    """Tells whether the program can hold an object."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype != object and x.dtype.kind not in "USOV"
    return isinstance(x, (jax.Array, bool, int, float, complex))


def is_same_object(a: Any, b: Any) -> bool:
    """Tells whether two objects are one and the same for Python code: equal if they are numbers or texts."""
    if isinstance(a, (bool, int, float, complex, str, bytes)):
        return a is b or (type(a) is type(b) and a == b)
    return a is b


def cast(x: Any, dtype: Any, weak: bool) -> Any:
    """Returns a value with a dtype, which gives way to others if it is weak."""
    x = jax.lax.convert_element_type(x, dtype)
    return weakened(x) if weak else x


def weakened(x: Any) -> Any:
    """Returns a value that takes the dtype of others, as a Python number does."""
    return jax.lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)

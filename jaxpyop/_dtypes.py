"""Dtypes as JAX takes them: with and without 64 bits, those that have tangents, and those of less than a byte."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jaxpyop._settings import jax_config

# Before 0.10.2, a callback of JAX's gets a wrong last value where packed values do not fill their last byte.
HANDS_OVER_PACKED = jax.__version_info__ >= (0, 10, 2)


def canonical_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the dtype that JAX uses for a value of this dtype here: 64 bits become 32 without x64."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def x64_enabled() -> bool:
    """Tells whether JAX has 64-bit types here and now."""
    return bool(jax_config.jax_enable_x64)


def explicit_x64_mode() -> str:
    """Returns what JAX does where code asks for 64 bits, and they are off: "warn", "error" or "allow"."""
    mode: Any = getattr(jax_config, "jax_explicit_x64_dtypes", "warn")
    return str(getattr(mode, "name", mode)).lower()


def is_wide(dtype: Any) -> bool:
    """Tells whether a dtype has 64 bits, and JAX's settings turn these off here and now."""
    # The dtypes of typed keys are none of NumPy's.
    is_long = isinstance(dtype, np.dtype) and dtype.itemsize >= 8 and not x64_enabled()
    return is_long and canonical_dtype(dtype) != dtype


def with_wide_types(is_wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Gives a block 64-bit types if it needs them, and otherwise changes nothing."""
    return jax.enable_x64(True) if is_wide else contextlib.nullcontext()


def as_wide_as(values: Iterable[Any]) -> contextlib.AbstractContextManager[Any]:
    """Gives a block the 64-bit types that one of its values has, which comes from code that had them."""
    # Python's numbers have no dtype.
    dtypes = [getattr(getattr(value, "aval", value), "dtype", np.dtype(bool)) for value in values]
    return with_wide_types(any(map(is_wide, dtypes)))


def is_inexact(x: Any) -> bool:
    """Tells whether `x` can have a tangent, which means that its dtype is floating or complex."""
    # Every input and result of a recording is asked, and most are NumPy's own floats, which are told in less time.
    return getattr(x.dtype, "kind", None) in ("f", "c") or bool(jax.dtypes.issubdtype(x.dtype, np.inexact))


def is_packed(dtype: Any) -> bool:
    """Tells whether several values of a dtype, such as int4, share a byte in XLA's memory."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return bool(jax.numpy.iinfo(dtype).bits < 8)
    return bool(jax.dtypes.issubdtype(dtype, np.floating) and jax.numpy.finfo(dtype).bits < 8)


def struct_of(x: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape, dtype and weak type of a value, or of the type of one."""
    aval = x if hasattr(x, "shape") and hasattr(x, "dtype") else jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def zeros_of(like: Any) -> jax.Array:
    """Returns zeros of the shape and dtype of `like`."""
    return jax.numpy.zeros(like.shape, like.dtype)

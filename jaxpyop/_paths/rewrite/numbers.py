"""Python numbers in the program: weakly typed scalars, which take the dtype of an array that they are combined with."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._paths.follow import (
    FLOAT_TO_INT,
    LostDerivativeError,
    bounds_of,
    check_numbers,
    limits_of,
    weakened,
    with_bounds,
)
from jaxpyop._paths.rewrite.context import context, refuse


def number_of(x: Any, kind: type) -> Any:
    """Returns a traced number for `int(x)` or `float(x)` of a traced scalar. It has no derivative.

    Whatever the dtype of `x` is, the number has the dtype that JAX gives to Python numbers, because Python would not
    compute in the dtype of `x` either.
    """
    if jax.dtypes.issubdtype(x.dtype, np.complexfloating):
        # The tracer raises the error: there is no int or float of a complex number.
        return kind(x)
    if kind is int and _jaxcore.is_inexact(x):
        refuse(*FLOAT_TO_INT)
    dtype = jax.dtypes.canonicalize_dtype(kind)
    if jax.dtypes.issubdtype(x.dtype, np.integer) and kind is int and not np.can_cast(x.dtype, dtype):
        refuse(
            f"a traced {jax.typeof(x).str_short()} may be too large for a Python number, which is {dtype} in a program",
            f"write x.astype(jnp.{dtype}) where it fits",
        )
    if kind is float:
        check_numbers(x)
        if config.constants == "error" and _jaxcore.is_inexact(x):
            x = _never_differentiated(x, _lost_derivative(x))
    number = weakened(jax.lax.stop_gradient(jax.lax.convert_element_type(x, dtype).reshape(())))
    return with_bounds(number, bounds_of(x) or limits_of(x.dtype))


def _lost_derivative(x: Any) -> str:
    file, line = _jaxcore.users_line()
    return (
        f"{context().title}: {file}:{line}: float(x) makes a constant of a differentiated {jax.typeof(x).str_short()}, "
        "whose derivative is zero. Use x itself, or jax.lax.stop_gradient(x) if you want a constant "
        "(jaxpyop.config.constants is 'error')"
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _never_differentiated(x: Any, text: str) -> Any:
    """Returns `x`. Differentiating it raises an error, because the derivative would be zero without a warning."""
    return x


@_never_differentiated.defjvp
def _raise(text: str, primals: Any, tangents: Any) -> Any:
    raise LostDerivativeError(text)

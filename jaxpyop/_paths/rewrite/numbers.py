"""What stands for a Python number in the program: a weakly typed scalar, which takes the dtype of what it meets."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxpyop._paths.follow import bounds_of, check_numbers, limits_of, with_bounds
from jaxpyop._paths.rewrite.context import refuse
from jaxpyop._paths.rewrite.values import weakened


def number_of(x: Any, kind: type) -> Any:
    """Returns what stands for `int(x)` or `float(x)` of a traced scalar. It has no derivative.

    It is as wide as Python numbers are in JAX, for Python computes with it in its own width.
    """
    if jax.dtypes.issubdtype(x.dtype, np.complexfloating):
        # The tracer refuses this.
        return kind(x)
    dtype = jax.dtypes.canonicalize_dtype(kind)
    if jax.dtypes.issubdtype(x.dtype, np.integer) and kind is int and not np.can_cast(x.dtype, dtype):
        refuse(
            f"a traced {jax.typeof(x).str_short()} may be too large for a Python number, which is {dtype} in a program",
            f"write x.astype(jnp.{dtype}) where it fits",
        )
    if kind is float:
        check_numbers(x)
    number = weakened(jax.lax.stop_gradient(jax.lax.convert_element_type(x, dtype).reshape(())))
    return with_bounds(number, bounds_of(x) or limits_of(x.dtype))

"""What type checkers see: pyright reads this file, and an `assert_type` that does not hold is an error."""

from collections.abc import Callable
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop


@jaxpyop.py_function(Tout=jnp.float32)
def scaled(x: jax.Array, by: float = 2.0) -> jax.Array:
    """Multiply."""
    return x * by


@jaxpyop.numpy_function(Tout=jnp.float32, vmap_method="expand_dims")
def median(x: np.ndarray[Any, Any]) -> np.floating[Any]:
    """Find the middle."""
    return np.median(x)


class Model:
    """A class whose method is an op."""

    @jaxpyop.py_func(Tout=None)
    def log(self, x: jax.Array, *, name: str) -> None:
        """Write a value down."""


def uses() -> None:
    """Calls that are right."""
    assert_type(scaled(jnp.ones(2), by=3.0), Any)
    Model().log(jnp.ones(2), name="x")
    assert_type(jaxpyop.py_function(lambda x: x, [1.0], jnp.float32), Any)
    decorator: Callable[[Callable[..., Any]], Callable[..., Any]] = jaxpyop.numpy_function(Tout=jnp.float32)
    del decorator


def mistakes() -> None:
    """Calls that are wrong, which a checker has to see: otherwise the comment itself is an error."""
    scaled(jnp.ones(2), to=3.0)  # pyright: ignore[reportCallIssue]
    median()  # pyright: ignore[reportCallIssue]
    Model().log(jnp.ones(2), name=1)  # pyright: ignore[reportArgumentType]

"""`padded`: results whose length only the function knows.

A program's arrays have fixed shapes. A promise of at most so many is kept with an array of that many, padded, and
the true lengths beside it, as `jnp.nonzero(x, size=...)` does.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple


class Padded(NamedTuple):
    """What an op returns for a `padded` leaf of `Tout`: the values, and how much of them is real."""

    values: Any
    lengths: Any


class Padding:
    """A promise that `padded` made: at most this shape. To be used as a leaf of `Tout`."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], fill_value: Any, axes: tuple[int, ...], *, several: bool):
        self.dtype = dtype
        self.most = shape
        self.fill_value = fill_value
        self.axes = axes
        self.several = several

    def __repr__(self) -> str:
        name = getattr(self.dtype, "name", getattr(self.dtype, "__name__", self.dtype))
        shape = self.most[0] if len(self.most) == 1 else self.most
        axis = f", axis={self.axes}" if self.several else f", axis={self.axes[0]}" if self.axes != (0,) else ""
        return f"padded({name}, {shape}{axis})"


def padded(dtype: Any, shape: int | Sequence[int], fill_value: Any = 0, *, axis: int | Sequence[int] = 0) -> Any:
    """Promise an array of at most some shape: a leaf of `Tout`.

    For results whose length only the function knows, such as the boxes that
    non-maximum suppression keeps. `func` returns an array, or a list, of any
    length up to the one promised; the op returns a named tuple ``(values,
    lengths)``: the array padded to `shape`, and its true length. TensorFlow's
    ``tf.numpy_function`` returns arrays of any length; this is the meaning of
    ``size`` and ``fill_value`` of :func:`jax.numpy.nonzero`, but more than the
    maximum is an error. Gradients are those of the real part. Under
    ``vmap`` each element has its length; under the methods ``"expand_dims"`` and
    ``"broadcast_all"`` `func` returns one array for the batch, and its length is that
    of all elements.

    Args:
        dtype: of the values, in any form that `Tout` takes.
        shape: the shape of the result, with the maximum on the axes that vary.
        fill_value: what the rest is filled with; `dtype` must hold it.
        axis: which axis varies, the first by default; or a tuple of several.

    Returns:
        A leaf for `Tout`. The op's result in its place is a named tuple of
        ``values`` (`dtype`, `shape`) and ``lengths``, int32: a scalar, or one
        per axis for a tuple.

    Raises:
        TypeError: a shape or an axis that is no integer.
        ValueError: a negative size, or an axis that `shape` does not have.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> def positive(x):
        ...     return np.flatnonzero(x > 0)
        >>> tout = jaxpyop.padded(jnp.int32, 4, fill_value=-1)
        >>> where = jax.jit(lambda x: jaxpyop.numpy_function(positive, [x], tout))
        >>> found = where(jnp.array([1.0, -2.0, 3.0]))
        >>> print(found.values, found.lengths)
        [ 0  2 -1 -1] 2
    """
    sizes = _integers(shape, "shape")
    several = not _is_integer(axis)
    axes = _integers(axis, "axis")
    if not sizes or min(sizes) < 0:
        raise ValueError(f"padded: shape is {shape!r}; expected sizes of zero and more, such as 100 or (100, 4)")
    if (
        not axes
        or any(not -len(sizes) <= k < len(sizes) for k in axes)
        or len({k % len(sizes) for k in axes}) < len(axes)
    ):
        raise ValueError(f"padded: axis is {axis!r}; expected an axis of shape {sizes}, or a tuple of several")
    return Padding(dtype, sizes, fill_value, tuple(k % len(sizes) for k in axes), several=several)


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0


def _integers(value: Any, what: str) -> tuple[int, ...]:
    try:
        return (operator.index(value),) if _is_integer(value) else tuple(operator.index(k) for k in value)
    except TypeError:
        raise TypeError(f"padded: {what} is {value!r}; expected an integer, or a tuple of integers") from None

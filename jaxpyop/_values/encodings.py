"""Results that an op returns in another form than its function: padded arrays (`padded`), and typed keys.

`encode` is called between a function and its op, and `decode` between the op's cotangents and the function's rule.

There are two encodings, `Padding` and `KeyEncoding`, with these methods:

- `op_leaves` gives the leaves of the op's arrays, in the structure that the op returns.
- `data_shape` is what comes after the shape of the function's value in the shape of the op's array.
- `encode` gives the op's arrays for a value that the function returned, after the batch axes `lead`.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore, _settings
from jaxpyop._values.spec import Leaf


def encode(op: Any, values: Sequence[Any], convert: Callable[..., Any], lead: tuple[int, ...]) -> list[Any]:
    """Turn the values that an op's function returned into the op's arrays.

    Args:
        op: the op.
        values: one for each leaf that the function returns.
        convert: `convert(op, k, value, leaf)` makes an array of the value of leaf `k`.
        lead: the batch axes that the values have in front.
    """
    arrays: list[Any] = []
    for k, (value, leaf) in enumerate(zip(values, op.spec.returned.leaves)):
        if leaf.encoding is None:
            arrays.append(convert(op, k, value, leaf))
        else:
            # The encoding itself checks the shape.
            bare = dataclasses.replace(leaf, shape=None, encoding=None)
            make = functools.partial(convert, op, k, leaf=bare)
            arrays += leaf.encoding.encode(value, make, lead, op.origin_of_result(k), op.title)
    return arrays


def decode(op: Any, arrays: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
    """Turn the op's results, or the cotangents of `results`, into the form that its function returns."""
    found, at = [], 0
    for leaf in op.spec.returned.leaves:
        part = slice(at, at + leaf.arrays)
        found.append(leaf.encoding.decode(arrays[part], results[part]) if leaf.arrays > 1 else arrays[at])
        at = part.stop
    return tuple(found)


class Padded(NamedTuple):
    """The result of an op for a `padded` leaf of `Tout`: the padded values, and their true lengths."""

    values: Any
    lengths: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Padding:
    """A leaf of `Tout` that `padded` made: an array of at most this shape.

    One array of the function is two of the op: the array, padded, and its lengths.

    Attributes:
        dtype: as the user gave it.
        most: the largest shape.
        fill_value: as the user gave it.
        axes: the axes that vary.
        several: whether a tuple of axes was given, so that there are several lengths.
        fill: the fill value in the dtype of the op's array, once `Tout` is read.
    """

    dtype: Any
    most: tuple[int, ...]
    fill_value: Any
    axes: tuple[int, ...]
    several: bool
    fill: Any = None
    arrays = 2
    data_shape = ()

    def __repr__(self) -> str:
        name = getattr(self.dtype, "name", getattr(self.dtype, "__name__", self.dtype))
        shape = self.most[0] if len(self.most) == 1 else self.most
        axis = f", axis={self.axes}" if self.several else f", axis={self.axes[0]}" if self.axes != (0,) else ""
        return f"padded({name}, {shape}{axis})"

    def op_leaves(self) -> Any:
        count = (len(self.axes),) if self.several else ()
        return Padded(Leaf(self.fill.dtype, self.most, fill=self.fill), Leaf(np.dtype(np.int32), count))

    def encode(
        self, value: Any, convert: Callable[[Any], Any], lead: tuple[int, ...], origin: str, title: str
    ) -> list[Any]:
        array = convert(value)
        most, shape = self.most, array.shape[len(lead) :]
        if len(shape) != len(most) or array.shape[: len(lead)] != lead:
            raise ValueError(f"{title}: {origin} shape {array.shape} where {self} allows at most {(*lead, *most)}")
        for axis, (size, bound) in enumerate(zip(shape, most)):
            varies = axis in self.axes
            if size > bound or (size < bound and not varies):
                allowed = f"at most {bound}; declare more, or return the first {bound}"
                fixed = f"just {bound}; if that varies too, write axis={(*self.axes, axis)}"
                raise ValueError(
                    f"{title}: {origin} {size} along axis {axis} where {self} allows {allowed if varies else fixed}"
                )
        found = [shape[axis] for axis in self.axes]
        lengths = np.array(found if self.several else found[0], np.int32)
        return [self._filled_up(array, lead), np.broadcast_to(lengths, (*lead, *lengths.shape)).copy()]

    def _filled_up(self, array: Any, lead: tuple[int, ...]) -> Any:
        whole = (*lead, *self.most)
        if array.shape == whole:
            return array
        # A derivative is taken, or the function is traced.
        if isinstance(array, _jaxcore.Tracer):
            margins = [(0, most - size, 0) for size, most in zip(array.shape, whole)]
            return jax.lax.pad(array, jnp.asarray(self.fill), margins)
        filled = np.full(whole, self.fill, self.fill.dtype)
        filled[tuple(slice(size) for size in array.shape)] = np.asarray(array)
        return filled if isinstance(array, np.ndarray) else _settings.with_transfers(jnp.asarray, filled)

    def decode(self, arrays: Sequence[Any], results: Sequence[Any]) -> Any:
        """The function's value for the op's `results`; or the value's cotangent, if `arrays` are cotangents."""
        lengths = dict(zip(self.axes, np.ravel(np.asarray(results[1]))))
        return arrays[0][tuple(slice(lengths.get(axis)) for axis in range(arrays[0].ndim))]


class KeyEncoding:
    """Typed keys are their data in the op, and become keys again where the user gets them."""

    arrays = 1

    def __init__(self, dtype: Any, shape: Any) -> None:
        self.dtype = dtype
        self.shape = shape
        # Only a traced key tells its implementation, and the shape of its data.
        impls: list[Any] = []
        data = jax.eval_shape(
            lambda key: (impls.append(jax.random.key_impl(key)), jax.random.key_data(key))[1],
            jax.ShapeDtypeStruct((), dtype),
        )
        self.impl, self.data_shape = impls[0], data.shape

    def op_leaves(self) -> Any:
        shape = None if self.shape is None else (*self.shape, *self.data_shape)
        return Leaf(np.dtype(np.uint32), shape, self)

    def encode(
        self, value: Any, convert: Callable[[Any], Any], lead: tuple[int, ...], origin: str, title: str
    ) -> list[Any]:
        dtype = getattr(value, "dtype", None)
        if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            return [convert(value)]
        if dtype != self.dtype:
            raise TypeError(f"{title}: {origin} keys of {dtype} where Tout declares {self.dtype}")
        return [jax.random.key_data(value)]

    def wrap(self, value: Any) -> Any:
        """One of the op's results as the user gets it."""
        return jax.random.wrap_key_data(value, impl=self.impl)


def padded(dtype: Any, shape: int | Sequence[int], fill_value: Any = 0, *, axis: int | Sequence[int] = 0) -> Any:
    """Declare a result whose length only the function knows, up to a maximum.

    An example is the list of boxes that non-maximum suppression keeps. `func` returns
    an array or a list of any length up to the maximum. The op pads it, and returns a
    named tuple ``(values, lengths)``: the padded array and its true length.
    TensorFlow's ``tf.numpy_function`` may return arrays of any length; a JAX program
    cannot contain them. `shape` and `fill_value` work like ``size`` and ``fill_value``
    of :func:`jax.numpy.nonzero`, but more items than the maximum raise an error.

    Gradients flow through the values that `func` returned, and not through the
    padding. Under ``vmap`` each element has its own length. With ``"expand_dims"`` and
    ``"broadcast_all"``, `func` returns one array for the whole batch, and all elements
    have the same length.

    Args:
        dtype: the dtype of the values, in any form that `Tout` accepts.
        shape: the shape of the padded result, with the maximum on each axis that varies.
        fill_value: the value of the padding. `dtype` must be able to represent it.
        axis: the axis that varies, or a tuple of several axes.

    Returns:
        A leaf for `Tout`. In its place, the op returns a named tuple of ``values``, with
        this dtype and shape, and ``lengths`` (int32): a scalar, or one length per axis
        if `axis` is a tuple.

    Raises:
        TypeError: `shape` or `axis` is not made of integers.
        ValueError: a size is negative, or `shape` has no such axis.

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
    several = isinstance(axis, (tuple, list))
    axes = _integers(axis, "axis")
    counted = tuple(k % len(sizes) for k in axes if -len(sizes) <= k < len(sizes))
    if not sizes or min(sizes) < 0 or not axes or len(set(counted)) < len(axes):
        raise ValueError(
            f"padded: shape is {shape!r}, and axis is {axis!r}; expected sizes of zero and more, such as 100 or "
            "(100, 4), and one of their axes, or a tuple of several"
        )
    return Padding(dtype, sizes, fill_value, counted, several)


def _integers(value: Any, what: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(k) for k in (value if isinstance(value, (tuple, list)) else (value,)))
    except TypeError:
        raise TypeError(f"padded: {what} is {value!r}; expected an integer, or a tuple of integers") from None

"""Results that an op returns in another form than its function: padded arrays, and typed keys.

`Tout` is then read twice: as the function returns (`ResultSpec.returned`, whose leaves have a form), and as the
arrays that the op has (`ResultSpec.leaves`), of which a form may have several. Between a body and its op each form
turns the one into the other.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore

Convert = Callable[[Any], Any]


class PaddedForm:
    """An array, padded, and its lengths."""

    arrays = 2

    def __init__(self, padding: Padding, dtype: Any) -> None:
        self.padding = padding
        self.fill = np.asarray(padding.fill_value).astype(dtype)

    def promise(self, leaf: Any, make: Callable[..., Any]) -> Any:
        """The leaves of the op's arrays."""
        count = (len(self.padding.axes),) if self.padding.several else ()
        return Padded(make(self.fill.dtype, self.padding.most, fill=self.fill), make(np.dtype(np.int32), count))

    def with_shape(self, leaf: Any, shape: Any, api: str) -> Any:
        """The leaf, of which `output_shapes` says this."""
        if len(shape) != len(self.padding.most) or any(k not in (None, m) for k, m in zip(shape, self.padding.most)):
            raise ValueError(f"{api}: {self.padding} and output_shapes={shape} contradict each other; write None there")
        return leaf

    def shapes(self, inferred: Any) -> list[Any]:
        return [self.padding.most, ()]

    def inward(self, value: Any, convert: Convert, lead: tuple[int, ...], which: str, title: str) -> list[Any]:
        """The op's arrays of what the function returned."""
        array = convert(value)
        shape = array.shape[len(lead) :]
        self._check(array.shape, lead, which, title)
        lengths = [shape[axis] for axis in self.padding.axes]
        own = np.array(lengths if self.padding.several else lengths[0], np.int32)
        return [self._filled(array, lead), np.broadcast_to(own, (*lead, *own.shape)).copy()]

    def _check(self, shape: tuple[int, ...], lead: tuple[int, ...], which: str, title: str) -> None:
        most = self.padding.most
        own = shape[len(lead) :]
        if len(own) != len(most) or shape[: len(lead)] != lead:
            wanted = (*lead, *most)
            raise ValueError(f"{title}: {which} shape {shape} where {self.padding} promises at most {wanted}")
        for axis, (size, bound) in enumerate(zip(own, most)):
            if size > bound and axis in self.padding.axes:
                wider = [2 ** math.ceil(math.log2(n)) if n > s else s for s, n in zip(most, own)]
                raise ValueError(
                    f"{title}: {which} {size} along axis {axis} where {self.padding} promises at most {bound}; promise "
                    f"more, such as the shape {tuple(wider)}, or return the first {bound}"
                )
            if size != bound and axis not in self.padding.axes:
                raise ValueError(
                    f"{title}: {which} shape {own} where {self.padding} promises {bound} along axis {axis}; "
                    f"if that varies too, write axis={(*self.padding.axes, axis)}"
                )

    def _filled(self, array: Any, lead: tuple[int, ...]) -> Any:
        whole = (*lead, *self.padding.most)
        if array.shape == whole:
            return array
        if isinstance(array, _jaxcore.Tracer):  # a derivative passes through; and in mode="traced"
            return jax.lax.pad(
                array, jnp.asarray(self.fill), [(0, most - size, 0) for size, most in zip(array.shape, whole)]
            )
        filled = np.full(whole, self.fill, self.fill.dtype)
        filled[tuple(slice(size) for size in array.shape)] = np.asarray(array)
        return filled if isinstance(array, np.ndarray) else _jaxcore.with_transfers(jnp.asarray, filled)

    def outward(self, arrays: Sequence[Any], like: Sequence[Any]) -> Any:
        """The real part of the values, or of their cotangents, as the function knows them."""
        lengths = np.ravel(np.asarray(like[1]))
        real = dict(zip(self.padding.axes, lengths))
        return arrays[0][tuple(slice(real.get(axis)) for axis in range(arrays[0].ndim))]

    def wrap(self, value: Any) -> Any:
        return value


class KeyForm:
    """Typed keys, which the op has as their data."""

    arrays = 1

    def __init__(self, dtype: Any, shape: Any) -> None:
        impls: list[Any] = []
        data = jax.eval_shape(
            lambda key: (impls.append(jax.random.key_impl(key)), jax.random.key_data(key))[1],
            jax.ShapeDtypeStruct((), dtype),
        )
        self.dtype = dtype
        self.impl = impls[0]
        self.inner = tuple(data.shape)
        self.shape = shape

    def promise(self, leaf: Any, make: Callable[..., Any]) -> Any:
        """The leaves of the op's arrays."""
        return make(np.dtype(np.uint32), None if self.shape is None else (*self.shape, *self.inner), form=self)

    def with_shape(self, leaf: Any, shape: Any, api: str) -> Any:
        """The leaf, of which `output_shapes` says this."""
        if self.shape is not None and shape != self.shape:
            raise ValueError(f"{api}: Tout says keys of shape {self.shape} and output_shapes says {shape}; give one")
        return dataclasses.replace(leaf, form=KeyForm(self.dtype, shape))

    def shapes(self, inferred: Any) -> list[Any]:
        return [None if inferred is None else (*inferred, *self.inner)]

    def inward(self, value: Any, convert: Convert, lead: tuple[int, ...], which: str, title: str) -> list[Any]:
        """The op's arrays of what the function returned."""
        dtype = getattr(value, "dtype", None)
        if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            if dtype != self.dtype:
                raise TypeError(f"{title}: {which} keys of {dtype} where Tout promises {self.dtype}")
            return [jax.random.key_data(value)]
        return [convert(value)]

    def outward(self, arrays: Sequence[Any], like: Sequence[Any]) -> Any:
        return arrays[0]

    def wrap(self, value: Any) -> Any:
        return jax.random.wrap_key_data(value, impl=self.impl)


def inward(op: Any, values: Sequence[Any], convert: Callable[[int, Any, Any], Any], lead: tuple[int, ...]) -> list[Any]:
    """The op's arrays of what its function returned; `convert` is given an index, a value and a leaf."""
    arrays: list[Any] = []
    for k, (value, leaf) in enumerate(zip(values, op.spec.returned.leaves)):
        if leaf.form is None:
            arrays.append(convert(k, value, leaf))
        else:
            bare = dataclasses.replace(leaf, shape=None, form=None)
            arrays += leaf.form.inward(
                value, lambda v, k=k, bare=bare: convert(k, v, bare), lead, op.which_returned(k), op.title
            )
    return arrays


def outward(op: Any, arrays: Sequence[Any], like: Sequence[Any]) -> tuple[Any, ...]:
    """The op's arrays as its function knows them: results, or with results in `like` their cotangents."""
    found, at = [], 0
    for leaf in op.spec.returned.leaves:
        count = 1 if leaf.form is None else leaf.form.arrays
        part = slice(at, at + count)
        found.append(arrays[at] if leaf.form is None else leaf.form.outward(arrays[part], like[part]))
        at += count
    return tuple(found)


def outer_shapes(leaves: Sequence[Any], inferred: Sequence[Any]) -> list[Any]:
    """The shapes of the op's arrays where these are those of what func returns."""
    parts = ([shape] if leaf.form is None else leaf.form.shapes(shape) for leaf, shape in zip(leaves, inferred))
    return [shape for part in parts for shape in part]


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

"""Results that an op returns in another form than its function: padded arrays, and typed keys.

`Tout` is then read twice: as the function returns (`ResultSpec.returned`, whose leaves have a form), and as the
arrays that the op has (`ResultSpec.leaves`), of which a form may have several. Between a body and its op each form
turns the one into the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._op.padded import Padded, Padding

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

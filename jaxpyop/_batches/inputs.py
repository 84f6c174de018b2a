"""Cuts the inputs of a sweep into blocks: arrays with a common leading axis, or an iterable of elements.

A block is a list of arrays, one for each leaf of an element, in the dtypes that JAX has for them. They are copies, so
that what is compared between runs is what is computed, even if somebody writes to a memory-mapped file at that time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes

API = "jaxpyop.map_batches"
Array: TypeAlias = np.ndarray[Any, Any]


class Struct(NamedTuple):
    """The type of a leaf of an element. A PRNG key has that of its data, and the name of its algorithm."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: str | None


def read_inputs(inputs: Any, size: int) -> Arrays | Elements:
    """Returns what the user passed as `inputs`, which is either a pytree of arrays or an iterable of elements.

    Raises:
        TypeError: it is neither, or a list, which could be both.
    """
    if isinstance(inputs, list):
        raise TypeError(
            f"{API}: inputs is a list; expected a tuple or dict of arrays whose leading axes are the elements, or an "
            "iterable of elements: write tuple(inputs) or iter(inputs)"
        )
    # JAX warns of an iterable that it takes as a leaf.
    is_leaf = lambda x: jax.tree_util.default_registry.flatten_one_level(x) is None
    leaves = jax.tree.leaves(inputs, is_leaf=is_leaf)
    if not leaves:
        raise ValueError(f"{API}: inputs has no arrays")
    if all(hasattr(x, "shape") and hasattr(x, "dtype") and hasattr(x, "__getitem__") for x in leaves):
        return Arrays(inputs, size)
    # Whoever passes a mapping, or a table, does not mean its keys.
    is_iterable = isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes)) and not hasattr(inputs, "keys")
    if is_leaf(inputs) and is_iterable:
        return Elements(inputs, size)
    raise TypeError(
        f"{API}: inputs is of type {type(inputs).__qualname__}: {str(inputs)[:60]}; expected a pytree of arrays whose "
        "leading axes are the elements, or an iterable of elements"
    )


class Arrays:
    """Arrays, memory-mapped arrays, or what else has a shape and is sliced into arrays, such as a dataset of h5py.

    Attributes:
        tree: the structure of an element.
        structs: the type of each leaf of an element.
        length: how many elements there are.
    """

    def __init__(self, inputs: Any, size: int) -> None:
        named, self.tree = jax.tree_util.tree_flatten_with_path(inputs)
        self._names = ["inputs" + jax.tree_util.keystr(path) for path, _ in named]
        self._size = size
        for name, (_, leaf) in zip(self._names, named):
            _check_width(leaf, name)
            if not leaf.shape:
                raise ValueError(f"{API}: {name} is a scalar; expected an array whose leading axis is the elements")
        # A slice of a jax.Array would be compiled for each block.
        self._leaves = [data_of(leaf) if isinstance(leaf, jax.Array) else leaf for _, leaf in named]
        lengths = {name: leaf.shape[0] for name, leaf in zip(self._names, self._leaves)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{API}: the leading axes of inputs differ: {lengths}")
        self.length = int(next(iter(lengths.values())))
        first = self._cut(slice(0, 0))
        self.structs = [Struct(x.shape[1:], x.dtype, _key_of(leaf)) for x, (_, leaf) in zip(first, named)]

    def blocks(self) -> Iterator[list[Array]]:
        """Returns the blocks in turn."""
        for number in range(-(-self.length // self._size)):
            yield self.again(number)

    def again(self, number: int) -> list[Array]:
        """Returns one of the blocks."""
        part = slice(number * self._size, min((number + 1) * self._size, self.length))
        block = self._cut(part)
        for name, x, struct in zip(self._names, block, self.structs):
            if (x.shape, x.dtype) != ((part.stop - part.start, *struct.shape), struct.dtype):
                raise TypeError(f"{API}: {name}[{part.start}:{part.stop}] is {x.dtype}{list(x.shape)}")
        return block

    def _cut(self, part: slice) -> list[Array]:
        return [_as_jax_has_it(data_of(leaf[part]), name) for name, leaf in zip(self._names, self._leaves)]


class Elements:
    """An iterable of elements, which are pytrees of arrays and numbers. The attributes are those of `Arrays`."""

    length = None

    def __init__(self, inputs: Iterable[Any], size: int) -> None:
        self._inputs = inputs
        self._size = size
        self._iterator = iter(inputs)
        self._first = list(itertools.islice(self._iterator, 1))
        if not self._first:
            raise ValueError(f"{API}: inputs has no elements, so that the types of the results are not known")
        leaves, self.tree = jax.tree.flatten(self._first[0])
        if not leaves:
            raise ValueError(f"{API}: element 0 of inputs has no arrays")
        for leaf in leaves:
            _check_width(leaf, "element 0 of inputs")
        self._types, self._kinds = list(map(_type_of, leaves)), list(map(_kind_of, leaves))
        self._dtypes = [data_of(x).dtype for x in leaves]
        data = [_as_jax_has_it(data_of(x), "element 0 of inputs") for x in leaves]
        self.structs = [Struct(x.shape, x.dtype, _key_of(leaf)) for x, leaf in zip(data, leaves)]

    def blocks(self) -> Iterator[list[Array]]:
        """Returns the blocks in turn."""
        return self._cut(itertools.chain(self._first, self._iterator), 0)

    def again(self, number: int) -> list[Array]:
        """Returns one of the blocks that `blocks` has returned; no arrays if there are fewer elements now."""
        first = number * self._size
        if self._iterator is self._inputs:
            raise RuntimeError(
                f"{API}: the process that was computing elements from {first} on has ended, and inputs is an iterator, "
                "which cannot be read again here; call map_batches again, which computes what is missing"
            )
        return next(self._cut(itertools.islice(self._inputs, first, None), first), [])

    def _cut(self, elements: Iterator[Any], first: int) -> Iterator[list[Array]]:
        for start in itertools.count(first, self._size):
            rows = [self._leaves_of(x, start + k) for k, x in enumerate(itertools.islice(elements, self._size))]
            if not rows:
                return
            block = list(map(np.array, zip(*rows)))
            if (dtypes := [x.dtype for x in block]) != self._dtypes:
                # Such as a large integer.
                raise TypeError(f"{API}: inputs from element {start} on has {dtypes}, and element 0 {self._dtypes}")
            yield [_as_jax_has_it(x, f"inputs from element {start}") for x in block]

    def _leaves_of(self, element: Any, number: int) -> list[Any]:
        leaves, tree = jax.tree.flatten(element)
        # A copy, because the iterable may yield the same array again and again, each time with other values.
        if tree == self.tree and list(map(_kind_of, leaves)) == self._kinds:
            return [x.copy() if type(x) is np.ndarray else x for x in leaves]
        types = list(map(_type_of, leaves))
        if tree != self.tree or types != self._types:
            raise TypeError(
                f"{API}: element {number} of inputs is not of the type of element 0: it has {types} in {tree}, and "
                f"element 0 has {self._types} in {self.tree}"
            )
        return [np.array(data_of(x)) for x in leaves]


def with_keys(structs: Sequence[Struct]) -> Callable[..., list[Any]]:
    """Returns a function that makes PRNG keys of their data, among the leaves of an element."""
    wrap = lambda x, struct: x if struct.key is None else jax.random.wrap_key_data(x, impl=struct.key)
    return lambda *leaves: list(map(wrap, leaves, structs))


def bytes_of(x: Array) -> memoryview:
    """Returns the bytes of an array, of whatever dtype."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


def is_key(x: Any) -> bool:
    """Whether an array, or the type of one, is of PRNG keys."""
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _key_of(x: Any) -> str | None:
    return str(jax.random.key_impl(x)) if isinstance(x, jax.Array) and is_key(x) else None


def data_of(x: Any) -> Array:
    """Returns a value as an array of NumPy: that of a PRNG key is its data."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{API}: inputs has a masked array, which JAX does not have; pass the data and the mask")
    return np.asarray(x if _key_of(x) is None else jax.random.key_data(x))


def _kind_of(x: Any) -> Any:
    """Returns what tells that a value is of the same type as another one, if it is a number, or an array of NumPy's."""
    kind = type(x)
    if kind is np.ndarray:
        return x.dtype, x.shape
    # Anything else equals nothing.
    return kind if kind in _NUMBERS or issubclass(kind, np.generic) else object()


_NUMBERS = {bool, int, float, complex}


def _type_of(x: Any) -> tuple[str, tuple[int, ...]]:
    x = x if hasattr(x, "dtype") and hasattr(x, "shape") else np.asarray(x)
    return str(x.dtype), tuple(x.shape)


def _check_width(leaf: Any, what: str) -> None:
    """Refuses a jax.Array of 64 bits where JAX has 64 bits turned off: its own functions would not convert it."""
    if isinstance(leaf, jax.Array) and not is_key(leaf) and _dtypes.is_wide(leaf.dtype):
        raise TypeError(
            f"{API}: {what} is a jax.Array of {leaf.dtype}; enable 64-bit types of JAX, or convert it before"
        )


def _as_jax_has_it(x: Array, what: str) -> Array:
    """Returns a copy of an array in the dtype that it has in JAX: without 64 bits, 64-bit dtypes become 32-bit ones.

    Raises:
        TypeError: it is no array of numbers.
        OverflowError: an integer does not fit.
    """
    if x.dtype.kind == "m" or not (jnp.issubdtype(x.dtype, np.number) or x.dtype == np.bool_):
        raise TypeError(f"{API}: {what} has the dtype {x.dtype}; expected numbers")
    dtype = _dtypes.canonical_dtype(x.dtype.newbyteorder("="))
    if x.size and x.dtype != dtype and x.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if x.min() < limits.min or x.max() > limits.max:
            raise OverflowError(
                f"{API}: {what} has integers from {x.min()} to {x.max()}, which do not fit {dtype}; enable 64-bit "
                "types of JAX"
            )
    return np.array(x, dtype, order="C")

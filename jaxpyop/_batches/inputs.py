"""Cuts the inputs of a sweep into blocks: arrays with a common leading axis, or an iterable of elements.

A block is a list of arrays, one for each leaf of an element, in the dtypes that JAX has for them. They are copies, so
that what is compared between runs is what is computed, even if somebody writes to a memory-mapped file at that time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

API = "jaxpyop.map_batches"


class Struct(NamedTuple):
    """The type of a leaf of an element. For a PRNG key, it is that of the key's data, with the name of the algorithm."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: str | None


class Inputs(Protocol):
    """The elements of a sweep.

    Attributes:
        tree: the structure of an element.
        structs: the type of each leaf of an element.
        length: how many elements there are; None if that is not known.
    """

    tree: Any
    structs: Sequence[Struct]
    length: int | None

    def blocks(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        """Returns the blocks in turn."""
        ...

    def again(self, number: int) -> list[np.ndarray[Any, Any]]:
        """Returns one of the blocks that `blocks` has returned."""
        ...


def read_inputs(inputs: Any, batch_size: int) -> Inputs:
    """Returns what the user passed as `inputs`, which is either a pytree of arrays or an iterable of elements.

    Raises:
        TypeError: it is neither, or a list, which could be both.
    """
    if isinstance(inputs, list):
        raise TypeError(
            f"{API}: inputs is a list; expected a tuple or dict of arrays whose leading axes are the elements, or an "
            "iterable of elements: write tuple(inputs) or iter(inputs)"
        )
    leaves, tree = jax.tree.flatten(inputs, is_leaf=_is_no_container)
    if not leaves:
        raise ValueError(f"{API}: inputs has no arrays")
    if all(hasattr(x, "shape") and hasattr(x, "dtype") and hasattr(x, "__getitem__") for x in leaves):
        return _Arrays(inputs, batch_size)
    if jax.tree_util.treedef_is_leaf(tree) and isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes)):
        return _Elements(inputs, batch_size)
    raise TypeError(
        f"{API}: inputs is {_shown(inputs)}; expected a pytree of arrays whose leading axes are the elements, or an "
        "iterable of elements"
    )


class _Arrays:
    """Arrays, memory-mapped arrays, or what else has a shape and is sliced into arrays, such as a dataset of h5py."""

    def __init__(self, inputs: Any, batch_size: int) -> None:
        named, self.tree = jax.tree_util.tree_flatten_with_path(inputs)
        self._names = ["inputs" + jax.tree_util.keystr(path) for path, _ in named]
        self._size = batch_size
        self._leaves: list[Any] = []
        keys: list[str | None] = []
        for name, (_, leaf) in zip(self._names, named):
            if not leaf.shape:
                raise ValueError(f"{API}: {name} is a scalar; expected an array whose leading axis is the elements")
            key = _key_of(leaf)
            # A slice of a jax.Array would be compiled for each block.
            self._leaves.append(_without_key(leaf) if isinstance(leaf, jax.Array) else leaf)
            keys.append(key)
        lengths = {name: leaf.shape[0] for name, leaf in zip(self._names, self._leaves)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{API}: the leading axes of inputs differ: {lengths}")
        self.length = int(next(iter(lengths.values())))
        empty = [_as_jax_has_it(np.asarray(leaf[:0]), name) for name, leaf in zip(self._names, self._leaves)]
        self.structs = [Struct(x.shape[1:], x.dtype, key) for x, key in zip(empty, keys)]

    def blocks(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        return map(self.again, range(-(-self.length // self._size)))

    def again(self, number: int) -> list[np.ndarray[Any, Any]]:
        part = slice(number * self._size, (number + 1) * self._size)
        return [_as_jax_has_it(np.asarray(leaf[part]), name) for name, leaf in zip(self._names, self._leaves)]


class _Elements:
    """An iterable of elements, each of which is a pytree of arrays and numbers."""

    length = None

    def __init__(self, inputs: Iterable[Any], batch_size: int) -> None:
        self._inputs = inputs
        self._size = batch_size
        self._iterator = iter(inputs)
        self._first = list(itertools.islice(self._iterator, 1))
        if not self._first:
            raise ValueError(f"{API}: inputs has no elements, so that the types of the results are not known")
        leaves, self.tree = jax.tree.flatten(self._first[0])
        if not leaves:
            raise ValueError(f"{API}: element 0 of inputs has no arrays: {_shown(self._first[0])}")
        self._given = [_type_of(x) for x in leaves]
        columns = [_as_jax_has_it(_without_key(x)[None], "element 0 of inputs") for x in leaves]
        self.structs = [Struct(x.shape[1:], x.dtype, _key_of(leaf)) for x, leaf in zip(columns, leaves)]

    def blocks(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        return self._cut(itertools.chain(self._first, self._iterator), 0)

    def again(self, number: int) -> list[np.ndarray[Any, Any]]:
        if self._iterator is self._inputs:
            raise RuntimeError(
                f"{API}: the process that was computing elements {number * self._size} and following has ended, and "
                "inputs is an iterator, which cannot be read again here; call map_batches again, which computes "
                "what is missing"
            )
        elements = itertools.islice(self._inputs, number * self._size, None)
        return next(self._cut(elements, number * self._size), [])

    def _cut(self, elements: Iterator[Any], first: int) -> Iterator[list[np.ndarray[Any, Any]]]:
        for start in itertools.count(first, self._size):
            rows = [self._leaves_of(x, start + k) for k, x in enumerate(itertools.islice(elements, self._size))]
            if not rows:
                return
            yield [_as_jax_has_it(np.stack(column), f"inputs from element {start}") for column in zip(*rows)]

    def _leaves_of(self, element: Any, number: int) -> list[np.ndarray[Any, Any]]:
        leaves, tree = jax.tree.flatten(element)
        types = [_type_of(x) for x in leaves]
        if tree != self.tree or types != self._given:
            raise TypeError(
                f"{API}: element {number} of inputs is not of the type of element 0: it has {types} in {tree}, and "
                f"element 0 has {self._given} in {self.tree}"
            )
        return list(map(_without_key, leaves))


def _is_no_container(x: Any) -> bool:
    # JAX warns of an iterable that it takes as a leaf.
    return jax.tree_util.default_registry.flatten_one_level(x) is None


def _shown(value: Any) -> str:
    return f"of type {type(value).__qualname__}: {str(value)[:60]}"


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _key_of(x: Any) -> str | None:
    return str(jax.random.key_impl(x)) if _is_key(x) else None


def _without_key(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(jax.random.key_data(x) if _is_key(x) else x)


def _type_of(x: Any) -> tuple[str, tuple[int, ...]]:
    x = x if hasattr(x, "dtype") and hasattr(x, "shape") else np.asarray(x)
    return str(x.dtype), tuple(x.shape)


def _as_jax_has_it(x: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Returns a copy of an array in the dtype that it has in JAX: without 64 bits, 64-bit dtypes become 32-bit ones.

    Raises:
        TypeError: it is no array of numbers.
        OverflowError: an integer does not fit.
    """
    if not (jnp.issubdtype(x.dtype, np.number) or x.dtype == np.bool_):
        raise TypeError(f"{API}: {what} has the dtype {x.dtype}; expected numbers")
    dtype = jax.dtypes.canonicalize_dtype(x.dtype.newbyteorder("="))
    if x.size and x.dtype != dtype and x.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if x.min() < limits.min or x.max() > limits.max:
            raise OverflowError(
                f"{API}: {what} has integers from {x.min()} to {x.max()}, which do not fit {dtype}; enable 64-bit "
                "types of JAX"
            )
    return np.array(x, dtype, order="C")


def with_keys(structs: Sequence[Struct]) -> Callable[..., list[Any]]:
    """Returns a function that makes PRNG keys of their data, among the leaves of an element."""
    impls = [struct.key for struct in structs]
    return lambda *leaves: [
        x if impl is None else jax.random.wrap_key_data(x, impl=impl) for x, impl in zip(leaves, impls)
    ]

"""Nested Python values as JSON: numbers, strings, None, lists, tuples and dicts, with leaves of another kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxpyop._op import Padded

_Item = TypeVar("_Item")
_PLAIN = (type(None), bool, int, float, str)


def to_data(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Turn a nested value into JSON.

    Args:
        value: the nested value.
        leaf: turns a leaf into data, and returns None for a value that is not a leaf.

    Raises:
        TypeError: a part of the value is not plain data.
    """
    if (found := leaf(value)) is not None:
        return {"leaf": found}
    if type(value) in _PLAIN:
        return value
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) in (list, tuple, Padded):
        return {type(value).__name__: [to_data(part, leaf) for part in value]}
    if type(value) is dict:
        return {"dict": [[to_data(key, _no_leaf), to_data(part, leaf)] for key, part in value.items()]}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{value!r}, of type {kind}, is not a number, a string, None, or a list, tuple or dict of these")


def from_data(data: Any, leaf: Callable[[Any], Any]) -> Any:
    """Turn JSON back into the value that was given to `to_data`. `leaf` turns the data of a leaf into the leaf."""
    if type(data) in _PLAIN:
        return data
    ((kind, content),) = data.items()
    if kind == "leaf":
        return leaf(content)
    if kind == "complex":
        return complex(*content)
    if kind == "dict":
        return {from_data(key, _no_leaf): from_data(part, leaf) for key, part in content}
    parts = [from_data(part, leaf) for part in content]
    return {"list": list, "tuple": tuple, "Padded": lambda parts: Padded(*parts)}[kind](parts)


def _no_leaf(value: Any) -> Any:
    return None


def item(items: Sequence[_Item], number: Any) -> _Item:
    """Return an item of a list. The number is checked, because it comes from a file and may be anything.

    Raises:
        ValueError: the list has no such item.
    """
    if type(number) is not int or not 0 <= number < len(items):
        raise ValueError(f"there is no item {number!r} among {len(items)}")
    return items[number]


def struct_to_data(aval: Any) -> list[Any]:
    """Return the shape and dtype of an array as JSON. A symbolic dimension becomes a string."""
    return [[size if type(size) is int else str(size) for size in aval.shape], str(aval.dtype)]


def check_type(aval: Any, data: Any, what: str) -> None:
    """Check that an array has the stored shape and dtype. A symbolic dimension is not compared.

    Raises:
        ValueError: the array has another shape or dtype.
    """
    shape, dtype = data
    sizes = zip(aval.shape, shape, strict=False)
    if len(aval.shape) != len(shape) or any(a != b for a, b in sizes if not isinstance(b, str)):
        raise ValueError(f"{what} has the shape {tuple(aval.shape)} where the program was exported for {tuple(shape)}")
    if str(aval.dtype) != dtype:
        raise ValueError(f"{what} is {aval.dtype} where the program was exported for {dtype}")


KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


def implementation(name: Any) -> str:
    """Check that a name is the name of one of JAX's own implementations of random keys, and return it as a string.

    Raises:
        ValueError: the implementation is not one of JAX's own.
    """
    if str(name) not in KEYS:
        raise ValueError(f"keys of {name} cannot be saved; use one of {', '.join(KEYS)}")
    return str(name)


def key_dtype(name: str) -> Any:
    """Return the dtype of typed keys of this implementation."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=name)).dtype


def dtype_named(name: str) -> Any:
    """Return the dtype with this name. Typed keys have names such as ``key<fry>``."""
    if name.startswith("key<"):
        return next(dtype for dtype in map(key_dtype, KEYS) if str(dtype) == name)
    return jnp.dtype(name)

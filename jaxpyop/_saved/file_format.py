"""The bytes of a saved program, and nested Python values as JSON.

A file has a magic, a format number, a checksum, the plan as compressed JSON, and the segments. The checksum covers
everything after it. It is compared before anything is decompressed or given to JAX. It detects damage by accident, and
does not protect against an attacker: who writes a file writes its plan, its segments and its checksum. So it is not
checked whether a plan is consistent in itself. What a file may call is checked, in `function_names`. Nothing in the
file is pickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop._values import Padded

FORMAT = 1
_MAGIC = b"jaxpyop\0"
# The magic, the format, and the checksum.
_START = struct.Struct("<8sI32s")
_LENGTH = struct.Struct("<Q")


def packed(plan: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Return a plan, and the segments that the plan names by number, as bytes."""
    plan = {**plan, "blobs": list(map(len, blobs))}
    header = zlib.compress(json.dumps(plan, separators=(",", ":"), default=_refused).encode(), 9)
    content = b"".join([_LENGTH.pack(len(header)), header, *blobs])
    return _START.pack(_MAGIC, FORMAT, hashlib.sha256(content).digest()) + content


def _refused(value: Any) -> Any:
    raise ValueError(
        f"jaxpyop.export: the size {value} is symbolic, and a Python call cannot have it in Tout, in a vmap or a loop "
        "around it, or in the transpose of a linear op; let Tout have a dtype alone, or export for known sizes"
    )


def unpacked(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the plan and the segments of a saved program.

    Raises:
        ValueError: these bytes are not a whole, undamaged program of this format.
    """
    if len(data) < _START.size + _LENGTH.size or not data.startswith(_MAGIC):
        raise ValueError("it is not a program that jaxpyop.export saved")
    _, number, checksum = _START.unpack_from(data)
    if number != FORMAT:
        raise ValueError(f"it has the format {number}, and this version of jaxpyop reads the format {FORMAT}")
    if hashlib.sha256(data[_START.size :]).digest() != checksum:
        raise ValueError("it is damaged: its checksum is not the one that was saved")
    at = _START.size + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, _START.size)
    plan = json.loads(zlib.decompress(data[at : at + length]))
    blobs: list[bytes] = []
    at += length
    for size in plan["blobs"]:
        blobs.append(data[at : at + size])
        at += size
    return plan, blobs


# ------------------------------------------------- nested values: numbers, strings, None, lists, tuples and dicts

_PLAIN = (type(None), bool, int, float, str)


_Part = Callable[[Any], Any]


def _no_leaf(value: Any) -> Any:
    return None


def _no_node(node: Any, part: _Part) -> Any:
    return None


def to_data(value: Any, leaf: Callable[[Any], Any] = _no_leaf, node: Callable[[Any, _Part], Any] = _no_node) -> Any:
    """Turn a nested value into JSON.

    Args:
        value: the nested value.
        leaf: turns a leaf into data, and returns None for a value that is not a leaf.
        node: turns any other value into data, by the function for what it holds; None if it cannot.

    Raises:
        TypeError: a part of the value is not plain data.
    """
    part = lambda value: to_data(value, leaf, node)
    if (found := leaf(value)) is not None:
        return {"leaf": found}
    if type(value) in _PLAIN:
        return value
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) in (list, tuple, Padded):
        return {type(value).__name__: list(map(part, value))}
    if type(value) is dict:
        return {"dict": [[to_data(key), part(held)] for key, held in value.items()]}
    if (found := node(value, part)) is not None:
        return {"node": found}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{value!r}, of type {kind}, is not a number, a string, None, or a list, tuple or dict of these")


def from_data(data: Any, leaf: Callable[[Any], Any] = _no_leaf, node: Callable[[Any, _Part], Any] = _no_node) -> Any:
    """Turn JSON back into the value that was given to `to_data`. `leaf` and `node` do the opposite of those there."""
    if type(data) in _PLAIN:
        return data
    part = lambda data: from_data(data, leaf, node)
    ((kind, content),) = data.items()
    if kind == "leaf":
        return leaf(content)
    if kind == "node":
        return node(content, part)
    if kind == "complex":
        return complex(*content)
    if kind == "dict":
        return {from_data(key): part(held) for key, held in content}
    parts = list(map(part, content))
    return {"list": list, "tuple": tuple, "Padded": lambda parts: Padded(*parts)}[kind](parts)


def struct_to_data(aval: Any) -> list[Any]:
    """Return the shape and dtype of an array as JSON. A symbolic dimension becomes a string."""
    return [[size if type(size) is int else str(size) for size in aval.shape], str(aval.dtype)]


def structs_from_data(data: Sequence[Any]) -> list[jax.ShapeDtypeStruct] | None:
    """Return the shapes and dtypes of arrays; None if a dimension is symbolic."""
    if any(isinstance(size, str) for shape, _ in data for size in shape):
        return None
    return [jax.ShapeDtypeStruct(tuple(shape), dtype_named(dtype)) for shape, dtype in data]


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
        return {str(dtype): dtype for dtype in map(key_dtype, KEYS)}[name]
    return jnp.dtype(name)

"""The residuals of `vjp=(fwd, bwd)` as a record: estimates their size, and finds the parts that can be compared."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """The residuals of one run of `fwd`, as a record.

    Attributes:
        value: any object.
        lead: the sizes of the batch axes of the run. They are empty unless the vmap_method passes whole blocks.
        nbytes: an estimate of the memory that the object takes.
    """

    value: Any
    lead: tuple[int, ...]
    nbytes: int

    def comparable(self) -> tuple[str, list[Any]]:
        """Return what decides the derivative, as far as it can be compared: a text and a list of arrays."""
        texts, arrays = _comparable(self.value)
        return f"{self.lead} {texts}", arrays


def protected(value: Any) -> Any:
    """Replaces the NumPy arrays in residuals by read-only copies.

    They are copied because `fwd` may write into its own arrays later. They are read-only because `bwd` may run several
    times after one run of `fwd`, as in `jax.jacrev`, and must not change what its next run reads.
    """
    if type(value) is np.ndarray:
        found = value.copy("K")
        found.flags.writeable = False
        return found
    if type(value) in (list, tuple):
        return type(value)(map(protected, value))
    return {key: protected(part) for key, part in value.items()} if type(value) is dict else value


def _comparable(value: Any) -> tuple[list[str], list[Any]]:
    """Returns a text for each part of a value, and the arrays in it.

    Of an object, only the type and the arrays are compared. Its other attributes may differ from run to run, such as
    the time that a solver took.
    """
    seen: set[int] = set()
    texts: list[str] = []
    arrays: list[Any] = []
    stack = [(value, True)]
    while stack:
        part, is_plain = stack.pop()
        if hasattr(part, "__array__") and (array := _as_array(part)) is not None:
            texts.append(f"{array.dtype}{array.shape}")
            arrays.append(array)
        elif part is None or isinstance(part, (int, float, complex, str, bytes)):
            texts.append(repr(part) if is_plain else "")
        elif id(part) not in seen:
            seen.add(id(part))
            texts.append(type(part).__qualname__)
            is_plain = is_plain and isinstance(part, (dict, list, tuple))
            stack.extend([(held, is_plain) for held in _held_by(part)])
    return texts, arrays


def _as_array(part: Any) -> Any:
    try:
        array = np.asarray(part)
    except Exception:
        # This is a class, a random key, or an array on another device.
        return None
    return array if array.dtype != object else None


def size_of(value: Any) -> int:
    """Estimates how many bytes a value holds in arrays, containers, attributes and the entries of sparse matrices."""
    seen: set[int] = set()
    total = 0
    stack = [value]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        total += _own_size(part)
        stack.extend(_held_by(part))
    return total


def _own_size(part: Any) -> int:
    nbytes = getattr(part, "nbytes", None)
    if isinstance(nbytes, (int, np.integer)):
        return int(nbytes)
    # SciPy's SuperLU hides its arrays, but has the number of its entries. An entry takes about 12 bytes.
    entries = getattr(part, "nnz", None)
    size = sys.getsizeof(part, 64)
    return size + 12 * int(entries) if isinstance(entries, (int, np.integer)) and not _vars_of(part) else size


def _vars_of(part: Any) -> dict[str, Any]:
    """Returns the attributes of an object. Those of classes, functions and modules are not data, and are left out."""
    held = getattr(part, "__dict__", None)
    return held if isinstance(held, dict) and not callable(part) and not isinstance(part, type(sys)) else {}


def _held_by(part: Any) -> Iterable[Any]:
    if isinstance(part, dict):
        return part.values()
    if isinstance(part, (list, tuple, set, frozenset)):
        return part
    return _vars_of(part).values()

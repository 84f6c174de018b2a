"""Values that one run of a function keeps for a later one: safe copies of them, and the memory that they take."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxpyop._refusal import refusal


def protected(value: Any) -> Any:
    """Replaces the NumPy arrays in residuals, also in containers and dataclasses, by read-only copies.

    They are copied because `fwd` may write into its own arrays later. They are read-only because `bwd` may run several
    times after one run of `fwd`, as in `jax.jacrev`, and must not change what its next run reads.

    Raises:
        TypeError: an iterator of Python's is among them, which the first run of `bwd` would use up.
    """
    return _rebuilt(value, _read_only)


def with_own_containers(value: Any) -> Any:
    """Returns residuals of which one run of `bwd` may change the containers: their arrays are read-only already."""
    return _rebuilt(value, lambda array: array)


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found = array.copy("K")
    for at in np.ndindex(found.shape) if found.dtype == object else ():
        found[at] = protected(found[at])
    found.flags.writeable = False
    return found


def _rebuilt(value: Any, array: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        return array(value)
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        kind = type(value).__name__
        raise refusal(TypeError(f"the residuals of fwd hold a {kind}, which the first run of bwd uses up; give a list"))
    if isinstance(value, (set, bytearray)):
        return copy.copy(value)
    if isinstance(value, tuple):
        parts = [_rebuilt(part, array) for part in value]
        if all(map(operator.is_, parts, value)):
            return value
        # A named tuple is made by no other arguments than its parts, and may have attributes besides.
        found = tuple.__new__(type(value), parts)
        if hasattr(value, "__dict__"):
            vars(found).update(vars(value))
        return found
    if isinstance(value, (dict, list, collections.deque)):
        found = copy.copy(value)
        for key in list(found) if isinstance(found, dict) else range(len(found)):
            found[key] = _rebuilt(found[key], array)
        return found
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A field that has no value yet is left so.
        held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
        copies = {name: _rebuilt(part, array) for name, part in held.items()}
        # What holds no arrays may hold something open, and is kept itself, because a copy of it might close that twice.
        if all(copies[name] is held[name] for name in held):
            return value
        found = copy.copy(value)
        for name, part in copies.items():
            # A frozen one refuses `setattr`.
            object.__setattr__(found, name, part)
        return found
    return value


# The size of what a larger object holds is not counted to the end, which would take too long at each step.
_MAX_PARTS = 10_000


def size_of(value: Any) -> int:
    """Estimate how many bytes a value holds: in arrays, containers, attributes, closures and sparse matrices."""
    seen: set[int] = set()
    total, stack = 0, [value]
    while stack and len(seen) < _MAX_PARTS:
        part = stack.pop()
        if id(part) in seen or isinstance(part, (type, types.ModuleType)):
            continue
        seen.add(id(part))
        if isinstance(nbytes := getattr(part, "nbytes", None), (int, np.integer)):
            total += int(nbytes)
            continue
        total += sys.getsizeof(part, 64)
        inside = list(_inside(part))
        # SciPy's SuperLU hides its arrays, but has the number of its entries. An entry takes about 12 bytes.
        if not inside and isinstance(entries := getattr(part, "nnz", None), (int, np.integer)):
            total += 12 * int(entries)
        stack.extend(inside)
    return total


def _inside(part: Any) -> Iterator[Any]:
    """The objects that an object holds, without the globals of a function, which belong to its module."""
    if isinstance(part, dict):
        yield from part.values()
    elif isinstance(part, (list, tuple, set, frozenset, collections.deque)):
        yield from part
    elif isinstance(part, types.CellType):
        # The cell of a variable that is not assigned yet is empty.
        yield getattr(part, "cell_contents", None)
    elif isinstance(part, types.FunctionType):
        yield from (part.__closure__ or (), part.__defaults__, part.__kwdefaults__, vars(part))
    elif isinstance(part, types.MethodType):
        yield from (part.__self__, part.__func__)
    else:
        if isinstance(part, functools.partial):
            yield from (part.func, part.args, part.keywords)
        yield getattr(part, "__dict__", None)
        for kind in type(part).__mro__:
            slots = vars(kind).get("__slots__", ())
            yield from (getattr(part, slot, None) for slot in ((slots,) if isinstance(slots, str) else slots))

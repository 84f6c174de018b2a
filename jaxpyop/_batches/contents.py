"""What a value holds, as text that is the same in each process: so a folder compares what is no array of a program."""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxpyop._batches.inputs import bytes_of, data_of
from jaxpyop._functions import closure_of, contents_of_code, defaults_of

_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)


def checksum_of(value: Any) -> str:
    """Return a checksum of all that a value holds. An object holds what `pickle` would write, a function its code.

    Raises:
        TypeError: a part of it cannot be pickled.
    """
    # What is held twice, or holds itself, is told once. What is made on the way has to keep its address.
    seen: dict[int, Any] = {}

    def part(value: Any) -> Any:
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, (type, types.ModuleType)):
            return _name_of(value)
        if id(value) in seen:
            return [*seen].index(id(value))
        seen[id(value)] = value
        return [_name_of(type(value)), *_parts_of(value, part)]

    return hashlib.sha256(json.dumps(part(value)).encode()).hexdigest()


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', value.__name__)}"


def _parts_of(value: Any, part: Callable[[Any], Any]) -> Iterable[Any]:
    if isinstance(value, (jax.Array, np.generic)) or type(value) is np.ndarray:
        array = data_of(value)
        # The bytes of an array of objects, or of strings of any length, are addresses.
        is_data = array.dtype.kind not in "OT"
        data = hashlib.sha256(bytes_of(array)).hexdigest() if is_data else part(array.tolist())
        return [str(value.dtype), repr(array.dtype), array.shape, data]
    if type(value) in (list, tuple):
        return map(part, value)
    if type(value) is dict:
        return ([part(key), part(held)] for key, held in value.items())
    if type(value) in (set, frozenset):
        # Their order is another one in each process.
        return sorted(map(checksum_of, value))
    if isinstance(value, types.FunctionType):
        held = closure_of(value), defaults_of(value), vars(value)
        return [repr(contents_of_code(value.__code__)), *map(part, held)]
    # The name of a global object, or what makes the object and is then put into it.
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [reduced]
    make, *held = reduced
    return [_name_of(make), *(part(each if index < 2 else list(each or ())) for index, each in enumerate(held))]

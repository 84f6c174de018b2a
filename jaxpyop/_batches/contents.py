"""Checksums that are the same in each process, by which a folder compares values of a program that are no arrays."""

from __future__ import annotations

import abc
import copyreg
import functools
import hashlib
import json
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from jaxpyop._batches.inputs import bytes_of, data_of
from jaxpyop._frames import is_own_file
from jaxpyop._functions import closure_of, contents_of_code, defaults_of

_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
# Of these an object has a function of the user's inside, and else only what it keeps of calls.
_WRAPPERS = type(functools.cache(len)), type(jax.jit(len))
# What a class has besides what its author wrote: where its slots and `__dict__` are, and what `abc` keeps.
_OF_PYTHON = types.MemberDescriptorType, types.GetSetDescriptorType, type(abc.ABC.__dict__["_abc_impl"])


def checksum_of(value: Any) -> str:
    """Return a checksum of all that a value holds: what `pickle` would write of an object, and all code of the user's.

    Raises:
        TypeError: a part of it cannot be pickled.
    """
    # An object that is held twice, or holds itself, is described once. The objects are kept meanwhile, so that what is
    # made on the way does not get an address that was seen.
    seen: dict[int, Any] = {}

    def part(value: Any) -> Any:
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if id(value) in seen:
            return [*seen].index(id(value))
        seen[id(value)] = value
        if isinstance(value, type):
            return [_name_of(value), part(type(value)), *([name, part(held)] for name, held in _of_class(value))]
        return [part(type(value)), *_parts_of(value, part)]

    return hashlib.sha256(json.dumps(part(value)).encode()).hexdigest()


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{value.__qualname__}"


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """The functions and data of a class of the user's, and of such classes that it inherits from."""
    for each in kind.__mro__:
        file = getattr(sys.modules.get(each.__module__), "__file__", None) or ""
        if each.__module__ not in sys.builtin_module_names and is_own_file(file):
            for name, held in vars(each).items():
                held = held.func if isinstance(held, functools.cached_property) else held
                held = getattr(held, "fget", getattr(held, "__func__", held))
                is_own = not (name.startswith("__") and name.endswith("__")) and not isinstance(held, _OF_PYTHON)
                if isinstance(held, types.FunctionType) or is_own:
                    yield name, held


@functools.cache
def _kind_of_key_dtypes() -> type:
    return type(jax.eval_shape(lambda: jax.random.key(0)).dtype)


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
    if type(value) in _WRAPPERS:
        return [part(value.__wrapped__)]
    if isinstance(value, _kind_of_key_dtypes()):
        return [str(value)]
    # What makes the object and is then put into it, or the name of a global object, which pickle looks for.
    reduce = copyreg.dispatch_table.get(type(value))
    reduced = reduce(value) if reduce else value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [pickle.dumps(value, 4).hex()]
    make, args, *held = reduced
    state, *items = held or [None]
    return [_name_of(make), part(args), part(state), *(part(list(each or ())) for each in items)]

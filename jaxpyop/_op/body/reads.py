"""A cache key from everything that a function reads besides its arguments, for functions that read constants alone.

Equal keys mean that abstract evaluation gives the same shapes. Only values that cannot change unnoticed have a key:
numbers, strings and tuples of them, Python functions that read nothing else, the functions and modules of NumPy and
JAX, and the builtin functions that are listed here. There is no key for anything else: objects, lists, arrays, modules
of the user, imports, and names with two underscores, through which a function reaches values that cannot be followed.
"""

from __future__ import annotations

import builtins
import dis
import sys
import types
import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np

from jaxpyop._functions import FILE_READERS, codes_in, names_in, parts_of

# The longest tuple, and the longest text of a constant, that is part of a key.
_MAX_LENGTH = 200
_CONSTANTS = (type(None), type(Ellipsis), bool, int, float, complex, str, bytes)
_LIBRARIES = frozenset({"jax", "numpy", "ml_dtypes", "math", "cmath"})
# These parts of the libraries read files, settings, the time or random numbers.
_UNSAFE = FILE_READERS | {
    "config", "random", "datetime64", "lib", "testing", "ctypeslib", "experimental", "extend", "devices",
    "live_arrays", "profiler",
}  # fmt: skip
_BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "callable", "complex", "dict", "divmod", "enumerate", "filter", "float", "int"}
    | {"isinstance", "iter", "len", "list", "map", "max", "min", "next", "pow", "print", "range", "reversed", "round"}
    | {"set", "slice", "sorted", "str", "sum", "tuple", "type", "zip", "TypeError", "ValueError"}
)
_IMPORT = dis.opmap["IMPORT_NAME"]


class _NoKeyError(Exception):
    """The function reads something that may change unnoticed."""


def reads_of(*values: Any) -> Hashable | None:
    """A key of functions and of other values, or None if one of them has none."""
    seen: dict[int, int] = {}
    try:
        return tuple([_key_of(value, seen) for value in values])
    except Exception:
        # This may also be an exception of a user's object that was looked at.
        return None


def _key_of(value: Any, seen: dict[int, int]) -> Hashable:
    kind = type(value)
    if kind in _CONSTANTS:
        # Unlike the values, their texts tell -0.0 from 0.0, and the text of a NaN equals itself.
        text = repr(value)
        if len(text) <= _MAX_LENGTH:
            return kind, text
    elif kind is tuple and len(value) <= _MAX_LENGTH:
        return tuple([_key_of(part, seen) for part in value])
    elif isinstance(value, np.dtype) or _is_safe(value):
        return value
    elif kind is types.ModuleType and _is_library(value.__name__):
        return value.__name__
    elif kind is types.FunctionType and not vars(value):
        return _key_of_function(value, seen)
    raise _NoKeyError


def _key_of_function(func: types.FunctionType, seen: dict[int, int]) -> Hashable:
    if id(func) in seen:
        # The key has this function already. This also ends the search in a function that calls itself.
        return seen[id(func)]
    seen[id(func)] = len(seen)
    if any(_IMPORT in code.co_code[::2] for code in codes_in(func.__code__)):
        raise _NoKeyError
    keys: list[Hashable] = [(name, _key_of(value, seen)) for name, value in parts_of(func)]
    for name in names_in(func.__code__):
        if name in _UNSAFE or name.startswith("__"):
            raise _NoKeyError
        if name in func.__globals__:
            keys.append((name, _key_of(func.__globals__[name], seen)))
        elif hasattr(builtins, name) and name not in _BUILTINS:
            raise _NoKeyError
    # The code is held weakly, so that a key keeps nothing of the user's alive.
    return weakref.ref(func.__code__), tuple(keys)


def _is_library(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES and "random" not in module


def _is_safe(value: Any) -> bool:
    """Tell whether a library, or Python itself, has this very value under its name."""
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not (_is_library(home) or (home == "builtins" and name in _BUILTINS)):
        return False
    return name not in _UNSAFE and getattr(sys.modules.get(str(home)), name, None) is value

"""Checksums of code, by which a saved program and a folder of `map_batches` find a changed function."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxpyop._functions import closure_of, contents_of_code, defaults_of


def python_version() -> str:
    """The version of Python, within which alone checksums can be compared: each has its own bytecode."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


# So many functions that hold each other are looked into.
_MOST_FUNCTIONS = 100

# The code of these packages, and of the wrappers that they make, differs between their versions. Of a wrapper a
# checksum has the user's function inside, and what else it holds, such as the `argnums` of `jax.grad`.
_LIBRARIES = ("jax", "jaxpyop", "numpy")


def code_checksum(func: Any) -> str | None:
    """Return a checksum of a function's code, which is the same in each process; None if the function has no code.

    The checksum includes what the function itself holds, as far as that is code or plain data: its defaults, the
    variables that it closes over, the function inside its decorators, and the arguments of a `functools.partial`. For a
    callable object it is the checksum of the `__call__` of its class.
    """
    parts = _code_parts(func, set())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32] if parts else None


def _code_parts(func: Any, seen: set[int]) -> list[Any]:
    if func is None or id(func) in seen or len(seen) >= _MOST_FUNCTIONS:
        return []
    seen.add(id(func))
    if isinstance(func, functools.partial):
        return [_values({**dict(enumerate(func.args)), **func.keywords}, seen), *_code_parts(func.func, seen)]
    if isinstance(func, types.MethodType):
        return _code_parts(func.__func__, seen)
    if isinstance(func, (type, types.BuiltinFunctionType, np.ufunc)):
        return [f"{getattr(func, '__module__', '')}:{getattr(func, '__qualname__', func.__name__)}"]
    inside = getattr(func, "__wrapped__", None)
    if not isinstance(func, types.FunctionType):
        # Where C code has the `__call__`, it is no function either, and has no parts.
        own = getattr(func, "__dict__", {}) if _is_of_library(type(func).__module__) else {}
        # A list of the user's may change while the program runs. One of a library does not.
        own = {name: tuple(value) if type(value) is list else value for name, value in own.items()}
        parts = [*_held(own, inside, seen), *_code_parts(type(func).__call__, seen), *_code_parts(inside, seen)]
        return [*parts, *_options_of_numba(func)]
    if _is_of_library(func.__globals__.get("__name__")):
        # What an op holds of ours is described elsewhere.
        held = {} if func.__globals__["__name__"].startswith("jaxpyop.") else closure_of(func)
        return [*_held(held, inside, seen), *_code_parts(inside, seen)]
    # A list as a default is seldom changed, unlike one around the function, which may collect results.
    defaults = {name: tuple(x) if type(x) is list else x for name, x in defaults_of(func).items()}
    plain = {name: _text(value) for name, value in defaults.items() if _is_plain(value)}
    held = _held(closure_of(func), inside, seen)
    return [(contents_of_code(func.__code__), plain), *held, *_code_parts(inside, seen)]


def _options_of_numba(func: Any) -> list[str]:
    """The options with which Numba compiles a function, such as `fastmath`, and the types that its user gave."""
    if type(func).__module__.partition(".")[0] != "numba":
        return []
    options = getattr(func, "targetoptions", {})
    # A function without types has those of its calls.
    given = [] if getattr(func, "_can_compile", True) else func.signatures
    return [repr(sorted(map(str, options.items()))), *sorted(map(str, given))]


def _is_of_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _held(values: Mapping[Any, Any], inside: Any, seen: set[int]) -> list[Any]:
    """Describe what a function holds besides the one that it wraps, if there is anything to describe."""
    held = _values({name: value for name, value in values.items() if value is not inside}, seen)
    return [held] if held else []


def _values(values: Mapping[Any, Any], seen: set[int]) -> dict[Any, Any]:
    """Describe the values that are plain data or have code, in the same way in each process. Leave out all others."""
    found = {k: _text(x) if _is_plain(x) else callable(x) and _code_parts(x, seen) for k, x in values.items()}
    return {name: value for name, value in found.items() if value}


def _text(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_text, value))
    if isinstance(value, np.ndarray):
        # Its text leaves most of a large array out.
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        return f"{value.dtype} {value.shape} {hashlib.sha256(data).hexdigest()}"
    return repr(value)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    if isinstance(value, (np.ndarray, np.generic)):
        # The bytes of others are addresses.
        return value.dtype.kind not in "OT"
    return isinstance(value, np.dtype) or type(value) in (type(None), bool, int, float, complex, str, bytes)

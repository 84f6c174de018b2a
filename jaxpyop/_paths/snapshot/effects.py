"""Which functions are known to change nothing but what a snapshot sees.

A snapshot looks into a function of the user's. The functions of JAX and NumPy, of libraries that are built on JAX, and
of the pure parts of the standard library are taken to depend on their arguments alone, and to change nothing. Nothing
is known of any other function: it may write a file, or count its calls.
"""

from __future__ import annotations

import random
import sys
import types
import weakref
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import numpy as np

from jaxpyop._paths.snapshot.contents import HEAP_TYPE, WITH_KINDS, kinds_of
from jaxpyop._paths.snapshot.reach import (
    LOGS,
    NOT_IMPORTED,
    OUTSIDE,
    is_iterator,
    is_opaque,
    is_own,
    is_plain,
    is_unchanging,
)

# Builtin functions with an effect. `print` is not one of these: everybody knows that it prints while JAX traces.
_IMPURE = {"input", "open", "exec", "eval", "__import__", "breakpoint", "globals"}
_PURE = {
    "_bisect", "_collections", "_collections_abc", "_functools", "_hashlib", "_heapq", "_json", "_operator",
    "_struct", "abc", "array", "base64", "bisect", "builtins", "cmath", "collections", "contextlib", "copy",
    "dataclasses", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math",
    "numbers", "operator", "random", "re", "statistics", "string", "struct", "textwrap", "types", "typing",
    "typing_extensions",
}  # fmt: skip
# Builtin functions that read something from outside of a body, or run code that a snapshot does not see. (`open` is a
# function of the module `io`, which is not pure.)
_ASKING = {"input", "__import__", "eval", "exec", "globals", "getcontext", "setcontext", "localcontext"}
# Functions of NumPy that read files.
_FILE_READERS = frozenset(
    {"load", "loadtxt", "genfromtxt", "fromfile", "memmap", "fromregex", "DataSource", "open_memmap"}
)
# Functions of NumPy that write files or settings.
_WRITERS = {"save", "savez", "savez_compressed", "savetxt", "seterr", "seterrcall", "setbufsize", "set_printoptions"}
_BUILT_ON = {"jax", "jaxlib", "numpy", "jaxpyop", "ml_dtypes"}


def is_known(function: Any, home: str) -> bool:
    """Tells whether it is known what a function changes: nothing, or what a snapshot sees."""
    if isinstance(function, types.MethodType):
        return is_known(function.__func__, home)
    if isinstance(function, (types.BuiltinFunctionType, types.MethodWrapperType)):
        owner = function.__self__
        if isinstance(owner, types.ModuleType):
            return function.__name__ not in _IMPURE and _is_pure(owner.__name__)
        return owner is None or isinstance(owner, type) or _is_seen(owner, home)
    if isinstance(function, types.FunctionType):
        return is_own(function, home) or _is_pure(function.__module__ or "") or _uses_jax(function.__globals__)
    if isinstance(function, np.ufunc):
        return not _is_of_python(function)
    if isinstance(function, (types.WrapperDescriptorType, types.MethodDescriptorType)):
        return True
    cls = function if isinstance(function, type) else type(function)
    module = getattr(cls, "__module__", None) or ""
    return _is_pure(module) or not is_opaque(cls, home) or _uses_jax(vars(sys.modules.get(module, types)))


def reads_outside(function: Any) -> bool:
    """Tells whether the result of a function depends on more than its arguments: on a time, a file or random numbers.

    These are the functions of the standard library that are not known to be pure, and the functions of NumPy and JAX
    that read files or make generators of random numbers. A module that is not imported yet counts as one of them.
    """
    if not callable(function):
        return function is NOT_IMPORTED or function is sys.modules
    function = getattr(function, "__func__", function)
    cls = function if isinstance(function, type) else type(function)
    module = getattr(function, "__module__", None) or cls.__module__ or ""
    name = getattr(function, "__name__", "")
    package = module.partition(".")[0]
    if module.startswith("numpy.random") or module == "random":
        return isinstance(function, type) or name == "default_rng"
    if package in ("numpy", "jax"):
        return name in _FILE_READERS | _WRITERS
    is_asking = package in ("builtins", "decimal") and name in _ASKING
    return is_asking or package in sys.stdlib_module_names - _PURE - LOGS


_hiding: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def hides_contents(value: Any) -> bool:
    """Tells whether an object may hold something that changes, and that a snapshot does not see.

    A part of such an object is made by a class that is written in C, and that is not known here. The objects of a few
    other classes read and write files or settings.
    """
    if isinstance(value, np.ufunc):
        return _is_of_python(value)
    cls = type(value)
    if (found := _hiding.get(cls)) is None:
        found = _hiding[cls] = not is_unchanging(cls) and any(map(_is_hidden_part, cls.__mro__))
    return found and not is_iterator(value)


# Classes that are written in C, and whose objects hold nothing but what a snapshot sees, or nothing that changes.
_SEEN = (
    *WITH_KINDS, tuple, frozenset, types.GenericAlias, types.ModuleType, types.SimpleNamespace, types.UnionType,
    type(np.mean), weakref.ReferenceType, random.Random.__base__ or object,
)  # fmt: skip


def _is_hidden_part(cls: type) -> bool:
    if cls is memoryview or issubclass(cls, OUTSIDE):
        return True
    if issubclass(cls, _SEEN) or is_unchanging(cls) or cls.__module__ == "builtins":
        return False
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    is_of_python = cls.__module__ not in sys.builtin_module_names and not file.endswith(tuple(EXTENSION_SUFFIXES))
    return not (cls.__flags__ & HEAP_TYPE and is_of_python)


def _is_of_python(function: np.ufunc) -> bool:
    """Tells whether `np.frompyfunc` made a function. It takes objects only."""
    return set("".join(function.types)) <= set("O->")


def _is_seen(owner: Any, home: str) -> bool:
    is_changeable = bool(kinds_of(type(owner))) and not is_opaque(owner, home)
    return is_plain(owner) or is_changeable or is_iterator(owner) or isinstance(owner, (tuple, frozenset, memoryview))


def _is_pure(module: str) -> bool:
    package = module.partition(".")[0]
    return module in _PURE or package in _BUILT_ON or package in _PURE


def _uses_jax(names: dict[str, Any]) -> bool:
    values = (x for x in names.values() if isinstance(x, (types.ModuleType, types.FunctionType)))
    return any((getattr(x, "__module__", None) or x.__name__).startswith("jax") for x in values)

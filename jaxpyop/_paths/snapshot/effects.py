"""Which functions are known to change nothing but what a snapshot sees.

A snapshot looks into a function of the user's. The functions of JAX and NumPy, of libraries that are built on JAX, and
of the pure parts of the standard library are taken to depend on their arguments alone, and to change nothing. Nothing
is known of any other function: it may write a file, or count its calls.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

from jaxpyop._functions import FILE_READERS
from jaxpyop._paths.snapshot.contents import kinds_of
from jaxpyop._paths.snapshot.reach import NOT_IMPORTED, is_iterator, is_opaque, is_own, is_plain, package_of

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
# Functions of NumPy that write files or settings.
_WRITERS = {"save", "savez", "savez_compressed", "savetxt", "seterr", "seterrcall", "setbufsize", "set_printoptions"}
# Modules that write messages. They do so while a body is traced, and return nothing to it.
_LOGS = {"_warnings", "logging", "warnings"}
# Packages whose objects never change.
_VALUES = {
    "_abc", "_decimal", "_functools", "_operator", "_struct", "abc", "datetime", "decimal", "enum", "fractions",
    "functools", "inspect", "operator", "pathlib", "re", "struct", "typing", "uuid", "zoneinfo",
}  # fmt: skip
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
        return name in FILE_READERS | _WRITERS
    is_asking = package in ("builtins", "decimal") and name in _ASKING
    return is_asking or package in sys.stdlib_module_names - _PURE - _LOGS


def hides_contents(value: Any, home: str) -> bool:
    """Tells whether an object may hold something that changes, and that a snapshot does not see.

    Such an object is of a class that is written in C, or that belongs to the standard library or to NumPy.
    """
    if isinstance(value, np.ufunc):
        return _is_of_python(value)
    cls = type(value)
    package = package_of(cls)
    if isinstance(value, (type, types.ModuleType)) or package in _BUILT_ON - {"numpy"} or package in _LOGS:
        return False
    if package in _VALUES or value is sys.stdout or value is sys.stderr:
        return False
    if is_opaque(value, home):
        return not isinstance(value, types.FunctionType)
    return isinstance(value, memoryview) or (package != "builtins" and not kinds_of(cls) and not is_iterator(value))


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

"""The objects that a function can come to: its closure, its defaults, the globals that it names, and what these hold.

Functions of the user's are looked into. Libraries and their objects are not: their functions are taken to depend on
their arguments only.
"""

from __future__ import annotations

import builtins
import decimal
import dis
import functools
import importlib.util
import pathlib
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._functions import codes_in, names_in
from jaxpyop._paths.snapshot.contents import HEAP_TYPE

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
# Objects that cannot change, and that hold nothing else.
_PLAIN = (
    bool, int, float, complex, str, bytes, range, slice, type(None), type(...), np.generic, np.dtype, types.CodeType,
    jax.Array, core.Tracer,
)  # fmt: skip
# Modules that write messages. They do so while a body is traced, and return nothing to it.
LOGS = {"_warnings", "logging", "warnings"}
# Modules whose objects never change.
_UNCHANGING = {
    "_abc", "_decimal", "_functools", "_operator", "_struct", "abc", "datetime", "decimal", "enum", "fractions",
    "functools", "inspect", "operator", "pathlib", "re", "struct", "typing", "uuid", "zoneinfo",
}  # fmt: skip
# Classes of these modules whose objects read and write files, or settings.
OUTSIDE = (pathlib.Path, decimal.Context)
_LIBRARIES = {"jax", "jaxlib", "numpy", "jaxpyop", "ml_dtypes", "opt_einsum", "malt"}

# A name in an object's way, and the object.
Step = tuple[str, Any]


def is_own(function: Any, home: str) -> bool:
    """Tells whether a function is the user's: of the package `home`, or not installed."""
    return isinstance(function, types.FunctionType) and _is_own_file(
        function.__code__.co_filename, getattr(function, "__module__", None), home
    )


def _is_own_file(filename: str, module: str | None, home: str) -> bool:
    if not core.is_users_file(filename):
        return False
    return (module or "").partition(".")[0] == home or not filename.startswith(_INSTALLED)


def is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN)


def is_iterator(value: Any) -> bool:
    """Tells whether an object goes on when it is read, and cannot be put back: an iterator that is not the user's."""
    # Only `__next__` tells the two apart: classes of C are like Python's in every other way (itertools since 3.12).
    found = getattr(type(value), "__next__", None)
    return found is not None and not isinstance(found, types.FunctionType)


# For each code object: all names in it, the names that it reads as global variables, and its imports. An import is the
# name of a module, with dots in front if it is relative, and the names that are imported from it.
_Names = tuple[list[str], list[str], list[tuple[str, Any]]]
_names: weakref.WeakKeyDictionary[types.CodeType, _Names] = weakref.WeakKeyDictionary()
# A function that names one of these may read an attribute whose name is a text in it.
_BY_TEXT = {"getattr", "vars", "__dict__", "attrgetter", "methodcaller"}


def names_of(function: types.FunctionType) -> list[str]:
    return _all_names(function.__code__)[0]


# What a function imports that nothing has imported yet, so that it is not known what it does.
NOT_IMPORTED = object()


def _all_names(code: types.CodeType) -> _Names:
    if (found := _names.get(code)) is None:
        instructions = [i for part in codes_in(code) for i in dis.get_instructions(part) if i.opname != "EXTENDED_ARG"]
        read = dict.fromkeys(i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        # The two instructions before are the number of dots, and what is taken.
        triples = zip(instructions, instructions[1:], instructions[2:])
        imported = [("." * a.argval + c.argval, b.argval or ()) for a, b, c in triples if c.opname == "IMPORT_NAME"]
        names = names_in(code)
        if not _BY_TEXT.isdisjoint(names):
            names += [x for part in codes_in(code) for x in part.co_consts if isinstance(x, str) and x.isidentifier()]
        found = _names[code] = names, list(read), imported
    return found


def parts(name: str, value: Any, home: str) -> Iterator[Step]:
    """Yields what an object leads to, besides its contents."""
    cls = type(value)
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value, home)
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)):
        owner = value.__self__
        if isinstance(value, types.MethodType):
            yield getattr(getattr(value.__func__, "__code__", None), "co_varnames", (name,))[0], owner
            yield name, value.__func__
        elif not isinstance(owner, (types.ModuleType, type)):
            yield name, owner
    elif isinstance(value, functools.partial):
        yield from ((name, x) for x in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, (tuple, frozenset)):
        yield from ((name, x) for x in value)
    elif isinstance(value, (staticmethod, classmethod)):
        yield name, value.__func__
    elif isinstance(value, (property, functools.cached_property)):
        getters = (value.func,) if isinstance(value, functools.cached_property) else (value.fget, value.fset)
        yield from ((name, x) for x in getters)
    elif isinstance(value, np.ndarray):
        yield name, value.base
    elif isinstance(value, type):
        yield from ((base.__name__, base) for base in value.__bases__)
        # The other entries of a class are among its contents.
        special = ((n, x) for c in (value, cls) for n, x in vars(c).items() if n[:2] == "__")
        yield from ((f"{value.__name__}.{n}", x) for n, x in special if is_own(x, home))
    elif not isinstance(value, types.ModuleType):
        if cls.__flags__ & HEAP_TYPE:
            yield cls.__name__, cls
        # A function that is compiled or cached.
        if callable(value) and (inner := _attribute(value, "__wrapped__")) is not None:
            yield name, inner


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _parts_of_function(function: types.FunctionType, home: str) -> Iterator[Step]:
    if not is_own(function, home):
        return
    yield from zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    names, read, imported = _all_names(function.__code__)
    held = function.__globals__
    found = [(name, held.get(name, getattr(builtins, name, None))) for name in read]
    for name, value in (*found, *(step for x in imported for step in _imported(*x, held))):
        if value is not None:
            yield from _of_module(name, value, names, set()) if isinstance(value, types.ModuleType) else [(name, value)]


def _imported(name: str, taken: Sequence[str], held: dict[str, Any]) -> Iterator[Step]:
    """Yields what a function imports."""
    try:
        name = importlib.util.resolve_name(name, held.get("__package__"))
        if name.partition(".")[0] in {*_LIBRARIES, *sys.stdlib_module_names}:
            yield name, importlib.import_module(name)
            return
    except ImportError:
        # The function would raise it, too.
        return
    module = sys.modules.get(name)
    yield name, module or NOT_IMPORTED
    if module is not None:
        yield from ((n, NOT_IMPORTED) for n in taken if n != "*" and not hasattr(module, n))


def _of_module(path: str, module: types.ModuleType, names: list[str], seen: set[int]) -> Iterator[Step]:
    """Yields what code with these names may take from a module."""
    seen.add(id(module))
    held = module.__dict__
    for name in names:
        value = held.get(name)
        if isinstance(value, types.ModuleType):
            if id(value) not in seen:
                yield from _of_module(f"{path}.{name}", value, names, seen)
        elif value is not None:
            yield f"{path}.{name}", value


def is_opaque(value: Any, home: str) -> bool:
    """Tells whether an object is a library's, or the interpreter's, and not looked into."""
    if isinstance(value, types.FunctionType):
        return not is_own(value, home) and not hasattr(value, "__wrapped__")
    if isinstance(value, functools.partial):
        return False
    if value is sys.stdout or value is sys.stderr:
        return True
    cls = value if isinstance(value, type) else type(value)
    if not cls.__flags__ & HEAP_TYPE and not issubclass(cls, (dict, list, set)):
        return isinstance(value, type)
    if isinstance(value, type):
        return not _is_own_class(cls, home)
    # A compiled function leads to the function that was compiled. An iterator goes on, whoever wrote its class.
    return is_unchanging(cls) and not is_iterator(value) and _attribute(value, "__wrapped__") is None


def is_unchanging(cls: type) -> bool:
    """Tells whether the objects of a library's class are taken to stay as they are: JAX's, patterns, dates, loggers."""
    return not issubclass(cls, OUTSIDE) and _package_of(cls) in _LIBRARIES - {"numpy"} | _UNCHANGING | LOGS


def _package_of(cls: type) -> str:
    module: Any = cls.__module__
    # The classes of NumPy's generators have a descriptor under this name.
    return module.partition(".")[0] if isinstance(module, str) else ""


def _is_own_class(cls: type, home: str) -> bool:
    package = _package_of(cls)
    if package in _LIBRARIES or package in sys.stdlib_module_names - {"__main__"}:
        return False
    filename = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return filename is None or _is_own_file(filename, cls.__module__, home)

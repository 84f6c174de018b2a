"""What a Python function is made of: partials and bound methods, its code, closure, defaults and globals.

Only the parts are found here. Each package decides what a part means to it: a traced value that must not be there, a
piece of a cache key, or something that a branch may change.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

# Functions of NumPy that read files.
FILE_READERS = frozenset(
    {"load", "loadtxt", "genfromtxt", "fromfile", "memmap", "fromregex", "DataSource", "open_memmap"}
)


def without_partials(func: Any) -> Any:
    """The callable inside `functools.partial` objects, however many are around it."""
    while isinstance(func, functools.partial):
        func = func.func
    return func


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code object, and the code objects of all functions, lambdas and comprehensions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def names_in(code: types.CodeType) -> list[str]:
    """The global variables, attributes and modules that the code names, each once."""
    return list(dict.fromkeys(name for part in codes_in(code) for name in part.co_names))


def closure_of(func: types.FunctionType) -> dict[str, Any]:
    """The variables that the function closes over. A variable that is not assigned yet is left out."""
    found: dict[str, Any] = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def defaults_of(func: types.FunctionType) -> dict[str, Any]:
    """The default values of the function's parameters."""
    names = func.__code__.co_varnames[: func.__code__.co_argcount]
    defaults = func.__defaults__ or ()
    return dict(zip(names[len(names) - len(defaults) :], defaults)) | (func.__kwdefaults__ or {})


def globals_of(func: types.FunctionType) -> dict[str, Any]:
    """The global variables that the function, or a function defined in it, may read. Builtins are left out."""
    return {name: func.__globals__[name] for name in names_in(func.__code__) if name in func.__globals__}


def parts_of(func: Any) -> Iterator[tuple[str, Any]]:
    """What the callable holds itself, by name: the parts of a partial or a bound method, or closure and defaults."""
    if isinstance(func, functools.partial):
        yield from ((f"argument {i} of functools.partial", value) for i, value in enumerate(func.args))
        yield from func.keywords.items()
        yield "func", func.func
    elif isinstance(func, types.MethodType):
        yield "self", func.__self__
        yield "func", func.__func__
    elif isinstance(func, types.FunctionType):
        yield from closure_of(func).items()
        yield from defaults_of(func).items()

"""What a Python function is made of, and what it reads: partials and bound methods, code, closure, defaults, globals.

Only the parts are found here. Each package decides what a part means to it: a traced value that must not be there, a
function of JAX, something that a branch may change, or code that a saved program compares.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any


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


def contents_of_code(code: types.CodeType) -> tuple[Any, ...]:
    """All that decides what code does, as data that is the same in each process."""
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    kinds = code.co_posonlyargcount, code.co_kwonlyargcount
    if not any(kinds):
        # As in files of the first format.
        kinds = ()
    return (code.co_code, code.co_exceptiontable, code.co_flags, *kinds, *names, _constant(code.co_consts))


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return contents_of_code(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    # The elements of a set have another order in each process, so they are sorted.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


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


def _parts_of(func: Any) -> Iterator[tuple[str, Any]]:
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


_LOOKED_INTO = (types.FunctionType, types.MethodType, functools.partial)


def reads_of(func: Any, *, names: bool = False, depth: int = 100) -> Iterator[tuple[str, Any]]:
    """What a callable reads besides its arguments, each with the name that the code has for it.

    A function, method or partial among these is looked into, and is not in the result itself. An attribute of an object
    is read if the code names it. Nothing is known of a callable of another kind.

    Args:
        func: the callable.
        names: whether to add the names of the code of every function: its globals, or None for any other name.
        depth: how many functions that hold each other are looked into.
    """
    seen: set[int] = set()

    def walk(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, _LOOKED_INTO):
            yield name, value
        elif id(value) not in seen and depth:
            seen.add(id(value))
            code = getattr(value, "__code__", None)
            for part, held in _parts_of(value):
                yield from walk(part, held, depth - 1)
                if code is not None and not isinstance(held, (type, types.ModuleType, types.FunctionType)):
                    attributes = getattr(held, "__dict__", {})
                    for attribute in (a for a in code.co_names if a in attributes):
                        yield from walk(f"{part}.{attribute}", attributes[attribute], depth - 1)
            if names and isinstance(value, types.FunctionType):
                for named in names_in(value.__code__):
                    yield from walk(named, value.__globals__.get(named), depth - 1)

    return walk("func", func, depth) if isinstance(func, _LOOKED_INTO) else iter(())

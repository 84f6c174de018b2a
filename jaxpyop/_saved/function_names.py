"""How a Python function is stored, and found again: by a name that was given to it, or by where it is defined.

A file names functions, and has no power beyond that. A name finds a function only if the process that loads the file
gave the name itself, or allowed the module that defines the function. A module that is not allowed is not imported.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxpyop._functions import defaults_of

_registered: dict[str, Callable[..., Any]] = {}


def register(name: str, func: Callable[..., Any], /) -> None:
    """Give a Python function a name, by which a program from :func:`jaxpyop.export` finds it in every process.

    The counterpart of :func:`jax.export.register_pytree_node_serialization` for functions. A function that a module
    defines needs no other name. Call this before the program is exported, and before it is loaded.

    Args:
        name: the name.
        func: the function, or any other callable object.

    Returns:
        Nothing.

    Raises:
        ValueError: the name belongs to another function already.
        TypeError: `name` is not a string, or `func` cannot be called.

    Example:
        >>> import jaxpyop
        >>> double = lambda x: 2 * x
        >>> jaxpyop.register("double", double)
    """
    if type(name) is not str or not name:
        raise TypeError(f"jaxpyop.register: name is {name!r}; expected a string")
    if not callable(func):
        raise TypeError(f"jaxpyop.register: func is {func!r}; expected a function")
    if not _is_same(_registered.setdefault(name, func), func):
        raise ValueError(f"jaxpyop.register: {name!r} is the name of {_registered[name]!r} already; choose another")


def check_functions(functions: Any, api: str) -> Mapping[str, Callable[..., Any]]:
    """Return the argument `functions` of a public function.

    Raises:
        TypeError: it is not a dict from names to functions.
    """
    functions = {} if functions is None else functions
    if not isinstance(functions, Mapping) or not all(isinstance(k, str) and callable(f) for k, f in functions.items()):
        raise TypeError(f"{api}: functions is {functions!r}; expected a dict from names to functions")
    return functions


def _is_same(one: Any, other: Any) -> bool:
    # Each access to a method makes another object. Methods are equal if their objects are the same.
    return one is other or (isinstance(one, types.MethodType) and isinstance(other, types.MethodType) and one == other)


# --------------------------------------------------------------------- saving


class Names:
    """The functions of a program that is saved, each with a number.

    Args:
        functions: names that are given for this program.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._given = {**_registered, **functions}
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self.data: list[dict[str, Any]] = []

    def number(self, func: Any, title: str, what: str) -> int:
        """Return the number of a function.

        Args:
            func: the function.
            title: its op, for the error.
            what: which function of the op it is.

        Raises:
            ValueError: another process could not find it.
        """
        if id(func) not in self._numbers:
            self._numbers[id(func)] = len(self.data)
            self._kept.append(func)
            self.data.append(self._described(func, title, what))
        return self._numbers[id(func)]

    def _described(self, func: Any, title: str, what: str) -> dict[str, Any]:
        found: dict[str, Any] = {"code": code_checksum(func), "python": _python()}
        for name, given in self._given.items():
            if _is_same(given, func):
                return {"name": name, **found}
        try:
            name, unwrapped = _place_of(func)
        except ValueError as reason:
            raise ValueError(
                f"{title}: another process cannot find {what} again: {reason}; give it a name in both processes, "
                f'jaxpyop.register("name", f) or functions={{"name": f}}'
            ) from None
        return {"name": name, "unwrapped": unwrapped, **found}


def _place_of(func: Any) -> tuple[str, int]:
    """Return ``"module:qualname"``, and how many decorators are around the function there.

    Raises:
        ValueError: the function is not there.
    """
    if not isinstance(func, types.FunctionType):
        raise ValueError(f"it is a {type(func).__qualname__}, and no function that a module defines")
    module, qualname = func.__module__, func.__qualname__
    if module == "__main__":
        raise ValueError("it is defined in __main__, which is another module in each process")
    if "<" in qualname:
        raise ValueError(f"it is {qualname}, which no module can be asked for")
    name = f"{module}:{qualname}"
    for unwrapped in itertools.count():
        found = _defined_at(name, unwrapped)
        if found is func:
            return name, unwrapped
        if not hasattr(found, "__wrapped__"):
            raise ValueError(f"{name} is another function")
    raise AssertionError


# -------------------------------------------------------------------- loading


def find_functions(
    data: Sequence[Mapping[str, Any]], functions: Mapping[str, Callable[..., Any]], allow: Sequence[str]
) -> list[Callable[..., Any]]:
    """Return the functions that a file names.

    Args:
        data: what `Names` stored.
        functions: names that are given for this file. They go before registered names and imports.
        allow: the modules, and packages with all modules in them, that may be imported.

    Raises:
        ValueError: functions are missing. The error names all of them.
    """
    found: list[Callable[..., Any]] = []
    missing: list[str] = []
    for entry in data:
        try:
            found.append(_found(entry, functions, allow))
        except Exception as reason:
            missing.append(f"{entry['name']!r} ({reason})")
    if missing:
        raise ValueError(
            f'functions are missing: {", ".join(missing)}; pass functions={{"name": f}}, call '
            'jaxpyop.register("name", f) first, or allow the modules that define them, allow=["package"]'
        )
    return found


def changed_functions(data: Sequence[Mapping[str, Any]], found: Sequence[Callable[..., Any]]) -> list[str]:
    """Return the names of the functions whose code is not the code that was exported, as far as it can be compared."""
    pairs = [(entry, func) for entry, func in zip(data, found) if entry["python"] == _python()]
    return [entry["name"] for entry, func in pairs if entry["code"] not in (None, code_checksum(func))]


def _found(
    entry: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], allow: Sequence[str]
) -> Callable[..., Any]:
    name = entry["name"]
    if name in functions:
        return functions[name]
    if "unwrapped" not in entry:
        if name in _registered:
            return _registered[name]
        raise ValueError("nobody registered it")
    module = name.partition(":")[0]
    if not any(module == prefix or module.startswith(f"{prefix}.") for prefix in allow):
        raise ValueError(f"allow= has no {module}")
    func = _defined_at(name, entry["unwrapped"])
    if (func.__module__, func.__qualname__) != tuple(name.split(":")):
        raise ValueError(f"it is defined in {func.__module__}, as {func.__qualname__}")
    return func


_MOST_DECORATORS = 100


def _defined_at(name: str, unwrapped: Any) -> Any:
    """Import a function by its place.

    Raises:
        ValueError: a module does not define a function there.
    """
    module, _, qualname = name.partition(":")
    parts = qualname.split(".")
    if not all(map(str.isidentifier, (*module.split("."), *parts))) or any(part.startswith("__") for part in parts):
        raise ValueError("it is no place of a function")
    try:
        # Only what modules and classes define themselves is looked at, so that no code runs besides that of the module.
        found: Any = vars(importlib.import_module(module))[parts[0]]
        for part in parts[1:]:
            if not isinstance(found, type):
                raise KeyError(part)
            found = vars(found)[part]
    except (ImportError, KeyError) as error:
        raise ValueError(f"it is not there ({type(error).__name__}: {error})") from None
    found = found.__func__ if isinstance(found, staticmethod) else found
    if type(unwrapped) is not int or not 0 <= unwrapped < _MOST_DECORATORS:
        raise ValueError("no function has so many decorators")
    for _ in range(unwrapped):
        found = vars(found)["__wrapped__"]
    if not isinstance(found, types.FunctionType):
        raise ValueError(f"a {type(found).__qualname__} is there, and no function")
    return found


# ---------------------------------------------------------------- code objects


def _python() -> str:
    # Each version of Python has its own bytecode.
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def code_checksum(func: Any) -> str | None:
    """Return a checksum of a function's code and plain defaults, the same in each process; None if there is no code.

    The code of a decorated function is that of its decorators, and of the function inside them.
    """
    described: list[Any] = []
    while isinstance(func, types.FunctionType) and len(described) < _MOST_DECORATORS:
        plain = {name: repr(value) for name, value in defaults_of(func).items() if _is_plain(value)}
        described.append((_code(func.__code__), plain))
        func = vars(func).get("__wrapped__")
    return hashlib.sha256(repr(described).encode()).hexdigest()[:32] if described else None


def _is_plain(value: Any) -> bool:
    return type(value) in (type(None), bool, int, float, complex, str, bytes)


def _code(code: types.CodeType) -> tuple[Any, ...]:
    names: Iterable[Any] = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_code, code.co_exceptiontable, code.co_flags, *names, _constant(code.co_consts))


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    # The order of a set is another one in each process.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)

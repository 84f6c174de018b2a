"""How a Python function is stored, and found again: by a name that was given to it, or by where it is defined.

A file can only name Python functions. It cannot make the loading process call a function that the process does not
offer: a name finds a function only if the process itself gave that name to a function, or allowed the module that
defines it. A module that is not allowed is not imported.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxpyop._native import is_compiled
from jaxpyop._saved.code import code_checksum, python_version

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
    # Each access to a method makes a new object, so methods are compared by equality: they are equal if they are one
    # function bound to one object.
    return one is other or (isinstance(one, types.MethodType) and isinstance(other, types.MethodType) and one == other)


# --------------------------------------------------------------------- saving


class Names:
    """Numbers the functions of a program that is being saved.

    Args:
        functions: the names that the caller of `jaxpyop.export` gives. They replace registered names.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._given = {**_registered, **functions}
        self.data: list[dict[str, Any]] = []
        self.objects: list[Any] = []

    def number(self, func: Any, title: str, what: str) -> int:
        """Return the number of a function.

        Args:
            func: the function.
            title: how the error names the op of the function.
            what: how the error names the function, such as "func" or "vjp=".

        Raises:
            ValueError: another process could not find the function.
        """
        # Each access to a method makes a new object. All of them have the same description, and so one number.
        return self._number(self._described(func, title, what), func)

    def number_of_class(self, kind: type, title: str) -> int:
        """Return the number of a NamedTuple or dataclass, which are found as functions are.

        Raises:
            ValueError: another process could not find the class.
        """
        found = {"fields": list(fields_of(kind) or ())}
        if given := [name for name, known in self._given.items() if known is kind]:
            return self._number({"name": given[0], **found}, kind)
        try:
            return self._number({"name": _definition_of_class(kind), "unwrapped": 0, **found}, kind)
        except ValueError as reason:
            raise ValueError(
                f"{title}: another process cannot find the class {kind.__qualname__} again: {reason}; define it in a "
                'module, or give it a name in both processes, jaxpyop.register("name", Class)'
            ) from None

    def _number(self, found: dict[str, Any], thing: Any) -> int:
        if found not in self.data:
            self.data.append(found)
            self.objects.append(thing)
        return self.data.index(found)

    def _described(self, func: Any, title: str, what: str) -> dict[str, Any]:
        if why := getattr(func, "why_not_saved", ""):
            raise ValueError(f"{title}: another process cannot find {what} again: {why}")
        found: dict[str, Any] = {"code": code_checksum(func), "python": python_version()}
        for name, given in self._given.items():
            if _is_same(given, func):
                return {"name": name, **found}
        try:
            name, unwrapped = _definition_of(func)
            if name in self._given:
                raise ValueError(f"{name!r} is the name of {self._given[name]!r} here")
        except ValueError as reason:
            raise ValueError(
                f"{title}: another process cannot find {what} again: {reason}; give it a name in both processes, "
                f'jaxpyop.register("name", f) or functions={{"name": f}}'
            ) from None
        return {"name": name, "unwrapped": unwrapped, **found}


def _definition_of(func: Any) -> tuple[str, int]:
    """Return ``"module:function"``, and how many decorators of this package or JAX are around the function there.

    Raises:
        ValueError: the module does not have this function under this name.
    """
    if not isinstance(func, types.FunctionType) and not is_compiled(func):
        raise ValueError(f"it is a {type(func).__qualname__}, and no function that a module defines")
    module, qualname = func.__module__, func.__qualname__
    if module == "__main__":
        raise ValueError("it is defined in __main__, which is another module in each process")
    if not qualname.isidentifier():
        raise ValueError(f"it is {qualname}, and only what a module defines at its top is looked up there")
    name = f"{module}:{qualname}"
    unwrapped = 0
    while (found := _defined_at(name, unwrapped)) is not func:
        if not hasattr(found, "__wrapped__"):
            raise ValueError(f"{name} is another function")
        unwrapped += 1
    return name, unwrapped


def fields_of(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a NamedTuple or dataclass; None for any other class."""
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", None)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return None


def _definition_of_class(kind: type) -> str:
    """Return ``"module:Class"`` with the shortest module that has the class, which is what a library documents.

    Raises:
        ValueError: no module has it under its name.
    """
    module, qualname = kind.__module__, kind.__qualname__
    if module == "__main__":
        raise ValueError("it is defined in __main__, which is another module in each process")
    parts = module.split(".")
    for k in range(1, len(parts) + 1):
        place = ".".join(parts[:k])
        if getattr(sys.modules.get(place), "__dict__", {}).get(qualname) is kind:
            return f"{place}:{qualname}"
    raise ValueError(f"{module} does not have it under this name")


# -------------------------------------------------------------------- loading


def find_functions(
    data: Sequence[Mapping[str, Any]], functions: Mapping[str, Callable[..., Any]], allow: Sequence[str]
) -> list[Callable[..., Any]]:
    """Return the functions that a file names.

    Args:
        data: what `Names` stored.
        functions: the functions that the caller of `jaxpyop.load` names. They replace registered and imported ones.
        allow: the modules that may be imported. A package allows all modules in it.

    Raises:
        ValueError: functions are missing. The error names all of them.
    """
    found: list[Callable[..., Any]] = []
    missing: list[str] = []
    names = [entry["name"] for entry in data]
    for entry in data:
        try:
            if entry["name"] in functions and names.count(entry["name"]) > 1:
                raise ValueError("a decorated function and the one inside it have this name; use allow=")
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
    """Return the names of the functions whose code has changed since the export.

    Code can be compared only between equal versions of Python.
    """
    pairs = [(entry, func) for entry, func in zip(data, found) if entry.get("python") == python_version()]
    return [entry["name"] for entry, func in pairs if entry["code"] not in (None, code_checksum(func))]


def _found(
    entry: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], allow: Sequence[str]
) -> Callable[..., Any]:
    """Return a function or class of the file."""
    found = _offered(entry, functions, allow)
    if "fields" in entry:
        here = list((isinstance(found, type) and fields_of(found)) or ())
        if here != entry["fields"]:
            raise ValueError(f"its fields were {', '.join(entry['fields'])}, and are {', '.join(here)} here")
    return found


def _offered(entry: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], allow: Sequence[str]) -> Any:
    name = entry["name"]
    if name in functions:
        return functions[name]
    if "unwrapped" not in entry:
        if name in _registered:
            return _registered[name]
        raise ValueError("nobody registered it")
    if not any(map(functools.partial(_allows, name), allow)):
        raise ValueError(f"allow= has no {name if _is_private(name) else name.partition(':')[0]}")
    if "fields" in entry:
        return _class_at(name)
    func = _defined_at(name, entry["unwrapped"])
    if (func.__module__, func.__qualname__) != tuple(name.split(":")):
        raise ValueError(f"it is defined in {func.__module__}, as {func.__qualname__}")
    return func


def _allows(name: str, allowed: str) -> bool:
    """Whether a module, a package or a name ``"module:function"`` allows a function. What is private is to be named."""
    begins = name == allowed or name.startswith((f"{allowed}.", f"{allowed}:"))
    return begins and not _is_private(name[len(allowed) :])


def _is_private(name: str) -> bool:
    return any(part.startswith("_") for part in re.split("[.:]", name))


def _is_ours_or_jaxs(wrapper: Any) -> bool:
    """Whether this package or JAX made a wrapper. One of the user may check arguments, so no file goes past it."""
    module = (
        wrapper.__globals__.get("__name__") if isinstance(wrapper, types.FunctionType) else type(wrapper).__module__
    )
    return str(module).partition(".")[0] in ("jax", "jaxlib", "jaxpyop")


def _defined_at(name: str, unwrapped: int) -> Any:
    """Import the function that a name ``"module:function"`` stands for, and take off `unwrapped` of its decorators.

    Raises:
        ValueError: the module does not define a function of this name.
    """
    found = _imported(name)
    for _ in range(unwrapped):
        if not _is_ours_or_jaxs(found):
            raise ValueError(f"{name} is inside a decorator")
        found = vars(found)["__wrapped__"]
    if not isinstance(found, types.FunctionType) and not is_compiled(found):
        raise ValueError(f"a {type(found).__qualname__} is there, and no function")
    return found


def _class_at(name: str) -> Any:
    """Import the class that a name ``"module:Class"`` stands for, from its own module or a package around that."""
    found, place = _imported(name), name.partition(":")[0]
    if not isinstance(found, type) or not f"{found.__module__}.".startswith(f"{place}."):
        raise ValueError(f"no class of {place} is there")
    return found


def _imported(name: str) -> Any:
    module, _, inside = name.partition(":")
    parts = [*module.split("."), inside]
    if not all(map(str.isidentifier, parts)) or any(part.startswith("__") for part in parts):
        raise ValueError(f"{name!r} is not of the form module:function, with names that Python's import takes")
    try:
        # `vars` and not `getattr`: a `__getattr__` would run code. Only the import itself runs any.
        return vars(importlib.import_module(module))[inside]
    except (ImportError, KeyError, SystemExit) as error:
        raise ValueError(f"it is not there ({type(error).__name__}: {error})") from None

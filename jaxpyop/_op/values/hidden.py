"""Finds a traced value that a function reads without getting it as an argument, before the function runs.

Such a value has no value when the function runs, and the function is then refused there. But a program that only needs
a derivative leaves out what the derivative does not need, and it takes a value that came by another way for a constant:
the function would never run, and the derivative would be zero. So the function is refused where it is traced.

A run on types finds each use. `traced_value_in` is for functions that need values before, so that such a run ends.
"""

from __future__ import annotations

import builtins
import contextvars
import functools
import gc
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._functions import closure_of, codes_in, defaults_of, names_in
from jaxpyop._op.values.inputs import PASS_IT

# Nothing is looked for in these, and not in more objects than so many.
_CONSTANTS = (str, bytes, int, float, complex, type(None), np.generic, np.dtype, jax.Array)
_ATOMS = (*_CONSTANTS, types.CodeType, types.FrameType, types.TracebackType)
_MAX_OBJECTS = 20_000


def traced_value_in(func: Any) -> Any:
    """Return a traced value that a function can read, or None.

    What is in a container, an iterator, a generator or a cache counts as read. Of an object, a class or a module, the
    attributes count that the code names, which is the code of the function and of all that it can call.
    """
    names: set[str] = set()
    known = -1
    # What is found by a name may be code, which has names of its own.
    while len(names) > known:
        known = len(names)
        if (found := _search(func, names)) is not None:
            return found
    return None


def _search(func: Any, names: set[str]) -> Any:
    left, seen = [func], dict[int, Any]()
    while left and len(seen) < _MAX_OBJECTS:
        value = left.pop()
        if isinstance(value, _jaxcore.Tracer):
            if _jaxcore.is_live(value):
                return value
        elif not isinstance(value, _ATOMS) and id(value) not in seen:
            # It is kept, so that no other object gets its id.
            seen[id(value)] = value
            left.extend(_read_of(value, names))
    return None


def _read_of(value: Any, names: set[str]) -> Iterable[Any]:
    """Return what code with these names can read of a value, and add the names in the value's own code."""
    if isinstance(value, types.FunctionType):
        return _read_of_function(value, names)
    if isinstance(value, (types.ModuleType, type)):
        return _named(vars(value), names) if _is_users(value) else ()
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, contextvars.ContextVar):
        return [value.get(None)]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else ()
    return _read_of_object(value, names)


# Methods that make, compare or show an object. Python calls the other ones of this kind without a name in the code.
_OF_THE_OBJECT = frozenset(
    ("__init__", "__new__", "__post_init__", "__init_subclass__", "__repr__", "__str__", "__eq__", "__hash__")
) | frozenset(("__setattr__", "__delattr__", "__getstate__", "__setstate__", "__reduce__", "__replace__", "__del__"))


def _read_of_object(value: Any, names: set[str]) -> Iterator[Any]:
    kinds = [kind for kind in type(value).__mro__ if _is_users(kind)]
    for kind in kinds:
        yield from _named(vars(kind), names)
        yield from (
            part
            for name, part in list(vars(kind).items())
            if isinstance(part, types.FunctionType) and name.startswith("__") and name not in _OF_THE_OBJECT
        )
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        # A jitted or cached function has the function itself there.
        yield from _named(attributes, names | {"__wrapped__"})
    # What the object holds itself: the items of a container, the state of an iterator, the values in slots.
    slots = {name for kind in kinds for name in _slots_of(kind)}
    if slots:
        yield from (getattr(value, name, None) for name in slots & names)
    elif not isinstance(attributes, dict) or isinstance(value, (list, tuple, dict, set, frozenset)):
        yield from (part for part in gc.get_referents(value) if part is not attributes and not isinstance(part, type))


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _read_of_function(func: types.FunctionType, names: set[str]) -> Iterator[Any]:
    yield from closure_of(func).values()
    yield from defaults_of(func).values()
    yield from vars(func).values()
    if not _jaxcore.is_own_file(func.__code__.co_filename):
        return
    named = names_in(func.__code__)
    names.update(named)
    # `getattr(x, "w")` names the attribute by a text.
    names.update(text for code in codes_in(func.__code__) for text in code.co_consts if isinstance(text, str))
    for name in named:
        # An import inside the function has the name of a module.
        yield func.__globals__.get(name, sys.modules.get(name))


def _named(attributes: Mapping[str, Any], names: Set[str]) -> list[Any]:
    return [attributes[name] for name in names if name in attributes]


def _is_users(part: Any) -> bool:
    """Tell whether a class or a module is the user's own, and not of a library."""
    module = part if isinstance(part, types.ModuleType) else sys.modules.get(getattr(part, "__module__", ""))
    if module is None or module is builtins:
        return False
    file = getattr(module, "__file__", None)
    return (file is None and module.__name__ not in sys.builtin_module_names) or _jaxcore.is_own_file(file or "")


def hidden_value_error(value: Any, title: str) -> ValueError:
    """Make the error about a traced value that a function uses, and got by another way than its arguments."""
    return ValueError(
        f"{title}: func uses a traced value ({value}) that it holds itself, or finds in an object, and that has no "
        f"value when func runs; {PASS_IT}"
    )

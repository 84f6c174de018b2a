"""Finds a traced value that a function reads without getting it as an argument, before the function runs.

Such a value has no value when the function runs, and the function is then refused there. But a program that only needs
a derivative leaves out what the derivative does not need, and it takes a value that came by another way for a constant:
the function would never run, and the derivative would be zero. So the function is refused where it is traced.

`check_closure` looks at the variables that the function reads, and names the one that has such a value.

A run on types finds each use. `traced_value_in` is for functions that need values before, so that such a run ends,
which all functions of NumPy arrays do. It refuses what they hold, used or not. It does not find what is in an object
in a global variable of a library's module.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._functions import closure_of, codes_in, defaults_of, names_in, reads_of
from jaxpyop._native import is_native
from jaxpyop._refusal import refusal
from jaxpyop._values.inputs import holds_traced

PASS_IT = "pass it through inp, and take it as an argument of func"

# Nothing is looked for in these, unless a subclass has attributes, and not in more objects than so many.
_CONSTANTS = (str, bytes, int, float, complex, type(None), np.generic, np.dtype)
_ATOMS = (*_CONSTANTS, types.CodeType, types.FrameType, types.TracebackType)
_MAX_OBJECTS = 100_000


def check_closure(func: Callable[..., Any] | None, title: str, what: str = "func") -> None:
    """Check that an eager function, or a rule such as `vjp=`, does not close over a traced value.

    Raises:
        ValueError: it does; the error names the variable.
    """
    for name, value in reads_of(func):
        if holds_traced(value):
            text = (
                f"{title}: {what} uses {name!r} from the code around it, which is or holds a traced value ({value}) "
                f"and has no value when {what} runs; {PASS_IT} (mode='traced' of py_function may close over it)"
            )
            raise refusal(ValueError(text))


def traced_value_in(func: Any) -> Any:
    """Return a traced value that a function, or a tuple of functions and of what they get, can read, or None.

    All that its closure, its objects and their classes hold counts as read. Of a module, and of the globals of a
    function, what the code names counts, which is the code of the function and of all that it can call.
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
        # Not isinstance, which asks the object too, and an object of the user's may raise.
        kind = type(value)
        if issubclass(kind, _jaxcore.Tracer):
            if _jaxcore.is_live(value):
                return value
        elif kind is np.ndarray and not value.dtype.hasobject:
            # A function may hold many of them, as its data.
            continue
        elif issubclass(kind, jax.Array) or (issubclass(kind, _ATOMS) and not kind.__dictoffset__):
            continue
        elif id(value) not in seen:
            # It is kept, so that no other object gets its id.
            seen[id(value)] = value
            left.extend(_read_of(value, names))
    return None


def _read_of(value: Any, names: set[str]) -> Iterable[Any]:
    """Return what code with these names can read of a value, and add the names in the value's own code."""
    kind = type(value)
    if is_native(value) and not issubclass(kind, functools.partial):
        # What it reads was made a constant of its machine code. Behind it is all of Numba.
        return ()
    if issubclass(kind, types.FunctionType):
        return _read_of_function(value, names)
    if issubclass(kind, types.ModuleType):
        return _looked_into(value, [part for name, part in vars(value).items() if name in names])
    if issubclass(kind, type):
        return _looked_into(value, [kind, *vars(value).values()])
    if issubclass(kind, contextvars.ContextVar):
        return [value.get(None)]
    if issubclass(kind, weakref.ref):
        return [value()]
    items = value.ravel().tolist() if issubclass(kind, np.ndarray) and value.dtype.hasobject else ()
    # Attributes, the values in slots, the items of a container, the state of an iterator. The garbage collector does
    # not know what a jitted function or a proxy holds, but its attributes do.
    attributes = None
    with contextlib.suppress(Exception):
        attributes = value.__dict__
    held = [part for part in gc.get_referents(value) if not issubclass(type(part), type)]
    return [*kind.__mro__, *items, *held, *(attributes.values() if type(attributes) is dict else ())]


def _read_of_function(func: types.FunctionType, names: set[str]) -> Iterator[Any]:
    yield from closure_of(func).values()
    yield from defaults_of(func).values()
    yield from vars(func).values()
    if not _jaxcore.is_own_file(func.__code__.co_filename):
        return
    # `getattr(x, "w")` names the attribute by a text, and `globals()["w"]` the variable.
    texts = (text for code in codes_in(func.__code__) for text in code.co_consts if isinstance(text, str))
    named = {*names_in(func.__code__), *texts}
    names.update(named)
    for name in named:
        # An import inside the function has the name of a module.
        yield func.__globals__.get(name, sys.modules.get(name))


def _looked_into(owner: Any, parts: list[Any]) -> list[Any]:
    """The parts of a module or a class; of a library's, only traced values that somebody put there."""
    return parts if _is_users(owner) else [part for part in parts if issubclass(type(part), _jaxcore.Tracer)]


def _is_users(part: Any) -> bool:
    """Tell whether a class or a module is the user's own, and not of a library."""
    module = part if isinstance(part, types.ModuleType) else sys.modules.get(getattr(part, "__module__", ""))
    if module is None or module is builtins:
        return False
    file = getattr(module, "__file__", None)
    return (file is None and module.__name__ not in sys.builtin_module_names) or _jaxcore.is_own_file(file or "")


def hidden_value_error(value: Any, title: str, what: str, *, is_used: bool) -> ValueError:
    """Make the error about a traced value that a function uses or holds, and got by another way than its arguments."""
    uses, unless = ("uses", "") if is_used else ("holds", f", or let {what} hold no object with traced values")
    text = (
        f"{title}: {what} {uses} a traced value ({value}), by itself or in an object, that has no value when {what} "
        f"runs; {PASS_IT}{unless}"
    )
    return refusal(ValueError(text))

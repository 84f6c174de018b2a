"""What a function reads besides its arguments, as a key: with an equal one it does the same in the abstract.

Read are its code, what it closes over, its defaults, and the globals that its code names; of functions among these the
same. Values are compared by what is in them, arrays of JAX's by identity, and held weakly, as code is: a key keeps
nothing of the user's alive. Python's, NumPy's and JAX's own functions are what they are. There is no key where
something could change without a sign: an object of a class of the user's, a large array of NumPy's, a file, the time,
random numbers. A list that the function changes itself is another one the next time.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore

_MOST = 4096  # values and bytes in a key
_LIBRARIES = frozenset({"builtins", "jax", "jaxlib", "jaxpyop", "numpy", "ml_dtypes"})
_PURE = frozenset({"math", "cmath", "operator", "itertools", "functools", "numbers", "typing", "collections"})
# Of what is a library's or Python's own, what reads more than its arguments.
_READING = (
    {"open", "input", "eval", "exec", "compile", "globals", "locals", "vars", "getattr", "hasattr", "dir"}
    | {"breakpoint", "__import__", "import_module", "config", "attrgetter", "methodcaller"}
    | {"load", "loadtxt", "genfromtxt", "fromfile", "memmap"}
)
_PLAIN = (type(None), type(Ellipsis), bool, int)
_IMPORT = dis.opmap["IMPORT_NAME"]


class _UnknownReadsError(Exception):
    """Something is read that may change without a sign."""


def reads_of(*values: Any) -> Hashable | None:
    """A key of functions and other values; None where there is none."""
    reader = _Reader()
    try:
        return tuple([reader.of(value) for value in values])
    except Exception:  # also what a proxy raises that is looked at, or a dict that another thread changes
        return None


class _Same:
    """A value, known by its identity and held weakly."""

    __slots__ = ("_hash", "_ref")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        self._ref = weakref.ref(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (value := self._ref()) is not None and value is other._ref()


class _Reader:
    """Makes a key of values, of as many as a key can have."""

    def __init__(self) -> None:
        self._left = _MOST
        self._seen: dict[int, int] = {}

    def _count(self, size: int = 1) -> None:
        self._left -= size
        if self._left < 0:
            raise _UnknownReadsError

    def _again(self, value: Any) -> int | None:
        """The number of what was read before; a first time gets the next one."""
        count = len(self._seen)
        number = self._seen.setdefault(id(value), count)
        return None if number == count else number

    def of(self, value: Any) -> Hashable:
        """The key of one value."""
        self._count()
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind in (float, complex):
            return kind, repr(value)  # which tells -0.0 from 0.0, and nan is nan
        if kind in (str, bytes):
            self._count(len(value))
            return kind, value
        if kind in (tuple, list, dict):
            return self._container(value)
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return self._array(value)
        if isinstance(value, types.ModuleType):
            raise _UnknownReadsError  # which is read by names
        return self._callable(value)

    def _container(self, value: Any) -> Hashable:
        if not value:
            return type(value)
        if (number := self._again(value)) is not None:
            return "again", number
        parts = value.items() if type(value) is dict else value
        return type(value), tuple([self.of(part) for part in parts])

    def _array(self, value: Any) -> Hashable:
        if isinstance(value, jax.Array):
            if isinstance(value, _jaxcore.Tracer):
                raise _UnknownReadsError
            return _Same(value)
        self._count(value.nbytes)
        if value.dtype.hasobject or not (type(value) is np.ndarray or _is_library(type(value))):
            raise _UnknownReadsError
        return type(value), value.shape, value.dtype, value.tobytes()

    def _callable(self, value: Any) -> Hashable:
        if isinstance(value, np.dtype) or _is_library(value):
            return value
        if (number := self._again(value)) is not None:
            return "again", number
        if type(value) is types.FunctionType:
            return self._function(value)
        if type(value) is functools.partial:
            return functools.partial, self.of(value.func), self.of(value.args), self.of(value.keywords)
        if type(value) is _jaxcore.JITTED:
            return _Same(value), self.of(vars(value)["__wrapped__"])
        raise _UnknownReadsError

    def _function(self, func: types.FunctionType) -> Hashable:
        code, known = func.__code__, func.__globals__
        try:
            cells = [cell.cell_contents for cell in func.__closure__ or ()]
        except ValueError:  # a variable that is not set yet
            raise _UnknownReadsError from None
        names, imports = _names_in(code)
        own = [*cells, func.__defaults__, func.__kwdefaults__, func.__dict__]
        read = [self._member(value, names) for value in own]
        if _root(known.get("__name__")) not in _LIBRARIES:  # whose globals are what they are
            read += self._named(known, names)
        elif func.__name__ in _READING:
            raise _UnknownReadsError
        if imports:
            read += self._named(sys.modules, names)
        return weakref.ref(code), tuple(read)

    def _named(self, known: dict[str, Any], names: Sequence[str]) -> Iterator[Hashable]:
        for name in names:
            if name in known:
                yield name, self._member(known[name], names)
            elif name in _READING and hasattr(builtins, name):
                raise _UnknownReadsError

    def _member(self, value: Any, names: Sequence[str]) -> Hashable:
        """The key of what some code reads, of a module what of it the code may name."""
        return self._module(value, names) if isinstance(value, types.ModuleType) else self.of(value)

    def _module(self, module: types.ModuleType, names: Sequence[str]) -> Hashable:
        self._count()
        root = _root(module.__name__)
        if root in _LIBRARIES or module.__name__ in _PURE:
            random = root == "numpy" and ("random" in names or module.__name__.startswith("numpy.random"))
            if random or not _READING.isdisjoint(names):
                raise _UnknownReadsError
            return module.__name__
        if (number := self._again(module)) is not None:
            return "again", number
        return module.__name__, tuple(self._named(vars(module), names))


def _root(name: Any) -> str:
    return name.partition(".")[0] if isinstance(name, str) else ""


def _is_library(value: Any) -> bool:
    """Whether it is what a library has under its name; it is never another one, and lives for good."""
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(name, str) or (_root(home) not in _LIBRARIES and home not in _PURE):
        return False
    if name in _READING or (home or "").startswith("numpy.random"):
        return False
    return getattr(sys.modules.get(home or ""), name, None) is value


def _names_in(code: types.CodeType) -> tuple[list[str], bool]:
    """What names some code reads, and whether it imports."""
    found: dict[str, None] = {}
    imports = False
    todo = [code]
    while todo:
        code = todo.pop()
        found.update(dict.fromkeys(code.co_names))
        imports = imports or _IMPORT in code.co_code[::2]
        todo += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return list(found), imports

"""The gate: what a value from outside of the function may be.

Python asks an object what its operators, its attributes and its length are, and an object may answer with code of its
own. So a value comes in if its exact type is one of a list, or if its class passes one test. Everything else is
refused. The gate looks with `type` and `vars`, which call no code of the user.
"""

from __future__ import annotations

import abc
import enum
import functools
import types
import typing
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._traced.values.kinds import *

LIBRARIES = ("jax", "jaxlib", "numpy", "ml_dtypes", "builtins")
_CONSTANTS = frozenset((bool, int, float, complex, str, bytes, type(None), type(Ellipsis)))
_TYPES = _CONSTANTS | {
    *(list, dict, set, frozenset, range, slice, types.SimpleNamespace, types.ModuleType),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, Foreign),
}
_METACLASSES = (type, abc.ABCMeta, enum.EnumMeta)


def _names(text: str) -> frozenset[str]:
    return frozenset(f"__{name}__" for name in text.split())


# What Python writes into a class by itself, and a name for its objects.
_WRITTEN = _names("""
module name qualname doc dict weakref annotations annotate annotate_func annotations_cache static_attributes firstlineno
match_args slotnames final dataclass_fields dataclass_params orig_bases parameters abstractmethods type_params
classdictcell
""")
# The special methods that the interpreter calls.
_CALLED = _names("init call post_init")
# The special methods that it never calls, because it refuses the operations that would.
_UNUSED = _names("""
eq ne lt le gt ge hash repr str format bool len iter next contains getitem setitem delitem reversed add radd iadd sub
rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror
xor rxor lshift rshift neg pos abs invert float int index complex round trunc floor ceil enter exit copy deepcopy
reduce reduce_ex getstate setstate replace init_subclass class_getitem sizeof dir
""")
_module_of_class = type.__dict__["__module__"].__get__


def module_of(cls: type) -> str:
    """The package in which a class was written."""
    module = _module_of_class(cls)
    return module.split(".")[0] if type(module) is str else ""


def is_constant(v: Any) -> bool:
    """Whether a value does not change, and Python's operations on it call no code of the user."""
    cls = type(v)
    if cls in _CONSTANTS or issubclass(cls, (np.dtype, np.generic)):
        return cls in _CONSTANTS or module_of(cls) in LIBRARIES
    return issubclass(cls, enum.Enum) and not why_not_class(cls)


def why_not(v: Any) -> str:
    """Why a value cannot come in from outside, or nothing."""
    cls = type(v)
    if cls in _TYPES or issubclass(cls, (Kind, jax.Array, core.Tracer)):
        return ""
    if issubclass(cls, tuple):
        return why_not_tuple(cls)
    if issubclass(cls, type):
        is_known = cls in _METACLASSES or module_of(cls) in LIBRARIES
        return "" if is_known else f"a class with the metaclass {cls.__name__}"
    if cls is np.ndarray and v.dtype.hasobject:
        return "a NumPy array of objects"
    return "" if module_of(cls) in LIBRARIES else why_not_class(cls)


def why_not_class(cls: type) -> str:
    """Why the interpreter does not know how objects of a class behave, or nothing."""
    if type(cls) not in _METACLASSES:
        return f"an object of {cls.__name__}, whose class has the metaclass {type(cls).__name__}"
    for c in cls.__mro__:
        if is_plain_base(c, cls):
            continue
        if not c.__flags__ & 1 << 9:  # written in C
            return f"an object of {cls.__name__}" + (f", which is a subclass of {c.__name__}" if c is not cls else "")
        for name, x in vars(c).items():
            if name[:2] == name[-2:] == "__" and not _is_allowed(c, name, x):
                return f"an object of {cls.__name__}, whose class has {name}"
    return ""


def is_plain_base(c: type, cls: type) -> bool:
    """Whether a class of Python has no surprise for the interpreter, as a base of the class `cls`."""
    if c in (object, abc.ABC, typing.Generic, typing.Protocol, types.SimpleNamespace):
        return True
    if issubclass(cls, enum.Enum) and (c in (int, str, float) or _module_of_class(c) == "enum"):
        return True
    return issubclass(c, BaseException) and module_of(c) == "builtins"


def _is_allowed(c: type, name: str, x: Any) -> bool:
    """Whether a class may have a special name."""
    if name in ("__dict__", "__weakref__"):
        return type(x) is types.GetSetDescriptorType
    if issubclass(c, enum.Enum):
        # The methods that an enum writes are not the user's. Its `__init__` was called when the class was made.
        return name == "__init__" or type(x) is not types.FunctionType or not core.is_users_file(x.__code__.co_filename)
    if issubclass(c, BaseException):
        return name in _WRITTEN
    if name in ("__setattr__", "__delattr__"):
        params: Any = vars(c).get("__dataclass_params__")
        return params is not None and params.frozen
    return name in _WRITTEN or name in _CALLED or name in _UNUSED


class _Plain(NamedTuple):
    """Has what Python itself gives the class of a namedtuple."""

    item: int


def why_not_tuple(cls: Any) -> str:
    """Why a class of tuples cannot come in: it has operators of its own."""
    fields = vars(cls).get("_fields") if type(cls) is type else None
    if not fields and not any("_fields" in vars(c) for c in cls.__mro__):
        # Python's own structures, such as sys.version_info, have these.
        plain = cls is tuple or "n_sequence_fields" in vars(cls)
        return "" if plain else f"a {cls.__name__}, which is a tuple of a class of its own"
    for c in cls.__mro__[: cls.__mro__.index(tuple)]:
        own = {name for name in vars(c) if name.startswith("__")} - {*vars(_Plain), *_WRITTEN}
        # Only the class that `namedtuple` itself made has these.
        made = {"__new__", "_make", "_replace", "_asdict", *cls._fields}
        own |= set() if "_fields" in vars(c) else vars(c).keys() & made
        if own and c is not typing.Generic:
            return f"a namedtuple with {', '.join(sorted(own))}"
    return ""


def check_tuple(cls: Any) -> None:
    """Refuses a tuple of a class that does not pass."""
    _check(why_not_tuple(cls))


def check_class(cls: type) -> None:
    """Refuses an object of a class that does not pass."""
    _check(why_not_class(cls))


def check_from_outside(v: Any) -> None:
    """Refuses a value that does not pass."""
    _check(why_not(v))


def _check(why: str) -> None:
    if why:
        remedy = "read what is needed of it before, or call it there, and pass that in; or use a plain class"
        raise Refused(why, f"{remedy}, a dataclass, a tuple or a dict")


# ------------------------------------------------------------------ attributes


def is_data_descriptor(found: Any) -> bool:
    """Tell whether an attribute of a class goes before one of the same name in the object, as a property does."""
    names = {name for c in type(found).__mro__ for name in vars(c)}
    return "__get__" in names and not names.isdisjoint(("__set__", "__delete__"))


def attributes_of(v: Any) -> Any:
    """The attributes that an object itself has. Its class has passed the gate."""
    try:
        return object.__getattribute__(v, "__dict__")
    except AttributeError:
        return {}


def is_data(found: Any) -> bool:
    """Whether what stands in a class is the attribute of an object itself, and does not compute one."""
    kind = type(found)
    plain = kind in (types.FunctionType, tuple, list, dict, types.BuiltinFunctionType) or is_constant(found)
    return plain or is_array(found) or kind is np.ndarray


def check_name(name: str) -> None:
    """Refuse a name that Python changes inside a class."""
    if name.startswith("__") and not name.endswith("__"):
        raise Refused(f"the name `{name}`, which Python changes inside a class", "write one underscore")

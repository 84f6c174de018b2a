"""Attributes: of arrays, objects of the program, objects from outside (which are read-only), classes and modules."""

from __future__ import annotations

import enum
import types
from typing import Any

import jax

from jaxpyop._traced.allowed import DATA, METHODS
from jaxpyop._traced.containers import CHANGES, Containers
from jaxpyop._traced.operators import name_of_type
from jaxpyop._traced.values import *

# How classes look up attributes that do nothing of their own.
_PLAIN = (object.__getattribute__, types.SimpleNamespace.__getattribute__, tuple.__getattribute__)
LIBRARIES = ("jax", "jaxlib", "numpy", "builtins")


def module_of(v: Any) -> str:
    """The package in which a function or a class was written."""
    return (getattr(v, "__module__", None) or "").split(".")[0]


class Attributes(Containers):
    """Attributes are read and set."""

    def class_attribute(self, cls: Any, name: str) -> Any:
        """What a class of the user has, as it stands in the class, or UNDEF."""
        for c in cls.__mro__ if isinstance(cls, type) else ():
            if c is not object and name in vars(c):
                return vars(c)[name]
        return UNDEF

    def get_attr(self, v: Any, name: str) -> Any:
        if isinstance(v, Union) or v is UNDEF:
            return self.lifted(lambda a: self.get_attr(a, name), v)
        check_name(name)
        kind = v.cls if isinstance(v, Obj) else jax.Array if is_array(v) else type(v)
        if name in METHODS.get(kind, ()) or (name == "_replace" and isinstance(v, tuple)):
            return Method(v, name)
        if any(isinstance(v, types_) and name in names for types_, names in DATA):
            return getattr(v, name)
        if is_array(v) and name == "at":
            return At(v)
        if isinstance(v, types.ModuleType):
            return self.outside(self.python(getattr, v, name))
        return self._of_class(v, name) if isinstance(v, type) else self._of_object(v, name)

    def _of_object(self, v: Any, name: str) -> Any:
        """An attribute of an object of the program, or of one from outside, which nothing in the program changes."""
        cls, own = (v.cls, v.slots) if isinstance(v, Obj) else (type(v), getattr(v, "__dict__", None))
        if isinstance(v, tuple) and (fields := getattr(v, "_fields", ())):
            if name in fields:
                return v[fields.index(name)]
            own = {}
        plain = cls.__getattribute__ in _PLAIN and not hasattr(cls, "__getattr__") and own is not None
        if not plain or module_of(cls) in LIBRARIES or (callable(v) and module_of(cls) == "functools"):
            raise Refused(f"the attribute {name} of a {name_of_type(v)} is not in the language")
        found = self.class_attribute(cls, name)
        if name in own and not hasattr(type(found), "__set__"):
            x = self.outside(own[name])
            if isinstance(x, Union) and UNDEF in x.alts:
                raise Refused(f"the attribute {name} is set on one path only", "set it before")
            return x
        if name == "__class__":
            return cls
        if found is UNDEF:
            raise PyRaise(AttributeError(f"{cls.__name__!r} object has no attribute {name!r}"))
        return self._bind(found, v, cls)

    def _of_class(self, v: type, name: str) -> Any:
        if issubclass(v, enum.Enum) or module_of(v) in LIBRARIES:
            return self.python(getattr, v, name)
        found = self.class_attribute(v, name)
        if found is UNDEF or isinstance(found, property) or hasattr(type, name):
            raise Refused(f"the attribute {name} of the class {v.__name__}")
        return self._bind(found, UNDEF, v)

    def _bind(self, found: Any, v: Any, cls: Any) -> Any:
        """What is found in a class, as an attribute of the object v, or of the class itself."""
        if isinstance(found, property):
            return self.call(Partial(found.fget, (v,)), [], {})
        if isinstance(found, staticmethod):
            return found.__func__
        if isinstance(found, classmethod):
            return Partial(found.__func__, (cls,))
        if isinstance(found, types.FunctionType) and v is not UNDEF:
            return Partial(found, (v,))
        if isinstance(found, (types.FunctionType, *CONSTANT_TYPES, tuple, list, dict)) or is_array(found):
            return self.outside(found)
        raise Refused(f"a class attribute that is a {type(found).__name__}")

    def set_attr(self, v: Any, name: str, value: Any) -> None:
        self.lifted(lambda a: self._set_attr(a, name, value), v)

    def _set_attr(self, v: Any, name: str, value: Any) -> None:
        check_name(name)
        if not isinstance(v, Obj) or v.cls in METHODS:
            raise Refused(f"`.{name}` of a {name_of_type(v)} from outside is changed", CHANGES)
        found = self.class_attribute(v.cls, name)
        plain = found is UNDEF or isinstance(found, (types.FunctionType, *CONSTANT_TYPES))
        if not plain or self.class_attribute(v.cls, "__setattr__") is not UNDEF:
            raise Refused(f"`.{name}`, a property or an attribute of a frozen dataclass, is set", "make a new object")
        self.write(v, name, value)


def check_name(name: str) -> None:
    if name.startswith("__") and not name.endswith("__"):
        raise Refused(f"the name `{name}`, which Python changes inside a class", "write one underscore")

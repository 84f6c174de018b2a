"""Objects of the user's classes: their attributes, and how the program makes them."""

from __future__ import annotations

import abc
import dataclasses
import enum
import inspect
import types
import typing
from typing import Any

from jaxpyop._traced.allowed import DATA, METHODS
from jaxpyop._traced.containers import CHANGES, Containers
from jaxpyop._traced.operators import OUTSIDE, name_of_function, name_of_type, type_of
from jaxpyop._traced.values import *


class Objects(Containers):
    """Attributes are read and set, and objects are made."""

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
        if name in METHODS.get(type_of(v), ()) or (name == "_replace" and isinstance(v, tuple)):
            return Method(v, name)
        if any(isinstance(v, types_) and name in names for types_, names in DATA):
            return getattr(v, name)
        if is_array(v) and name == "at":
            return At(v)
        if isinstance(v, types.ModuleType):
            return self._of_module(v, name)
        return self._of_class(v, name) if isinstance(v, type) else self._of_object(v, name)

    def _of_module(self, v: types.ModuleType, name: str) -> Any:
        if name not in vars(v) and v.__name__.split(".")[0] not in LIBRARIES:
            if "__getattr__" in vars(v):
                raise Refused(f"the attribute {name} of the module {v.__name__}, which has a __getattr__")
            raise PyRaise(AttributeError(f"module {v.__name__!r} has no attribute {name!r}"))
        return self.outside(self.python(getattr, v, name))

    def _of_object(self, v: Any, name: str) -> Any:
        """An attribute of an object of the program, or of one from outside, which nothing in the program changes."""
        cls: Any = type_of(v)
        if isinstance(v, tuple):
            if name in (fields := getattr(cls, "_fields", ())):
                return v[fields.index(name)]
        elif module_of(cls) in LIBRARIES or (isinstance(v, Kind) and not isinstance(v, Obj)) or cls in METHODS:
            raise Refused(f"the attribute {name} of a {name_of_type(v)} is not in the language")
        else:
            check_class(cls)
        if name == "__class__":
            return cls
        own = v.slots if isinstance(v, Obj) else attributes_of(v)
        found = self.class_attribute(cls, name)
        if name in own and not is_data_descriptor(found):
            x = self.outside(own[name])
            if may_be_undefined(x):
                raise Refused(f"the attribute {name} is set on one path only", "set it before")
            return x
        if found is UNDEF:
            if hasattr(object, name):
                raise Refused(f"the attribute {name}")
            raise PyRaise(AttributeError(f"{cls.__name__!r} object has no attribute {name!r}"))
        return self.bind_attribute(found, v, cls)

    def _of_class(self, v: type, name: str) -> Any:
        if issubclass(v, enum.Enum):
            check_class(v)
        if issubclass(v, enum.Enum) or module_of(v) in LIBRARIES:
            return self.outside(self.python(getattr, v, name))
        found = self.class_attribute(v, name)
        if type(v) not in (type, abc.ABCMeta) or found is UNDEF or isinstance(found, property) or hasattr(type, name):
            raise Refused(f"the attribute {name} of the class {v.__name__}")
        return self.bind_attribute(found, UNDEF, v)

    def bind_attribute(self, found: Any, v: Any, cls: Any) -> Any:
        """What is found in a class, as an attribute of the object v, or of the class itself."""
        kind = type(found)
        if kind is property and v is not UNDEF:
            return self.call(Partial(self.outside(found.fget), (v,)), [], {})
        if kind is staticmethod:
            return self.outside(found.__func__)
        if kind is classmethod:
            return Partial(self.outside(found.__func__), (cls,))
        if kind is types.FunctionType and v is not UNDEF:
            return Partial(found, (v,))
        if not is_data(found):
            raise Refused(f"a class attribute that is a {kind.__name__}")
        return self.outside(found)

    def set_attr(self, v: Any, name: str, value: Any) -> None:
        self.lifted(lambda a: self._set_attr(a, name, value), v)

    def _set_attr(self, v: Any, name: str, value: Any) -> None:
        check_name(name)
        if name.startswith("__"):
            raise Refused(f"`.{name}` is set")
        if not isinstance(v, Obj) or v.cls in METHODS:
            raise Refused(f"`.{name}` of a {name_of_type(v)} from outside is changed", CHANGES)
        found = self.class_attribute(v.cls, name)
        plain = found is UNDEF or is_data(found)
        if not plain or self.class_attribute(v.cls, "__setattr__") is not UNDEF:
            raise Refused(f"`.{name}`, a property or an attribute of a frozen dataclass, is set", "make a new object")
        self.write(v, name, value)

    def _construct(self, cls: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            check_tuple(cls)
            return self.python(cls, *args, **kwargs)
        if module_of(cls) in LIBRARIES and not issubclass(cls, BaseException):
            raise Refused(f"`{name_of_function(cls)}` is not in the language", OUTSIDE)
        check_class(cls)
        if issubclass(cls, BaseException):
            if any(isinstance(v, Kind) or is_array(v) for v in (*args, *kwargs.values())):
                raise Refused(f"a {cls.__name__} of a value that is not known", "write an f-string that names it")
            self.need_constant(*args, *kwargs.values())
            return self.python(cls, *args, **kwargs)
        if issubclass(cls, enum.Enum):
            raise Refused(f"a {cls.__name__} that is looked up by its value", f"write {cls.__name__}.NAME")
        if abstract := getattr(cls, "__abstractmethods__", None):
            raise PyRaise(TypeError(f"{cls.__name__} has no {', '.join(sorted(abstract))}"))
        if any(is_plain_base(c, cls) for c in cls.__mro__[:-1] if c not in (typing.Generic, abc.ABC)):
            what = "a class that is built in or made in a way of its own, is not in the language"
            raise Refused(f"`{name_of_function(cls)}`, {what}", OUTSIDE)
        obj = Obj(cls, {})
        owner = next((c for c in cls.__mro__[:-1] if "__init__" in vars(c)), object)
        init: Any = vars(owner)["__init__"]
        if "__dataclass_params__" in vars(owner) and getattr(init, "__code__", init).co_filename == "<string>":
            self._set_fields(obj, owner, args, kwargs)
        elif owner is not object:
            self.call(Partial(self.outside(init), (obj,)), args, kwargs)
        elif args or kwargs:
            raise PyRaise(TypeError(f"{cls.__name__}() takes no arguments"))
        return obj

    def _set_fields(self, obj: Obj, owner: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """What the `__init__` does that `dataclass` wrote for the class `owner`."""
        fields, signature = dataclasses.fields(owner), inspect.signature(vars(owner)["__init__"])
        try:
            given = signature.bind(obj, *args, **kwargs).arguments
        except TypeError as e:
            raise PyRaise(e) from None
        if len(signature.parameters) > 1 + sum(f.init for f in fields):
            raise Refused(f"an InitVar of {owner.__name__} is not in the language")
        for f in fields:
            if f.name in given:
                obj.slots[f.name] = given[f.name]
            elif f.default_factory is not dataclasses.MISSING:
                obj.slots[f.name] = self.call(self.outside(f.default_factory), [], {})
            elif f.init and f.default is not dataclasses.MISSING:
                obj.slots[f.name] = self.outside(f.default)
        check_no_iterators(*obj.slots.values())
        if (post := self.class_attribute(obj.cls, "__post_init__")) is not UNDEF:
            self.call(Partial(post, (obj,)), [], {})

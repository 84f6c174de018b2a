"""What values hold: the items of lists, dicts, tuples and arrays, iteration, attributes, methods of lists and dicts."""

from __future__ import annotations

import abc
import enum
import itertools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpyop._traced.allowed import DATA, METHODS
from jaxpyop._traced.operators import Operators, name_of_type, type_of
from jaxpyop._traced.values import *

# A traced index with more values than these is refused for a list.
_MOST_INDICES = 12
Items = tuple[Any, ...]
CHANGES = 'return the new value, make it in the function, or write mode="eager" and stateful=True'


class Containers(Operators):
    """Items and attributes are read and set."""

    def new_list(self, items: Any) -> Obj:
        items = tuple(items)
        check_no_iterators(items)
        return Obj(list, {"items": items})

    def new_dict(self, pairs: Any = ()) -> Obj:
        pairs = Pairs(pairs)
        self.need_constant(*(k for k, _ in pairs))
        return Obj(dict, {"items": pairs})

    def opened(self, v: Any) -> Obj:
        """A list or a dict from outside as one of the program. All that is in it passes the gate."""
        if type(v) is dict:
            return self.new_dict((self.outside(k), self.outside(x)) for k, x in v.items())
        return self.new_list(map(self.outside, v))

    def items(self, obj: Obj) -> Items:
        """What a list holds; the (key, value) pairs of a dict."""
        if isinstance(obj.slots["items"], Union):
            raise Refused(f"a {obj.cls.__name__} whose length depends on values", "use an array of a fixed length")
        return obj.slots["items"]

    def mapped(self, f: Callable[[Any], Any], v: Any) -> Any:
        """A value with `f` of all that is in its tuples, lists and dicts, which become those of Python."""
        if isinstance(v, tuple):
            parts = [self.mapped(f, x) for x in v]
            return type(v)(*parts) if hasattr(v, "_fields") else tuple(parts)
        if type(v) is list or (isinstance(v, Obj) and v.cls is list):
            return [self.mapped(f, x) for x in self.iterate(v)]
        if type(v) is dict or is_dict(v):
            return {k: self.mapped(f, x) for k, x in self.pairs(v)}
        return f(v)

    def new_slice(self, *ends: Any) -> Any:
        if any(isinstance(x, (Num, Union)) or is_array(x) for x in ends):
            raise Refused("a slice with traced bounds", "use jax.lax.dynamic_slice")
        return slice(*ends)

    def known_length(self, v: Any) -> Any:
        """A list whose length depends on values, as a Union of tuples, and other values as they are."""
        if not (isinstance(v, Obj) and v.cls is list and isinstance(items := v.slots["items"], Union)):
            return v
        return Union(items.tag, [Iter(self._while_same(v, items, alt)) for alt in items.alts])

    def _while_same(self, v: Obj, items: Union, alt: Items) -> Iterator[Any]:
        for n in range(len(alt) + 1):
            if v.slots["items"] is not items:
                raise Refused("a list whose length depends on values changes while a loop goes over it")
            yield from alt[n : n + 1]

    def with_items(self, obj: Obj, f: Callable[[Items], tuple[Any, Any]]) -> Any:
        """Changes what an object holds. `f` takes the items, and returns the new ones, and a result."""

        def one(items: Items) -> Any:
            new, result = f(items)
            self.write(obj, "items", type(items)(new))
            return result

        return self.lifted(one, obj.slots["items"])

    def length(self, v: Any) -> Any:
        if isinstance(v, Obj) and v.cls in (list, dict):
            return self.lifted(len, v.slots["items"])
        if is_array(v) or isinstance(v, (tuple, str, list, dict, set, frozenset, range, np.ndarray)):
            return self.python(len, v)
        raise Refused(f"len of a {name_of_type(v)}")

    # ----------------------------------------------------------------- items are read

    def get_item(self, box: Any, key: Any) -> Any:
        return self.lifted(self._get_item, box, key)

    def _get_item(self, box: Any, key: Any) -> Any:
        if is_array(box):
            return self.python(operator.getitem, box, self.array_index(key))
        if isinstance(box, At):
            return At(box.array, key)
        if isinstance(box, Obj) and box.cls in (list, dict):
            return self.lifted(lambda items: self._of_items(box.cls, items, key), box.slots["items"])
        if isinstance(box, Obj):
            raise Refused(f"an item of a {name_of_type(box)}")
        if (isinstance(box, str | np.ndarray) and not is_array(key)) or (type(box) is range and isinstance(key, slice)):
            self.need_constant(None if isinstance(key, slice) else key)
            return self.python(operator.getitem, box, key)
        if type(box) in (list, range) or isinstance(box, tuple):
            return self._of_items(type(box), tuple(map(self.outside, box)), key)
        if type(box) is dict:
            self.need_constant(*box)
            return self.outside(self._value_of_key(tuple(box.items()), key))
        raise Refused(f"an item of a {name_of_type(box)}")

    def _of_items(self, cls: type, items: Items, key: Any) -> Any:
        if cls is dict:
            return self._value_of_key(items, key)
        out = self._of_tuple(items, key)
        return self.new_list(out) if cls is list and isinstance(key, slice) else out

    def array_index(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return tuple(map(self.array_index, key))
        if isinstance(key, Num):
            if key.kind == "i" and is_counter(key):
                # Out of its bounds, an index is clipped or dropped by JAX, wherever it lies there.
                least, most = -(2**31), 2**31 - 1
                key = Num("i", wide(jnp.clip, key.val, least, most), least, most)
            return num_to_array(key)
        if is_array(key) and key.dtype == np.bool_:
            raise Refused("an index of bools, whose number depends on values", "use jnp.where")
        return key

    def _value_of_key(self, items: Items, key: Any, default: Any = UNDEF) -> Any:
        place = self.place_of_key(key, [k for k, _ in items])
        if place is None and default is UNDEF:
            raise PyRaise(KeyError(key))
        return default if place is None else items[place][1]

    def _of_tuple(self, items: Items, key: Any) -> Any:
        return self.lifted(lambda k: self.python(operator.getitem, items, k), self.index(len(items), key))

    def index(self, length: int, key: Any) -> Any:
        """An index of a list or a tuple. A traced one becomes a Union of all indices that there are."""
        if (is_array(key) and not jnp.issubdtype(key.dtype, jnp.integer)) or (isinstance(key, Num) and key.kind == "f"):
            raise PyRaise(TypeError("only integers can be an index"))
        key = of_array(key) if is_array(key) else key
        if not isinstance(key, Num):
            return key
        (lo, hi), val = bounds(key), raw(key, "i")
        if not length or lo >= length or hi < -length:
            raise PyRaise(IndexError("list index out of range"))
        if lo < -length or hi >= length:
            raise_if(wide(lambda: (val < -length) | (val >= length)), IndexError, "list index out of range")
        val = val if lo >= 0 else wide(lambda: jnp.where(val < 0, val + length, val))
        lo, hi = (0, length - 1) if lo < 0 else (lo, min(hi, length - 1))
        if hi - lo >= _MOST_INDICES:
            raise Refused("an index with many values", "bound it by the test of an if or a loop, or use an array")
        tag = wide(lambda: jax.lax.convert_element_type(jnp.clip(val, lo, hi) - lo, np.int32))
        return Union(tag, list(range(lo, hi + 1)))

    # -------------------------------------------------------------------- and written

    def set_item(self, box: Any, key: Any, value: Any) -> None:
        check_no_iterators(value)
        self.lifted(lambda b, k: self._set_item(b, k, value), box, key)

    def _set_item(self, box: Any, key: Any, value: Any) -> None:
        if is_array(box):
            raise PyRaise(TypeError("JAX arrays are immutable; write x = x.at[i].set(v)"))
        if not isinstance(box, Obj):
            raise Refused(f"an item of a {name_of_type(box)} from outside is set", CHANGES)
        if box.cls is dict:
            self._set_key(box, key, value)
        elif box.cls is list and not isinstance(key, slice):
            each = lambda items: self.lifted(lambda k: self._set_at(box, items, k, value), self.index(len(items), key))
            self.lifted(each, box.slots["items"])
        else:
            raise Refused(f"an item or a slice of a {name_of_type(box)} is set")

    def _set_key(self, box: Obj, key: Any, value: Any) -> None:
        def change(items: Items) -> Any:
            place = self.place_of_key(key, [k for k, _ in items])
            if place is None:
                return [*items, (key, value)], None
            return [*items[:place], (items[place][0], value), *items[place + 1 :]], None

        self.with_items(box, change)

    def _set_at(self, box: Obj, items: Items, key: Any, value: Any) -> None:
        new = list(items)
        self.python(operator.setitem, new, key, value)
        self.write(box, "items", tuple(new))

    # ---------------------------------------------------------------------- iteration

    def lazily(self, v: Any) -> Iterator[Any]:
        """The values that a `for` over v takes, one after the other, because a list may change in between."""
        if isinstance(v, Iter):
            values = v.values
        elif isinstance(v, Obj) and v.cls is list:
            values = self.of_list(v, 0, 1)
        elif is_dict(v):
            values = self.view(v, operator.itemgetter(0))
        else:
            values = v if isinstance(v, range) else self._constants(v)
        return map(self.counted, values)

    def of_list(self, v: Obj, n: int, step: int) -> Iterator[Any]:
        while 0 <= n < len(self.items(v)):
            yield self.items(v)[n]
            n += step

    def view(self, v: Obj, pick: Callable[[Any], Any]) -> Iterator[Any]:
        """The keys, values or items of a dict. They show later changes, but not of the keys."""
        keys = [k for k, _ in self.items(v)]
        for n in range(len(keys) + 1):
            items = self.items(v)
            if [k for k, _ in items] != keys:
                raise Refused("the keys of a dict change while a loop goes over it")
            if n < len(keys):
                yield pick(items[n])

    def iterate(self, v: Any) -> Items:
        """The values that a `for` over v takes."""
        return self._constants(v) if isinstance(v, range) else tuple(self.lazily(v))

    def _constants(self, v: Any) -> Items:
        if isinstance(v, tuple):
            return v
        if is_array(v):
            if v.ndim == 0:
                raise PyRaise(TypeError("iteration over a 0-d array"))
            return tuple(v[i] for i in range(v.shape[0]))
        if type(v) in (range, str, list, dict, np.ndarray) or (isinstance(v, type) and issubclass(v, enum.Enum)):
            return tuple(self.outside(self.counted(x)) for x in v)
        if isinstance(v, TracedRange):
            raise Refused("a range whose length depends on values", "write a for loop over it")
        raise Refused(f"a loop over a {name_of_type(v)}")

    def outside(self, v: Any) -> Any:
        """A value from outside, as one of the language. What is in a list or an object is checked when it is used."""
        check_from_outside(v)
        if isinstance(v, tuple):
            parts = tuple(map(self.outside, v))
            return v if hasattr(v, "_fields") else parts
        return v

    # -------------------------------------------------------------------- attributes

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
            if isinstance(x, Union) and UNDEF in x.alts:
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

    # ------------------------------------------------------- methods of built-in types

    def list_method(self, v: Obj, name: str, args: list[Any], **kwargs: Any) -> Any:
        if "key" in kwargs:
            raise Refused("list.sort with a key", "write l = sorted(l, key=...)")
        if name in ("index", "remove", "sort"):
            self.need_constant(*self.items(v), *args, *kwargs.values())
        if name == "index":
            return self.python(self.items(v).index, *args)
        if name in ("append", "extend", "insert", "pop", "clear", "remove", "reverse", "sort"):
            if name == "extend" and isinstance(args[0], Iter):
                # The iterator may read the list, which grows item by item.
                for x in self.lazily(args[0]):
                    self.list_method(v, "append", [x])
                return None
            args = [self.iterate(args[0])] if name == "extend" else args
            check_no_iterators(*args)

            def change(items: Items) -> Any:
                new = list(items)
                return new, self.python(getattr(new, name), *args, **kwargs)

            if name in ("insert", "pop") and args and type(args[0]) is not int:
                raise Refused(f"list.{name} at a traced index")
            return self.with_items(v, change)
        return self.lifted(self.new_list, v.slots["items"])  # copy

    def dict_method(self, v: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if name in ("items", "keys", "values"):
            pick = {"items": tuple, "keys": operator.itemgetter(0), "values": operator.itemgetter(1)}[name]
            return Iter(self.view(v, pick))
        if name == "get":
            default = args[1] if len(args) > 1 else None
            get = lambda items, k: self._value_of_key(items, k, default)
            return self.lifted(get, v.slots["items"], args[0])
        if name == "setdefault":
            if self.place_of_key(args[0], [k for k, _ in self.items(v)]) is None:
                self.set_item(v, args[0], args[1] if len(args) > 1 else None)
            return self.get_item(v, args[0])
        if name == "update":
            for k, x in itertools.chain(self.pairs(args[0]) if args else (), kwargs.items()):
                self.set_item(v, k, x)
            return None
        return self.new_dict(self.items(v))  # copy

    def pairs(self, v: Any) -> Any:
        """The (key, value) pairs of a dict, or of a sequence of pairs."""
        if is_dict(v):
            return self.items(v)
        if type(v) is dict:
            return self.items(self.opened(v))
        return ((k, x) for k, x in map(self.iterate, self.lazily(v)))

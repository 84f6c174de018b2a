"""Lists, dicts, tuples: items, iteration, and the methods of built-in types."""

from __future__ import annotations

import ast
import enum
import itertools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop._traced.operators import Operators, name_of_type
from jaxpyop._traced.values import *

# A loop over more constants than these is refused, because the program grows with each turn.
_MOST_TURNS = 4096
# A traced index with more values than these is refused for a list.
_MOST_INDICES = 12
Items = tuple[Any, ...]


class Containers(Operators):
    """Items of lists, dicts, tuples and arrays."""

    def new_list(self, items: Any) -> Obj:
        return Obj(list, {"items": tuple(items)})

    def new_dict(self, pairs: Any = ()) -> Obj:
        return Obj(dict, {"items": Pairs(pairs)})

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
            return [self.mapped(f, x) for x in (v if type(v) is list else self.items(v))]
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

    def small(self, v: Any) -> Any:
        """A traced number with few values as a Union of them."""
        if not isinstance(v, Num):
            return v
        lo, hi = bounds(v)
        if v.kind not in "bi" or hi - lo >= _MOST_INDICES:
            raise Refused("a traced number where Python needs its value", "bound it by the test of an if or a loop")
        alts = (False, True) if v.kind == "b" else tuple(range(lo, hi + 1))
        with jax.enable_x64(True):
            tag = sum((jnp.where(v.val == raw(a, v.kind), np.int32(i), np.int32(0)) for i, a in enumerate(alts)), 0)
            return Union(lax.convert_element_type(tag, np.int32), list(alts))

    # ----------------------------------------------------------------- items are read

    def get_item(self, box: Any, key: Any) -> Any:
        return self.lifted(self._get_item, box, key)

    def _get_item(self, box: Any, key: Any) -> Any:
        if is_array(box):
            return self.python(operator.getitem, box, self.array_index(key))
        if isinstance(box, At):
            return At(box.array, key)
        if isinstance(box, Obj) and box.cls in (list, dict):
            find = self._of_tuple if box.cls is list else self._value_of_key
            out = self.lifted(lambda items: find(items, key), box.slots["items"])
            return self.new_list(out) if box.cls is list and isinstance(key, slice) else out
        if isinstance(box, Obj):
            raise Refused(f"an item of a {name_of_type(box)}")
        if type(box) in (list, range) or isinstance(box, tuple):
            out = self._of_tuple(tuple(map(self.outside, box)), key)
            return self.new_list(out) if type(box) is list and isinstance(key, slice) else out
        if type(box) in (dict, types.MappingProxyType):
            return self.outside(self._value_of_key(tuple(box.items()), key))
        if isinstance(box, (str, np.ndarray)) and not is_array(key):
            self.need_constant(None if isinstance(key, slice) else key)
            return self.python(operator.getitem, box, key)
        raise Refused(f"an item of a {name_of_type(box)}")

    def array_index(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return tuple(map(self.array_index, key))
        if isinstance(key, Num):
            if key.kind == "i" and is_counter(key):
                # Out of its bounds, an index is clipped or dropped by JAX, wherever it lies there.
                least, most = -(2**31), 2**31 - 1
                key = Num("i", wide(jnp.clip, key.val, least, most), least, most)
            return num_to_array(key)
        return key

    def _value_of_key(self, items: Items, key: Any, default: Any = UNDEF) -> Any:
        def none() -> Any:
            if default is UNDEF:
                raise PyRaise(KeyError("a key that is not known" if isinstance(key, Num) else key))
            return default

        if isinstance(key, Num):
            has = lambda i: self.truth(self.compare(ast.Eq, items[i][0], key))
            return self.first(len(items), has, lambda i: items[i][1], none)
        self.need_constant(key)
        found = [v for a, v in items if a is key or a == key]
        return found[0] if found else none()

    def _of_tuple(self, items: Items, key: Any) -> Any:
        return self.lifted(lambda k: self.python(operator.getitem, items, k), self.index(len(items), key))

    def index(self, length: int, key: Any) -> Any:
        """An index of a list or a tuple. A traced one becomes a Union of all indices that there are."""
        if is_array(key):
            if not jnp.issubdtype(key.dtype, jnp.integer):
                raise PyRaise(TypeError("only integer arrays can be an index"))
            key = of_array(key)
        if type(key) is int and not -length <= key < length:
            raise PyRaise(IndexError("list index out of range"))
        if not isinstance(key, Num) or key.kind != "i":
            return self.small(key)
        lo, hi = bounds(key)
        if not length or lo >= length or hi < -length:
            raise PyRaise(IndexError("list index out of range"))
        if lo < -length or hi >= length:
            raise_if(wide(lambda: (key.val < -length) | (key.val >= length)), IndexError, "list index out of range")
        val = key.val if lo >= 0 else wide(lambda: jnp.where(key.val < 0, key.val + length, key.val))
        ends = (0, length - 1) if lo < 0 else (lo, min(hi, length - 1))
        return self.small(Num("i", wide(jnp.clip, val, *ends), *ends))

    # -------------------------------------------------------------------- and written

    def set_item(self, box: Any, key: Any, value: Any) -> None:
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
            if any(k is key or k == key for k, _ in items):
                return [(k, value if k is key or k == key else v) for k, v in items], None
            return [*items, (key, value)], None

        self.need_constant(key)
        self.with_items(box, change)

    def _set_at(self, box: Obj, items: Items, key: Any, value: Any) -> None:
        new = list(items)
        self.python(operator.setitem, new, key, value)
        self.write(box, "items", tuple(new))

    # ---------------------------------------------------------------------- iteration

    def lazily(self, v: Any) -> Iterator[Any]:
        """The values that a `for` over v takes, one after the other, because a list may change in between."""
        if isinstance(v, Iter):
            return v.values
        if isinstance(v, Obj) and v.cls is list:
            return self.of_list(v, 0, 1)
        if is_dict(v):
            return self.view(v, operator.itemgetter(0)).values
        return iter(v if isinstance(v, range) else self._constants(v))

    def of_list(self, v: Obj, n: int, step: int) -> Iterator[Any]:
        while 0 <= n < len(self.items(v)):
            yield self.items(v)[n]
            n += step

    def view(self, v: Obj, pick: Callable[[Any], Any]) -> Iter:
        """The keys, values or items of a dict. They show later changes, but not of the keys."""

        def values(keys: Any) -> Iterator[Any]:
            for n in range(len(keys) + 1):
                items = self.items(v)
                if [k for k, _ in items] != keys:
                    raise Refused("the keys of a dict change while a loop goes over it")
                if n < len(keys):
                    yield pick(items[n])

        return Iter(values([k for k, _ in self.items(v)]))

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
            if len(v) > _MOST_TURNS:
                raise Refused(f"a loop of more than {_MOST_TURNS} turns over constants", "use jax.lax.fori_loop")
            return tuple(map(self.outside, v))
        if isinstance(v, TracedRange):
            raise Refused("a range whose length depends on values", "write a for loop over it")
        raise Refused(f"a loop over a {name_of_type(v)}")

    def outside(self, v: Any) -> Any:
        """A value from outside, as one of the language. Its objects are checked when they are used."""
        if isinstance(v, tuple) and hasattr(v, "_fields"):
            check_namedtuple(type(v))
        elif isinstance(v, tuple):
            return tuple(map(self.outside, v))
        return v

    # ------------------------------------------------------- methods of built-in types

    def list_method(self, v: Obj, name: str, args: list[Any]) -> Any:
        if name in ("append", "extend", "insert", "pop", "clear", "reverse"):
            if name == "extend" and isinstance(args[0], Iter):
                # The iterator may read the list, which grows item by item.
                for x in self.lazily(args[0]):
                    self.list_method(v, "append", [x])
                return None
            args = [self.iterate(args[0])] if name == "extend" else args

            def change(items: Items) -> Any:
                new = list(items)
                return new, self.python(getattr(new, name), *args)

            if name in ("insert", "pop") and args and type(args[0]) is not int:
                raise Refused(f"list.{name} at a traced index")
            return self.with_items(v, change)
        return self.lifted(self.new_list, v.slots["items"])  # copy

    def dict_method(self, v: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if name in ("items", "keys", "values"):
            return self.view(v, {"items": tuple, "keys": operator.itemgetter(0)}.get(name, operator.itemgetter(1)))
        if name == "get":
            default = args[1] if len(args) > 1 else None
            get = lambda items, k: self._value_of_key(items, k, default)
            return self.lifted(get, v.slots["items"], args[0])
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
            return tuple(v.items())
        return ((k, x) for k, x in map(self.iterate, self.lazily(v)))


CHANGES = 'return the new value, make it in the function, or write mode="eager" and stateful=True'


class _Plain(NamedTuple):
    """Has what Python itself gives the class of a namedtuple."""

    item: int


def check_namedtuple(cls: Any) -> None:
    """Refuses a namedtuple with operators of its own."""
    own = {name for name in vars(cls) if name.startswith("__")} - vars(_Plain).keys()
    if own or cls.__bases__ != (tuple,) or not cls.__new__.__module__.startswith("namedtuple_"):
        what = f"has {', '.join(sorted(own))}" if own else "is derived from another one"
        raise Refused(f"the namedtuple {cls.__name__}, which {what}", "write a typing.NamedTuple without it")

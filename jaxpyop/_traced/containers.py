"""What values hold: the items of lists, dicts, tuples and arrays, iteration, and methods of lists and dicts."""

from __future__ import annotations

import ast
import enum
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpyop._traced.operators import Operators, name_of_type
from jaxpyop._traced.values import *

# A traced index with more values than these is refused for a list.
_MOST_INDICES = 12
Items = tuple[Any, ...]
CHANGES = 'return the new value, make it in the function, or write mode="eager" and stateful=True'


class Containers(Operators):
    """Items are read, set and iterated over."""

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

    def for_each(self, f: Callable[[Any], Any], v: Any, test: Callable[[Union], bool] = lambda _: True) -> Any:
        """`f(v)`, by a branch for each alternative of those Unions in `v` that pass a test."""
        unions = list[Union]()
        is_apart = lambda x: isinstance(x, Union) and test(x)
        self.mapped(lambda x: unions.append(x) if is_apart(x) else None, v)

        def of(*alternatives: Any) -> Any:
            rest = iter(alternatives)
            return self.for_each(f, self.mapped(lambda x: next(rest) if is_apart(x) else x, v), test)

        return self.lifted(of, *unions) if unions else f(v)

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

    def by_index(self, v: Any) -> tuple[int, Any]:
        """How many values a `for` over v takes, and a function of an index that gives one. Of a list there is none."""
        if isinstance(v, range):
            return len(v), lambda i: self.binary(ast.Add, v.start, self.binary(ast.Mult, i, v.step))
        if is_array(v) and v.ndim:
            return len(v), lambda i: self.get_item(v, i)
        return v.by_index if isinstance(v, Iter) else (0, None)

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
        return tuple(self._constants(v) if isinstance(v, range) else self.lazily(v))

    def _constants(self, v: Any) -> Iterable[Any]:
        if isinstance(v, tuple):
            return v
        if is_array(v):
            if v.ndim == 0:
                raise PyRaise(TypeError("iteration over a 0-d array"))
            return (v[i] for i in range(v.shape[0]))
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

"""The forms of values, and how two values become one.

A form is a value without its traced numbers. `form_of` finds it, `Joining` makes one form of two, `leaves_of` takes the
traced numbers out of a value in the order of a form, and `Filling` makes the value of a form and such numbers. So both
sides of a branch, and the state of a loop before and after a turn, become the same list of arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop import _jaxcore
from jaxpyop._traced.values.gate import *
from jaxpyop._traced.values.kinds import *

_TWO_OBJECTS, _COPY = "two names are one object on one path, and two on another", "make a copy"


class Form:
    """The form of a value.

    Attributes:
        kind: "const", "ref" (an object from before), "new" (an object made since), "num", "arr", "group" (a tuple, a
            function or another value with parts that does not change) or "union".
        own: what two forms of one kind must share to become one.
        parts: the forms of the parts.
        value: of a constant, the constant. Of a number, its range. Of a group, what builds it of its parts.
    """

    def __init__(self, kind: str, own: Any, parts: tuple[Form, ...] = (), value: Any = None) -> None:
        self.kind, self.own, self.parts, self.value = kind, own, parts, value
        self.slots: dict[str, Form] = {}  # of a new object; these may lead back to it

    def number_kind(self) -> str | None:
        if self.kind == "num":
            return self.own
        return kind_of(self.value) if self.kind == "const" and is_scalar(self.value) else None

    def range(self) -> tuple[Any, Any]:
        """The lowest and the highest that a number of this form can be."""
        return self.value if self.kind == "num" else bounds(self.value)

    def children(self) -> tuple[Form, ...]:
        return (*self.parts, *self.slots.values())

    def struct(self) -> jax.ShapeDtypeStruct | None:
        """The type of the traced value that a value of this form has, besides those of its parts."""
        if self.kind == "num":
            return jax.ShapeDtypeStruct((), DTYPES[self.own])
        if self.kind == "arr":
            return jax.ShapeDtypeStruct(*self.own[:2])
        return jax.ShapeDtypeStruct((), np.int32) if self.kind == "union" else None


def walk(form: Form, seen: set[Form]) -> Iterator[Form]:
    """The form and all forms in it, each object once, in the order in which their traced values are kept."""
    if form.kind == "new":
        if form in seen:
            return
        seen.add(form)
    yield form
    for part in form.children():
        yield from walk(part, seen)


def structs_of(forms: list[Form]) -> list[jax.ShapeDtypeStruct]:
    seen: set[Form] = set()
    return [s for form in forms for f in walk(form, seen) if (s := f.struct()) is not None]


def const(v: Any) -> Form:
    # Numbers and texts are the same if they look the same, which tells 0.0 from -0.0, and NaN from nothing else.
    same = (is_scalar(v) and v == v) or isinstance(v, (str, bytes, complex, np.dtype, np.generic))
    return Form("const", (type(v), repr(v) if same else id(v)), (), v)


def num(kind: str, lo: Any, hi: Any, flushed: bool = False) -> Form:
    """The form of a number. Its part is whether XLA took it for zero, if it may have done so."""
    return Form("num", kind, (num("b", 0, 1),) if flushed else (), (lo, hi))


def split(v: Any) -> tuple[Any, tuple[Any, ...], Callable[[list[Any]], Any]] | None:
    """What identifies a group, its parts, and a function that builds a group like it of other parts."""
    if isinstance(v, tuple):
        cls: Any = type(v)
        keys = tuple(const(k).own for k, _ in v) if cls is Pairs else ()
        return (cls, len(v), *keys), tuple(v), lambda xs: cls(*xs) if hasattr(cls, "_fields") else cls(xs)
    if isinstance(v, Closure):
        names = tuple(v.kw_defaults)
        build = lambda xs: Closure(v.node, xs[0], v.outer, xs[1], dict(zip(names, xs[2])))
        return (Closure, id(v.node), id(v.outer)), (v.env, v.defaults, tuple(v.kw_defaults.values())), build
    if isinstance(v, Partial):
        keys = tuple(v.kwargs)
        build = lambda xs: Partial(xs[0], xs[1], dict(zip(keys, xs[2])))
        return (Partial, keys), (v.func, v.args, tuple(v.kwargs.values())), build
    if isinstance(v, Transformed):
        names = tuple(v.kwargs)
        build = lambda xs: Transformed(v.transform, xs[0], dict(zip(names, xs[1])))
        return (Transformed, id(v.transform), names), (v.args, tuple(v.kwargs.values())), build
    return None


def any_part(test: Callable[[Any], bool], v: Any) -> bool:
    """Whether a value, or a part of it, passes a test."""
    group = split(v)
    return test(v) or (group is not None and any(any_part(test, part) for part in group[1]))


def check_no_iterators(*values: Any) -> None:
    """Refuses to keep an iterator, because a path that is not taken would use it up, too."""
    if any_part(lambda v: isinstance(v, Iter), values):
        raise Refused("an iterator is kept, and not used up at once", "write list(...)")


def form_of(v: Any, mark: int, memo: dict[Obj, Form]) -> Form:
    """The form of a value. Objects that were born before `mark` are referred to."""
    if isinstance(v, Num):
        return num(v.kind, *bounds(v), v.flushed is not None)
    if is_array(v):
        return Form("arr", (v.shape, v.dtype, bool(getattr(v, "weak_type", False))))
    if isinstance(v, Union):
        parts = tuple(form_of(a, mark, memo) for a in v.alts)
        if any(mergeable(a, b) for a, b in itertools.combinations(parts, 2)):
            remedy = "use a tuple or a namedtuple, which does not change, or change the one object in place"
            raise Refused("a variable is one of several lists, dicts or objects that were made on this path", remedy)
        return Form("union", None, parts)
    if isinstance(v, Obj):
        if v.birth < mark:
            return Form("ref", v, (), v)
        if v not in memo:
            memo[v] = form = Form("new", v.cls)
            form.slots.update((k, form_of(x, mark, memo)) for k, x in v.slots.items())
        return memo[v]
    if (group := split(v)) is not None:
        return Form("group", group[0], tuple(form_of(x, mark, memo) for x in group[1]), group[2])
    if isinstance(v, Kind):
        raise Refused("a method of a built-in type, or an iterator, is kept on one path", "call it where it is named")
    return const(v)


def mergeable(a: Form, b: Form) -> bool:
    """Whether two forms become one that is no union."""
    if a.number_kind() and a.number_kind() == b.number_kind():
        return True
    if a.kind == b.kind == "new":
        return a.own is b.own and (a.own == "frame" or a.slots.keys() == b.slots.keys())
    return a.kind == b.kind != "union" and a.own == b.own


class Joining:
    """Joins forms. New objects are paired one to one: anything else would lose that two names are one object.

    If it is `widening`, the second form is that after a turn of a loop: a bound that a number grows beyond is given up,
    or is that of a counter.
    """

    merges = staticmethod(mergeable)

    def __init__(self, widening: bool = False) -> None:
        self.widening = widening
        self.pairs: dict[tuple[Form, Form], Form] = {}
        self.left: dict[Form, Form] = {}
        self.right: dict[Form, Form] = {}

    def join(self, a: Form, b: Form) -> Form:
        for one, other, owners in ((a, b, self.right), (b, a, self.left)):
            if one.value is UNSEEN:
                # On the path where nobody looks at it, the name may as well have what another name of the object has.
                if (partner := owners.get(other)) and partner.value is not UNSEEN:
                    return self.pairs[(partner, other) if one is a else (other, partner)]
                # Otherwise no other name may have the object, because on the other path it would be another one.
                for form in walk(other, set()):
                    if form.kind == "new" and owners.setdefault(form, one).value is not UNSEEN:
                        raise Refused(_TWO_OBJECTS, _COPY)
                return other
        if self.merges(a, b):
            return self.one(a, b)
        alts = list(a.parts) if a.kind == "union" else [a]
        for new in b.parts if b.kind == "union" else (b,):
            place = next((i for i, old in enumerate(alts) if self.merges(old, new)), None)
            if place is None:
                alts.append(new)
            else:
                alts[place] = self.join(alts[place], new)
        if len(alts) > 12:
            what = "a variable holds more than 12 kinds of values, of which a list of each length is one"
            raise Refused(what, "use jnp.where and jnp.sum in place of a list, or an array of a fixed length")
        return Form("union", None, tuple(alts)) if len(alts) > 1 else alts[0]

    def one(self, a: Form, b: Form) -> Form:
        if a.kind == "new":
            return self._objects(a, b)
        if a.kind == b.kind and a.own == b.own and a.kind != "num":
            return Form(a.kind, a.own, tuple(map(self.join, a.parts, b.parts)), a.value)
        (l1, h1), (l2, h2), kind, flushed = a.range(), b.range(), a.number_kind() or "", bool(a.parts or b.parts)
        if not self.widening:
            return num(kind, min(l1, l2), max(h1, h2), flushed)
        # What begins or has grown beyond a counter is no counter.
        far = max(-l1, h1, -l2, h2)
        is_counter = far <= MOST_START or FAR <= far <= FAR + MOST_STEP
        most = math.inf if kind == "f" else FAR if is_counter else max(far, MOST)
        return num(kind, l1 if l1 <= l2 else -most, h1 if h2 <= h1 else most, flushed)

    def _objects(self, a: Form, b: Form) -> Form:
        if (a, b) not in self.pairs:
            if self.left.setdefault(a, b) is not b or self.right.setdefault(b, a) is not a:
                raise Refused(_TWO_OBJECTS, _COPY)
            form = self.pairs[a, b] = Form("new", a.own)
            for key in dict.fromkeys([*a.slots, *b.slots]):
                form.slots[key] = self.join(a.slots.get(key, const(UNDEF)), b.slots.get(key, const(UNDEF)))
        return self.pairs[a, b]


def _type_of_form(form: Form) -> Any:
    """The shape and the dtype of a number or an array of this form, if it is one."""
    if form.kind == "arr":
        return form.own[:2]
    if kind := form.number_kind():
        return (), jnp.dtype({"b": bool, "i": int, "f": float}[kind])
    is_of_numpy = isinstance(form.value, (np.ndarray, np.generic))
    return (form.value.shape, jax.dtypes.canonicalize_dtype(form.value.dtype)) if is_of_numpy else None


class JoiningTypes(Joining):
    """Makes one form of two numbers or arrays of one shape. A list that grows from turn to turn has unknown items."""

    @staticmethod
    def merges(a: Form, b: Form) -> bool:
        types = _type_of_form(a), _type_of_form(b)
        return mergeable(a, b) or (None not in types and types[0][0] == types[1][0])

    def join(self, a: Form, b: Form) -> Form:
        grows = self.widening and a.kind == b.kind == "group" and a.own[0] is b.own[0] is tuple and a.own != b.own
        is_unknown = grows or a.value is UNKNOWN or b.value is UNKNOWN
        return const(UNKNOWN) if is_unknown else super().join(a, b)

    def one(self, a: Form, b: Form) -> Form:
        if mergeable(a, b):
            return super().one(a, b)
        (shape, dtype), (_, other) = _type_of_form(a), _type_of_form(b)
        return Form("arr", (shape, jnp.promote_types(dtype, other), False))


def form_key(form: Form, seen: dict[Form, int]) -> Any:
    """Something that is equal for equal forms."""
    if form.kind == "new":
        if form in seen:
            return seen[form]
        seen[form] = len(seen)
    own = (form.kind, form.own if form.kind != "ref" else id(form.own), form.value if form.kind == "num" else None)
    return (*own, tuple(form.slots), tuple(form_key(x, seen) for x in form.children()))


class Flattening:
    """Takes the traced numbers out of values, in the order of forms that they fit, and zeros where a form has more."""

    def __init__(self, mark: int) -> None:
        self.mark, self.leaves = mark, list[Any]()
        self.done: set[Form] = set()
        self.owners: dict[Any, Any] = {}

    def zeros(self, form: Form) -> None:
        for f in walk(form, self.done):
            if (s := f.struct()) is not None:
                self.leaves.append(wide(jnp.zeros, s.shape, s.dtype))

    def put(self, form: Form, v: Any) -> None:
        if v is UNSEEN:
            return self.zeros(form)
        if form.kind == "num":
            self.leaves.append(raw(v, form.own))
            if form.parts:
                flushed = v.flushed if isinstance(v, Num) else None
                self.leaves.append(raw(False) if flushed is None else flushed)
        elif form.kind == "arr":
            self.leaves.append(lax.convert_element_type(v, form.own[1]) if form.own[2] else v)
        elif form.kind == "new":
            if self.owners.setdefault(form, v) is not v or self.owners.setdefault(v, form) is not form:
                raise Refused(_TWO_OBJECTS, _COPY)
            if form not in self.done:
                self.done.add(form)
                for k, x in form.slots.items():
                    self.put(x, v.slots.get(k, UNDEF))
        elif form.kind == "group" and (group := split(v)):
            for x, y in zip(form.parts, group[1], strict=True):
                self.put(x, y)
        elif form.kind == "union":
            self._put_union(form, v)
        return None

    def _put_union(self, form: Form, v: Any) -> None:
        alts = v.alts if isinstance(v, Union) else [v]
        places = [self._place(form, a) for a in alts]
        if isinstance(v, Union) and places == list(range(len(alts))):
            self.leaves.append(v.tag)
        else:
            table = jnp.asarray(np.array(places, np.int32))
            self.leaves.append(table[v.tag] if isinstance(v, Union) else table[0])
        chosen = dict(zip(places, alts))
        for i, x in enumerate(form.parts):
            if i in chosen:
                self.put(x, chosen[i])
            else:
                self.zeros(x)

    def _place(self, form: Form, v: Any) -> int:
        own = form_of(v, self.mark, {})
        return next(i for i, x in enumerate(form.parts) if mergeable(x, own))


class Filling:
    """Makes values of forms and of the traced numbers that were taken out of values like them."""

    def __init__(self, leaves: Any) -> None:
        self.leaves, self.memo = iter(leaves), dict[Form, Obj]()

    def get(self, form: Form) -> Any:
        if form.kind == "new":
            if form not in self.memo:
                obj = self.memo[form] = Obj(form.own, {})
                values = {k: self.get(x) for k, x in form.slots.items()}
                obj.slots.update((k, v) for k, v in values.items() if v is not UNDEF)
            return self.memo[form]
        if form.kind == "num":
            val, flushed = next(self.leaves), next(self.leaves) if form.parts else None
            return Num(form.own, val, *form.value, flushed=flushed)
        if form.kind == "arr":
            x = next(self.leaves)
            x = x if is_array(x) else wide(jnp.asarray, x)  # JAX may have made a constant of it
            return _jaxcore.converted(x, form.own[1], weak=True) if form.own[2] else x
        if form.kind == "union":
            return Union(next(self.leaves), [self.get(x) for x in form.parts])
        if form.kind == "group":
            return form.value([self.get(x) for x in form.parts])
        return form.value

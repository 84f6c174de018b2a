"""The contents of one object: read as something that can be compared, and written back.

An object may hold several things: a subclass of `list` has entries and attributes. Each of them is a `Kind`.
"""

from __future__ import annotations

import array
import collections
import functools
import operator
import pickle
import random
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

# Stands for what is not there: an empty cell, an attribute that was deleted.
ABSENT: Any = object()


class Kind(NamedTuple):
    """One way of holding something.

    Attributes:
        read: takes an object; returns its content as a list of objects, or as bytes.
        write: takes an object and a content that was read before.
    """

    read: Callable[[Any], Sequence[Any]]
    write: Callable[[Any, Any], None]


def is_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Tells whether two contents are the same: equal bytes, or the same objects."""
    if isinstance(a, bytes):
        return a == b
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _refill(add: Callable[[Any], Callable[[Any], None]]) -> Callable[[Any, Any], None]:
    def write(value: Any, content: Any) -> None:
        value.clear()
        add(value)(content)

    return write


def _set_entries(value: Any, content: Any) -> None:
    base = list if isinstance(value, list) else type(value)
    base.__setitem__(value, slice(None), content)


def _dict_type(value: Any) -> Any:
    """Returns the type whose methods read and write a dict as it is, although the user's class may have its own."""
    # An `OrderedDict` keeps the order of its keys itself.
    return collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict


def _set_items(value: Any, content: Any) -> None:
    base = _dict_type(value)
    base.clear(value)
    keys, values = content[::2], content[1::2]
    for key, item in zip(keys, values, strict=True):
        base.__setitem__(value, key, item)


def _items(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [x for pair in pairs for x in pair]


def _read_array(value: np.ndarray) -> Sequence[Any]:
    if value.dtype.hasobject:
        return list(value.flat)
    return b"".join((repr((value.shape, value.dtype)).encode(), b"|", value.tobytes()))


def _write_array(value: np.ndarray, content: Any) -> None:
    if value.dtype.hasobject:
        for place, x in zip(np.ndindex(value.shape), content, strict=True):
            value[place] = x
        return
    flat = np.frombuffer(content.split(b"|", 1)[1], value.dtype)
    value[...] = flat.reshape(value.shape)


def _pickled(read: Callable[[Any], Any], write: Callable[[Any, Any], Any]) -> Kind:
    return Kind(lambda x: pickle.dumps(read(x)), lambda x, content: write(x, pickle.loads(content)))


def _read_cell(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return [ABSENT]


def _write_cell(cell: types.CellType, content: Any) -> None:
    if content[0] is ABSENT:
        del cell.cell_contents
    else:
        cell.cell_contents = content[0]


def _read_function(function: types.FunctionType) -> list[Any]:
    held = function.__dict__
    # What `functools.wraps` and this package note there does not change.
    return [function.__defaults__, function.__kwdefaults__, *_items(held.items())]


def _write_function(function: types.FunctionType, content: Any) -> None:
    function.__defaults__, function.__kwdefaults__ = content[:2]
    _set_items(function.__dict__, content[2:])


def _class_items(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith(("__", "_abc_"))}


def _write_class(cls: type, content: Any) -> None:
    wanted = dict(zip(content[::2], content[1::2], strict=True))
    for name in _class_items(cls).keys() - wanted.keys():
        delattr(cls, name)
    for name, value in wanted.items():
        if vars(cls).get(name, ABSENT) is not value:
            setattr(cls, name, value)


_ENTRIES = Kind(list, _set_entries)
_BYTES = Kind(lambda x: bytes(x), _set_entries)
_KINDS: dict[type, Kind] = {
    list: _ENTRIES,
    dict: Kind(lambda x: _items(_dict_type(x).items(x)), _set_items),
    set: Kind(list, _refill(lambda x: x.update)),
    collections.deque: Kind(list, _refill(lambda x: x.extend)),
    bytearray: _BYTES,
    array.array: Kind(lambda x: x.tobytes(), lambda x, content: _set_entries(x, array.array(x.typecode, content))),
    np.ndarray: Kind(_read_array, _write_array),
    np.random.Generator: _pickled(
        lambda x: x.bit_generator.state, lambda x, content: setattr(x.bit_generator, "state", content)
    ),
    np.random.BitGenerator: _pickled(lambda x: x.state, lambda x, content: setattr(x, "state", content)),
    np.random.RandomState: _pickled(
        lambda x: x.get_state(legacy=False), lambda x, content: x.set_state(content)
    ),
    random.Random: _pickled(lambda x: x.getstate(), lambda x, content: x.setstate(content)),
    types.CellType: Kind(_read_cell, _write_cell),
    types.FunctionType: Kind(_read_function, _write_function),
    type: Kind(lambda x: _items(_class_items(x).items()), _write_class),
}  # fmt: skip

# The classes whose objects are read, and not only their attributes.
WITH_KINDS = tuple(_KINDS)


def _attributes(cls: type) -> Kind:
    # The first read of a cached property stores its value in the object. No code notices that.
    cached = {n for c in cls.__mro__ for n, v in vars(c).items() if isinstance(v, functools.cached_property)}

    def read(value: Any) -> list[Any]:
        held = object.__getattribute__(value, "__dict__")
        return _items((name, x) for name, x in held.items() if name not in cached)

    def write(value: Any, content: Any) -> None:
        held = object.__getattribute__(value, "__dict__")
        kept = {name: held[name] for name in cached if name in held}
        _set_items(held, content)
        held.update(kept)

    return Kind(read, write)


def _slots(members: Sequence[Any]) -> Kind:
    def read(value: Any) -> list[Any]:
        return [_member(m, value) for m in members]

    def write(value: Any, content: Any) -> None:
        for m, x in zip(members, content, strict=True):
            if x is not ABSENT:
                m.__set__(value, x)
            elif _member(m, value) is not ABSENT:
                m.__delete__(value)

    return Kind(read, write)


def _member(descriptor: Any, value: Any) -> Any:
    try:
        return descriptor.__get__(value)
    except AttributeError:
        return ABSENT


_known: weakref.WeakKeyDictionary[type, tuple[Kind, ...]] = weakref.WeakKeyDictionary()


def kinds_of(cls: type) -> tuple[Kind, ...]:
    """Returns the ways in which objects of a type hold what can change."""
    if (found := _known.get(cls)) is None:
        found = _known[cls] = tuple(_kinds(cls))
    return found


def _kinds(cls: type) -> Iterable[Kind]:
    if issubclass(cls, type):
        yield _KINDS[type]
        return
    yield from (kind for base, kind in _KINDS.items() if issubclass(cls, base))
    if cls in _KINDS or issubclass(cls, (types.ModuleType, types.FunctionType)):
        return
    if cls.__dictoffset__:
        yield _attributes(cls)
    members = [m for c in cls.__mro__ if "__slots__" in vars(c) for m in vars(c).values()]
    if members := [m for m in members if isinstance(m, types.MemberDescriptorType)]:
        yield _slots(members)


def contents_of(value: Any) -> list[Any]:
    """Returns what an object holds itself, in each of its ways."""
    return [kind.read(value) for kind in kinds_of(type(value))]


# The flag of CPython's for classes that are written in Python, or made at run time.
HEAP_TYPE = 1 << 9

"""Keys under which alike calls find each other, and the cache that they look in."""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore

_SEEN = object()


class Cache:
    """A thread-safe mapping that forgets what was used least recently.

    A look notes its time on the entry: no lock, and one hash. In return an
    eviction has to search, and takes an eighth of the entries at once.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._entries: dict[Hashable, list[Any]] = {}  # key -> [value, last use]
        self._clock = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """The value of `key`, None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry[1] = next(self._clock)
        return entry[0]

    def put(self, key: Hashable, value: Any) -> None:
        """Set the value of `key`."""
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._bound:
                oldest = heapq.nsmallest(max(1, self._bound // 8), self._entries, key=lambda k: self._entries[k][1])
                for k in oldest:
                    del self._entries[k]
            self._entries[key] = [value, next(self._clock)]

    def compiled(self, key: Hashable, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any] | None:
        """The function that `make` made for `key`; None on the key's first sight."""
        found = self.get(key)
        if found is _SEEN:
            found = make()
            self.put(key, found)
        elif found is None:
            self.put(key, _SEEN)
        return found


def value_type(value: Any) -> Hashable:
    """What a function of `value` is specialised on."""
    try:
        return value.aval  # interned, so that hashing one is cheap
    except AttributeError:
        if isinstance(value, _jaxcore.ShapedArray):
            return value
        return type(value), jax.typeof(value)


# -------------------------------------------------------------- structural keys


class UnkeyableError(Exception):
    """A parameter has no hash."""


_jaxpr_keys: weakref.WeakKeyDictionary[Any, _Hashed] = weakref.WeakKeyDictionary()


def structure(value: Any) -> Hashable:
    """A key that is equal for equal parameters, and for jaxprs that compute the same.

    Raises:
        UnkeyableError: `value` holds something without a hash.
    """
    if isinstance(value, _jaxcore.JAXPR_TYPES):
        key = _jaxpr_keys.get(value)
        if key is None:
            key = _jaxpr_keys[value] = _Hashed(_walk_jaxpr(value))
        return key
    if type(value) in (tuple, list):
        return (type(value), *map(structure, value))
    if type(value) is dict:
        return (dict, *((k, structure(v)) for k, v in value.items()))
    try:
        hash(value)
    except TypeError:
        raise UnkeyableError(type(value).__name__) from None
    return type(value), value  # the type tells 1 from True


class _Hashed:
    """A nested tuple that computes its hash once."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Hashed) and self._hash == other._hash and self._key == other._key)


def _walk_jaxpr(closed: Any) -> tuple[Any, ...]:
    jaxpr = bare(closed)
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> Hashable:
        if isinstance(atom, _jaxcore.Literal):
            # By bytes: 0.0 and -0.0 differ, NaN equals itself.
            return np.asarray(atom.val).tobytes(), atom.aval
        return numbers.setdefault(atom, len(numbers))

    binders = tuple((name(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars))
    eqns = tuple(
        (
            eqn.primitive,
            tuple(map(name, eqn.invars)),
            structure(dict(eqn.params)),
            tuple((name(v), v.aval) for v in eqn.outvars),
            eqn.ctx,
        )
        for eqn in jaxpr.eqns
    )
    # By identity: the op that holds this jaxpr keeps its constants alive, so
    # none of these ids is taken again while the key is in use.
    consts = tuple(map(id, getattr(closed, "consts", ())))
    return binders, eqns, tuple(map(name, jaxpr.outvars)), consts


def bare(jaxpr: Any) -> Any:
    """The Jaxpr in a ClosedJaxpr; on 0.12 both are one class."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxprs_in(params: dict[str, Any]) -> list[Any]:
    """The jaxprs among a primitive's parameters."""
    found: list[Any] = []
    pending = list(params.values())
    while pending:
        value = pending.pop()
        if isinstance(value, _jaxcore.JAXPR_TYPES):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            pending.extend(value)
    return found

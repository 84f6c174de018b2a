"""Keys under which alike calls find each other, and the cache that they look in."""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jaxpyop import _jaxcore

_SEEN: Any = object()
_T = TypeVar("_T")


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

    def holds(self, key: Hashable, value: Any) -> bool:
        """Whether `value` is that of `key`."""
        entry = self._entries.get(key)
        return entry is not None and entry[0] is value

    def put(self, key: Hashable, value: Any) -> None:
        """Set the value of `key`."""
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._bound:
                oldest = heapq.nsmallest(max(1, self._bound // 8), self._entries, key=lambda k: self._entries[k][1])
                for k in oldest:
                    del self._entries[k]
            self._entries[key] = [value, next(self._clock)]

    def compiled(self, key: Hashable, make: Callable[[], _T]) -> _T | None:
        """What `make` made for `key`; None on the key's first sight."""
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
    """A parameter has no hash, or a jaxpr holds constants."""


class OwnRulesError(UnkeyableError):
    """A primitive of the user's own, which JAX expands: its rules may read variables that change."""


# By whether constants are left out.
_jaxpr_keys: tuple[weakref.WeakKeyDictionary[Any, Hashed], ...] = (
    weakref.WeakKeyDictionary(),
    weakref.WeakKeyDictionary(),
)


def structure(value: Any, but_constants: bool = False) -> Hashable:
    """A key that is equal for equal parameters, and for jaxprs that compute the same.

    Args:
        value: parameters.
        but_constants: leave the values of `constants_of` out.

    Raises:
        UnkeyableError: `value` holds something without a hash, or constants. A
            shared op would keep them alive, and NumPy arrays may change.
        OwnRulesError: it holds a primitive of the user's own.
    """
    if isinstance(value, _jaxcore.JAXPR_TYPES):
        key = _jaxpr_keys[but_constants].get(value)
        if key is None:
            key = _jaxpr_keys[but_constants][value] = Hashed(_walk_jaxpr(value, but_constants))
        return key
    if isinstance(value, (tuple, list)):  # named tuples too
        return (type(value), *(structure(v, but_constants) for v in value))
    if type(value) is dict:
        return (dict, *((k, structure(v, but_constants)) for k, v in value.items()))
    if hasattr(value, "expand") and not type(value).__module__.startswith("jax."):  # see OwnRulesError
        raise OwnRulesError(type(value).__name__)
    try:
        hash(value)
    except TypeError:
        raise UnkeyableError(type(value).__name__) from None
    return type(value), value  # the type tells 1 from True


class Hashed:
    """A nested tuple that computes its hash once."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Hashed) and self._hash == other._hash and self._key == other._key)


def _walk_jaxpr(closed: Any, but_constants: bool) -> tuple[Any, ...]:
    jaxpr = bare(closed)
    if _consts(closed) and not but_constants:
        raise UnkeyableError("constants")
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
            structure(dict(eqn.params), but_constants and eqn.primitive is _jaxcore.jit_p),
            tuple((name(v), v.aval) for v in eqn.outvars),
            eqn.ctx,
        )
        for eqn in jaxpr.eqns
    )
    return binders, eqns, tuple(map(name, jaxpr.outvars))


def _consts(jaxpr: Any) -> Sequence[Any]:
    return getattr(jaxpr, "consts", ())


_constants: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def constants_of(closed: Any) -> tuple[Any, ...]:
    """The constants of a jitted function and of jitted functions in it, outermost first."""
    found = _constants.get(closed)
    if found is None:
        inner = (eqn.params["jaxpr"] for eqn in bare(closed).eqns if eqn.primitive is _jaxcore.jit_p)
        found = _constants[closed] = (*_consts(closed), *itertools.chain.from_iterable(map(constants_of, inner)))
    return found


def holds_constants(params: dict[str, Any]) -> bool:
    """Whether a jaxpr among the parameters, or one in it, holds constants."""
    return any(
        _consts(jaxpr) or any(holds_constants(eqn.params) for eqn in bare(jaxpr).eqns) for jaxpr in jaxprs_in(params)
    )


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

"""Keys of primitives' parameters: jaxprs that compute the same have equal ones, although each is a new object."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np

from jaxpyop._frames import is_own_file
from jaxpyop._jaxcore import JAXPR_TYPES, LAX_PRIMITIVES, Literal, Primitive, consts_of, jaxpr_of


class UnkeyableError(Exception):
    """A parameter has no hash, a jaxpr holds constants, or the user's own primitive has rules that may change."""


# The keys of jaxprs.
_keys: weakref.WeakKeyDictionary[Any, HashedKey] = weakref.WeakKeyDictionary()


def structural_key(value: Any) -> Hashable:
    """Makes a key that is equal for equal parameters of primitives, and for jaxprs that compute the same.

    The jaxpr in a `jit` or a `scan` of a fresh lambda is a new object each time, with new variables.

    Args:
        value: a parameter, or a tuple, list or dict of them.

    Raises:
        UnkeyableError: `value` holds something without a hash; constants, which a cache would keep alive, and which may
            be NumPy arrays that change; or a primitive of the user's own, whose rules may read variables that change.
    """
    if isinstance(value, JAXPR_TYPES):
        if (key := _keys.get(value)) is None:
            key = _keys[value] = HashedKey(_jaxpr_key(value))
        return key
    # Named tuples too.
    if isinstance(value, (tuple, list)):
        return (type(value), *(structural_key(v) for v in value))
    if type(value) is dict:
        return (dict, *((k, structural_key(v)) for k, v in value.items()))
    if hasattr(value, "expand") and not type(value).__module__.startswith("jax."):
        raise UnkeyableError(type(value).__name__)
    try:
        hash(value)
    except TypeError:
        raise UnkeyableError(type(value).__name__) from None
    # The type tells 1 from True, and the text 0.0 from -0.0.
    return type(value), repr(value) if isinstance(value, (float, complex, np.inexact)) else value


_of_libraries: set[Any] = set(LAX_PRIMITIVES)
_of_users: weakref.WeakSet[Any] = weakref.WeakSet()


def is_of_library(primitive: Any) -> bool:
    """Tells whether a module of JAX's or of another installed library has a primitive.

    The rules of any other, which the user wrote, may read variables that change.
    """
    if primitive not in _of_libraries and primitive not in _of_users:
        modules: list[Any] = [*sys.modules.values()]
        for module in modules:
            # `vars` would import a module that waits for its first use.
            is_module = isinstance(module, types.ModuleType)
            names = types.ModuleType.__getattribute__(module, "__dict__") if is_module else {}
            if not is_own_file(names.get("__file__") or ""):
                _of_libraries.update(value for value in [*names.values()] if isinstance(value, Primitive))
        if primitive not in _of_libraries:
            _of_users.add(primitive)
    return primitive in _of_libraries


class HashedKey:
    """A nested tuple that computes its hash once."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, HashedKey) and self._hash == other._hash and self._key == other._key)


def _jaxpr_key(closed: Any) -> tuple[Any, ...]:
    jaxpr = jaxpr_of(closed)
    if consts_of(closed):
        raise UnkeyableError("constants")
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> Hashable:
        if isinstance(atom, Literal):
            # By bytes: 0.0 and -0.0 differ, NaN equals itself.
            return np.asarray(atom.val).tobytes(), atom.aval
        return numbers.setdefault(atom, len(numbers))

    binders = tuple((name(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars))
    if not all(is_of_library(eqn.primitive) for eqn in jaxpr.eqns):
        raise UnkeyableError("a primitive of the user's own")
    eqns = tuple(
        (
            eqn.primitive,
            tuple(map(name, eqn.invars)),
            structural_key(dict(eqn.params)),
            tuple((name(v), v.aval) for v in eqn.outvars),
            eqn.ctx,
        )
        for eqn in jaxpr.eqns
    )
    return binders, eqns, tuple(map(name, jaxpr.outvars))

"""The short way from what a function usually returns to the results of its op, for batches of small elements.

NumPy arrays and Python numbers, one or a flat tuple, list or dict of them, as `Tout` has them. Whatever else it is,
and all that is an error, goes the long way: `structure`, then `results`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from jaxpyop._op.results import can_cast
from jaxpyop._op.spec import Leaf, ResultSpec, Shape, keys_of

# NumPy's own: those of ml_dtypes have its kinds and characters too.
_FLOATS, _INTEGERS = (frozenset(map(np.dtype, chars)) for chars in ("efd", "bBhHiIlLqQ"))
_Limits = dict[type, tuple[Any, Any]]


class Usual:
    """Reads what a function of NumPy returned.

    Args:
        spec: what it promises.
        casting: the casting rule.
    """

    __slots__ = ("_casting", "_keys", "_kind", "_leaves", "_spec")

    def __init__(self, spec: ResultSpec, casting: str) -> None:
        self._spec = spec
        self._casting = casting
        self._kind: type | None = None
        self._keys: list[Any] | None = None
        self._leaves: list[Any] | None = None  # not before it is needed: a direct call reads one value

    def read(self, value: Any) -> list[Any] | None:
        """The results; None where the long way has to be taken."""
        if (leaves := self._leaves) is None:
            if (
                (leaf := self._spec.skeleton).__class__ is Leaf
                and leaf.shape is None
                and _is_already(value, leaf.dtype)
            ):
                return [value]
            leaves = self._leaves = self._prepared()
        if not leaves:
            return None
        if self._kind is None:
            found = self._one(value, *leaves[0])
            return None if found is None else [found]
        if type(value) is not self._kind or len(value) != len(leaves):
            return None
        if self._keys is not None:
            try:
                value = [value[key] for key in self._keys]
            except KeyError:
                return None
        results = []
        for part, leaf in zip(value, leaves):
            if (found := self._one(part, *leaf)) is None:
                return None
            results.append(found)
        return results

    def _prepared(self) -> list[Any]:
        """What `_one` has to know of each leaf; nothing where the results are of another form."""
        skeleton = self._spec.skeleton
        if not isinstance(skeleton, Leaf):
            self._kind = type(skeleton)
            if self._kind not in (tuple, list, dict):
                return []
            self._keys = keys_of(skeleton) if self._kind is dict else None
            if not all(isinstance(part, Leaf) for part in (skeleton.values() if self._keys else skeleton)):
                return []
        return [(leaf.dtype, leaf.shape, _limits(leaf.dtype)) for leaf in self._spec.leaves]

    def _one(self, value: Any, dtype: np.dtype[Any], shape: Shape | None, limits: _Limits) -> Any:
        kind = type(value)
        if kind is np.ndarray or isinstance(value, np.generic):
            if value.dtype != dtype:
                if not _is_plain_cast(value.dtype, dtype, self._casting):
                    return None
                if value.ndim == 0:  # which is faster than to have NumPy say nothing of an overflow
                    return self._one(value.item(), dtype, shape, limits)
                if dtype in _INTEGERS:
                    return None
                with np.errstate(over="ignore"):  # float64 to float32 overflows to inf, as in JAX
                    value = value.astype(dtype)
        elif (limit := limits.get(kind)) is not None and limit[0] <= value <= limit[1]:
            value = np.array(value, dtype)
        else:
            return None
        return value if shape is None or value.shape == shape else None


def usual_of(spec: ResultSpec, casting: str) -> Usual | None:
    """What reads the usual results of an op of NumPy; None where there are none."""
    return None if spec.own is not None or spec.empty else Usual(spec, casting)


def _is_already(value: Any, dtype: np.dtype[Any]) -> bool:
    return (type(value) is np.ndarray or isinstance(value, np.generic)) and value.dtype == dtype


@functools.cache
def _limits(dtype: np.dtype[Any]) -> _Limits:
    """Between which Python numbers of which types simply become this dtype."""
    if dtype.kind == "b":
        return {bool: (False, True)}
    if dtype in _FLOATS:
        most, whole = float(np.finfo(dtype).max), 2**53  # beyond which the way by a double rounds twice
        return {float: (-most, most), int: (max(-most, -whole), min(most, whole))}
    if dtype in _INTEGERS:
        bounds = np.iinfo(dtype)
        return {int: (int(bounds.min), int(bounds.max))}
    return {}


@functools.lru_cache(maxsize=256)
def _is_plain_cast(source: np.dtype[Any], target: np.dtype[Any], casting: str) -> bool:
    """Whether the casting rule lets a dtype become another, by value where that is an integer."""
    known = _INTEGERS if target in _INTEGERS else _INTEGERS | _FLOATS
    return target in _INTEGERS | _FLOATS and source in known and can_cast(source, target, casting)

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

    __slots__ = ("_casting", "_keys", "_kind", "_leaves")

    def __init__(self, spec: ResultSpec, casting: str) -> None:
        self._casting = casting
        self._kind = None if spec.tree is None else type(spec.skeleton)
        self._keys = keys_of(spec.skeleton) if self._kind is dict else None
        self._leaves = [(leaf.dtype, leaf.shape, _limits(leaf.dtype)) for leaf in spec.leaves]

    def read(self, value: Any) -> list[Any] | None:
        """The results; None where the long way has to be taken."""
        if self._kind is None:
            found = self._one(value, *self._leaves[0])
            return None if found is None else [found]
        if type(value) is not self._kind or len(value) != len(self._leaves):
            return None
        if self._keys is not None:
            try:
                value = [value[key] for key in self._keys]
            except KeyError:
                return None
        results = []
        for part, leaf in zip(value, self._leaves):
            if (found := self._one(part, *leaf)) is None:
                return None
            results.append(found)
        return results

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
    """What reads the usual results of an op of NumPy; None where they are of another form."""
    if spec.own is not None or spec.empty:
        return None
    skeleton = spec.skeleton
    parts = skeleton.values() if type(skeleton) is dict else skeleton if type(skeleton) in (list, tuple) else [skeleton]
    return Usual(spec, casting) if all(isinstance(part, Leaf) for part in parts) else None


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

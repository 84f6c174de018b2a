"""What a body returned, held against what was promised.

Each value by itself (`to_numpy`, `to_jax`; `structure` has taken them apart): floating
and complex values follow NumPy's casting rule, integers go to any integer dtype in
which their value fits, Python scalars are weak. Nothing is dropped or wrapped.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._op.values.structure import kind_of
from jaxpyop._op.values.to_jax import own
from jaxpyop._op.values.tout import Leaf, ResultSpec, Shape, canonical_dtype, keys_of, show_shape
from jaxpyop._tape import TapeTracer

Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
CASTING: tuple[str, ...] = get_args(Casting)


def _cast_error(dtype: Any, leaf: Leaf, casting: str, which: str, api: str) -> TypeError:
    name = getattr(dtype, "name", str(dtype))
    wide = canonical_dtype(dtype).name if isinstance(dtype, np.dtype) and dtype.kind in "iufc" else name
    return TypeError(
        f"{api}: {which} {name}, which casting={casting!r} does not turn into {leaf.dtype.name}; "
        f"return {leaf.dtype.name}, write Tout={wide}, or pass casting='unsafe'"
    )


def _fits(low: Any, high: Any, dtype: np.dtype[Any]) -> bool:
    bounds = jnp.iinfo(dtype)
    return int(low) >= int(bounds.min) and int(high) <= int(bounds.max)


def _check_range(array: np.ndarray[Any, Any], leaf: Leaf, which: str, api: str) -> None:
    if array.size == 0 or leaf.dtype.kind == "b":
        return
    if _is_integer(array.dtype):
        bounds = jnp.iinfo(array.dtype)
        if _fits(bounds.min, bounds.max, leaf.dtype):
            return
        finite = True
    else:
        finite = bool(np.isfinite(array).all())
    low, high = array.min(), array.max()
    if not finite or not _fits(low, high, leaf.dtype):
        worst = high if not finite or _fits(low, 0, leaf.dtype) else low
        raise OverflowError(
            f"{api}: {which} the value {worst}, which does not fit {leaf.dtype.name}; "
            f"promise {_fitting(worst, leaf.dtype)} Tout{_x64_hint(array.dtype)} or bring the values into range"
        )


def _fitting(value: Any, dtype: np.dtype[Any]) -> str:
    """What kind of dtype would take a value that an integer dtype does not."""
    if isinstance(value, (float, np.floating)) and not np.isfinite(value):  # an int may be too large to ask
        return "a floating"
    return "a signed" if value < 0 and dtype.kind == "u" else "a wider"


def _x64_hint(dtype: Any) -> str:
    return " (64 bits need jax.config.update('jax_enable_x64', True))" if np.dtype(dtype).itemsize == 8 else ""


def _is_integer(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.integer))


_SCALAR_LEVELS = {bool: 0, int: 1, float: 2, complex: 3}


def _level(dtype: Any) -> int:
    if dtype.kind in "mM":
        return -1  # NumPy's timedelta64 counts as an integer
    for level, kind in enumerate((np.bool_, np.integer, np.floating, np.complexfloating)):
        if jax.dtypes.issubdtype(dtype, kind):
            return level
    return -1


def can_cast(source: Any, target: np.dtype[Any], casting: str) -> bool:
    """NumPy's rule; between floats that NumPy does not know, by kind."""
    if _is_integer(source) and _is_integer(target) and casting != "no":
        return True  # by value
    if casting == "same_kind":
        # ml_dtypes' types answer no to each other; a kind is a kind.
        return 0 <= _level(source) <= _level(target)
    return bool(np.can_cast(source, target, cast(Casting, casting)))


def _check_no_key(dtype: Any, which: str, api: str) -> None:
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(f"{api}: {which} a typed key; return jax.random.key_data(key), or promise one: Tout=key.dtype")


def _check_dtype(dtype: Any, leaf: Leaf, casting: str, which: str, api: str) -> None:
    if _level(dtype) < 0 or not can_cast(dtype, leaf.dtype, casting):
        raise _cast_error(dtype, leaf, casting, which, api)


def check_traced(dtype: Any, leaf: Leaf, casting: str, which: str, api: str) -> None:
    """Raise where the casting rule refuses, or would have to look at values.

    Raises:
        TypeError: as :func:`to_jax`, and for an integer dtype that need not fit.
    """
    _check_no_key(dtype, which, api)
    _check_dtype(dtype, leaf, casting, which, api)
    if _level(dtype) > 0 and _is_integer(leaf.dtype) and not np.can_cast(dtype, leaf.dtype, "safe"):
        raise TypeError(
            f"{api}: {which} {dtype.name}, whose values may not fit {leaf.dtype.name}, and no value is known when "
            f"tracing; write Tout={dtype.name}, convert in func with .astype, or pass mode='eager'"
        )


def _check_scalar(value: Any, leaf: Leaf, casting: str, which: str, api: str) -> np.ndarray[Any, Any]:
    level = _SCALAR_LEVELS[type(value)]
    target = _level(leaf.dtype)
    if level > target and casting != "unsafe":
        raise _cast_error(type(value).__name__, leaf, casting, which, api)
    if target == 0:
        return np.asarray(bool(value))
    if target == 1:
        return _integer_scalar(value, leaf, which, api)
    with np.errstate(over="ignore"):
        return np.asarray(value.real if level == 3 and target < 3 else value).astype(leaf.dtype)


def _integer_scalar(value: Any, leaf: Leaf, which: str, api: str) -> np.ndarray[Any, Any]:
    number = value.real
    if number != number or number in (float("inf"), -float("inf")) or not _fits(number, number, leaf.dtype):
        raise OverflowError(
            f"{api}: {which} the value {number}, which does not fit {leaf.dtype.name}; "
            f"promise {_fitting(number, leaf.dtype)} Tout or bring the value into range"
        )
    return np.asarray(int(number), np.uint64 if number > 0 else np.int64).astype(leaf.dtype)


def check_shape(shape: Shape, leaf: Leaf, lead: tuple[int, ...], said: str, which: str, api: str) -> None:
    """Raise unless a result has the promised shape, after the batch axes `lead`."""
    wanted = None if leaf.shape is None else (*lead, *leaf.shape)
    if wanted is None or shape == wanted:
        return
    if len(shape) == len(wanted) and all(w in (None, s) for w, s in zip(wanted, shape)):
        return
    own = show_shape(shape[len(lead) :])
    if own == show_shape(leaf.shape):
        advice = f"func gets the whole batch and returns a result for each element, with {show_shape(lead)} in front"
    elif leaf.by_tout:
        advice = f"write that shape in Tout, jax.ShapeDtypeStruct({own}, jnp.{leaf.dtype.name})"
    elif which == "func returned":
        advice = f"write output_shapes={own}" + (" (or Tout=jnp.float32(0), a scalar)" if own == "()" else "")
    else:
        advice = f"give {own} as its shape in output_shapes="
    found = f"{which} shape {show_shape(shape)} where {show_shape(wanted)} was {said}"
    # A guess that was wrong is nobody's mistake: the line to write comes first.
    raise ValueError(f"{api}: {advice}: {found}" if said.startswith("assumed") else f"{api}: {found}; {advice}")


def to_numpy(value: Any, leaf: Leaf, casting: str, which: str, api: str) -> np.ndarray[Any, Any]:
    """A value as an array of the promised dtype.

    Raises:
        TypeError: no numbers, or a dtype that the casting rule refuses.
        OverflowError: an integer that does not fit.
    """
    if type(value) is np.ndarray and value.dtype == leaf.dtype:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{api}: {which} a masked array, whose mask would be lost; return x.filled(value)")
    if type(value) in (bool, int, float, complex):
        return _check_scalar(value, leaf, casting, which, api)
    try:
        array = np.asarray(value)
    except Exception as error:
        raise TypeError(f"{api}: {which} {kind_of(value)}, which is no array ({error}); return numbers") from error
    if array.dtype == leaf.dtype:
        return array
    if array.dtype.kind in "OSUMmV" and _level(array.dtype) < 0:
        raise TypeError(f"{api}: {which} {kind_of(value)} of dtype {array.dtype}; return numbers or booleans")
    _check_dtype(array.dtype, leaf, casting, which, api)
    if _is_integer(leaf.dtype) and array.dtype.kind != "b":
        if array.dtype.kind == "c":
            array = np.real(array)
        _check_range(array, leaf, which, api)
    elif array.dtype.kind == "c" and leaf.dtype.kind not in "cb":
        array = np.real(array)
    with np.errstate(over="ignore"):  # float64 to float32 overflows to inf, as in JAX
        return array.astype(leaf.dtype)


def check_usable(value: Any, which: str, api: str) -> None:
    """Raise about a `jax.Array` that has no values any more.

    Raises:
        TypeError: a traced value of a transformation that is over.
        ValueError: a deleted array.
    """
    if isinstance(value, _jaxcore.Tracer):
        if not _jaxcore.is_live(value):
            raise _foreign_tracer(value, which, api)
    elif value.is_deleted():
        raise ValueError(f"{api}: {which} an array that was deleted or donated to a program; return a copy of it")


def _foreign_tracer(value: Any, which: str, api: str) -> TypeError:
    return TypeError(
        f"{api}: {which} a traced value of other code ({value}), which has no value here; "
        "pass it through inp, and return an array"
    )


def to_jax(value: Any, leaf: Leaf, casting: str, which: str, api: str) -> Any:
    """A value as a `jax.Array` of the promised dtype; a tape's value stays one."""
    if not isinstance(value, jax.Array):
        return own(to_numpy(value, leaf, casting, which, api))  # the body may keep its array
    if not isinstance(value, TapeTracer):
        if isinstance(value, _jaxcore.Tracer):
            raise _foreign_tracer(value, which, api)
        check_usable(value, which, api)
    elif not _jaxcore.is_live(value):
        value = value.value  # kept from an earlier run
    if value.dtype == leaf.dtype:
        return value if not value.weak_type else jax.lax.convert_element_type(value, leaf.dtype)
    _check_no_key(value.dtype, which, api)
    _check_dtype(value.dtype, leaf, casting, which, api)
    if _is_integer(leaf.dtype) and _level(value.dtype) > 0:
        array = np.asarray(value)
        _check_range(np.real(array) if array.dtype.kind == "c" else array, leaf, which, api)
    if _level(value.dtype) == 3 and _level(leaf.dtype) < 3:
        value = value.real if leaf.dtype.kind != "b" else value != 0
    return value.astype(leaf.dtype)


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

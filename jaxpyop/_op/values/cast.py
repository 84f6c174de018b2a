"""The casting rule: a value that a function returned becomes an array of the declared dtype, or is refused.

Floating and complex values follow NumPy's casting rule. Integers go to any integer dtype in which their value fits.
Python's numbers adapt to the declared dtype, as JAX's weakly typed values do. Nothing is wrapped or silently dropped.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._op.values.spec import Leaf
from jaxpyop._op.values.structure import kind_of
from jaxpyop._op.values.to_jax import copy_to_jax
from jaxpyop._op.values.tout import canonical_dtype
from jaxpyop._tape import TapeTracer

Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
CASTING: tuple[str, ...] = get_args(Casting)

# The type of a value before the cast: the dtype of an array, or the type of a Python number.
_Source: TypeAlias = Any
_PYTHON_NUMBERS = {bool: 0, int: 1, float: 2, complex: 3}
_KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)


# ---------------------------------------------------------------- the rule for dtypes
#
# The answers are kept, since every result of every call asks, and `issubdtype` and `can_cast` take microseconds.


@functools.lru_cache(maxsize=256)
def _level(source: _Source) -> int:
    """0 for bool, 1 for integers, 2 for floating, 3 for complex numbers, and -1 for anything else."""
    if source in _PYTHON_NUMBERS:
        return _PYTHON_NUMBERS[source]
    # To NumPy, timedelta64 is an integer.
    kinds = () if source.kind in "mM" else _KINDS
    return next((level for level, kind in enumerate(kinds) if jax.dtypes.issubdtype(source, kind)), -1)


@functools.lru_cache(maxsize=256)
def _allows(casting: str, source: _Source, target: np.dtype[Any]) -> bool:
    """Tell whether a dtype may become another one. Whether an integer's value fits is checked later."""
    level, goal = _level(source), _level(target)
    if source in _PYTHON_NUMBERS:
        return level <= goal or casting == "unsafe"
    if level == goal == 1 and casting != "no":
        return True
    if casting == "same_kind":
        # NumPy would refuse between the floating dtypes of ml_dtypes, which it does not know.
        return 0 <= level <= goal
    return level >= 0 and bool(np.can_cast(source, target, cast(Casting, casting)))


@functools.lru_cache(maxsize=64)
def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    found = jnp.iinfo(dtype)
    return int(found.min), int(found.max)


@functools.lru_cache(maxsize=256)
def _always_fits(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    return bool(np.can_cast(source, target, "safe"))


def _check_dtype(source: _Source, leaf: Leaf, casting: str, origin: str, title: str) -> None:
    if _allows(casting, source, leaf.dtype):
        return
    name = wide = source.__name__ if source in _PYTHON_NUMBERS else source.name
    if isinstance(source, np.dtype) and source.kind in "iufc":
        wide = canonical_dtype(source).name
    raise TypeError(
        f"{title}: {origin} {name}, which casting={casting!r} does not turn into {leaf.dtype.name}; "
        f"return {leaf.dtype.name}, write Tout={wide}, or pass casting='unsafe'"
    )


def _check_no_key(dtype: Any, origin: str, title: str) -> None:
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(
            f"{title}: {origin} a typed key; return jax.random.key_data(key), or declare a key with Tout=key.dtype"
        )


def check_traced(dtype: Any, leaf: Leaf, casting: str, origin: str, title: str) -> None:
    """Check the dtype of a traced result, whose values are not known yet.

    Raises:
        TypeError: the casting rule refuses the dtype, or would have to look at the values.
    """
    _check_no_key(dtype, origin, title)
    _check_dtype(dtype, leaf, casting, origin, title)
    if _level(dtype) > 0 and _level(leaf.dtype) == 1 and not _always_fits(dtype, leaf.dtype):
        raise TypeError(
            f"{title}: {origin} {dtype.name}, whose values may not fit {leaf.dtype.name}, and no value is known while "
            f"tracing; write Tout={dtype.name}, convert in func with .astype, or pass mode='eager'"
        )


# ---------------------------------------------------------------- the rule for values


def _check_range(array: np.ndarray[Any, Any], leaf: Leaf, origin: str, title: str) -> None:
    """Raise unless all numbers fit the integer dtype of the leaf."""
    least, most = _bounds(leaf.dtype)
    # A Python int of more than 64 bits became an array of objects.
    odd: Any = () if array.dtype == object or _level(array.dtype) == 1 else array[~np.isfinite(array)]
    low, high = (array[()], array[()]) if array.ndim == 0 else (array.min(initial=0), array.max(initial=0))
    if not len(odd) and least <= int(low) and int(high) <= most:
        return
    worst = odd[0] if len(odd) else low if int(low) < least else high
    wanted = "floating" if len(odd) else "signed" if worst < 0 and least == 0 else "wider"
    wide = array.dtype.itemsize == 8 and leaf.dtype.itemsize == 4
    hint = " (64 bits need jax.config.update('jax_enable_x64', True))" if wide else ""
    raise OverflowError(
        f"{title}: {origin} the value {worst}, which does not fit {leaf.dtype.name}; "
        f"declare a {wanted} Tout{hint}, or bring the values into range"
    )


def _castable(array: Any, source: _Source, leaf: Leaf, casting: str, origin: str, title: str) -> Any:
    """Check a NumPy or JAX array by the rule, and return an array for `.astype` to turn into the declared dtype."""
    _check_dtype(source, leaf, casting, origin, title)
    level, goal = _level(source), _level(leaf.dtype)
    if level == 3 and goal < 3:
        array = array.real if goal else array != 0
    if goal == 1 and level > 0 and not _always_fits(array.dtype, leaf.dtype):
        _check_range(np.asarray(array), leaf, origin, title)
    return array


@functools.lru_cache(maxsize=256)
def _limits(kind: type, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The least and the greatest Python number of a type that any casting rule turns into a dtype at once."""
    if kind in (float, int) and dtype.char in "efd":
        # Beyond 2**53 an integer would be rounded to a double first.
        most = float(np.finfo(dtype).max)
        return (-most, most) if kind is float else (max(-most, -(2**53)), min(most, 2**53))
    if kind is int and dtype.char in "bBhHiIlLqQ":
        return _bounds(dtype)
    return (1, 0)


def converted_at_once(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the array of the common results, a NumPy array of this dtype or a Python number in its range, else None.

    `cast_to_numpy` gives the same, and takes a microsecond or two longer.
    """
    kind = type(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        return value if value.dtype == dtype else None
    if kind is float or kind is int:
        least, most = _limits(kind, dtype)
        if least <= value <= most:
            return np.array(value, dtype)
    return None


def cast_to_numpy(value: Any, leaf: Leaf, casting: str, origin: str, title: str) -> Any:
    """Cast a value to a NumPy array or scalar of the declared dtype.

    Args:
        value: a function's result.
        leaf: the declared result.
        casting: the casting rule.
        origin: the beginning of an error, such as "func returned".
        title: the op, for an error.

    Raises:
        TypeError: the value is not a number, or the casting rule refuses its dtype.
        OverflowError: an integer does not fit.
    """
    source = type(value)
    if (source is np.ndarray or isinstance(value, np.generic)) and value.dtype == leaf.dtype:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{title}: {origin} a masked array, whose mask would be lost; return x.filled(value)")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise TypeError(
            f"{title}: {origin} {kind_of(value)}, which is not an array ({error}); return numbers"
        ) from error
    if source not in _PYTHON_NUMBERS:
        source = array.dtype
        if source == leaf.dtype:
            return array
        if _level(source) < 0:
            raise TypeError(f"{title}: {origin} {kind_of(value)} of dtype {source}; return numbers or booleans")
    array = _castable(array, source, leaf, casting, origin, title)
    if _level(leaf.dtype) < 2:
        return array.astype(leaf.dtype)
    # A float64 that is too large for float32 becomes inf without a warning, as in JAX.
    with np.errstate(over="ignore"):
        return array.astype(leaf.dtype)


def cast_to_jax(value: Any, leaf: Leaf, casting: str, origin: str, title: str) -> Any:
    """Cast a value to a `jax.Array` of the declared dtype. A value that the tape follows stays one.

    It takes the arguments of `cast_to_numpy`, and raises the same errors.
    """
    if not isinstance(value, jax.Array):
        # A copy, since the function may keep its array and go on writing into it.
        return copy_to_jax(cast_to_numpy(value, leaf, casting, origin, title))
    if isinstance(value, TapeTracer):
        if value.is_over():
            # The function kept it from an earlier run, and its value is known.
            value = value.value
    elif isinstance(value, _jaxcore.Tracer) and (_jaxcore.HAS_OWN_TRACES or not _jaxcore.is_live(value)):
        # Without traces of our own, the values of a differentiated function are JAX's.
        raise _foreign_tracer(value, origin, title)
    else:
        check_usable(value, origin, title)
    if value.dtype == leaf.dtype:
        return value if not value.weak_type else jax.lax.convert_element_type(value, leaf.dtype)
    _check_no_key(value.dtype, origin, title)
    return _castable(value, value.dtype, leaf, casting, origin, title).astype(leaf.dtype)


def check_usable(value: Any, origin: str, title: str) -> None:
    """Check that a `jax.Array` still has values.

    Raises:
        TypeError: it is a traced value of a transformation that is over.
        ValueError: it was deleted.
    """
    if isinstance(value, _jaxcore.Tracer):
        if not _jaxcore.is_live(value):
            raise _foreign_tracer(value, origin, title)
    elif value.is_deleted():
        raise ValueError(f"{title}: {origin} an array that was deleted or donated to a program; return a copy of it")


def _foreign_tracer(value: Any, origin: str, title: str) -> TypeError:
    return TypeError(
        f"{title}: {origin} a traced value of other code ({value}), which has no value here; "
        "pass it through inp, and return an array"
    )

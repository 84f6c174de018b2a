"""The casting rule: a value that a function returned becomes an array of the declared dtype, or is refused.

Floating and complex values follow NumPy's casting rule. Integers go to any integer dtype in which their value fits.
Python's numbers adapt to the declared dtype, as JAX's weakly typed values do. An array without elements goes to any
dtype, because nothing of it can be lost. Nothing is wrapped or silently dropped.
`fingerprint` tells whether a function that ran again returned the same, bit by bit.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore
from jaxpyop._refusal import refusal
from jaxpyop._tape import TapeTracer
from jaxpyop._values.inputs import copy_to_jax, lost_by_an_array
from jaxpyop._values.spec import Leaf, kind_of

Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
CASTING: tuple[str, ...] = get_args(Casting)

_PYTHON_NUMBERS = {bool: 0, int: 1, float: 2, complex: 3}
_KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)


# ---------------------------------------------------------------- the rule for dtypes
#
# The answers are kept, since every result of every call asks, and `issubdtype` and `can_cast` take microseconds.


def _level(source: Any) -> int:
    """0 for bool, 1 for integers, 2 for floating, 3 for complex numbers, and -1 for anything else."""
    if source in _PYTHON_NUMBERS:
        return _PYTHON_NUMBERS[source]
    # To NumPy, timedelta64 is an integer. The dtype of a typed key has no kind.
    kinds = () if getattr(source, "kind", "m") in "mM" else _KINDS
    return next((level for level, kind in enumerate(kinds) if jax.dtypes.issubdtype(source, kind)), -1)


class Rule(NamedTuple):
    """What a casting rule says about two dtypes.

    Attributes:
        level: of the source, as `_level` says.
        goal: the level of the target.
        allowed: whether the one may become the other. Whether an integer's value fits is checked later.
        looks_at_values: whether it depends on the values, because the target is an integer that may not hold all.
        least: the least number of an integer target, or of a floating one of NumPy's. It exceeds `most` for any other.
        most: the greatest one.
    """

    level: int
    goal: int
    allowed: bool
    looks_at_values: bool
    least: Any
    most: Any


@functools.lru_cache(maxsize=512)
def number_rule(casting: Any, source: Any, target: np.dtype[Any]) -> Rule:
    level, goal = _level(source), _level(target)
    is_python = source in _PYTHON_NUMBERS
    if is_python:
        allowed = level <= goal or casting == "unsafe"
    elif level == goal == 1 and casting != "no":
        allowed = True
    elif casting == "same_kind":
        # NumPy would refuse between the floating dtypes of ml_dtypes, which it does not know.
        allowed = 0 <= level <= goal
    else:
        allowed = level >= 0 and bool(np.can_cast(source, target, casting))
    may_not_fit = level > 0 and goal == 1 and (is_python or not np.can_cast(source, target, "safe"))
    least, most = (1, 0)
    if goal == 1:
        found = jnp.iinfo(target)
        least, most = int(found.min), int(found.max)
    elif target.char in "efd":
        most = float(np.finfo(target).max)
        least = -most
    return Rule(level, goal, allowed, may_not_fit, least, most)


def _check_dtype(source: Any, leaf: Leaf, casting: str, origin: str, title: str) -> Rule:
    rule = number_rule(casting, source, leaf.dtype)
    if rule.allowed:
        return rule
    if rule.level < 0:
        raise TypeError(
            f"{title}: {origin} values of dtype {source}; return numbers or booleans (of a typed key, "
            "jax.random.key_data(key), unless Tout=key.dtype declares one)"
        )
    name = wide = source.__name__ if source in _PYTHON_NUMBERS else source.name
    if isinstance(source, np.dtype) and source.kind in "iufc":
        wide = _dtypes.canonical_dtype(source).name
    raise TypeError(
        f"{title}: {origin} {name}, which casting={casting!r} does not turn into {leaf.dtype.name}; "
        f"return {leaf.dtype.name}, write Tout={wide}, or pass casting='unsafe'"
    )


class UnknownValuesError(TypeError):
    """Whether a result fits its dtype depends on its values, which are not known while JAX traces."""


def check_traced(dtype: Any, leaf: Leaf, casting: str, origin: str, title: str) -> None:
    """Check the dtype of a traced result, whose values are not known yet.

    Raises:
        TypeError: the casting rule refuses the dtype.
        UnknownValuesError: it would have to look at the values.
    """
    rule = _check_dtype(dtype, leaf, casting, origin, title)
    if rule.looks_at_values:
        raise UnknownValuesError(
            f"{title}: {origin} {dtype.name}, whose values may not fit {leaf.dtype.name}, and no value is known while "
            f"tracing; write Tout={dtype.name}, convert in func with .astype, or pass mode='eager'"
        )


# ---------------------------------------------------------------- the rule for values


def _check_range(array: np.ndarray[Any, Any], rule: Rule, leaf: Leaf, origin: str, title: str) -> None:
    """Raise unless all numbers fit the integer dtype of the leaf."""
    least, most = rule.least, rule.most
    odd: Any = () if rule.level == 1 else array[~np.isfinite(array)]
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


def _castable(array: Any, source: Any, leaf: Leaf, casting: str, origin: str, title: str) -> Any:
    """Check a NumPy or JAX array by the rule, and return an array for `.astype` to turn into the declared dtype."""
    # An array without elements loses nothing, and `np.array([])` is of float64.
    rule = _check_dtype(source, leaf, casting if array.size else "unsafe", origin, title)
    if rule.level == 3 and rule.goal < 3:
        array = array.real if rule.goal else array != 0
    if rule.looks_at_values:
        _check_range(np.asarray(array), rule, leaf, origin, title)
    return array


def converted_at_once(value: Any, dtype: np.dtype[Any], *, on_jax: bool) -> Any:
    """Return the array of the common results, an array of this dtype or a Python number in its range, else None.

    `cast_to_jax` or `cast_to_numpy` gives the same, and takes a microsecond or two longer.
    """
    if on_jax:
        if not isinstance(value, jax.Array) or value.dtype != dtype or value.weak_type:
            return None
        if isinstance(value, _jaxcore.Tracer):
            # A value that the tape follows.
            return value if type(value) is TapeTracer and _jaxcore.is_live(value) else None
        return None if value.is_deleted() else value
    kind = type(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        return value if value.dtype == dtype else None
    if kind is float or kind is int:
        # All casting rules agree on these. Beyond 2**53 an integer would be rounded to a double first.
        rule = number_rule("unsafe", kind, dtype)
        is_exact = kind is float or rule.goal == 1 or -(2**53) <= value <= 2**53
        if rule.level <= rule.goal and is_exact and rule.least <= value <= rule.most:
            return np.array(value, dtype)
    return None


def converted(op: Any, k: int, value: Any, leaf: Leaf) -> Any:
    """Turn value `k` that an op's function returned into an array of the declared dtype."""
    if (found := converted_at_once(value, leaf.dtype, on_jax=op.on_jax)) is not None:
        return found
    cast = cast_to_jax if op.on_jax else cast_to_numpy
    return cast(value, leaf, op.casting, op.origin_of_result(k), op.title)


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
    if type(value) is not np.ndarray and (lost := lost_by_an_array(value)):
        raise TypeError(f"{title}: {origin} {lost[0]} would be lost; return {lost[1]}")
    if callable(getattr(value, "toarray", None)):
        raise TypeError(f"{title}: {origin} {kind_of(value)}, which is a sparse matrix; return x.toarray()")
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
    if not array.size:
        # Nothing of it can be lost, and `np.array([])` is of float64.
        return np.zeros(array.shape, leaf.dtype)
    array = _castable(array, source, leaf, casting, origin, title)
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
        if not _jaxcore.is_live(value):
            # The function kept it from an earlier run, and its value is known.
            value = value.value
    elif isinstance(value, _jaxcore.Tracer) and _jaxcore.has("the tape"):
        # Without traces of our own, the values of a differentiated function are JAX's.
        raise _foreign_tracer(value, origin, title)
    else:
        check_usable(value, origin, title)
    if value.dtype == leaf.dtype:
        return value if not value.weak_type else jax.lax.convert_element_type(value, leaf.dtype)
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


# ---------------------------------------------------------------- fingerprints

# The bytes of a smaller array are copied in less time than it takes to view them.
_SMALL = 1 << 14


def fingerprint(arrays: Sequence[Any]) -> int:
    """Return the fingerprint of NumPy arrays, or jax.Arrays, which are waited for."""
    found = 0
    for array in arrays:
        found = _checksum(np.asarray(array), found)
    return found


def _checksum(array: np.ndarray[Any, Any], before: int) -> int:
    if array.nbytes < _SMALL:
        return zlib.crc32(array.tobytes(), before)
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, before)


def check_fingerprints(found: int, expected: int, title: str, what: str) -> None:
    """Raise unless a function that ran again for a backward pass gave the results of the forward pass.

    Args:
        found: the fingerprint of the results now.
        expected: that of the forward pass.
        title: the op's name.
        what: what ran again: "func" or "fwd".

    Raises:
        RuntimeError: they differ.
    """
    if found != expected:
        text = (
            f"{title}: {what} ran again for a backward pass, because the record of its forward pass was gone, and gave "
            "other results than in the forward pass: it draws random numbers, reads something that changes, or calls a "
            "kernel that is not deterministic (on GPUs, say: the results are compared bit by bit). Its gradient would "
            "be that of another run. Pass what changes (a random key, say) as an input; or pass stateful=True and "
            "increase jaxpyop.config.max_record_bytes, so that nothing runs again"
        )
        raise refusal(RuntimeError(text))

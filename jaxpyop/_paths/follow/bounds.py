"""Bounds: how large a traced value that stands for a Python number can become.

A Python int has any number of digits, and an integer of a program has 32 bits (64 with `jax_enable_x64`). So a traced
value that stands for a Python int carries the least and the greatest number that it can be, and arithmetic is refused
if the result might not fit into the bits. Arrays have no bounds, because they also wrap around outside of a program.

A loop changes a number in each iteration, and the number of iterations is often not known. So the tracer assumes that a
number that a loop carries stays in one of a few ranges, and accepts an iteration if it leaves this range by at most a
small step. The number could overflow its dtype only after many millions of iterations, which take seconds.

A traced value that stands for a Python float has bounds, too, which are floats. They tell where Python would raise an
error, for example because a divisor may be zero. (An array gets infinity or NaN there, and raises no error.) The
overflow of a float is not detected: the result is infinite in the program.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Bounds = tuple[Any, Any]

# A bound that stands for any large number: it is larger than the largest number of any dtype.
_HUGE = 2**1100
# The ranges that are tried for a number that a loop carries, by the bits of its dtype. A range (size, step) is from
# -size to size, and an iteration may leave it by at most `step`. Such steps add up to `size` after 2**23 iterations at
# the earliest. The last range but one is the range of the dtype.
_RANGES = {
    32: [(2**27, 2**4), (2**31, 0), (_HUGE, _HUGE)],
    64: [(2**27, 2**4), (2**59, 2**36), (2**63, 0), (_HUGE, _HUGE)],
}
_MOST_ITERATIONS = 2**23
# The bounds of a float about which nothing is known.
_NO_LIMITS = (-math.inf, math.inf)
# Why a number is refused, and the advice what to write instead.
TOO_LARGE = (
    "a Python number may be too large or too small for a program, which has a fixed number of bits",
    "make it an array, which is the same in Python (x for float(x), x.astype(int) for int(x), jnp.asarray(1) for 1), "
    'or write mode="eager" to call the body at run time instead',
)
MAY_BE_ZERO = (
    "a Python number is divided by one that may be zero, which Python refuses and a program does not",
    TOO_LARGE[1],
)
FLOAT_TO_INT = (
    "the integer that Python makes of a float may be too large for a program, and Python refuses infinity and NaN",
    'write x.astype(int) for int(x), jnp.round(x) for round(x), or write mode="eager" to call the body at run time',
)
MAY_BE_COMPLEX = ("a power of Python floats is complex if the base is negative", TOO_LARGE[1])


def limits_of(dtype: Any) -> Bounds:
    """Returns the bounds of a Python number that is made from an array of this dtype."""
    if np.dtype(dtype).kind == "b":
        return 0, 1
    if not jax.dtypes.issubdtype(dtype, np.integer):
        return _NO_LIMITS
    found = jax.numpy.iinfo(jax.dtypes.canonicalize_dtype(dtype))
    return int(found.min), int(found.max)


def in_dtype(bounds: Bounds | None, dtype: Any) -> Bounds | None:
    """Returns the bounds of a number after its conversion to a dtype: floats for a floating dtype, otherwise ints."""
    if bounds is None or not jax.dtypes.issubdtype(dtype, np.inexact):
        return bounds
    low, high = (float(b) if abs(b) <= 2**1000 else math.inf * (1 if b > 0 else -1) for b in bounds)
    return low, high


def is_float(bounds: Bounds | None) -> bool:
    return bounds is not None and isinstance(bounds[0], float)


def is_too_large(bounds: Bounds | None) -> bool:
    """Tells whether a number may not fit into the program. A float may also be too small, and become zero."""
    if bounds is None:
        return False
    if is_float(bounds):
        held = _float_type()
        with np.errstate(all="ignore"):
            return any(math.isfinite(b) and not (math.isfinite(held(b)) and bool(held(b)) == bool(b)) for b in bounds)
    low, high = limits_of(int)
    return bounds[0] < low or bounds[1] > high


def is_rounded(a: Bounds, b: Bounds) -> bool:
    """Tells whether a program may round an int and a float to the same number, which Python compares exactly."""
    most = 2 ** (np.finfo(_float_type()).nmant + 1)
    return is_float(a) != is_float(b) and all(max(map(abs, x)) >= most for x in (a, b))


def hull(bounds: Sequence[Bounds | None]) -> Bounds | None:
    """Returns the bounds of a number that has other bounds on each path."""
    if not any(bounds):
        return None
    found = [b for b in bounds if b] if any(map(is_float, bounds)) else [b or limits_of(int) for b in bounds]
    return min(low for low, _ in found), max(high for _, high in found)


# ---------------------------------------------------------------------- loops


def range_before(bounds: Bounds | None) -> Any:
    """Returns the index of the smallest range that holds a Python int before a loop.

    For a float it returns bounds in place of an index, which say that nothing is known. For other values it returns
    None.
    """
    if is_float(bounds):
        return _NO_LIMITS
    return None if bounds is None else _first_fitting(bounds, [size for size, _ in _ranges()])


def range_after(bounds: Bounds | None, before: Any, iterations: int | None) -> Any:
    """Returns the index of the smallest range that holds a Python int after an iteration, but for the range's step.

    The result is never smaller than `before`. For other values it is like the result of `range_before`.

    Args:
        bounds: the bounds of the number after an iteration.
        before: what this function, or `range_before`, returned for the number before the iteration.
        iterations: the greatest number of iterations, None if it is not known.
    """
    if bounds is None:
        return before
    if is_float(bounds) or isinstance(before, tuple):
        return _NO_LIMITS
    steps = (max(step, size // iterations if iterations else 0) for size, step in _ranges())
    place = _first_fitting(bounds, [bounds_in(k, iterations)[1] + step for k, step in enumerate(steps)])
    return max(place, before or 0)


def bounds_in(place: Any, iterations: int | None) -> Bounds:
    """Returns the bounds of a number that a loop carries in the range with this index.

    If the number of iterations is known, the bounds are twice the range: the number starts in the range, and its steps
    in all iterations together (see `range_after`) may add the size of the range once more.
    """
    if isinstance(place, tuple):
        return place
    size, (low, high) = _ranges()[place][0] * (2 if iterations else 1), limits_of(int)
    return (-size, size) if size > 2 * high + 2 else (max(-size, low), min(size, high))


def counted(start: Bounds, stop: Bounds, step: Bounds) -> tuple[Bounds, int | None]:
    """Returns the bounds of the numbers of a `range`, and the greatest count of them; None for an unknown count."""
    low, high = min(start[0], stop[0]), max(start[1], stop[1])
    if step[0] < 1 and step[1] > -1:
        return (low, high), None
    low, high = (start[0], max(start[1], stop[1])) if step[0] > 0 else (min(start[0], stop[0]), start[1])
    most = (high - low) // min(map(abs, step)) + 1
    size, small = _ranges()[0]
    if most > _MOST_ITERATIONS and max(map(abs, step)) <= small and max(map(abs, start)) <= size:
        low, high = max(low, -size), min(high, size)
    return (low, high), most if most <= _MOST_ITERATIONS else None


def _ranges() -> list[tuple[int, int]]:
    return _RANGES[jax.numpy.iinfo(jax.dtypes.canonicalize_dtype(int)).bits]


def _first_fitting(bounds: Bounds, sizes: Sequence[int]) -> int:
    return next(k for k, size in enumerate(sizes) if max(map(abs, bounds)) <= size or k == len(sizes) - 1)


# ----------------------------------------------------------------- operators


def _corners(operate: Callable[[int, int], int]) -> Callable[..., Bounds]:
    def bounds(a: Bounds, b: Bounds) -> Bounds:
        found = [operate(x, y) for x in a for y in b]
        return min(found), max(found)

    return bounds


def _quotient(a: Bounds, b: Bounds) -> Bounds | None:
    """Returns None if Python might raise an error. The functions below do the same."""
    return None if b[0] <= 0 <= b[1] else _corners(lambda x, y: x // y)(a, b)


def _remainder(a: Bounds, b: Bounds) -> Bounds | None:
    return None if b[0] <= 0 <= b[1] else (min(b[0] + 1, 0), max(b[1] - 1, 0))


def _power(a: Bounds, b: Bounds) -> Bounds | None:
    """Returns None if the exponent may be negative, because Python then returns a float."""
    most = max(map(abs, a))
    if b[0] < 0:
        return None
    if b[1] * most.bit_length() > 256:
        return -_HUGE, _HUGE
    return (0 if a[0] >= 0 else -(most ** b[1])), max(most ** b[1], 1)


def _shifted(a: Bounds, b: Bounds) -> Bounds:
    return _corners(lambda x, y: x << y)(a, b) if b[0] >= 0 and b[1] <= 64 else (-_HUGE, _HUGE)


def _bitwise(a: Bounds, b: Bounds) -> Bounds:
    most = 2 ** max(abs(x).bit_length() for x in (*a, *b))
    return (0 if min(*a, *b) >= 0 else -most), most - 1


def _masked(a: Bounds, b: Bounds) -> Bounds:
    tops = [high for low, high in (a, b) if low >= 0]
    return (0, min(tops)) if tops else _bitwise(a, b)


_INT_BOUNDS: dict[str, Callable[..., Any]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "floordiv": _quotient,
    "mod": _remainder,
    "divmod": lambda a, b: None if b[0] <= 0 <= b[1] else (_quotient(a, b), _remainder(a, b)),
    "pow": _power,
    "lshift": _shifted,
    "rshift": lambda a, b: (min(a[0], 0), max(a[1], 0)) if b[0] >= 0 else (-_HUGE, _HUGE),
    "and": _masked,
    "or": _bitwise,
    "xor": _bitwise,
    "neg": lambda a: (-a[1], -a[0]),
    "invert": lambda a: (-a[1] - 1, -a[0] - 1),
    "abs": lambda a: (max(a[0], -a[1], type(a[0])(0)), max(map(abs, a))),
    "pos": lambda a: a,
    "round": lambda a, *_: a,
}
UNARY = ("neg", "invert", "abs", "pos", "round")
BINARY = ("truediv", *(name for name in _INT_BOUNDS if name not in UNARY))


def bounds_after(name: str, *bounds: Bounds) -> Any:
    """Returns the bounds of an operator's result: two bounds for `divmod`, and None if Python might raise an error."""
    if name == "truediv" or any(map(is_float, bounds)):
        return _float_bounds_after(name, *bounds)
    return _INT_BOUNDS[name](*bounds)


def _float_bounds_after(name: str, a: Bounds, b: Bounds = (0, 0)) -> Any:
    """Does what `bounds_after` does if an operand is a float. The bounds are rounded as the program rounds."""
    tiny = np.finfo(_float_type()).tiny
    has_zero = lambda x: x[0] < tiny and x[1] > -tiny
    if name == "divmod":
        return None if has_zero(b) else (_NO_LIMITS, _NO_LIMITS)
    if name in ("truediv", "floordiv", "mod") and has_zero(b):
        return None
    if name == "pow":
        is_whole = b[0] == b[1] and float(b[0]).is_integer()
        if (has_zero(a) and b[0] < 0) or (a[0] < 0 and not is_whole):
            return None
        if has_zero(a) and is_whole and b[0] % 2 == 0:
            return 0.0, math.inf
    if name in ("neg", "abs", "pos"):
        return _INT_BOUNDS[name](a)
    if name not in ("add", "sub", "mul", "truediv", "pow"):
        return _NO_LIMITS
    with np.errstate(all="ignore"):
        found = [float(getattr(operator, name)(_float_type()(x), _float_type()(y))) for x in a for y in b]
    return _NO_LIMITS if any(map(math.isnan, found)) else (min(found), max(found))


def _float_type() -> Any:
    return jax.dtypes.canonicalize_dtype(float).type

"""Operators of traced values that stand for Python numbers: they compute bounds, and refuse what may not fit.

An array has no bounds. If JAX's own code calls an operator, bounds are not computed and nothing is refused, because JAX
computes with the number as with an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.bounds import (
    BINARY,
    FLOAT_TO_INT,
    MAY_BE_COMPLEX,
    MAY_BE_ZERO,
    TOO_LARGE,
    UNARY,
    Bounds,
    bounds_after,
    in_dtype,
    is_float,
    is_rounded,
    is_too_large,
)
from jaxpyop._paths.follow.number_types import types_after
from jaxpyop._paths.follow.tracer import ARRAY, BoolTracer, PathRun, PathTracer


def bounds_of(x: Any) -> Bounds | None:
    """Returns the bounds of a Python number, or of a traced value that stands for one; None for all other values."""
    if isinstance(x, int):
        return int(x), int(x)
    if type(x) is float:
        return (-math.inf, math.inf) if math.isnan(x) else (x, x)
    if isinstance(x, BoolTracer):
        return None if x.counts_as == ARRAY else (0, 1)
    return x.bounds if isinstance(x, PathTracer) else None


def with_bounds(x: Any, bounds: Bounds | None) -> Any:
    """Returns a traced number with these bounds, and any other value as it is."""
    if not isinstance(x, PathTracer) or x.ndim or x.dtype == bool or not jax.dtypes.issubdtype(x.dtype, np.number):
        return x
    bounds = in_dtype(bounds, x.dtype)
    if x.bounds == bounds:
        return x
    out = x._trace.keep(PathTracer(x._trace, x.val))
    out.bounds, out.number_types = bounds, x.number_types
    return out


# ----------------------------------------------------------------- operators


_FRACTION = (
    "a power of whole Python numbers is a fraction if the exponent is negative",
    "write 2.0 ** x, for example",
)


def _may_be_number(x: Any) -> bool:
    """Tells whether a value is a Python number, or stands for one on at least one path."""
    if isinstance(x, PathTracer):
        return bool(x.number_types) or x.bounds is not None or x.aval.weak_type
    return isinstance(x, (bool, int, float, complex))


def _operator(name: str, is_reflected: bool) -> Callable[..., Any]:
    original = getattr(PathTracer, f"__{'r' * is_reflected}{name}__")

    def operate(self: PathTracer, *others: Any) -> Any:
        if core.is_called_by_jax():
            return original(self, *others)
        if name == "round" and not others and core.is_inexact(self) and _may_be_number(self):
            _refuse(self, *FLOAT_TO_INT)
        values = (*others, self) if is_reflected else (self, *others)
        bounds: list[Any] = [bounds_of(x) for x in values]
        # The size of a float does not matter if an operand is an array, because the float takes the array's dtype.
        _check_size(self, *(b for b in bounds if None not in bounds or not is_float(b)))
        found = original(self, *others)
        is_named = isinstance(found, PathTracer) and any(getattr(x, "number_types", None) for x in values)
        if is_named and all(map(_may_be_number, values)):
            found.number_types = types_after(values, is_division=name == "truediv")
        if self.bounds is None or None in bounds:
            return found
        after = bounds_after(name, *bounds)
        if after is None:
            power = MAY_BE_COMPLEX if any(map(is_float, bounds)) else _FRACTION
            _refuse(self, *(power if name == "pow" else MAY_BE_ZERO))
        if name in ("floordiv", "mod", "divmod") and any(map(is_float, bounds)):
            found = _with_signs(name, found, *values)
        if isinstance(found, tuple):
            return tuple(map(with_bounds, found, after))
        if not is_float(after):
            _check_size(self, after)
        return with_bounds(found, after)

    operate.__name__ = original.__name__
    return operate


def _with_signs(name: str, found: Any, a: Any, b: Any) -> Any:
    """Gives a quotient or a remainder of zero the sign that it has in Python."""
    signs = b if name == "mod" else a / b
    return jax.tree.map(jax.numpy.copysign, found, (signs, b) if name == "divmod" else signs)


# Where Python compares what lists hold, an object is equal to itself, even if it is NaN.
IDENTITY = ("whether Python finds NaN in a list depends on the path that it came from", "compare the values one by one")


def may_be_nan(x: Any) -> bool:
    """Tells whether a value may be NaN, and is identical to another one in Python, but not in the program."""
    return isinstance(x, PathTracer) and x.is_merged and core.is_inexact(x)


def _comparison(name: str) -> Callable[..., Any]:
    original = getattr(PathTracer, name)

    def compare(self: PathTracer, other: Any) -> Any:
        # Rewritten code compares by a function of this package, except for `in`.
        is_in = name == "__eq__" and isinstance(other, PathTracer) and core.is_called_by_user()
        if is_in and (may_be_nan(self) or may_be_nan(other)):
            _refuse(self, *IDENTITY)
        # If one side is an array, the bounds contain None, and JAX does with too large a number what it always does.
        mine, its = bounds_of(self), bounds_of(other)
        if mine is None or its is None or core.is_called_by_jax():
            return original(self, other)
        if is_too_large(mine) or is_too_large(its) or is_rounded(mine, its):
            _refuse(self, *TOO_LARGE)
        return original(self, other)

    compare.__name__ = name
    return compare


def _is_whole(x: PathTracer) -> bool:
    return x.bounds is not None and not is_float(x.bounds)


def _attribute(name: str, of_number: Callable[[Any], Any]) -> property:
    """Returns a property for a name that both Python ints and arrays have. For an array, JAX evaluates it."""
    return property(lambda x: of_number(x) if _is_whole(x) else core.Tracer.__getattr__(x, name))


def check_numbers(values: Any, depth: int = 3) -> None:
    """Refuses Python numbers that may not fit into the program, where they are returned or become arrays."""
    if isinstance(values, PathTracer):
        _check_size(values, values.bounds)
    elif depth and type(values) in (list, tuple, dict):
        for x in values.values() if isinstance(values, dict) else values:
            check_numbers(x, depth - 1)


def _check_size(tracer: PathTracer, *bounds: Bounds | None) -> None:
    """Refuses a Python number if one of these bounds does not fit into the program."""
    if any(map(is_too_large, bounds)):
        _refuse(tracer, *TOO_LARGE)


def _refuse(tracer: PathTracer, reason: str, advice: str) -> NoReturn:
    run: PathRun = tracer._trace.run
    run.stop(reason, advice)


def _in_place(self: PathTracer, _: Any) -> Any:
    if self.is_numpy and self.ndim:
        _refuse(self, "an array of NumPy's, which others may hold, is changed in place", "write x = x + y for x += y")
    return NotImplemented


for _name in BINARY:
    setattr(PathTracer, f"__i{_name}__", _in_place)
for _name in (*BINARY, *UNARY):
    for _is_reflected in (False, True) if _name in BINARY else (False,):
        if hasattr(PathTracer, _method := f"__{'r' * _is_reflected}{_name}__"):
            setattr(PathTracer, _method, _operator(_name, _is_reflected))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(PathTracer, _name, _comparison(_name))
for _name, _of_number in {"real": lambda x: x, "conjugate": lambda x: lambda: x}.items():
    setattr(PathTracer, _name, _attribute(_name, _of_number))

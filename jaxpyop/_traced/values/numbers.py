"""Python's numbers in a program: in 64 bits, with the ranges that show where Python would not raise."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop import _sharding
from jaxpyop._traced.values.kinds import *

COMPARE: dict[type, Callable[..., Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
PYTHON_OPS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.MatMult: operator.matmul,
}
_ORDER = "bif"


def integer(val: Any, lo: Any, hi: Any, size: Callable[[], Any] | None = None) -> Num:
    """An integer with its range.

    Args:
        val: its 64 bits.
        lo: its lower bound.
        hi: its upper bound.
        size: gives it as a float, which is near enough, if its 64 bits may have wrapped to a number within 2**62.

    An integer of Python has no limit, so the program raises an error of its own where one is beyond MOST.
    """
    if lo < -MOST or hi > MOST:
        text = "an integer of Python is beyond 2**62, which a traced program cannot hold"
        size = size or (lambda: lax.convert_element_type(val, np.float64))
        beyond_if(wide(lambda: abs(size()) >= 2.0**62), text)
    return Num("i", val, max(lo, -MOST), min(hi, MOST))


def of_array(x: Any, kind: str = "") -> Num:
    """The Python number that an array without axes is, as `float(x)`, `int(x)` or `x.item()` give it."""
    if x.ndim > 0:
        raise Refused("the number of an array that has axes", "index it")
    families = (("b", np.bool_), ("i", np.integer), ("f", np.floating))
    own = next((k for k, family in families if jnp.issubdtype(x.dtype, family)), "")
    if not own:
        raise Refused(f"the Python number of {x.dtype}")
    kind = kind or own
    # As in Python, a number of Python has no derivative. It is hidden from XLA, which may know the array, and would
    # simplify what is computed of it.
    x = lax.stop_gradient(x)
    val = lax.optimization_barrier(wide(_widened if own == kind == "f" else lax.convert_element_type, x, DTYPES[kind]))
    if kind == "i" and x.dtype != np.bool_:
        info = jnp.iinfo(x.dtype)
        return integer(val, int(info.min), int(info.max), lambda: lax.convert_element_type(x, np.float64))
    return Num(kind, val, 0, 1)


def _widened(x: Any, dtype: Any) -> Any:
    """A floating-point array in 64 bits.

    XLA takes a float32 for zero that is too small for a full mantissa, so such a number is made from its bits. Those of
    a bfloat16 are the upper half of a float32.
    """
    found = lax.convert_element_type(x, dtype)
    if x.dtype not in (np.float32, jnp.bfloat16):
        return found
    bits = lax.bitcast_convert_type(x, np.int32 if x.dtype == np.float32 else np.int16).astype(np.int32)
    bits = bits if x.dtype == np.float32 else bits << 16
    size = bits & 0x7FFFFFFF
    small = size.astype(dtype) * 2.0**-149
    return jnp.where(size < 1 << 23, jnp.where(bits < 0, -small, small), found)


def may_be_nan(v: Any) -> bool:
    if isinstance(v, Num):
        return v.kind == "f"
    return jnp.issubdtype(v.dtype, jnp.inexact) if is_array(v) else is_scalar(v) and v != v


def nonzero(v: Any) -> bool:
    lo, hi = bounds(v)
    return lo > 0 or hi < 0


def decided(f: Any, a: Any, b: Any) -> bool | None:
    """What a comparison of two integers gives, if their ranges tell."""
    (l1, h1), (l2, h2) = bounds(a), bounds(b)
    of_ends = {f(x, y) for x in (l1, h1) for y in (l2, h2)}
    may_be_equal = f in (operator.eq, operator.ne) and l1 <= h2 and l2 <= h1 and (l1, l2) != (h1, h2)
    return bool(of_ends.pop()) if len(of_ends) == 1 and not may_be_equal else None


def num_compare(f: Callable[..., Any], a: Any, b: Any) -> Any:
    kind = common_kind(a, b).replace("b", "i")
    _check_exact(kind, a, b)
    if kind == "i" and (known := decided(f, a, b)) is not None:
        return known
    if (flushed := flushed_of(a, b)) is not None and not (nonzero(a) or nonzero(b)):
        text = "a float of Python is too small for a traced program, which takes it for zero"
        beyond_if(wide(lambda: flushed & (raw(a, kind) == 0) & (raw(b, kind) == 0)), text)
    # A constant is hidden, because XLA thinks that abs(x) >= 0.0 holds for NaN.
    x, y = (raw(v, kind) if isinstance(v, Num) else lax.optimization_barrier(raw(v, kind)) for v in (a, b))
    return Num("b", wide(f, x, y))


def flushed_of(*vs: Any) -> Any:
    """Whether XLA takes one of some numbers for zero, and Python does not: a traced bool, or None if it never does."""
    flags = [v.flushed for v in vs if isinstance(v, Num) and v.flushed is not None]
    return wide(functools.reduce, operator.or_, flags) if flags else None


def _underflow(val: Any, *vs: Any) -> Any:
    """Whether XLA took a product, quotient or power of `vs` for zero: it is none if they are finite and no zeros."""
    out = val == 0
    for v in vs:
        flushed, x = flushed_of(v), raw(v, "f")
        out &= jnp.isfinite(x) & ((x != 0) if flushed is None else (x != 0) | flushed)
    return out


def common_kind(a: Any, b: Any) -> str:
    return max(kind_of(a), kind_of(b), key=_ORDER.index)


def _check_exact(kind: str, *vs: Any) -> None:
    """An integer that is compared with a float, or divided, has to fit the 53 bits of one. Python has no such limit."""
    for v in vs:
        if kind == "f" and kind_of(v) == "i" and max(map(abs, bounds(v))) > 2**53:
            text = "an integer beyond 2**53 is divided, or compared with a float, which a traced program cannot do"
            beyond_if(wide(lambda v=v: abs(raw(v)) > 2**53), text)


def _corners(f: Callable[..., Any], a: Any, b: Any) -> tuple[Any, Any]:
    """The range of an operation on integers that is monotonic in both."""
    xs = [f(x, y) for x in bounds(a) for y in bounds(b)]
    return min(xs), max(xs)


# ------------------------------------------------------------------- exact floats
#
# XLA makes one operation, with one rounding, of a product and a sum, and a product of a division by one number for a
# whole batch. It does so on the CPU, in 64 bits, too, and no flag or barrier stops it. A choice is an operation in
# between, so that nothing is left to be made one. Both sides of this one are the product.


def _exact(x: Any) -> Any:
    return wide(lambda: jnp.where(abs(x) <= 1e308, x, abs(x) * jnp.sign(x)))


def some_number(x: Any) -> Any:
    """A number that depends on an array. JAX refuses to take the first of one whose type says how it is sharded."""
    return jnp.sum(x) if _sharding.is_explicit(jax.typeof(x)) else x.reshape(-1)[0]


# XLA also thinks that x + 0.0 is x, which it is not for -0.0. A barrier around the zero does not always stop it.


def gives_no_negative_zero(op: type, a: Any, b: Any) -> bool:
    """Whether a zero that `op` gives is 0.0 and not -0.0, as for x + 0.0, x - (-0.0) and 0.0 - x."""
    zeros = (isinstance(v, (int, float, np.floating, np.integer)) and v == 0 for v in (a, b))
    x, y = (math.copysign(1, v) if is_zero else 0 for v, is_zero in zip((a, b), zeros))
    return (op is ast.Add and 1 in (x, y)) or (op is ast.Sub and (x == 1 or y == -1))


@jax.custom_jvp
def without_negative_zeros(x: Any) -> Any:
    """The same numbers, with 0.0 for -0.0. The derivative is 1, also at zero."""
    return lax.select(x == 0, lax.abs(x), x)


without_negative_zeros.defjvps(lambda tangent, out, x: tangent)


# --------------------------------------------------------------------- operations


def num_binary(op: type, a: Any, b: Any) -> Num:
    """An operation on two numbers, of which one is traced."""
    kind = common_kind(a, b)
    rule = _RULES.get(op)
    if rule is None:
        raise Refused(f"{op.__name__} of Python numbers", "make them arrays, such as jnp.int32(n)")
    with jax.enable_x64(True):
        return rule(op, a, b, kind)


def _arithmetic(op: type, a: Any, b: Any, kind: str) -> Num:
    kind = "i" if kind == "b" else kind
    x, y = raw(a, kind), raw(b, kind)
    if kind == "f" and op is not ast.Mult:
        x, y = (v if isinstance(o, Num) else lax.optimization_barrier(v) for v, o in ((x, a), (y, b)))
    f = PYTHON_OPS[op]
    if kind == "i":
        return integer(f(x, y), *_corners(f, a, b), lambda: f(raw(a, "f"), raw(b, "f")))
    if op is not ast.Mult:
        out = f(x, y)
        out = without_negative_zeros(out) if gives_no_negative_zero(op, a, b) else out
        return Num("f", out, flushed=None if nonzero(a) or nonzero(b) else flushed_of(a, b))
    out = _exact(f(x, y))
    return Num("f", out, flushed=_underflow(out, a, b))


def _divide(op: type, a: Any, b: Any, kind: str) -> Num:
    _check_exact("f", a, b)
    _check_divisor(b)
    x, y = raw(a, "f"), raw(b, "f")
    # Otherwise XLA would multiply by the reciprocal of y, and make one division of two.
    out = _exact(x / jnp.where(x == x, y, jnp.nan))
    return Num("f", out, flushed=_underflow(out, a, b))


def _check_divisor(b: Any) -> None:
    if not nonzero(b):
        raise_if(wide(lambda: raw(b) == 0), ZeroDivisionError, "division by zero")


def _floor_divide(op: type, a: Any, b: Any, kind: str) -> Num:
    if kind == "f":
        raise Refused(f"{op.__name__} of floats of Python", "make one of them an array, such as jnp.float32(x)")
    _check_divisor(b)
    (lo, hi), most = bounds(b), max(map(abs, bounds(a)))
    x, y = raw(a, "i"), raw(b, "i")
    if lo <= 0 <= hi:
        # XLA ends the process where it divides a constant by zero, even on a path that is not taken (0.10 to 0.12).
        y = jnp.where(y == 0, jnp.ones_like(y), y)
    q, r = lax.div(x, y), lax.rem(x, y)
    adjust = (r != 0) & ((r < 0) != (y < 0))
    if op is ast.Mod:
        return integer(jnp.where(adjust, r + y, r), min(0, lo + 1), max(0, hi - 1))
    return integer(jnp.where(adjust, q - 1, q), 0 if bounds(a)[0] >= 0 and lo >= 0 else -most, most)


def _power(op: type, a: Any, b: Any, kind: str) -> Num:
    if kind in "bi":
        if not isinstance(a, Num) and a == -1 and bounds(b)[0] >= 0:
            return integer(1 - 2 * (raw(b, "i") & 1), -1, 1)
        if isinstance(b, Num) or not 0 <= b <= 64:
            raise Refused("an integer to the power of a traced or a negative one", "make it an array")
        lo, hi = _corners(operator.pow, a, b)
        lo = min(lo, 0) if b % 2 == 0 else lo
        x, power = raw(a, "i"), b
        val = functools.reduce(operator.mul, [x] * power, jnp.ones_like(x))
        return integer(val, lo, hi, lambda: raw(a, "f") ** power)
    x, y = raw(a, "f"), raw(b, "f")
    val = _exact(lax.pow(x, y))
    if bounds(b)[0] < 0:
        raise_if((x == 0) & (y < 0) & jnp.isfinite(y), ZeroDivisionError, "0.0 cannot be raised to a negative power")
    if bounds(a)[0] < 0 and not (not isinstance(b, Num) and float(b).is_integer()):
        is_complex = (x < 0) & jnp.isfinite(x) & jnp.isfinite(y) & (y != jnp.floor(y))
        beyond_if(is_complex, "a power is complex, which a traced program cannot hold")
    _check_overflow(val, x, y)
    return Num("f", val, flushed=_underflow(val, a, b))


def _check_overflow(val: Any, *given: Any, text: str = "Numerical result out of range") -> None:
    """Python raises if finite numbers give an infinite one."""
    are_finite = wide(lambda: functools.reduce(operator.and_, map(jnp.isfinite, given)))
    raise_if(wide(lambda: jnp.isinf(val) & are_finite), OverflowError, text)


def _of_bits(op: type, a: Any, b: Any, kind: str) -> Num:
    if kind != "b":
        raise Refused(f"{op.__name__} of Python's integers", "make them arrays, such as jnp.int32(n)")
    return Num("b", PYTHON_OPS[op](raw(a), raw(b)))


_RULES: dict[type, Callable[..., Num]] = {
    **dict.fromkeys((ast.BitAnd, ast.BitOr, ast.BitXor), _of_bits),
    **dict.fromkeys((ast.Add, ast.Sub, ast.Mult), _arithmetic),
    **dict.fromkeys((ast.FloorDiv, ast.Mod), _floor_divide),
    ast.Div: _divide,
    ast.Pow: _power,
}


def num_unary(op: type, v: Num) -> Num:
    kind = "i" if v.kind == "b" else v.kind
    lo, hi = bounds(v)
    if op is ast.UAdd:
        return Num(kind, raw(v, kind), lo, hi, flushed=v.flushed)
    if op is ast.USub and kind == "i":
        return integer(wide(lax.neg, raw(v, "i")), -hi, -lo)
    if op is ast.USub:
        return Num("f", wide(lax.neg, raw(v)), flushed=v.flushed)
    if op is ast.Invert and kind == "i":
        return integer(wide(lax.bitwise_not, raw(v, "i")), -hi - 1, -lo - 1)
    raise Refused(f"{op.__name__} of a number of Python")


# The functions of `math` of one number, in XLA. Python raises for none of the first group, and an OverflowError where
# one of the second is infinite. Where one of the third is, or any is no number, it raises a ValueError.
_TOTAL = {"fabs": lax.abs, **{name: getattr(lax, name) for name in ("tanh", "atan", "asinh", "erf", "erfc")}}
_GROWING = {name: getattr(lax, name) for name in ("exp", "expm1", "sinh", "cosh")}
_OF_TWO = {"hypot": jnp.hypot, "atan2": lax.atan2}
_SCALED = {"radians": math.pi / 180, "degrees": 180 / math.pi}
_PARTIAL_NAMES = "sin", "cos", "tan", "asin", "acos", "sqrt", "log", "log1p", "acosh", "atanh"
_PARTIAL = {name: getattr(lax, name) for name in _PARTIAL_NAMES} | {"log10": jnp.log10, "log2": jnp.log2}
_MATH: dict[str, Callable[..., Any]] = _TOTAL | _GROWING | _PARTIAL
_TESTS = {"isnan": jnp.isnan, "isinf": jnp.isinf, "isfinite": jnp.isfinite}
_TO_INT = {"floor": jnp.floor, "ceil": jnp.ceil, "trunc": jnp.trunc}


def math_function(name: str, v: Any, *rest: Any) -> Any:
    """A function of `math` on a traced number."""
    if not rest and name in _TESTS:
        return Num("b", wide(_TESTS[name], raw(v, "f")))
    if not rest and name in _TO_INT:
        return to_int(_TO_INT[name], v)
    if len(rest) == 1 and name in _OF_TWO:
        x, y = raw(v, "f"), raw(rest[0], "f")
        val = wide(_OF_TWO[name], x, y)
        _check_overflow(val, x, y, text="math range error")
        return Num("f", _exact(val), flushed=flushed_of(v, *rest))
    if name in _SCALED and not rest:
        return num_binary(ast.Mult, Num("f", raw(v, "f"), flushed=v.flushed), _SCALED[name])
    if rest or name not in _MATH:
        where = "jnp" if hasattr(jnp, name) else "jax.scipy.special"
        raise Refused(f"math.{name} of a traced number is not in the language", f"use a function of {where}")
    x = raw(v, "f")
    val = wide(_MATH[name], x)
    if name in _GROWING:
        _check_overflow(val, x, text="math range error")
    elif name in _PARTIAL:
        # As in CPython's math_1.
        wrong = lambda: (jnp.isnan(val) & ~jnp.isnan(x)) | (jnp.isinf(val) & jnp.isfinite(x))
        raise_if(wide(wrong), ValueError, "math domain error")
    flushed = wide(_underflow, val, v) if name in ("exp", "erfc") else flushed_of(v)
    return Num("f", _exact(val), flushed=flushed)


def to_int(f: Callable[..., Any], v: Any) -> Any:
    """`math.floor`, `int()` or `round()` of a number: `f` of it, as an integer."""
    if kind_of(v) in "bi":
        return Num("i", raw(v, "i"), *bounds(v))
    raise_if(wide(lambda: jnp.isnan(raw(v))), ValueError, "cannot convert float NaN to integer")
    raise_if(wide(lambda: jnp.isinf(raw(v))), OverflowError, "cannot convert float infinity to integer")
    val = wide(lambda: lax.convert_element_type(f(raw(v)), np.int64))
    return integer(val, -math.inf, math.inf, lambda: raw(v))

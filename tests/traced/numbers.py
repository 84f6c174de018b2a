"""Functions with Python's numbers and bools, small integers, conversions, and types that decide."""

# What users write is not always good style.

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from tests.traced.rows import Table

TABLE = Table()
TWO = 2


# ------------------------------------------------------------- bools that Python counts

TABLE.equal_all(
    {
        "negations that are added": lambda x: ((not x > 5) + (not x > 6)) * x,
        "bools for functions of JAX": lambda x: x * jnp.sum(jnp.asarray([not x > 5, not x > 6])),
    }
)
TABLE.either_all(
    {
        "a bool that is inverted": lambda x: x * (~(not x > 1)),
        "powers of bools": lambda x: x * ((not x > 1) ** 2 + (not x > 1) // 1),
        "a bool plus an array": lambda x: x * (((not x > 5) + (x > 1)) * 2),
        "any and all": lambda x: x * (any([x > 1, x > 3]) + all([x > 0, x > 1])),
        "a bool as an index": lambda x: (10.0, 20.0)[not x > 1] + x,
    }
)


# XLA makes a choice of a bool times a number, and knows more than the interpreter.
ZERO = jnp.zeros(())
TABLE.equal_all(
    {
        "a bool times a float": lambda x: (float(x) > 0) * float(x),
        "a bool array as a float": lambda x: float(x > 0) * float(x),
        "an infinity times a bool": lambda x: (float(x) == float(x)) * math.inf * 0.0 + float(x),
        "a comparison with a number of an array": lambda x: 1.0 if abs(float(x)) >= float(ZERO) else 0.0,
        "an array beside a number of an array": lambda x: 1.0 if abs(x) >= float(ZERO) else 0.0,
        "a comparison with an integer that is zero": lambda x: 1.0 if abs(float(x)) >= int(x > 5) * 0 else 0.0,
        "bools that are combined": lambda x: x * ((float(x) > 0) & (float(x) < 3) | (float(x) != float(x)) ^ True),
        "a plus": lambda x: +float(x) + (+(float(x) > 0)),
        "numbers that an array gets": lambda x: jnp.zeros(3).at[1].add(float(x)).at[int(x > 1)].set(int(x > 0))[1],
        "an integer that a bool array gets": lambda x: jnp.zeros(2, bool).at[0].set(x > 1).sum() * x + int(x > 0),
        "a list of the items of an array": lambda x: sum(v for v in jnp.stack([x, 2 * x]).tolist() if v > 1) + x,
    },
    points=[math.nan, -1.0, 2.0],
)


@TABLE.equal
def flags_of_ifs(x):
    a, b = False, False
    if x > 1:
        a = True
    if x > 0:
        b = True
    return x * (a + b) + x * x * (a + True)


# -------------------------------------------------------- ranges and small integers


def summed(numbers):
    total = 0.0
    for i in numbers:
        total = total + i * 0.5 + (i - 1) * 0.25
    return total


RANGES = {
    "up": lambda n: summed(range(n)),
    "in twos": lambda n: summed(range(1, n, 2)),
    "down": lambda n: summed(range(n - 1, -1, -1)),
    "a little more": lambda n: summed(range(n, n + 3)),
}
for dtype, slow in {"int32": False, "uint8": False, "int8": True, "uint16": True, "uint32": True}.items():
    named = {f"a range of {dtype} {way}": f for way, f in RANGES.items()}
    TABLE.either_all(named, points=[np.dtype(dtype).type(n) for n in (3, 1, 5)], slow=slow)

TABLE.either_all({"a range to the last number": lambda n: summed(range(0, n, 50))}, points=[np.uint8(255)])
TABLE.either_all({"a number of uint32": lambda n: int(n) * 1.0 + n.item() * 1e-3}, points=[np.uint32(3 * 10**9)])
TABLE.either_all(
    {
        "a sum beyond uint8": lambda n: (int(n) + 100) * 1.0,
        "a sum in uint8": lambda n: (n + 100) * 1.0,
        "a product with a float or an int": lambda n: (n * (2 if n > 100 else 1.5)) * 1.0,
        "a sum of a number or uint8": lambda n: ((100 if n > 100 else n) + 200) * 1.0,
        "a choice of JAX's with an int or a float": lambda n: jnp.where(n > 0, n, 2 if n > 100 else 1.5) * 100,
    },
    points=[np.uint8(200), np.uint8(7)],
)
TABLE.either_all(
    {
        "the square of an input": lambda n: int(n) * int(n) * 1e-6,
        "one more than the greatest": lambda n: (int(n) + 1) * 1e-6,
        "compared with a float": lambda n: (int(n) == float(2**24)) * 1.0 + (int(n) > 2.0**24) * 2.0,
    },
    points=[np.int32(100000), np.int32(2**31 - 1), np.int32(2**24 + 1)],
)


@TABLE.either(points=[(0.5, np.uint32(2)), (0.5, np.uint32(3))])
def the_counter_after_a_range(x, n):
    i = -1
    for i in range(n):
        x = x + i
    return x + (i - 3) * 0.5


@TABLE.equal
def powers_of_a_counter(x):
    total = x
    for k in range(x.astype(int)):
        total = total + (x - 2) ** k  # with a derivative at zero
    return total


TABLE.either_all({"a slice of a range": lambda x: x + sum(range(9)[::2]) + isinstance(range(9)[2:5], range)})


# --------------------------------------------- whole numbers, which have no end in Python


@TABLE.either(points=[4e6, 1.0])
def powers_in_a_loop(x):
    n, y = 1, x
    while y > 1:
        y, n = y / 2, n * 7
    return x * (n % 10)


@TABLE.either(points=[100000.0, 3.0])
def the_sum_of_a_counter(x):
    total = 0
    for i in range(x.astype(int)):
        total += i
    return total / 1e9


# ------------------------------------------------------------------ float(x), int(x), x.item()

TABLE.equal_all(
    {
        "float": lambda x: x * float(x) if float(x) > 1 else x,
        "arithmetic with float": lambda x: x * (float(x) / 2.0 + float(x) ** 2),
        "a half that is rounded": lambda x: x * round(float(x)),
        "unlike signs": lambda x: (abs(int(x)) // -2 < 0) * x + (abs(int(x)) % -2 < 0),
    }
)
TABLE.equal_all(
    {
        "item": lambda x: x * x.item() if x.item() > 1 else x,
        "an int of an integer array": lambda x: jnp.arange(9.0)[int(x.astype(int))] * x,
        "divided by what is positive": lambda x: x * (1 / (abs(float(x)) + 1.0) + 1 / (float(x) ** 2 + 1)),
        "a root of a size": lambda x: x * abs(float(x)) ** 0.5,
        "math of two values": lambda x: x * math.hypot(x, 3) + math.atan2(x, x + 1) + math.radians(x) if x > 1 else x,
        "math of Python numbers": lambda x: x * math.sqrt(2.0) if x > 3 else x * math.pi,
    },
    slow=True,
)
TABLE.either_all(
    {
        "divided by a float": lambda x: x * (1 / float(x)),
        "a root of a float": lambda x: x * float(x) ** 0.5,
        "a large factor": lambda x: x * (float(x) * 1e300 * 1e-300),
        "math of a value": lambda x: x * math.sqrt(x),
        "int as an index": lambda x: jnp.arange(9.0)[int(x)],
        "an int of a large float": lambda x: int(x * 1e9) / 7.0,
        "a large sum": lambda x: x * 2 if float(x) + 1e8 > 1e8 else x,
    }
)


@TABLE.either
def a_number_that_becomes_small(x):
    y = 1.0
    while x > 1:
        x, y = x / 2, y * 0.5
    return x * (1 / y)


# The angle has the sign of the zero. XLA takes the sum of a zero for its other operand.
TABLE.equal_all(
    {
        "a float and a zero": lambda x: math.atan2(float(x) + 0.0, -1.0),
        "a zero and a float": lambda x: math.atan2(0 - float(x), -1.0) + math.atan2(float(x) - -0.0, -1.0),
        "an array and a zero": lambda x: jnp.arctan2(x * 2.0 + 0.0, -1.0),
        "a weak array and a zero": lambda x: jnp.arctan2(jnp.asarray(float(x)) * 2.0 + 0.0, -1.0),
        "a zero in radians": lambda x: math.atan2(math.radians(x), -1.0),
    },
    points=[-0.0, 0.0, 2.0],
)

# --------------------------------------------------------------- types and texts that decide

TABLE.either_all(
    {
        "isinstance of an int": lambda x: x * 2 if isinstance(int(x), int) else x,
        "the length of a text of a number": lambda x: x * len(str(int(x))),
        "the dtype of a number": lambda x: x * (jnp.asarray(1 if x > 1 else 2.0).dtype.kind == "i"),
        "is a small number": lambda x: x * 10 if int(x) is TWO else x,
        "the name of the class": lambda x: x * len(type(x).__name__),
        "the length of a text of a list": lambda x: x * len(str([x])),
        "floats of NumPy": lambda x: x * (((np.float64(1e8) if x > 1 else np.float64(2e8)) + 1.0) - 1e8),
    }
)


@TABLE.equal(points=[0.3, 0.7, 1.1, 1.9, 2.3, 3.1])
def a_product_is_rounded_before_a_sum(x):
    """The last bits of a sum show whether it was."""
    a = float(x) / 3
    b = a / 7
    return int(((a * b + 1.0) - 1.0) * 2**52) % 64

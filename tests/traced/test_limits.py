"""The limits of a program's numbers, which Python's do not have: it gives what Python gives, or raises an error."""

from __future__ import annotations

import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.traced.rows import F, op, raised_by


def doubled(x):
    n = int(x.astype(int))
    for _ in range(100):
        n = n * 2
    return n


@pytest.mark.slow
def test_an_integer_that_python_lets_grow_raises_where_the_program_cannot_hold_it():
    for body, x, text in (
        (doubled, 1.0, r"beyond 2\*\*62"),
        (lambda x: doubled(x - 1) + (int(x.astype(int)) * 2**55) / 3, 1.0, r"beyond 2\*\*53"),
        (lambda x: int(x) * 1.0, 1e19, r"beyond 2\*\*62"),
        (lambda x: float(x) ** 0.5 > 0, -1.0, "complex"),
        (lambda x: 3 ** x.astype(int), 64.0, "beyond 63"),
    ):
        error = raised_by(jax.jit(op(lambda x, body=body: body(x) * 1.0, "traced")), F(x))
        assert type(error) is OverflowError
        assert re.search(text, str(error))


def set_in_a_loop(x):
    k = 0
    while x > 1:
        x, k = x / 2, sys.maxsize
    return k == sys.maxsize


# Integers of 2**62 to 2**63, with which the program gives what Python gives, or raises.
GREATEST = {
    "int": (lambda x: int(sys.maxsize if x > 0 else 0) == sys.maxsize, True),
    "round": (lambda x: round(sys.maxsize if x > 0 else 0) > 2**62, True),
    "floor": (lambda x: math.floor(sys.maxsize if x > 0 else 0) > 2**62, True),
    "a loop": (set_in_a_loop, True),
    "a quotient": (lambda x: (sys.maxsize if x > 0 else 0) // 1 > 2**62, OverflowError),
    "a remainder": (lambda x: (-2 if x > 0 else 0) % sys.maxsize > 2**62, OverflowError),
    "inverted": (lambda x: ~(sys.maxsize if x > 0 else 0) < -(2**62), OverflowError),
    "the negative of the least": (lambda x: -(-(2**63) if x > 0 else 0) > 0, OverflowError),
    "the size of the least": (lambda x: abs(-(2**63) if x > 0 else 0) > 0, OverflowError),
    "the least divided": (lambda x: (-(2**63) if x > 0 else 0) // -1 > 0, OverflowError),
}


@pytest.mark.parametrize(("body", "wanted"), GREATEST.values(), ids=GREATEST)
def test_the_greatest_integers_are_those_of_python_or_raise(body, wanted):
    program = jax.jit(op(lambda x: 1.0 if body(x) else 0.0, "traced"))
    assert body(F(4)) is True
    assert program(F(4)) == 1 if wanted is True else type(raised_by(program, F(4))) is wanted


def tiny(x):
    """A number of 1e-160 from 1e-20."""
    return float(x) ** 8


def multiplied_on_a_path(x):
    product = 1.0
    if x < 1:
        product = tiny(x) * tiny(x)
    return product > 0


def kept_in_a_list(x):
    products = [1.0]
    products.append(tiny(x) * tiny(x) if x < 1 else 2.0)
    return products[1] > 0


def multiplied_in_a_loop(x):
    y, product = x, 1.0
    while y < 1:
        y, product = y * 10, product * tiny(x)
    return product > 0


# Floats below 2.2e-308, which are zero in the program.
SMALL = {
    "a product": lambda x: tiny(x) * tiny(x) > 0,
    "a quotient": lambda x: tiny(x) / 1e160 > 0,
    "a power": lambda x: float(x) ** 16 > 0,
    "an exponential": lambda x: math.exp(float(x) * 1480 - 740) > 0,
    "an error function": lambda x: math.erfc(27.2 - float(x) * 50) > 0,
    "a root": lambda x: math.sqrt(tiny(x) * tiny(x)) > 0,
    "a negative": lambda x: -(tiny(x) * tiny(x)) < 0,
    "a size": lambda x: abs(tiny(x) * tiny(x)) > 0,
    "the smaller one": lambda x: min(tiny(x) * tiny(x), 1.0) > 0,
    "a sum": lambda x: tiny(x) * tiny(x) + 0.0 > 0,
    "a traced zero": lambda x: tiny(x) * tiny(x) > float(x) - float(x),
    "the truth": lambda x: bool(tiny(x) * tiny(x)),
    "a path": multiplied_on_a_path,
    "a list": kept_in_a_list,
    "a loop": multiplied_in_a_loop,
}


@pytest.mark.parametrize("body", SMALL.values(), ids=SMALL)
def test_a_float_that_is_zero_in_the_program_alone_raises_where_zero_decides(body):
    program = jax.jit(op(lambda x: 1.0 if body(x) else 0.0, "traced"))
    assert type(raised_by(program, F(1e-20))) is OverflowError
    assert program(F(0.5)) == body(F(0.5)) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_input_that_is_zero_to_xla_alone_is_the_float_that_it_is(dtype):
    """Its mantissa is not full in 32 bits, and is in 64."""
    program = jax.jit(op(lambda x: float(x) * 2.0**120 if float(x) != 0 else 7.0, "traced"))
    for x in (1e-40, -1e-44, 0.0, 1.5):
        array = np.asarray(x, dtype)
        assert program(jnp.asarray(array)) == (float(array) * 2.0**120 or 7)

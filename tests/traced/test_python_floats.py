"""Traced values that stand for Python floats: where Python raises, or has a number that 32 bits cannot hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxpyop


def op(body, mode):
    return lambda x: jaxpyop.py_function(body, [x], jnp.float32, mode=mode, max_steps=20, output_shapes=())


def halvings(x):
    n = 0
    while x > 1:
        x, n = x / 2, n + 1
    return n


def halved(x):
    y = 1.0
    while x > 1:
        x, y = x / 2, y * 0.5
    return y


def on_one_path(x):
    y = 0.0
    if x > 1:
        y = x
    return y


def newton(x):
    y = float(x)
    while abs(y * y - 2.0) > 1e-3:
        y = 0.5 * (y + 2.0 / y)
    return y


def mean(x):
    total, n = 0.0, 0
    while x > 1:
        total, n, x = total + x, n + 1, x / 2
    return total / n


def harmonic(x):
    total = 0.0
    for i in range(x.astype(int)):
        total += 1.0 / (i + 1)
    return total


ZERO, COMPLEX, SIZE = "that may be zero", "is complex", "too large or too small"
INTEGER = "the integer that Python makes of a float"
REFUSED = {
    "divided": (lambda x: x * (1 / float(x)), ZERO),
    "floor-divided": (lambda x: x * (2.0 // float(x)), ZERO),
    "remainder": (lambda x: x * (2.0 % float(x)), ZERO),
    "divmod": (lambda x: x * divmod(2.0, float(x))[1], ZERO),
    "a-difference": (lambda x: x * (1 / (abs(float(x)) - 1.0)), ZERO),
    "an-item": (lambda x: x * (1 / x.item()), ZERO),
    "an-integer": (lambda x: x * (1 / int(x.astype(jnp.int8))), ZERO),
    "a-count": (lambda x: x * (1 / halvings(x)), ZERO),
    "underflow-in-a-loop": (lambda x: x * (1 / halved(x)), ZERO),
    "on-one-path": (lambda x: 1.0 / on_one_path(x), ZERO),
    "newton": (newton, ZERO),
    "a-mean-of-nothing": (mean, ZERO),
    "a-negative-exponent": (lambda x: x * abs(float(x)) ** -1, COMPLEX),
    "a-root": (lambda x: x * float(x) ** 0.5, COMPLEX),
    "a-large-factor": (lambda x: x * (float(x) * 1e300 * 1e-300), SIZE),
    "an-index": (lambda x: jnp.arange(9.0)[int(x)], INTEGER),
    "a-range": (lambda x: x + sum([1.0 for _ in range(int(x))]), INTEGER),
    "a-comparison": (lambda x: x * 2 if int(x) > 1 else x, INTEGER),
    "rounded": (lambda x: x * round(float(x)), INTEGER),
    "a-small-term": (lambda x: x * (float(x) < 1e-300), SIZE),
}
EQUAL = {
    "a-constant": lambda x: x * (float(x) / 2.0 + float(x) // 2.0 + float(x) % 2),
    "a-square": lambda x: x * float(x) ** 2,
    "above-zero": lambda x: x * (1 / (abs(float(x)) + 1.0) + 1 / (float(x) ** 2 + 1)),
    "a-root-of-a-size": lambda x: x * abs(float(x)) ** 0.5,
    "a-power-of-two": lambda x: x * 2.0 ** float(x),
    "an-array": lambda x: 1 / x + x**0.5,
    "an-array-by-a-float": lambda x: x / float(x),
    "an-array-by-a-count": lambda x: x / halvings(x),
    "a-count-and-one": lambda x: x * (1 / (abs(halvings(x)) + 1)),
    "one-of-two": lambda x: x * (3 / (1.0 if x > 1 else 2.0)),
    "harmonic": lambda x: x * harmonic(x),
    "a-large-factor-of-an-array": lambda x: x * 1e30,
    "an-infinite-constant": lambda x: x * (float(x) < float("inf")),
    "jnp": lambda x: jnp.divide(1, float(x)) + jnp.sqrt(float(x)),
}
POINTS = [3.5, 1.5, 0.0]


@pytest.mark.parametrize(("body", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(body, reason):
    with pytest.raises(TypeError, match=reason + ".*(make it an array|x.astype)"):
        jax.eval_shape(op(body, "traced"), jnp.float32(3.5))
    called = op(body, "auto")
    assert "python_call" in str(jax.make_jaxpr(called)(3.5))


@pytest.mark.parametrize("body", EQUAL.values(), ids=EQUAL)
def test_equal(body):
    run = jax.jit(op(body, "traced"))
    for x in POINTS:
        assert run(x) == pytest.approx(float(op(body, "eager")(x)), rel=1e-5, nan_ok=True)


def test_where_python_raises_auto_mode_does():
    called = jax.jit(op(lambda x: x * (1 / float(x)), "auto"))
    assert called(4.0) == 1
    with pytest.raises(ZeroDivisionError, match="division by zero"), jaxpyop.reraise():
        called(0.0).block_until_ready()

"""mode="auto": traced where that can be done, called where not; the jaxpr and the log say which."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.traced.rows import F


def branch(x):
    return x * 2 if x > 0 else -x


def halve(x):
    while x > 1:
        x = x / 2
    return x


def grown(x):
    y = 1
    while y < 5:
        y = y * 1.5 if x > 0 else y + 2
    return x * y


def through_math(x):
    return x * math.gamma(x)


def raising(x):
    if x < 0:
        raise ValueError("negative")
    return x


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def method(self, x):
        return branch(x) * self.factor

    def __call__(self, x):
        return through_math(x) * self.factor


def auto(function, **options):
    return lambda *args: jaxpyop.py_function(function, args, F, mode="auto", **options)


def shown(op, *args):
    """How a jaxpr names the op."""
    text = str(jax.make_jaxpr(lambda *xs: op(*xs))(*args))
    # What is traced may call Python, too, to raise an error.
    assert "python_call" in text or "_traced" in text
    return "traced" if "_traced" in text else "called"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "jaxpyop")
    return lambda: caplog.messages


def doubled_if_positive(x):
    if x > 0:
        return jax.lax.while_loop(lambda v: v < 10, lambda v: v * 2, x)
    return x * 3


WAYS = {
    "an if": (branch, "traced"),
    "a while that a gradient could not go through": (halve, "called"),
    "a method": (Scaled(2.0).method, "traced"),
    "a partial": (functools.partial(lambda k, x: branch(x) * k, 2.0), "traced"),
    "a function of JAX": (jnp.sin, "traced"),
    "math": (through_math, "called"),
    "a path that raises": (raising, "traced"),
    "an object": (Scaled(2.0), "called"),
    "a while of floats of Python": (grown, "called"),
    "a number that a program may not hold": (lambda x: x * int(x), "called"),
    "a counted loop of JAX without a gradient": (
        lambda x: jax.lax.fori_loop(0, x.astype(int), lambda i, s: s * 2, x),
        "called",
    ),
    "a while_loop of JAX in a branch": (doubled_if_positive, "called"),
    "a while_loop of JAX over an integer": (
        lambda x: x * jax.lax.while_loop(lambda n: n < 5, lambda n: n + 1, 0),
        "traced",
    ),
    "a print": (lambda x: print(end="") or x, "called"),
    "a library that is not known": (lambda x: x * len(pytest.approx(1.0).__class__.__name__), "called"),
}


@pytest.mark.parametrize(("function", "way"), WAYS.values(), ids=WAYS)
def test_the_jaxpr_says_which(function, way):
    assert shown(auto(function), 3.0) == way


GRADIENTS = [
    (halve, {"max_steps": 10}, 3.0),
    (through_math, {}, 3.0),
    (grown, {}, 3.0),
    (doubled_if_positive, {}, -1.0),
]


@pytest.mark.parametrize(("function", "options", "at"), GRADIENTS)
def test_gradients_are_those_of_eager_mode(function, options, at):
    wanted = jax.value_and_grad(lambda x: jaxpyop.py_function(function, [x], F))(at)
    got = jax.jit(jax.value_and_grad(auto(function, **options)))(at)
    assert jax.tree.map(float, got) == pytest.approx(jax.tree.map(float, wanted), rel=1e-6)


def test_the_log_says_why(lines):
    def body(x):
        return x * math.gamma(x)

    assert shown(auto(body), 3.0) == "called"
    (line,) = lines()
    where = f"{__file__}:{body.__code__.co_firstlineno + 1}: "
    assert line.startswith(f"py_function 'body' is called, not traced: {where}")
    assert shown(auto(branch), jnp.int8(1)) == "traced"
    assert lines()[1:] == ["py_function 'branch' is traced"]


def test_the_types_of_the_inputs_decide():
    def body(x):
        return F(x) if x.ndim == 0 and x.dtype == F else F(math.gamma(x.sum()))

    ways = [shown(auto(body), x) for x in (1.0, jnp.ones(2), 1, 2.0)]
    assert ways == ["traced", "called", "called", "traced"]


def test_what_may_not_fit_tout_is_called():
    op = lambda x: jaxpyop.py_function(lambda x: x.astype(int) * 2 if x > 0 else -1, [x], jnp.int8, mode="auto")
    assert shown(op, 3.0) == "called"
    assert jax.jit(op)(3.0) == 6


def test_static_inputs_and_keywords_decide():
    def body(x, how):
        return x * math.gamma(x) if how == "math" else x

    assert shown(lambda x: auto(body)(x, "math"), 1.0) == "called"
    assert shown(lambda x: auto(body)(x, "jax"), 1.0) == "traced"
    assert shown(auto(functools.partial(body, how="math")), 1.0) == "called"
    assert shown(auto(functools.partial(body, how="jax")), 1.0) == "traced"


HOST = {
    "stateful": ({"stateful": True}, "it is stateful"),
    "ordered": ({"ordered": True}, "it is stateful"),
    "vjp": ({"vjp": lambda i, o, c: c}, "it has vjp= or jvp="),
    "when": ({"when": np.bool_(True)}, "it has when="),
    "executor": ({"executor": concurrent.futures.ThreadPoolExecutor}, "executor= is for functions"),
}


@pytest.mark.parametrize(("options", "why"), HOST.values(), ids=HOST)
def test_what_belongs_on_the_host_is_called(options, why, lines):
    assert shown(auto(lambda x: x * 2, **options), 1.0) == "called"
    assert [why in line for line in lines()] == [True]


def test_only_what_is_traced_may_close_over_traced_values():
    assert jax.grad(lambda x: auto(lambda y: branch(y) * x)(1.0))(2.0) == 2.0
    with pytest.raises(ValueError, match="through inp"):
        jax.jit(lambda x: auto(lambda y: math.gamma(y) * x)(1.0))(2.0)


def test_as_a_setting_and_in_a_decorator():
    @jaxpyop.py_function(Tout=F)
    def op(x):
        return branch(x)

    assert shown(op, 1.0) == "called"
    with jaxpyop.config.override(mode="auto"):
        assert shown(op, 1.0) == "traced"
        assert shown(lambda x: jaxpyop.py_function(print, [x], None, stateful=True) or x, 1.0) == "called"


@pytest.mark.slow
def test_with_a_condition_and_inside_another_op():
    assert jax.jit(lambda x: auto(branch, when=x > 2)(x))(1.0) == 0
    assert jax.jit(auto(lambda x: branch(auto(through_math)(x))))(4.0) == 48

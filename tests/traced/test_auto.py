"""mode="auto": traced where that can be done, called where not, and what says which."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import math

import jax
import jax.numpy as jnp
import pytest

import jaxpyop
from jaxpyop._paths.rewrite import convert


def branch(x):
    return x * 2 if x > 0 else -x


def halve(x):
    while x > 1:
        x = x / 2
    return x


def through_math(x):
    return x * math.sqrt(x)


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


def auto(func, **options):
    return lambda *args: jaxpyop.py_function(func, args, jnp.float32, mode="auto", **options)


def shown(op, *args):
    """How a jaxpr names the op."""
    text = str(jax.make_jaxpr(lambda *xs: op(*xs))(*args))  # JAX keeps those of one function
    called, traced = "python_call" in text, "_traced" in text
    assert called is not traced
    return "called" if called else "traced"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "jaxpyop")
    return lambda: caplog.messages


WAYS = {
    "an if": (branch, "traced"),
    "a while": (halve, "traced"),
    "a method": (Scaled(2.0).method, "traced"),
    "a partial": (functools.partial(lambda k, x: branch(x) * k, 2.0), "traced"),
    "a function of JAX": (jnp.sin, "traced"),
    "math": (through_math, "called"),
    "a path that raises": (raising, "called"),
    "an object": (Scaled(2.0), "called"),
}
TRANSFORMS = {
    "direct": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "vmap": lambda f: lambda x: jax.jit(jax.vmap(f))(jnp.stack([x, x]))[1],
    "scan": lambda f: lambda x: jax.jit(lambda x: jax.lax.scan(lambda c, _: (c, f(c)), x, None, 2))(x)[1][0],
}


@pytest.mark.parametrize(("func", "way"), WAYS.values(), ids=WAYS)
def test_the_jaxpr_says_which(func, way):
    op = auto(func, max_steps=10)
    assert shown(op, 3.0) == way
    for transform in TRANSFORMS.values():
        wanted = transform(lambda x: jaxpyop.py_function(func, [x], jnp.float32))(jnp.float32(3.0))
        assert float(transform(op)(jnp.float32(3.0))) == pytest.approx(float(wanted), rel=1e-6)


def test_the_log_says_why_once(lines):
    def body(x):
        return x * math.sqrt(x)

    line = body.__code__.co_firstlineno + 1
    op = auto(body)
    for _ in range(2):
        assert shown(op, 3.0) == "called"
    jax.jit(jax.grad(op))(3.0)
    assert lines() == [
        f"py_function 'body' is called, not traced: {__file__}:{line}: "
        "float(x) asks for the value of a traced float32[]"
    ]


def test_the_log_says_what_is_missing(lines, monkeypatch):
    monkeypatch.setattr(convert, "is_installed", lambda: False)
    monkeypatch.setattr(convert, "_factories", {})

    def body(x):
        while x > 1:
            x = x / 2
        return x

    assert shown(auto(body), 3.0) == "called"
    assert lines()[0].endswith("; run `python -m pip install diastatic-malt` (the extra loops)")


def test_a_refused_body_is_not_tried_again():
    runs = []

    def body(x):
        runs.append(x)
        return x * math.sqrt(x)

    op = auto(body, output_shapes=())
    jax.make_jaxpr(op)(3.0)
    count = len(runs)
    jax.make_jaxpr(op)(3.0)
    assert len(runs) == count


def test_the_types_of_the_inputs_decide(lines):
    def body(x):
        return jnp.float32(x) if x.ndim == 0 and x.dtype == jnp.float32 else jnp.float32(math.sqrt(x.sum()))

    assert [shown(auto(body), x) for x in (1.0, jnp.ones(2), 1, 2.0)] == ["traced", "called", "called", "traced"]
    assert len(lines()) == 3


def test_static_inputs_and_keywords_decide():
    def body(x, how):
        return x * math.sqrt(x) if how == "math" else x

    assert shown(lambda x: auto(body)(x, "math"), 1.0) == "called"
    assert shown(lambda x: auto(body)(x, "jax"), 1.0) == "traced"
    assert shown(auto(functools.partial(body, how="math")), 1.0) == "called"
    assert shown(auto(functools.partial(body, how="jax")), 1.0) == "traced"
    assert shown(lambda x: auto(lambda x, unhashable: body(x, "math"))(x, {"a": []}), 1.0) == "called"


HOST = {
    "stateful": ({"stateful": True}, "it is stateful"),
    "ordered": ({"ordered": True}, "it is stateful"),
    "vjp": ({"vjp": lambda i, o, c: c}, "it has vjp= or jvp="),
    "executor": ({"executor": concurrent.futures.ThreadPoolExecutor}, "executor= and progress="),
}


@pytest.mark.parametrize(("options", "why"), HOST.values(), ids=HOST)
def test_what_is_of_the_host_is_called(options, why, lines):
    assert shown(auto(lambda x: x * 2, **options), 1.0) == "called"
    assert [why in line for line in lines()] == [True]


PROMISES = {
    "dtype": (lambda x: x * 1j, {}, TypeError, "complex64"),
    "shape": (lambda x: jnp.ones(3) * x, {"output_shapes": ()}, ValueError, r"\(3,\)"),
    "count": (lambda x: (x, x), {}, ValueError, "2"),
}


@pytest.mark.parametrize(("func", "options", "kind", "match"), PROMISES.values(), ids=PROMISES)
def test_a_broken_promise_is_an_error(func, options, kind, match, lines):
    with pytest.raises(kind, match=match):
        jax.make_jaxpr(auto(func, **options))(1.0)
    assert lines() == []


def test_closing_over_traced_values():
    assert shown(lambda x: auto(lambda y: branch(y) * x)(1.0), 2.0) == "traced"
    slope = jax.grad(lambda x: auto(lambda y: branch(y) * x)(1.0))(2.0)
    assert slope == 2.0
    with pytest.raises(ValueError, match="through inp"):
        jax.jit(lambda x: auto(lambda y: math.sqrt(y) * x)(1.0))(2.0)


def test_as_a_setting_and_as_a_decorator():
    @jaxpyop.py_function(Tout=jnp.float32)
    def op(x):
        return branch(x)

    assert shown(op, 1.0) == "called"
    with jaxpyop.config.override(mode="auto"):
        assert shown(op, 1.0) == "traced"
        assert shown(lambda x: jaxpyop.py_function(print, [x], None, stateful=True) or x, 1.0) == "called"


def test_when_and_nested_ops():
    assert jax.jit(lambda x: auto(branch, when=x > 2)(x))(1.0) == 0
    assert jax.jit(lambda x: auto(through_math, when=x > 2)(x))(4.0) == 8
    outer = auto(lambda x: branch(auto(through_math)(x)))
    assert jax.jit(outer)(4.0) == 16
    assert "_traced" in str(jax.make_jaxpr(outer)(4.0))  # with a call inside


def test_a_backward_pass_without_a_bound_names_the_op():
    with pytest.raises(NotImplementedError, match=r"^py_function 'halve': .*max_steps=, or mode='eager'"):
        jax.jit(jax.grad(auto(halve)))(3.0)

"""mode="traced" beside the other arguments of an op: results, structures, settings, what is around it."""

from __future__ import annotations

import functools
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.traced.rows import F


def traced(body, Tout=F, **options):
    return lambda *args: jaxpyop.py_function(body, args, Tout, mode="traced", **options)


@pytest.mark.slow
def test_inputs_and_results_are_trees_with_static_leaves():
    def body(batch, *, how):
        assert how == "twice"
        if batch["x"].sum() > 0:
            return {"y": batch["x"] * 2, "n": 3, "z": [0.5, np.ones(2, np.float32)]}
        return {"y": batch["x"], "n": 2, "z": [2.5, np.zeros(2, np.float32)]}

    call = jaxpyop.py_function(Tout={"y": F, "n": jnp.int32, "z": [F, F]}, mode="traced")(body)
    for x in (jnp.arange(3.0), -jnp.arange(3.0)):
        out = jax.jit(lambda x: call({"x": x}, how="twice"))(x)
        assert out["n"].dtype == jnp.int32
        jax.tree.map(np.testing.assert_array_equal, out, body({"x": x}, how="twice"))


def test_a_function_among_the_inputs_is_one_of_the_user():
    body = lambda put, x: (lambda items: (put(items, x), sum(items))[1])([x])
    assert jax.jit(lambda x: traced(body)(lambda items, x: items.append(x), x))(3.0) == 6


class Sum(NamedTuple):
    x: float

    def __add__(self, other):
        return Sum(self.x + other.x)


def test_a_namedtuple_with_an_operator_is_refused_as_an_input():
    with pytest.raises(TypeError, match="a namedtuple with __add__"):
        jax.make_jaxpr(lambda x: traced(lambda p: (p + p)[0])(Sum(x)))(1.0)


def test_a_partial_of_a_class_of_its_own_is_refused():
    class Doubled(functools.partial):
        def __call__(self, x):
            return 2 * super().__call__(x)

    with pytest.raises(TypeError, match="an object of Doubled"):
        jax.make_jaxpr(traced(Doubled(lambda x: x)))(1.0)


def test_a_functions_own_builtins_are_read():
    body = types.FunctionType((lambda x: max(x, 1.0)).__code__, {"__builtins__": {"max": min}})
    assert jax.jit(traced(body))(3.0) == body(3.0) == 1.0


def test_an_integer_that_may_not_fit_is_refused_while_jax_traces():
    with pytest.raises(TypeError, match="may not fit int8"):
        jax.make_jaxpr(traced(lambda x: x.astype(jnp.int32), jnp.int8))(1.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stateful": True}, "pass mode='eager'"),
        ({"ordered": True}, "pass mode='eager'"),
        ({"Tout": None}, "without a result is stateful"),
        ({"mode": "fast"}, "mode='fast'; expected one of 'eager', 'traced'"),
    ],
    ids=["stateful", "ordered", "without a result", "no such mode"],
)
def test_options_that_exclude_it(options, match):
    with pytest.raises(ValueError, match=match):
        jaxpyop.py_function(abs, [1.0], **({"mode": "traced", "Tout": F} | options))


# -------------------------------------------------------- collectives and combiners


@pytest.mark.parametrize("call", [lambda x: lax.psum(x, "i"), lambda x: x + lax.axis_index("i")], ids=["psum", "index"])
@pytest.mark.parametrize("wrap", [pytest.param(lambda f: f, marks=pytest.mark.slow), jax.jit], ids=["direct", "jit"])
def test_only_what_is_traced_sees_the_axes_around_it(call, wrap):
    over = lambda mode: wrap(
        jax.vmap(lambda x: jaxpyop.py_function(call, [x], F, mode=mode, output_shapes=()), axis_name="i")
    )
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(over("traced")(x), jax.vmap(call, axis_name="i")(x))
    with pytest.raises(Exception, match=r"(?s)unbound axis name.*collectives \(psum, axis_index, ...\) go outside"):
        jax.block_until_ready(over("eager")(x))


@pytest.mark.slow
def test_a_body_has_axes_of_its_own_and_the_caller_keeps_his():
    inner = lambda x: jax.vmap(lambda v: lax.psum(v, "i"), axis_name="i")(x)
    over = jax.vmap(lambda x: lax.psum(jaxpyop.py_function(inner, [x], F), "i"), axis_name="i")
    np.testing.assert_array_equal(over(jnp.ones((3, 2))), np.full((3, 2), 6))


COMBINED = {
    "reduce": lambda op, x: lax.reduce(x, 0.0, op, (0,)),
    "a program in reduce": lambda op, x: lax.reduce(x, 0.0, jax.jit(op), (0,)),
    "a branch in reduce": lambda op, x: lax.reduce(x, 0.0, lambda a, b: lax.cond(a > b, op, jnp.add, a, b), (0,)),
    "reduce_window": lambda op, x: lax.reduce_window(x, 0.0, op, (2,), (1,), "VALID"),
    "apply": lambda op, x: x.at[1].apply(lambda v: op(v, v)),
}


@pytest.mark.parametrize("use", COMBINED.values(), ids=COMBINED)
def test_only_what_is_traced_may_combine_values(use):
    """XLA would end the process."""
    add = lambda x, y: jaxpyop.numpy_function(np.add, [x, y], F, output_shapes=())
    for wrap in (jax.jit, lambda f: f):
        with pytest.raises(NotImplementedError, match=r"'add': the function of .* cannot call Python.*jax\.lax\.scan"):
            wrap(lambda x: use(add, x))(jnp.arange(5.0))


def test_what_is_advised_instead_of_a_combiner_works():
    x = jnp.arange(5.0)
    assert jax.jit(lambda x: lax.reduce(x, 0.0, traced(jnp.add), (0,)))(x) == 10
    add = lambda x, y: jaxpyop.numpy_function(np.add, [x, y], F, output_shapes=())
    assert jax.jit(lambda x: lax.scan(lambda total, v: (add(total, v), None), 0.0, x)[0])(x) == 10

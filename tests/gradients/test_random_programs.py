"""Random programs that differentiate a function of two inputs, in one or the other, held constant or not.

Each gives what it gives with the same function in plain JAX, in which no record can be the wrong one.
"""

import concurrent.futures

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpyop import py_function
from tests.gradients.bodies import F
from tests.shared.checks import trees_close
from tests.shared.examples import few, many

POOL = concurrent.futures.ThreadPoolExecutor(2)


def straight(x, y):
    return jnp.sin(x) * y**2


def looks_at_values(x, y):
    if x > 0.2:
        return jnp.sin(x) * y * y
    return x * x * y + jnp.cos(y)


def ruled(x, y):
    return jnp.tanh(x * y) * x


@py_function(Tout=(F, F))
def rule_of_ruled(inputs, outputs, cotangents):
    return tuple(slope * cotangents for slope in jax.grad(ruled, (0, 1))(*inputs))


# Each op, with the same in plain JAX.
OPS = {
    "straight": (lambda x, y: py_function(straight, [x, y], F), straight),
    "on a thread": (lambda x, y: py_function(straight, [x, y], F, executor=POOL), straight),
    "auto": (lambda x, y: py_function(straight, [x, y], F, mode="auto"), straight),
    "looks at values": (
        lambda x, y: py_function(looks_at_values, [x, y], F),
        lambda x, y: jnp.where(x > 0.2, jnp.sin(x) * y * y, x * x * y + jnp.cos(y)),
    ),
    "a rule that is an op": (lambda x, y: py_function(ruled, [x, y], F, vjp=rule_of_ruled), ruled),
}


def in_one(f, x, y, number):
    """The function of one input, and that input."""
    return (lambda x: f(x, y), x) if number == 0 else (lambda y: f(x, y), y)


def through_pullback(a, b, number, is_constant):
    def program(x, y):
        result, pull = jax.vjp(*in_one(a, x, y, number))
        return result + (jax.lax.stop_gradient(pull) if is_constant else pull)(b(x, y))[0]

    return program


def through_cond(a, b, number, is_constant):
    return lambda x, y: jax.lax.cond(x > 0.5 * y, a, b, x, y)


def through_scan(a, b, number, is_constant):
    return lambda x, y: jax.lax.scan(lambda c, _: (jnp.tanh(a(c, y)), c), x, None, length=2)[0] + b(x, y)


def through_vmap(a, b, number, is_constant):
    return lambda x, y: jnp.sum(jax.vmap(a, (0, None))(jnp.stack([x, 0.5 * y, -x]), y)) * b(x, y)


# Each makes a function of two others.
STEPS = {
    "sum": lambda a, b, *_: lambda x, y: 0.7 * a(x, y) + b(y, x),
    "gradient": lambda a, b, number, _: lambda x, y: jax.grad(a, number)(x, y) * b(x, y),
    "pullback": through_pullback,
    "an input held constant": lambda a, b, *_: lambda x, y: a(jax.lax.stop_gradient(x), y) * b(x, y),
    "checkpoint": lambda a, b, *_: lambda x, y: jax.checkpoint(a)(x, y) + 0.3 * b(x, y),
    "cond": through_cond,
    "scan": through_scan,
    "vmap": through_vmap,
}
OUTER = {
    "gradients": lambda f: jax.value_and_grad(f, (0, 1)),
    "gradient in the second": lambda f: jax.jit(jax.grad(f, 1)),
    "second derivatives": lambda f: jax.jit(jax.jacrev(jax.grad(f), (0, 1))),
}
programs = st.recursive(
    st.just("f"),
    lambda inner: st.tuples(st.sampled_from(sorted(STEPS)), inner, inner, st.integers(0, 1), st.booleans()),
    max_leaves=4,
)


def build(program, f):
    """The function that a random program is, made of `f`."""
    if program == "f":
        return f
    step, a, b, number, is_constant = program
    return STEPS[step](build(a, f), build(b, f), number, is_constant)


@pytest.mark.filterwarnings("ignore:.*depends on no differentiated input:UserWarning")
def check(name, program, outer, x, y):
    op, plain = OPS[name]
    found, wanted = (OUTER[outer](build(program, f))(F(x), F(y)) for f in (op, plain))
    trees_close(found, wanted)


points = st.floats(-1.2, 1.2).map(lambda v: round(v, 2))
chosen = given(st.sampled_from(sorted(OPS)), programs, st.sampled_from(sorted(OUTER)), points, points)
test_equal_to_jax = few(chosen, check, 3)
test_many_equal_to_jax = many(chosen, check)

"""Functions of every kind of JAX operation: their derivatives are those of jax.vjp and jax.jvp."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop import py_function
from tests.gradients.bodies import BODIES, X3, F, arrays, directions, while_loop
from tests.shared.checks import close
from tests.shared.tables import rows

# One body for each kind of operation that derivatives treat in its own way.
FAST = ["an output twice", "integer output", "integer input", "unused input", "custom_jvp", "custom_vjp"]
FAST += ["custom_vjp in jit", "jit over an array", "no elements", "independent results"]
FAST_FORWARD = ["an output twice", "integer output", "custom_jvp", "stop_gradient", "unused input"]


def op_of(body, inputs):
    tout = jax.eval_shape(body, *inputs)
    return lambda *inputs: py_function(body, list(inputs), tout)


def same(got, wanted):
    """Whether values, shapes and dtypes agree; a gradient of an integer has the dtype float0."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype != jax.dtypes.float0:
            close(a, b)


@pytest.mark.parametrize("name", rows(BODIES, FAST))
def test_reverse_mode(name):
    body, inputs = BODIES[name][0], arrays(BODIES[name][1])
    outputs, pull = jax.vjp(body, *inputs)
    cotangents = directions(outputs)
    wanted = pull(cotangents)
    for _ in range(2):  # the second time, what was recorded is known
        found, pull = jax.vjp(op_of(body, inputs), *inputs)
        same(found, outputs)
        same(pull(cotangents), wanted)


@pytest.mark.parametrize("name", rows([*(n for n in BODIES if "custom_vjp" not in n), "while_loop"], FAST_FORWARD))
def test_forward_mode(name):
    body, inputs = BODIES.get(name, (while_loop, [X3]))
    inputs = arrays(inputs)
    tangents = directions(inputs)
    same(jax.jvp(op_of(body, inputs), inputs, tangents), jax.jvp(body, inputs, tangents))


ARRAY = jnp.ones(2)


def test_what_no_key_decides_is_drawn_once():
    """A derivative reads the values of the forward pass, and never runs such an operation again."""
    drawn = lambda x: x * lax.rng_uniform(F(0), F(1), ())
    called = lambda x: x * jax.pure_callback(lambda: np.random.default_rng().random(dtype=F), F(0))
    with_an_array = jax.jit(lambda x: drawn(x) * ARRAY[0])
    for body in (drawn, jax.jit(drawn), called, jax.jit(called), with_an_array):
        value, pull = jax.vjp(lambda x, body=body: py_function(body, [x], F(0)), F(2))
        for _ in range(6):
            close(pull(F(1))[0], value / 2)


def test_forward_mode_of_a_rule_that_has_no_transpose():
    @jax.custom_jvp
    def double(x):
        return 2 * x

    double.defjvp(lambda primals, tangents: (2 * primals[0], lax.while_loop(lambda t: False, abs, 2 * tangents[0])))
    op = lambda x: py_function(double, [x], F(0))
    close(jax.jvp(op, (3.0,), (1.0,))[1], 2.0)


def test_a_block_of_64_bits():
    """A function may compute in 64 bits for a few lines, and its derivative does so too."""

    def body(x):
        with jax.enable_x64(True):
            return (x.astype(jnp.float64) ** 2).astype(jnp.float32)

    for derive in (jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (F(1),))[1]):
        found = derive(lambda x: py_function(body, [x], F))(F(0.7))
        assert found.dtype == F
        np.testing.assert_allclose(found, 1.4, rtol=1e-6)


# Primitives of the user's own, which JAX has from 0.12, and expands.
hijax = importlib.import_module("jax.experimental.hijax") if jax.__version_info__ >= (0, 12) else None
FACTOR = [2.0]

if hijax is not None:

    class Times(hijax.HiPrim):
        lin, linearized = hijax.linearize_from_jvp
        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp

        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            return x * FACTOR[0]

        def jvp(self, primals, tangents):
            return self(*primals), tangents[0] * FACTOR[0]


def times_factor(x):
    return Times(jax.typeof(x))(x)


OWN_PRIMITIVES = {
    "alone": times_factor,
    "scan": lambda x: lax.scan(lambda c, _: (times_factor(c), None), x, None, length=1)[0],
    "cond": lambda x: lax.cond(x > 0, lambda x: times_factor(x), lambda x: -x, x),
    "checkpoint": lambda x: jax.checkpoint(lambda x: times_factor(x) * 1.0)(x),
}


@pytest.mark.skipif(
    hijax is None, reason="JAX 0.12 brought primitives that users define (hijax), and this is an older JAX"
)
@pytest.mark.parametrize("name", rows(OWN_PRIMITIVES, ["alone"]))
def test_the_rules_of_an_own_primitive_are_asked_each_time(name):
    """They may read variables that change."""
    step = jax.value_and_grad(lambda x: py_function(OWN_PRIMITIVES[name], [x], F, output_shapes=()))
    for FACTOR[0] in (2.0, 2.0, 2.0, 5.0, 7.0):
        np.testing.assert_allclose(step(3.0), (3 * FACTOR[0], FACTOR[0]))

"""A minimizer of optax, whose loop and line search call an op."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.peers.library import assert_near, library

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:(optax|chex)")]


def rosenbrock(x):
    """Rosenbrock's valley, less steep: at 100 JAX's float32 BFGS gives up by itself."""
    return 3 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def rosenbrock_by_value(x):
    """The same, with control flow that depends on values."""
    slow = (1 - x[0]) ** 2
    valley = x[1] - x[0] ** 2
    if abs(float(valley)) < 1e-30:
        return slow
    return 3 * valley**2 + slow


def rosenbrock_vjp(inputs, outputs, cotangents):
    x, y = inputs[0]
    return cotangents[0] * np.array([-12 * x * (y - x**2) - 2 * (1 - x), 6 * (y - x**2)], np.float32)


OBJECTIVES = {
    "py_function": lambda x: jaxpyop.py_function(rosenbrock_by_value, [x], jnp.float32, output_shapes=()),
    "py_function, traced": lambda x: jaxpyop.py_function(rosenbrock, [x], jnp.float32, mode="traced"),
    "numpy_function": lambda x: jaxpyop.numpy_function(
        rosenbrock, [x], jnp.float32, output_shapes=(), vjp=rosenbrock_vjp
    ),
}
START = np.array([-1.2, 1.0], np.float32)


def lbfgs(objective):
    """L-BFGS with its zoom line search, which evaluates the objective in a `while_loop`."""
    optax = library("optax")
    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def step(_, carry):
        x, state = carry
        value, slope = value_and_grad(x, state=state)
        updates, state = optimizer.update(slope, state, x, value=value, grad=slope, value_fn=objective)
        return optax.apply_updates(x, updates), state

    @jax.jit
    def minimize(x):
        x, _ = jax.lax.fori_loop(0, 15, step, (x, optimizer.init(x)))
        return x, objective(x)

    return minimize(START)


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_the_minimum_is_that_of_plain_jax(objective):
    x, value = lbfgs(objective)
    wanted, least = lbfgs(rosenbrock)
    assert_near(wanted, np.ones(2), rtol=2e-3)
    assert_near(x, wanted, rtol=2e-3)
    assert_near(value, least, atol=1e-6)

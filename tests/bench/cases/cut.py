"""Programs cut at their Python calls beside the same under `jax.jit`."""

import jax
import jax.numpy as jnp

import jaxpyop
from tests.bench.cases.case import compare, log_huber, numpy_negative


def both(title, program, *inputs, **counts):
    programs = {"jaxpyop.jit": jaxpyop.jit(program), "jax.jit": jax.jit(program)}
    return compare(title, programs, *inputs, **counts)


def with_work(op):
    return lambda x: jnp.sin(op(x * 2)) + 1


def gradient():
    loss = lambda x: jaxpyop.py_function(log_huber, [x, 2.0], jnp.float32)
    return both("log-Huber gradient, cut", jax.value_and_grad(loss), jnp.float32(3.0), calls=10)


def training_step():
    """A step of two layers whose loss is a py_function."""
    inputs = jax.random.normal(jax.random.key(0), (32, 32))

    def loss(weights):
        outputs = jnp.tanh(inputs @ weights) @ weights
        body = lambda y: jnp.mean((y - 1) ** 2) if float(y[0, 0]) < 1e9 else jnp.sum(y)
        return jaxpyop.py_function(body, [outputs], jnp.float32, output_shapes=())

    def step(weights):
        value, slope = jax.value_and_grad(loss)(weights)
        return weights - 0.01 * slope, value

    return both("a training step, 32 wide, cut", step, jnp.eye(32), calls=10)


STATEFUL, ORDERED = numpy_negative(stateful=True), numpy_negative(ordered=True)
PY_FUNCTION = lambda x: jaxpyop.py_function(lambda x: x + 1 if float(x[0]) < 1e9 else x, [x], jnp.float32)
CALLS = {
    "a NumPy function, which stays whole": numpy_negative(),
    "a stateful one, cut": STATEFUL,
    "stateful, jnp code around it": with_work(STATEFUL),
    "an ordered one, cut": ORDERED,
    "ordered, jnp code around it": with_work(ORDERED),
    "a py_function, cut": PY_FUNCTION,
    "py_function, jnp code around it": with_work(PY_FUNCTION),
}
GROUPS = [lambda title=title: both(title, CALLS[title], jnp.ones(1)) for title in CALLS]
GROUPS += [gradient, training_step]

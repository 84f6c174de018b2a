"""Runs of thousands of steps, after which a step takes as long as before, and little memory is held."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop._op import RECORDS
from tests.bench.cases.case import SCALAR, compare
from tests.bench.cases.gradients import length_steps
from tests.memory import resident


def steps(step, count):
    for _ in range(count):
        jax.block_until_ready(step())


def training_run():
    """A loss of weights and data. The data have no tangent."""
    rng = np.random.default_rng(0)
    x, y, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((8, 4), (8, 3), (4, 3)))

    def loss(w, x, y):
        return jnp.mean((jnp.tanh(x @ w) - (jnp.abs(y) + jnp.log(jnp.exp(y)))) ** 2)

    old, new = (jax.jit(jax.grad(lambda w: jaxpyop.py_function(loss, [w, x, y], SCALAR))) for _ in range(2))
    steps(lambda: old(w), 3000)
    programs = {"py_function, after 3000 steps": old, "py_function, a new program": new}
    programs["jax.grad, directly"] = lambda w: jax.grad(loss)(w, x, y)
    return compare("gradient of a loss with data", programs, w, calls=5)


def memory_run():
    """The memory that 500 gradient steps of a megabyte each leave behind, and the time of the steps after them."""
    x = jnp.ones(2**18)
    op = lambda x: jaxpyop.py_function(lambda x: x * jnp.sin(x), [x], jnp.float32, output_shapes=x.shape)
    step = jax.jit(jax.grad(lambda x: jnp.sum(op(x))))
    steps(lambda: step(x), 500)
    held = RECORDS.stats()["nbytes"] / 2**20
    programs = {"py_function": step, "jax.grad, directly": jax.grad(lambda x: jnp.sum(x * jnp.sin(x)))}
    return compare(f"1 MB; 500 steps left {held:.0f} MB", programs, x, calls=1)


def lengths_run():
    """The memory that 500 lengths take in plain JAX, what ours adds to it, and the time of a step after them."""
    grown, steps_of, before = [], length_steps(1000), resident()
    for step in reversed(steps_of.values()):
        for n in range(10, 510):
            jax.block_until_ready((step(n), step(n)))
        grown.append(resident() - before)
        before = resident()
    title = f"500 lengths: {grown[0]:.0f} MB in JAX, ours {grown[1]:.0f} more"
    return compare(title, steps_of, 100, calls=5)


GROUPS = [training_run, memory_run, lengths_run]

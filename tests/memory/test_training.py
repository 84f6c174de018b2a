"""What must not grow with the steps of a training run: compilations, JAX's caches, objects, records."""

import gc
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.functions import py_function

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)
W = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32) / 2


def recurrent(w, x):
    state = jnp.zeros(3)
    for row in x:
        state = jnp.tanh(row @ w + 0.5 * state)
        if float(jnp.max(jnp.abs(state))) > 0.99:
            state = state * 0.5
    return jnp.sum(state**2)


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.where(jnp.abs(x) < 1, ct, 0.1 * ct),))
normalised = jax.jit(lambda x: (x - jnp.mean(x)) / (jnp.std(x) + 1))


def custom(w, x):
    """With functions of its own that have a `custom_vjp` or a `jit`."""
    return jnp.mean(clipped(normalised(x) @ w) ** 2)


def step_of(loss, jit):
    """One step: the data have no tangents."""
    return jit(jax.grad(lambda w: py_function(loss, [w, X], jnp.float32, output_shapes=())))


def train(step, steps):
    for _ in range(steps):
        jax.block_until_ready(step(W))


def entries():
    """How many entries JAX's caches of jitted functions have, and how many objects there are."""
    gc.collect()
    objects = gc.get_objects()
    functions = [o for o in objects if type(o).__name__ == "PjitFunction"]
    return sum(f._cache_size() for f in functions), len(objects)


JITS = {"jit": (recurrent, jax.jit), "cut": (recurrent, jaxpyop.jit), "direct": (custom, lambda f: f)}


@pytest.mark.parametrize(("loss", "jit"), JITS.values(), ids=JITS)
def test_nothing_grows(loss, jit):
    step = step_of(loss, jit)
    compiled, counts = [], []
    listen = lambda name, *_, **__: compiled.append(name) if "/compile" in name else None
    train(step, 20)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for steps in (0, 60, 60, 60):
            train(step, steps)
            jaxpyop.clear_records()
            counts.append(entries())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
    cached, objects = zip(*counts)
    assert cached[-1] <= cached[0]
    # Threads of other tests, such as a cluster's, may make objects meanwhile, but hardly each time.
    assert min(b - a for a, b in itertools.pairwise(objects)) < 60

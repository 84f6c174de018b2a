"""A long run from four threads, whose memory stays bounded: of calls by every route, and of gradient steps."""

import concurrent.futures
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.memory import resident
from tests.shared.checks import over_transport

THREADS = 4


def loss(x):
    return jnp.sum(x * x) if x[0] > 0 else jnp.sum(jnp.sin(x))


def check(result, expected):
    assert abs(np.asarray(result)[0] - expected) <= 1e-6


def calls():
    """Programs with one call each, by every route."""
    x, large = jnp.ones(3), jnp.ones(10_000)
    ops = [
        lambda x: jaxpyop.numpy_function(np.negative, [x], jnp.float32),
        lambda x: jaxpyop.py_function(lambda x: -x, [x], jnp.float32, output_shapes=x.shape),
        lambda x: jaxpyop.py_func(np.negative, [x], jnp.float32),
        lambda x: jaxpyop.numpy_function(np.negative, [x], jnp.float32, ordered=True),
    ]
    programs = [(jax.jit(op), x) for op in ops] + [(jax.jit(ops[0]), large), (ops[0], x)]
    with over_transport("callback"):
        portable = jax.jit(lambda x: ops[0](x))
        portable(x).block_until_ready()
    return [lambda f=f, x=x: check(f(x), -1) for f, x in [*programs, (portable, x)]]


def gradients():
    """Gradient steps of both branches of a function."""
    step = jax.jit(jax.grad(lambda x: jaxpyop.py_function(loss, [x], jnp.float32, output_shapes=())))
    return [lambda: check(step(jnp.ones(3)), 2), lambda: check(step(-jnp.ones(3)), math.cos(-1))]


def run(programs, count):
    """Run the programs in turn, from all threads, so often altogether."""
    work = lambda _: [programs[i % len(programs)]() for i in range(count // THREADS)]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    jax.effects_barrier()


@pytest.mark.slow
@pytest.mark.parametrize(("make", "count"), [(calls, 6000), (gradients, 2000)], ids=["calls", "gradients"])
def test_memory_stays_bounded(make, count):
    programs = make()
    with jaxpyop.config.override(max_record_bytes=10**6):
        # At first the allocator fills the arenas of the four threads.
        run(programs, count // 2)
        before = resident()
        run(programs, count)
        assert resident() - before <= 16

"""Programs under `jit` over eight devices, which share one run of a stateless function."""

from __future__ import annotations

import threading

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.shared import many_programs

F = jnp.float32
SPECS = [P("i"), P()]
PROGRAMS = {}


def program(f):
    """Run it with arrays that are split over the devices, and with whole ones on each."""

    def run(mesh):
        for spec in SPECS:
            f(lambda x: jax.device_put(jnp.asarray(x, F), NamedSharding(mesh, spec)))  # noqa: B023

    PROGRAMS[f.__name__] = run


@program
def one_run_for_all_of_them(spread):
    for n in (8, 80_000):
        for api in (jaxpyop.numpy_function, jaxpyop.py_function):
            calls = []
            f = jax.jit(lambda x: api(lambda v: calls.append(1) or v * 2, [x], F, output_shapes=(n,)) + 1)  # noqa: B023
            for k in range(20):
                np.testing.assert_array_equal(f(spread(np.full(n, k))), np.full(n, 2 * k + 1))
            assert len(calls) == 20, (n, api, len(calls))
            x = spread(np.ones(n))  # equal inputs: none is answered from an earlier execution
            for _ in range(20):
                f(x).block_until_ready()
            assert len(calls) == 40, (n, api, len(calls))


@program
def a_buffer_that_the_function_keeps(spread):
    buffer = np.zeros(80_000, np.float32)

    def body(v):
        buffer[:] = v
        v[:] = -1
        return buffer

    f = jax.jit(lambda x: jaxpyop.numpy_function(body, [x], F))
    results = [jax.block_until_ready(f(spread(np.full(80_000, k)))) for k in range(5)]
    buffer[:] = -1
    for k, y in enumerate(results):
        assert all((np.asarray(shard.data) == k).all() for shard in y.addressable_shards)


@program
def each_error_is_that_of_its_call(spread):
    def body(v):
        if v[0] < 0:
            raise KeyError(float(v[0]))
        return v

    f = jax.jit(lambda x: jaxpyop.numpy_function(body, [x], F) + 1)
    for k in range(10):
        with pytest.raises(KeyError, match=str(-1.0 - k)), jaxpyop.reraise():
            f(spread(np.full(8, -1.0 - k))).block_until_ready()
        assert float(f(spread(np.full(8, k)))[0]) == k + 1


@program
def threads(spread):
    f = jax.jit(lambda x: jaxpyop.numpy_function(lambda v: v * 2, [x], F) + 1)
    wrong = []

    def work(k):
        x = spread(np.full(80_000, k % 3))  # some threads have the same
        for _ in range(20):
            y = f(x).block_until_ready()  # on all devices: none is at work when the process ends
            if not (np.asarray(y) == 2 * (k % 3) + 1).all():
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    [t.start() for t in workers]
    [t.join() for t in workers]
    assert not wrong


@program
def gradients(spread):
    seen = []

    def body(v):
        seen.append(1)
        return jnp.sin(v) if float(v[0]) > 0 else v

    g = jax.jit(jax.grad(lambda x: jaxpyop.py_function(body, [x], F, output_shapes=(8,)).sum()))
    for k in range(1, 6):
        np.testing.assert_allclose(g(spread(np.full(8, k))), np.cos(np.full(8, k, np.float32)), rtol=1e-5)
    assert len(seen) == 5, len(seen)


@program
def batches(spread):
    calls = []
    op = lambda x, y: jaxpyop.numpy_function(lambda a, b: calls.append(1) or a + b, [x, y], F)
    f = jax.jit(jax.vmap(op, in_axes=(0, None)))
    np.testing.assert_array_equal(f(spread(np.arange(8)), 1.0), np.arange(8) + 1)
    assert len(calls) == 8


@program
def jax_in_the_function(spread):
    m = jnp.ones((200, 200))
    f = jax.jit(lambda x: jaxpyop.py_function(lambda v: v + (m @ m)[0, 0], [x], F, output_shapes=(8,)) * 2)
    results = [f(spread(np.full(8, k))) for k in range(20)]
    assert [float(y[0]) for y in results] == [2 * (k + 200) for k in range(20)]


if __name__ == "__main__":
    many_programs.main(PROGRAMS, jax.make_mesh((8,), ("i",)))

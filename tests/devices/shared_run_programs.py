"""Programs under `jit` over several devices, which share one run of a stateless function."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpyop
from tests.devices.common import PROGRAMS, F, numpy_function, py_function


def program(f):
    """Run it with arrays that are split over the devices, and with whole ones on each."""

    def run(on):
        for spec in (P("d"), P()):
            f(lambda x: jax.device_put(jnp.asarray(x, F), NamedSharding(on.mesh, spec)))  # noqa: B023

    PROGRAMS[f.__name__] = run


def calls_of_one_run(api, spread, n):
    calls = []
    f = jax.jit(lambda x: api(lambda v: calls.append(1) or v * 2, [x], F, output_shapes=(n,)) + 1)
    for k in range(20):
        np.testing.assert_array_equal(f(spread(np.full(n, k))), np.full(n, 2 * k + 1))
    x = spread(np.ones(n))  # equal inputs: none is answered from an earlier execution
    for _ in range(20):
        f(x).block_until_ready()
    assert len(calls) == 40, (n, api, len(calls))


@program
def one_run_for_all_devices(spread):
    for n in (8, 80_000):
        calls_of_one_run(numpy_function, spread, n)
        calls_of_one_run(py_function, spread, n)


@program
def a_buffer_that_the_function_keeps(spread):
    buffer = np.zeros(80_000, np.float32)

    def body(v):
        buffer[:] = v
        v[:] = -1
        return buffer

    f = jax.jit(lambda x: numpy_function(body, [x], F))
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

    f = jax.jit(lambda x: numpy_function(body, [x], F) + 1)
    for k in range(10):
        with pytest.raises(KeyError, match=str(-1.0 - k)), jaxpyop.reraise():
            f(spread(np.full(8, -1.0 - k))).block_until_ready()
        assert float(f(spread(np.full(8, k)))[0]) == k + 1


@program
def threads(spread):
    f = jax.jit(lambda x: numpy_function(lambda v: v * 2, [x], F) + 1)
    wrong = []

    def work(k):
        x = spread(np.full(80_000, k % 3))  # some threads have the same
        for _ in range(20):
            y = f(x).block_until_ready()  # on all devices: none is at work when the process ends
            if not (np.asarray(y) == 2 * (k % 3) + 1).all():
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in workers]
    [t.join() for t in workers]
    assert not wrong


@program
def jax_in_the_function(spread):
    m = jnp.ones((200, 200))
    f = jax.jit(lambda x: py_function(lambda v: v + (m @ m)[0, 0], [x], F, output_shapes=(8,)) * 2)
    results = [f(spread(np.full(8, k))) for k in range(20)]
    assert [float(y[0]) for y in results] == [2 * (k + 200) for k in range(20)]

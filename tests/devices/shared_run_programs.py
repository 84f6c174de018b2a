"""Programs under `jit` over several devices, which share one run of a stateless function."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxpyop
from tests.devices.common import PROGRAMS, F
from tests.shared.functions import numpy_function, py_function


def program(f):
    """Run it with arrays of one number that are split over the devices, and with whole ones on each."""

    def run(on):
        for spec in (P("d"), P()):
            f(lambda n, k: on.on_mesh(jnp.full(n, k, F), spec))  # noqa: B023

    PROGRAMS[f.__name__] = run


@program
def one_run_for_all_devices(spread):
    for n, api in ((8, numpy_function), (80_000, numpy_function), (80_000, py_function)):
        calls = []
        f = jax.jit(lambda x: api(lambda v: calls.append(1) or v * 2, [x], F, output_shapes=x.shape) + 1)  # noqa: B023
        for k in [*range(20), *[1] * 20]:  # equal inputs: none is answered from an earlier execution
            np.testing.assert_array_equal(f(spread(n, k)), np.full(n, 2 * k + 1))
        assert len(calls) == 40, (n, api, len(calls))


@program
def a_buffer_that_the_function_keeps(spread):
    buffer = np.zeros(80_000, np.float32)

    def body(v):
        buffer[:] = v
        v[:] = -1
        return buffer

    f = jax.jit(lambda x: numpy_function(body, [x], F))
    results = [jax.block_until_ready(f(spread(80_000, k))) for k in range(5)]
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
            f(spread(8, -1.0 - k)).block_until_ready()
        assert float(f(spread(8, k))[0]) == k + 1


@program
def threads(spread):
    f = jax.jit(lambda x: numpy_function(lambda v: v * 2, [x], F) + 1)

    def work(k):
        for _ in range(20):  # on all devices: none is at work when the process ends
            assert (np.asarray(f(spread(80_000, k % 3)).block_until_ready()) == 2 * (k % 3) + 1).all()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # some have the same input


@program
def jax_in_the_function(spread):
    m = jnp.ones((200, 200))
    f = jax.jit(lambda x: py_function(lambda v: v + (m @ m)[0, 0], [x], F, output_shapes=(8,)) * 2)
    results = [f(spread(8, k)) for k in range(20)]
    assert [float(y[0]) for y in results] == [2 * (k + 200) for k in range(20)]

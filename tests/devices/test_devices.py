"""Several devices in one process: once on the whole array under `jit`, once per shard in a `shard_map`."""

import pytest

from tests.shared.many_programs import run_module
from tests.shared.processes import on_devices, run_python

# The main promises, in little time.
MAIN = """
import jaxpyop, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("d",))
x = jax.device_put(np.arange(4, dtype=np.float32), NamedSharding(mesh, P("d")))
seen = []

def double(x):
    seen.append(np.asarray(x).tolist())
    return x * 2

for api in (jaxpyop.numpy_function, jaxpyop.py_func):
    op = lambda x: api(double, [x], np.float32)
    f = jax.jit(op)
    shards = jax.jit(jax.shard_map(op, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    for g, wanted in (f, [[0, 1, 2, 3]]), (f, [[0, 1, 2, 3]]), (shards, [[0, 1], [2, 3]]):
        y = jax.block_until_ready(g(x))
        jax.effects_barrier()
        np.testing.assert_array_equal(y, [0, 2, 4, 6])
        assert sorted(seen) == wanted, seen
        del seen[:]
"""


@pytest.mark.slow
def test_the_main_promises_on_two_devices():
    run_python(MAIN, **on_devices(2))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "transport", "modules"),
    [
        ("Auto", "auto", ["error", "jit", "shard_map", "shared_run"]),
        ("Explicit", "callback", ["error", "jit", "shard_map"]),
    ],
)
def test_programs_on_four_devices(kind, transport, modules):
    """Those of the modules `..._programs`, on a mesh of one kind."""
    run_module("tests.devices.four_devices", kind, transport, *modules, **on_devices(4))

"""The host, when a process ends: some devices still call, or have not called yet. A patch makes them late each time."""

from __future__ import annotations

import pytest

from tests.shared.processes import on_devices, run_python

pytestmark = pytest.mark.slow

LATE = """
import threading, time
import jax, jax.numpy as jnp, jaxpyop
from jaxpyop._host import host

def late(function):
    def wait(*args):
        for _ in range(30):  # in each turn another thread may get Python's lock
            time.sleep(0.005)
        return function(*args)
    return wait

{patch}
mesh = jax.make_mesh((4,), ("i",))
x = jax.device_put(jnp.ones(80_000), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
f = jax.jit(lambda x: jaxpyop.numpy_function(lambda v: v * 2, [x], jnp.float32) + 1)

def use():
    y = f(x)
    while not any(shard.data.is_ready() for shard in y.addressable_shards):
        time.sleep(0.001)

thread = threading.Thread(target=use)
thread.start()
thread.join()
"""
PATCHES = {
    "late after the run": """
join = host.Shared._join
def joined(*args):
    run, is_first = found = join(*args)
    return found if is_first else late(lambda: found)()
host.Shared._join = joined""",
    "late before the run": """
seen, join = [], host.Shared._join
host.Shared._join = lambda *args: (late(join) if seen else seen.append(1) or join)(*args)""",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_the_process_waits_for_other_devices(patch):
    """Python would abort the process: it would end the thread of a device in the middle of a call."""
    done = run_python(LATE.replace("{patch}", patch), timeout=40, check=False, **on_devices(4))
    assert (done.returncode, done.stderr) == (0, "")

"""The host, when a process ends: some devices still call, or have not called yet. A patch makes them late each time."""

import pytest

from tests.shared.processes import on_devices, run_python

pytestmark = pytest.mark.slow

LATE = """
import threading, time
import jax, jax.numpy as jnp, jaxpyop
from jaxpyop._host import host

def wait():
    for _ in range(30):  # in each turn another thread may get Python's lock
        time.sleep(0.005)

seen, join = [], host.Shared._join

def late(*args):
    if {before} and seen:
        wait()
    seen.append(1)
    run, is_first = join(*args)
    if not {before} and not is_first:
        wait()
    return run, is_first

host.Shared._join = late
mesh = jax.make_mesh((4,), ("i",))
x = jax.device_put(jnp.ones(80_000), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
f = jax.jit(lambda x: jaxpyop.numpy_function(lambda v: v * 2, [x], jnp.float32) + 1)

def use():
    y = f(x)
    while not any(shard.data.is_ready() for shard in y.addressable_shards):
        time.sleep(0.001)

threading.Thread(target=use).start()
"""


@pytest.mark.parametrize("before", [True, False], ids=["late before the run", "late after the run"])
def test_the_process_waits_for_other_devices(before):
    """Python would abort the process: it would end the thread of a device in the middle of a call."""
    done = run_python(LATE.replace("{before}", str(before)), check=False, **on_devices(4))
    assert (done.returncode, done.stderr) == (0, "")


def test_no_function_begins_when_the_process_is_over():
    """A program of a thread that goes on must not enter Python any more."""
    code = """
import jax, jax.numpy as jnp, jaxpyop
from jaxpyop._host import at_exit
f = jax.jit(lambda x: jaxpyop.numpy_function(print, [x], None))
at_exit.state["over"] = True
try:
    jax.block_until_ready(f(1.0))
    jax.effects_barrier()
except jax.errors.JaxRuntimeError as error:
    assert "no function can begin any more" in str(error), error
else:
    raise AssertionError("a function began")
"""
    assert run_python(code).stdout == ""

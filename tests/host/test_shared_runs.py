"""A stateless op under a `jit` over eight devices runs once, for all of them."""

from __future__ import annotations

import pytest

from tests.shared.util import on_devices, run_python

SETUP = """
import threading
import jax, jax.numpy as jnp, numpy as np, jaxpyop
from jax.sharding import NamedSharding, PartitionSpec as P
F = jnp.float32
mesh = jax.make_mesh((8,), ("i",))
SPECS = [P("i"), P()]

def spread(x, spec):
    return jax.device_put(jnp.asarray(x, F), NamedSharding(mesh, spec))
"""

ONCE = """
for spec in SPECS:
    for n in (8, 80_000):
        for api in (jaxpyop.numpy_function, jaxpyop.py_function):
            calls = []
            f = jax.jit(lambda x: api(lambda v: calls.append(1) or v * 2, [x], F, output_shapes=(n,)) + 1)
            for k in range(20):
                np.testing.assert_array_equal(f(spread(np.full(n, k), spec)), np.full(n, 2 * k + 1))
            assert len(calls) == 20, (spec, n, api, len(calls))
            # equal inputs: none is answered from an earlier execution
            x = spread(np.ones(n), spec)
            for _ in range(20):
                f(x).block_until_ready()
            assert len(calls) == 40, (spec, n, api, len(calls))
"""

ITS_OWN_BUFFER = """
buffer = np.zeros(80_000, np.float32)

def body(v):
    buffer[:] = v
    v[:] = -1
    return buffer

f = jax.jit(lambda x: jaxpyop.numpy_function(body, [x], F))
for spec in SPECS:
    results = [jax.block_until_ready(f(spread(np.full(80_000, k), spec))) for k in range(5)]
    buffer[:] = -1
    for k, y in enumerate(results):
        for shard in y.addressable_shards:
            assert (np.asarray(shard.data) == k).all()
"""

ERRORS = """
def body(v):
    if v[0] < 0:
        raise KeyError(float(v[0]))
    return v

f = jax.jit(lambda x: jaxpyop.numpy_function(body, [x], F) + 1)
for spec in SPECS:
    for k in range(10):
        try:
            with jaxpyop.reraise():
                f(spread(np.full(8, -1.0 - k), spec)).block_until_ready()
        except KeyError as error:
            assert error.args == (-1.0 - k,)
        else:
            raise AssertionError("nothing raised")
        assert float(f(spread(np.full(8, k), spec))[0]) == k + 1
"""

THREADS = """
f = jax.jit(lambda x: jaxpyop.numpy_function(lambda v: v * 2, [x], F) + 1)
wrong = []

def work(k):
    x = spread(np.full(80_000, k % 3), P())  # some threads have the same
    for _ in range(20):
        y = f(x).block_until_ready()  # on all devices: none is at work when the process ends
        if not (np.asarray(y) == 2 * (k % 3) + 1).all():
            wrong.append(k)

threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong
"""

GRADIENTS = """
def body(v):
    seen.append(1)
    return jnp.sin(v) if float(v[0]) > 0 else v

seen = []
g = jax.jit(jax.grad(lambda x: jaxpyop.py_function(body, [x], F, output_shapes=(8,)).sum()))
for spec in SPECS:
    for k in range(1, 6):
        np.testing.assert_allclose(g(spread(np.full(8, k), spec)), np.cos(np.full(8, k, np.float32)), rtol=1e-5)
assert len(seen) == 10, len(seen)
"""

BATCHES = """
calls = []
op = lambda x, y: jaxpyop.numpy_function(lambda a, b: calls.append(1) or a + b, [x, y], F)
f = jax.jit(jax.vmap(op, in_axes=(0, None)))
for spec in SPECS:
    calls.clear()
    np.testing.assert_array_equal(f(spread(np.arange(8), spec), 1.0), np.arange(8) + 1)
    assert len(calls) == 8
"""

JAX_INSIDE = """
m = jnp.ones((200, 200))
f = jax.jit(lambda x: jaxpyop.py_function(lambda v: v + (m @ m)[0, 0], [x], F, output_shapes=(8,)) * 2)
for spec in SPECS:
    results = [f(spread(np.full(8, k), spec)) for k in range(20)]
    assert [float(y[0]) for y in results] == [2 * (k + 200) for k in range(20)]
"""

PROGRAMS = {
    "once": ONCE,
    "a buffer of the body's": ITS_OWN_BUFFER,
    "errors": ERRORS,
    "threads": THREADS,
    "gradients": GRADIENTS,
    "batches": BATCHES,
    "JAX inside": JAX_INSIDE,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_over_eight_devices(program):
    run_python(SETUP + program, **on_devices(8))

"""Runs of many steps, which show whether late steps are slower than early ones; process pools; several devices."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop._op import RECORDS
from tests.bench.cases.batches import negative_on
from tests.bench.cases.case import SCALAR, Group, Program, compare, negative

STEPS = 3100
EARLY, LATE = slice(100, 300), slice(STEPS - 200, STEPS)


def training_run() -> Group:
    """A loss of weights and data. The data have no tangent."""
    rng = np.random.default_rng(0)
    x, y, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((8, 4), (8, 3), (4, 3)))

    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w) - (jnp.abs(y) + jnp.log(jnp.exp(y)))) ** 2)

    ours = jax.jit(jax.grad(lambda w: jaxpyop.py_function(loss, [w, x, y], SCALAR)))
    theirs = jax.grad(loss)

    def take_times() -> dict[str, list[float]]:
        mine, plain = _steps(lambda: ours(w), lambda: theirs(w, x, y))
        return {
            "py_function, step 3000": mine[LATE],
            "py_function, step 200": mine[EARLY],
            "jax.grad, step 3000": plain[LATE],
        }

    return Group("gradient of a loss with data", [], take_times=take_times)


def _steps(*steps: Callable[[], Any]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(STEPS):
        for step, taken in zip(steps, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(step())
            taken.append((time.perf_counter() - start) * 1e6)
    return times


def memory_run() -> Group:
    """The memory that 500 gradient steps of a megabyte each leave behind, and the time of the steps after them."""
    x = jnp.ones(2**18)
    op = lambda x: jaxpyop.py_function(lambda x: x * jnp.sin(x), [x], jnp.float32, output_shapes=x.shape)
    step = jax.jit(jax.grad(lambda x: jnp.sum(op(x))))
    for _ in range(500):
        jax.block_until_ready(step(x))
    held = RECORDS.stats()["nbytes"] / 2**20
    programs = {"py_function": step, "jax.grad, directly": jax.grad(lambda x: jnp.sum(x * jnp.sin(x)))}
    return compare(f"1 MB; 500 steps left {held:.0f} MB", programs, x, calls=1)


def process_pool() -> Group:
    """Elements that do next to nothing, in processes."""
    pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    x = jnp.arange(5000.0)
    elements = list(np.asarray(x))
    programs: dict[str, Program] = {
        "parallel, two processes": negative_on(pool),
        "pool.map(chunksize=100)": lambda _: list(pool.map(negative, elements, chunksize=100)),
        "pool.map(chunksize=500)": lambda _: list(pool.map(negative, elements, chunksize=500)),
    }
    return compare("5000 scalars in a process pool", programs, x, calls=1, samples=10)


DEVICES = """
import json, time
import jax, jax.numpy as jnp, numpy as np, jaxpyop
from jax.sharding import NamedSharding, PartitionSpec

def step(op):
    f = jax.jit(op)
    f(x).block_until_ready()
    return f

x = jax.device_put(jnp.ones(8), NamedSharding(jax.make_mesh((8,), ("i",)), PartitionSpec()))
like = jax.ShapeDtypeStruct((8,), jnp.float32)
steps = {
    "numpy_function": step(lambda x: jaxpyop.numpy_function(np.negative, [x], jnp.float32)),
    "jax.pure_callback": step(lambda x: jax.pure_callback(np.negative, like, x)),
}
times = {name: [] for name in steps}
for _ in range(300):
    for name, f in steps.items():
        start = time.perf_counter()
        f(x).block_until_ready()
        times[name].append((time.perf_counter() - start) * 1e6)
print(json.dumps(times))
"""


def several_devices() -> Group:
    """A program over eight devices, in a process of its own."""

    def take_times() -> dict[str, list[float]]:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
        environment = os.environ | {"XLA_FLAGS": flags}
        command = [sys.executable, "-c", DEVICES]
        return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)

    return Group("float32[8] over 8 CPU devices", [], take_times=take_times)

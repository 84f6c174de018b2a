"""A long run from four threads: `python -m tests.memory.soak`, about five minutes.

One million calls, then 200,000 gradient steps. For each tenth of them it prints the calls per second of CPU time and
the resident memory, and it fails if memory grows or if calls get slower.
"""

import concurrent.futures
import math
import os
import sys
import time
from typing import NamedTuple

import jaxpyop  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np

THREADS = 4
WINDOWS = 10


class Window(NamedTuple):
    """What a tenth of a run was like: calls per second of CPU time, and MiB of resident memory at its end."""

    speed: float
    memory: float


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def loss(x):
    return jnp.sum(x * x) if x[0] > 0 else jnp.sum(jnp.sin(x))


def check(result, expected):
    found = np.asarray(result)[0]
    assert abs(found - expected) <= 1e-6, f"{found} instead of {expected}"


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
    with jaxpyop.config.override(transport="callback"):
        portable = jax.jit(lambda x: ops[0](x))
        portable(x).block_until_ready()
    return [lambda f=f, x=x: check(f(x), -1) for f, x in [*programs, (portable, x)]]


def gradients():
    """Gradient steps of both branches of a function."""
    step = jax.jit(jax.grad(lambda x: jaxpyop.py_function(loss, [x], jnp.float32, output_shapes=())))
    return [lambda: check(step(jnp.ones(3)), 2), lambda: check(step(-jnp.ones(3)), math.cos(-1))]


def window(programs, count):
    """Run the programs in turn, from all threads, so often altogether."""
    work = lambda _: [programs[i % len(programs)]() for i in range(count // THREADS)]
    cpu = time.process_time()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    jax.effects_barrier()
    return Window(count / (time.process_time() - cpu), resident())


def soak(programs, count):
    """All windows, after one to warm up that also fills the records."""
    window(programs, max(count // WINDOWS, 2 * jaxpyop.config.max_records))
    for _ in range(WINDOWS):
        yield window(programs, count // WINDOWS)


def problems(windows, slowest=0.8):
    """What is wrong with a run.

    Args:
        windows: of the run.
        slowest: the speed of the later half, as a part of that of the earlier. A single window says little.
    """
    # In the first windows, the allocator fills the arenas of the four threads.
    first, last = windows[2].memory, windows[-1].memory
    if last - first > 16:
        yield f"memory grew from {first:.1f} to {last:.1f} MiB"
    early, late = (sorted(w.speed for w in half)[WINDOWS // 4] for half in (windows[:5], windows[5:]))
    if late < slowest * early:
        yield f"calls per CPU second fell from {early:.0f} to {late:.0f}"


def main():
    failed = []
    for title, programs, count in (("calls", calls, 1_000_000), ("gradients", gradients, 200_000)):
        print(f"{count} {title}, {THREADS} threads", flush=True)
        windows = []
        for found in soak(programs(), count):
            windows.append(found)
            print(f"{found.speed:10.0f} per CPU second {found.memory:10.1f} MiB", flush=True)
        failed += problems(windows)
    print("\n".join(failed) or "flat")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""A long run from four threads: `python -m tests.memory.soak`, about five minutes.

One million calls, then 200,000 gradient steps. In ten windows of each it prints the calls per second of CPU time and the
resident memory, and it fails if memory grows or if calls get slower. `test_soak.py` runs a short form.
"""

import argparse
import dataclasses
import math
import os
import sys
import threading
import time

import jaxpyop  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np

THREADS = 4
WINDOWS = 10


@dataclasses.dataclass(frozen=True)
class Window:
    """What one tenth of a run was like."""

    calls: int
    cpu: float  # seconds
    memory: float  # MiB, resident, at the end

    @property
    def speed(self):
        return self.calls / self.cpu


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def negative(x):
    return -x


def loss(x):
    return jnp.sum(x * x) if x[0] > 0 else jnp.sum(jnp.sin(x))


def check(result, expected):
    found = np.asarray(result)[0]
    if abs(found - expected) > 1e-6:
        raise AssertionError(f"{found} instead of {expected}")


def calls():
    """Programs with one host call each, by every route."""
    x, large = jnp.ones(3), jnp.ones(10_000)
    ops = [
        lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32),
        lambda x: jaxpyop.py_function(negative, [x], jnp.float32, output_shapes=x.shape),
        lambda x: jaxpyop.py_func(negative, [x], jnp.float32),
        lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, ordered=True),
    ]
    programs = [(jax.jit(op), x) for op in ops] + [(jax.jit(ops[0]), large), (ops[0], x)]
    with jaxpyop.config.override(transport="callback"):
        portable = jax.jit(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32))
        portable(x).block_until_ready()
    return [lambda f=f, x=x: check(f(x), -1) for f, x in [*programs, (portable, x)]]


def gradients():
    """Gradient steps of both branches of a body."""
    ahead, behind = jnp.ones(3), -jnp.ones(3)
    step = jax.jit(jax.grad(lambda x: jaxpyop.py_function(loss, [x], jnp.float32, output_shapes=())))
    return [
        lambda: check(step(ahead), 2),
        lambda: check(step(behind), math.cos(-1)),
    ]


def window(programs, count):
    """Run the programs, in turn and from all threads, `count` times altogether."""
    failures = []

    def work():
        try:
            for i in range(count // THREADS):
                programs[i % len(programs)]()
        except BaseException as error:
            failures.append(error)

    cpu = time.process_time()
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    jax.effects_barrier()
    return Window(count // THREADS * THREADS, time.process_time() - cpu, resident())


def soak(programs, count):
    """Ten windows, after one to warm up that also fills the records."""
    window(programs, max(count // WINDOWS, 2 * jaxpyop.config.max_records))
    for _ in range(WINDOWS):
        yield window(programs, count // WINDOWS)


def problems(windows, growth=16.0, slowest=0.8):
    """What is wrong with a run.

    Args:
        windows: of the run.
        growth: MiB that memory may grow by from the third window to the last; before,
            the allocator's arenas of the four threads fill.
        slowest: the speed of the later half, as a part of that of the earlier.
    """
    first, last = windows[2], windows[-1]
    found = []
    if last.memory - first.memory > growth:
        found.append(f"memory grew from {first.memory:.1f} to {last.memory:.1f} MiB")
    # Halves, because a single window of a shared machine says little.
    early = sorted(w.speed for w in windows[: WINDOWS // 2])[WINDOWS // 4]
    late = sorted(w.speed for w in windows[WINDOWS // 2 :])[WINDOWS // 4]
    if late < slowest * early:
        found.append(f"calls per CPU second fell from {early:.0f} to {late:.0f}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--gradients", type=int, default=200_000)
    arguments = parser.parse_args()
    failed = []
    for title, make, count in (("calls", calls, arguments.calls), ("gradients", gradients, arguments.gradients)):
        print(f"{count} {title}, {THREADS} threads", flush=True)
        windows = []
        for found in soak(make(), count):
            windows.append(found)
            print(f"{found.speed:10.0f} per CPU second {found.memory:10.1f} MiB", flush=True)
        failed += problems(windows)
    print("\n".join(failed) or "flat")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Long training runs: `python -m tests.trust.training`, an hour for all of it.

Five losses of `py_function`, 20,000 steps each, under `jit(grad)` and directly. For each it prints the CPU time of a
step and the resident memory after each tenth, and the time of a plain `jnp.abs` before and after; and fails when
the last 1000 steps take more than 1.1 of steps 200 to 1200, when memory grows by 5 MB in the second half, or
when `jnp.abs` takes more than 1.2 of what it took. `--threads 4` has four threads take 20,000 steps each at once.

The time is the process's: under `jit` a body runs on a thread of XLA's, which a thread's own clock does not see. So it
is taken whenever each thread has taken a step on average. What grows with the steps shows in every step, what others do
on the machine in some: so a step's time is that of the fastest twentieth of a thousand. For what lasts longer, a fixed
piece of Python is timed beside every twentieth step.
`test_training_runs.py` counts what must not grow, over a few hundred steps.
"""

import argparse
import concurrent.futures
import dataclasses
import statistics
import sys
import threading
import time

import jaxpyop  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._op import RECORDS
from tests.trust.soak import resident

PACED = 20  # steps of each thread
TENTHS = 10
_rng = np.random.default_rng(0)
X = jnp.asarray(_rng.normal(size=(8, 4)), jnp.float32)
Y = jnp.asarray(_rng.normal(size=(8, 3)), jnp.float32)
LABELS = jnp.asarray(_rng.integers(0, 3, size=8))
W = jnp.asarray(_rng.normal(size=(4, 3)), jnp.float32) / 2


def scalar(body, *data):
    """A loss of the weights: `body` as an op, with data that has no tangent."""
    return lambda w: jaxpyop.py_function(body, [w, *data], jnp.float32, output_shapes=())


def regression():
    return scalar(lambda w, x, y: jnp.mean((jnp.tanh(x @ w) - (jnp.abs(y) + jnp.log(jnp.exp(y)))) ** 2), X, Y)


def classifier():
    def body(w, x, labels):
        return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 3) * jax.nn.log_softmax(x @ w), axis=-1))

    return scalar(body, X, LABELS)


def recurrent():
    def body(w, x):
        state = jnp.zeros(3)
        for row in x:
            state = jnp.tanh(row @ w + 0.5 * state)
            if float(jnp.max(jnp.abs(state))) > 0.99:
                state = state * 0.5
        return jnp.sum(state**2)

    return scalar(body, X)


def module():
    import equinox as eqx

    layers = eqx.nn.MLP(4, 3, 5, 1, key=jax.random.key(0))

    def body(w, x, y):
        moved = eqx.tree_at(lambda m: m.layers[0].weight, layers, layers.layers[0].weight + w.reshape(3, 4)[:1])
        return jnp.mean((jax.vmap(moved)(x) - y) ** 2)

    return scalar(body, X, Y)


def custom():
    @jax.custom_vjp
    def clipped(x):
        return jnp.clip(x, -1, 1)

    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.where(jnp.abs(x) < 1, ct, 0.1 * ct),))
    normalised = jax.jit(lambda x: (x - jnp.mean(x)) / (jnp.std(x) + 1))
    return scalar(lambda w, x, y: jnp.mean((clipped(normalised(x) @ w) - normalised(y)) ** 2), X, Y)


LOSSES = {f.__name__: f for f in (regression, classifier, recurrent, module, custom)}


def stepping(loss, jit):
    step = jax.grad(loss())
    return jax.jit(step) if jit else step


def pace():
    """Microseconds of this thread's CPU time for a piece of Python that nothing of JAX can slow down."""
    start = time.thread_time()
    held = {}
    for i in range(3000):
        held[i % 100] = (i, str(i))
    return (time.thread_time() - start) * 1e6


def plain():
    """How many times as long as that fifty plain calls take, each time one beside the other: the machine jumps."""
    return statistics.median(_plain() / pace() for _ in range(2000))


def _plain():
    start = time.thread_time()
    for _ in range(50):
        jnp.abs(Y)
    return (time.thread_time() - start) * 1e6


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run was like.

    Attributes:
        times: microseconds of CPU time, step by step of each thread.
        paces: of `pace`, one for every twenty of them.
        memory: MiB after each tenth.
        plain: microseconds of `jnp.abs` before and after, at the pace of the whole run.
    """

    times: list
    paces: list
    memory: list
    plain: tuple

    def step(self, first, last=None):
        """The time of one of the steps between two, at the pace of the whole run."""
        paces = self.paces[first // PACED : last and last // PACED]
        return at_best(self.times[first:last]) * at_best(self.paces) / at_best(paces)


def at_best(times):
    """Of the fastest twentieth the slowest."""
    return sorted(times)[len(times) // 20]


class Meter:
    """Told of every step by whichever thread took it."""

    def __init__(self, steps, threads):
        self.times, self.paces, self.memory = [], [], []
        self._threads, self._per_tenth = threads, steps // TENTHS
        self._taken, self._start, self._lock = 0, time.process_time(), threading.Lock()

    def step(self):
        with self._lock:
            self._taken += 1
            if self._taken % self._threads == 0:
                self.times.append((time.process_time() - self._start) / self._threads * 1e6)
                if len(self.times) % PACED == 0:
                    self.paces.append(pace())
                if len(self.times) % self._per_tenth == 0:
                    self._tell()
                self._start = time.process_time()

    def _tell(self):
        self.memory.append(resident())
        last = self.times[-self._per_tenth :]
        print(
            f"{len(self.times):8} {at_best(last):8.0f} us at best {statistics.median(last):8.0f} us in the middle "
            f"{statistics.fmean(last):8.0f} us on average {self.memory[-1]:8.1f} MiB",
            flush=True,
        )


def train(step, steps, meter):
    w = W
    for _ in range(steps):
        w = jax.block_until_ready(w - 0.01 * step(w))
        meter.step()


def run(step, steps, threads):
    for _ in range(100):
        step(W)
    before = plain()
    meter = Meter(steps, threads)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(train, step, steps, meter) for _ in range(threads)]:
            done.result()
    usual = at_best(meter.paces)
    return Run(meter.times, meter.paces, meter.memory, (before * usual / 50, plain() * usual / 50))


def early_and_late(run):
    """A step at the start, once all is compiled, and at the end."""
    return run.step(200, 1200), run.step(-1000)


def problems(run):
    """What a run says against being flat."""
    first, last = early_and_late(run)
    if last > 1.1 * first:
        yield f"a step took {first:.0f} us and takes {last:.0f}"
    grown = run.memory[-1] - run.memory[len(run.memory) // 2 - 1]
    if grown > 5:
        yield f"memory grew by {grown:.1f} MiB in the second half"
    before, after = run.plain
    if after > 1.2 * before:
        yield f"jnp.abs took {before:.1f} us and takes {after:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loss", choices=LOSSES, action="append")
    parser.add_argument("--how", choices=["jit", "direct"], action="append")
    arguments = parser.parse_args()
    failed = []
    for name in arguments.loss or LOSSES:
        for how in arguments.how or ["jit", "direct"]:
            print(f"{name}, {how}, {arguments.steps} steps, {arguments.threads} threads", flush=True)
            found = run(stepping(LOSSES[name], how == "jit"), arguments.steps, arguments.threads)
            said = list(problems(found))
            first, last = early_and_late(found)
            print(f"   {first:.0f} us, then {last:.0f}; jnp.abs {found.plain[0]:.1f} us, then {found.plain[1]:.1f};")
            print(f"   {RECORDS.stats()['count']} records; {'; '.join(said) or 'flat'}", flush=True)
            failed += [f"{name}, {how}: {text}" for text in said]
    print("\n".join(failed) or "flat")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Long training runs: `python tests/trust/training.py`, an hour for all of it.

Five losses of `py_function`, 20,000 steps each, under `jit(grad)` and directly. For each it prints the CPU time of a
step and the resident memory in windows of a tenth, and the time of a plain `jnp.abs` before and after; and fails when
the last 1000 steps take more than 1.1 of steps 200 to 1200, when memory grows by 5 MB in the second half, or
when `jnp.abs` takes more than 1.2 of what it took. `--threads 4` runs four at once.
`test_training_runs.py` counts what must not grow, over a few hundred steps.
"""

import argparse
import dataclasses
import statistics
import sys
import threading
import time

import jaxpyop  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np
from soak import resident

from jaxpyop._op import RECORDS

WINDOWS = 10
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


def plain():
    """Microseconds of a plain call."""
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        jnp.abs(Y)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run was like.

    Attributes:
        times: of each step, in microseconds of this thread's CPU time, and the whole process's where it is alone.
        memory: MiB after each tenth.
        plain: the time of `jnp.abs` before and after.
    """

    times: list
    memory: list
    plain: tuple


def train(step, steps, clock, memory=resident):
    """The times of the steps, and the memory after each tenth of them."""
    w, times, held = W, [], []
    for i in range(steps):
        start = clock()
        w = jax.block_until_ready(w - 0.01 * step(w))
        times.append((clock() - start) * 1e6)
        if (i + 1) % (steps // WINDOWS) == 0:
            held.append(memory())
            print(f"{i + 1:8} {statistics.median(times[-steps // WINDOWS :]):10.0f} us {held[-1]:8.1f} MiB", flush=True)
    return times, held


def run(step, steps, threads):
    for _ in range(100):
        step(W)
    before, found = plain(), []
    if threads == 1:
        found.append(train(step, steps, time.process_time))
    else:
        work = lambda: found.append(train(step, steps, time.thread_time))
        pool = [threading.Thread(target=work) for _ in range(threads)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
    times, memory = found[-1]
    return Run(times, memory, (before, plain()))


def problems(run, early=(200, 1200), late=1000):
    """What a run says against being flat."""
    first, last = statistics.median(run.times[slice(*early)]), statistics.median(run.times[-late:])
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
            first, last = statistics.median(found.times[200:1200]), statistics.median(found.times[-1000:])
            print(f"   {first:.0f} us, then {last:.0f}; jnp.abs {found.plain[0]:.1f} us, then {found.plain[1]:.1f};")
            print(f"   {RECORDS.stats()['count']} records; {'; '.join(said) or 'flat'}", flush=True)
            failed += [f"{name}, {how}: {text}" for text in said]
    print("\n".join(failed) or "flat")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

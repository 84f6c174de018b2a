"""Repeats batches whose workers die or hang, and prints how many were right, and how long they took.

    python -m tests.batches.faults ENGINE [--times N] [--load N]

ENGINE is processes, loky, dask or ray. With `--load`, so many busy processes run beside it.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.batches import bodies
from tests.batches.programs import cluster_of, grid, parallel, processes, start_ray
from tests.shared.functions import numpy_function

X = grid(40)
FILLED = np.where(np.arange(40) == 5, -1, 2 * np.arange(40))
names = map("op {}".format, itertools.count())


def compiled(body, executor, static=(), **options):
    return jax.jit(
        parallel(numpy_function, body, executor, static=static, output_shapes=(), name=next(names), **options)
    )


def is_filled(body, executor, folder, **options):
    return np.array_equal(compiled(body, executor, on_error=-1, **options)(X), FILLED)


def kills(executor, folder):
    return is_filled(bodies.die_at_five, executor, folder, retries=1)


def hangs(executor, folder):
    return is_filled(bodies.hang_at_five, executor, folder, timeout=2)


def holds_the_lock(executor, folder):
    return is_filled(bodies.hold_the_lock, executor, folder, timeout=2)


def hangs_and_is_named(executor, folder):
    try:
        with jaxpyop.reraise():
            jax.block_until_ready(compiled(bodies.hang_at_five, executor, timeout=2)(X))
    except TimeoutError as error:
        return "at batch index 5" in error.__notes__
    return False


def dies_once(executor, folder):
    x = grid(400)
    found = compiled(bodies.die_once, executor, [folder], retries=1, chunksize=10)(x)
    lines = [len((pathlib.Path(folder) / str(k)).read_text().splitlines()) for k in range(400)]
    return np.array_equal(found, 2 * x) and max(lines) == 2


def stateful_and_killed(executor, folder):
    """A worker that runs it is killed at some time. No element may run twice."""
    path, count, over = pathlib.Path(folder) / "lines", random.randrange(1, 30), threading.Event()
    path.touch()

    def kill():
        while len(lines := path.read_text().splitlines()) < count and not over.wait(0.001):
            pass
        with contextlib.suppress(OSError, IndexError):
            os.kill(int(lines[-1].split()[1]), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with contextlib.suppress(Exception):
        jax.block_until_ready(compiled(bodies.say_and_die_at, executor, [str(path), -1], stateful=True, chunksize=4)(X))
    over.set()
    thread.join()
    ran = [line.split()[0] for line in path.read_text().splitlines()]
    return len(set(ran)) == len(ran)


CASES = [kills, dies_once, hangs, hangs_and_is_named, holds_the_lock, stateful_and_killed]


@contextlib.contextmanager
def started(engine):
    """What `executor=` gets."""
    if engine == "processes":
        yield lambda: processes(2)
    elif engine == "loky":
        import loky

        yield lambda: loky.ProcessPoolExecutor(2, timeout=None)
    elif engine == "dask":
        import dask

        patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
        with patient, cluster_of(4) as cluster, cluster.get_client() as client:
            yield client
    else:
        yield start_ray(4)


def warm(executor):
    """Wait until the workers have started, also those that died in the case before."""
    pids = compiled(bodies.slow_process_number, executor, tout=jnp.int32, chunksize=1)
    while len(set(np.asarray(pids(grid(8))).tolist())) < 2:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["processes", "loky", "dask", "ray"])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--load", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.load)]
    try:
        with started(given.engine) as executor:
            print(f"{given.engine}, {given.times} times, {given.load} busy processes: right, median and most seconds")
            for case in CASES:
                right, seconds = 0, []
                for _ in range(given.times):
                    warm(executor)
                    with tempfile.TemporaryDirectory() as folder:
                        began = time.monotonic()
                        right += bool(case(executor, folder))
                        seconds.append(time.monotonic() - began)
                shown = f"{statistics.median(seconds):6.1f} {max(seconds):6.1f}"
                print(f"{case.__name__:22} {right:3} of {given.times:3} {shown}", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()

"""What the tests of sweeps share, and a sweep in a process of its own: `python -m tests.sweeps.programs`."""

import concurrent.futures
import os
import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.functions import numpy_function

F = jnp.float32
X = np.arange(7, dtype=np.float32)
W = np.arange(5.0)
BASE = lambda x: W[2] * x + jnp.asarray(W)[x.astype(int) % 5]


def on_host(func):
    return lambda x: numpy_function(func, [x], F(0))


def apart(call):
    """What a call gives in another thread, which knows nothing of the sweep that this one is in."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def same(results, expected):
    """Compare two pytrees, with their types."""
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected)):
        assert isinstance(one, np.ndarray)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.astype(np.complex128), np.asarray(other).astype(np.complex128), rtol=1e-6)


def half_done(folder, f, inputs, batch_size=2, after=1, **options):
    """Leave a folder with some finished blocks."""

    def stop(done, total):
        if done >= after * batch_size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jaxpyop.map_batches(f, inputs, batch_size=batch_size, checkpoint=folder, progress=stop, **options)


def noted(log, seconds):
    """A function of one element that notes each call in a file, and takes some time."""

    def double_on_host(x):
        note = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(note, f"{int(x)}\n".encode())
        os.close(note)
        time.sleep(seconds)
        while "HOLD" in os.environ:  # until the process is killed
            time.sleep(1)
        return 2 * x

    return lambda x: jaxpyop.py_func(double_on_host, [x], jnp.int32) + 1


def sweep(folder, log, count, batch_size, seconds):
    """Prints ready, waits for a line, and compares the results of a sweep."""
    print("ready", flush=True)
    sys.stdin.readline()
    inputs = np.arange(int(count), dtype=np.int32)
    options = {"batch_size": int(batch_size), "checkpoint": folder, "version": "1"}
    results = jaxpyop.map_batches(noted(log, float(seconds)), inputs, **options)
    np.testing.assert_array_equal(results, 2 * inputs + 1)
    print("right", flush=True)


def anonymous_memory():
    """The bytes of memory of this process that belong to no file."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def million(folder):
    """A million elements from a memory-mapped file, with the memory early and late."""
    count, width = 1_000_000, 64
    inputs = np.lib.format.open_memmap(f"{folder}/inputs.npy", "w+", np.float32, (count, width))
    for start in range(0, count, 10_000):
        inputs[start : start + 10_000] = np.arange(start, start + 10_000)[:, None]
    del inputs
    seen = []
    results = jaxpyop.map_batches(
        lambda x: (x.sum(), x * 2),
        np.load(f"{folder}/inputs.npy", mmap_mode="r"),
        batch_size=10_000,
        checkpoint=f"{folder}/results",
        progress=lambda done, total: seen.append(anonymous_memory()),
    )
    sums, doubled = results
    assert (len(seen), sums.shape, doubled.shape) == (100, (count,), (count, width))
    np.testing.assert_array_equal(sums[::1000], np.arange(0, count, 1000) * float(width))
    for start in range(0, count, 100_000):
        np.testing.assert_array_equal(doubled[start + 5], np.full(width, 2 * start + 10))
    seen.append(anonymous_memory())
    print(seen[10], max(seen[10:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # A block of inputs has 2.5 MB, and all of them 256 MB.
    assert max(seen[10:]) - seen[10] < 40_000_000, seen


if __name__ == "__main__":
    {"sweep": sweep, "million": million}[sys.argv[1]](*sys.argv[2:])

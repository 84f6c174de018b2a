"""Sizes on both sides of each threshold, and arrays that lie where a test wants them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

F = jnp.float32
SMALL = 3
MEDIUM = 70_000  # enough for a view of XLA's memory, too few for scratch memory
LARGE = 1_100_000  # more than 4 MB, of which XLA gets fresh memory from the system
SIZES = {"small": SMALL, "medium": MEDIUM, "large": LARGE}

every_size = pytest.mark.parametrize("n", SIZES.values(), ids=SIZES)
both_sizes = pytest.mark.parametrize("n", [SMALL, LARGE], ids=["small", "large"])
# Plain calls, and compiled programs.
RUNS = {"direct": lambda f: f, "jit": jax.jit}
direct_and_compiled = pytest.mark.parametrize("compiled", RUNS.values(), ids=RUNS)


def full(n, value):
    """An array of n equal numbers, for which nothing is compiled."""
    return jnp.asarray(np.full(n, value, np.float32))


def at_offset(n, offset):
    """An array of n zeros that lies so many bytes after a multiple of 64, where XLA takes memory over."""
    memory = np.zeros(4 * n + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + 4 * n].view(np.float32)


def range_of(array):
    return float(np.min(array)), float(np.max(array))


def address(array):
    return array.__array_interface__["data"][0]


def held_by_garbage(*arrays, collect=lambda: None):
    """A cycle holds them, as an exception does that is caught and named. It is old if it outlived a collection."""
    cycle = list(arrays)
    cycle.append(cycle)
    collect()

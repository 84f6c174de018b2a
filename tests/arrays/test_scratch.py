"""The scratch memory into which large inputs are copied: used again, shared by all programs, and bounded in bytes."""

import contextlib
import tracemalloc

import jax
import jax.numpy as jnp
import pytest

from jaxpyop._host import SCRATCH
from tests.arrays.memory import F
from tests.shared.functions import numpy_function, py_function

MB = 2**20
X = 4 * MB  # the bytes of jnp.ones(MB)
NEARLY = MB // 4  # beside arrays of some megabytes


@pytest.fixture(autouse=True)
def empty():
    """Nothing of other tests is kept."""
    SCRATCH._kept.clear()
    SCRATCH.nbytes = 0


@contextlib.contextmanager
def bounded(nbytes):
    """A bound, and a function that returns how many bytes NumPy's arrays hold that were made meanwhile."""
    before, SCRATCH.bound = SCRATCH.bound, nbytes
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        SCRATCH.bound = before


def chain(count):
    """A program of so many ops on a large array."""

    def program(x):
        for k in range(count):
            x = x + numpy_function(lambda v, k=k: v[:1] * k, [x], F, output_shapes=(1,))
        return x

    return jax.jit(program)


@pytest.mark.slow
def test_ops_share_their_scratch_arrays_and_what_is_larger_than_the_bound_is_not_kept():
    with bounded(5 * MB) as held:
        for x in (jnp.ones(MB), jnp.ones(2 * MB)):
            jax.block_until_ready(chain(2)(x))
            assert X <= held() < X + NEARLY


def test_programs_and_shapes_share_one_bound():
    op = lambda x: numpy_function(lambda v: v[:1], [x], F, output_shapes=(1,))
    f = jax.jit(lambda x: sum(op(x[k:]) for k in range(4)))
    with bounded(10 * MB) as held:
        jax.block_until_ready(f(jnp.ones(MB + 4)))
        assert 7 * MB < held() <= 10 * MB + NEARLY
        jax.block_until_ready(chain(1)(jnp.ones(2 * MB)))
        assert 7 * MB < held() <= 10 * MB + NEARLY


def test_memory_of_large_inputs_of_a_py_function_is_used_again():
    where = []
    f = jax.jit(lambda x: py_function(lambda v: where.append(v.unsafe_buffer_pointer()), [x], None, stateful=True))
    x = jnp.ones(2 * MB)
    with bounded(32 * MB) as held:
        for _ in range(6):
            f(x)
            jax.effects_barrier()
        assert held() < 3 * x.nbytes
    assert len(set(where)) <= 2

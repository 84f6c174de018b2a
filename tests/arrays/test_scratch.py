"""The scratch memory into which large inputs are copied: used again, shared by all programs, and bounded in bytes."""

from __future__ import annotations

import contextlib
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.arrays.memory import F, range_of
from tests.shared.functions import numpy_function, py_func, py_function

MB = 2**20
X = 4 * MB  # the bytes of jnp.ones(MB)
NEARLY = MB // 4  # beside arrays of some megabytes


@pytest.fixture(autouse=True)
def empty():
    """Nothing of other tests is kept."""
    with jaxpyop.config.override(max_scratch_bytes=1):
        yield


@contextlib.contextmanager
def bounded(nbytes):
    """A bound, and a function that returns how many bytes NumPy's arrays hold that were made meanwhile."""
    with jaxpyop.config.override(max_scratch_bytes=nbytes):
        tracemalloc.start()
        try:
            yield lambda: tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()


def chain(count):
    """A program of so many ops on a large array."""

    def program(x):
        for k in range(count):
            x = x + numpy_function(lambda v, k=k: v[:1] * k, [x], F, output_shapes=(1,))
        return x

    return jax.jit(program)


def test_ops_share_their_scratch_arrays():
    with bounded(32 * MB) as held:
        jax.block_until_ready(chain(6)(jnp.ones(MB)))
        assert X <= held() < 2 * X + MB


def test_programs_and_shapes_share_one_bound():
    op = lambda x: numpy_function(lambda v: v[:1], [x], F, output_shapes=(1,))
    f = jax.jit(lambda x: sum(op(x[k:]) for k in range(7)))
    with bounded(18 * MB) as held:
        jax.block_until_ready(f(jnp.ones(MB + 7)))
        assert 15 * MB < held() <= 18 * MB + NEARLY
        jax.block_until_ready(chain(1)(jnp.ones(2 * MB)))
        assert held() <= 18 * MB + NEARLY


def test_the_oldest_goes_first():
    f, x, y = chain(1), jnp.ones(MB), jnp.ones(2 * MB)
    with bounded(10 * MB) as held:
        for a, kept in [(x, X), (y, 2 * X), (x, X)]:
            jax.block_until_ready(f(a))
            assert kept <= held() < kept + NEARLY


def test_what_was_used_again_is_not_the_oldest():
    where = []
    f = jax.jit(lambda x: numpy_function(lambda v: where.append(v.ctypes.data), [x], None))
    x, y, z = (jnp.ones(MB + k) for k in range(3))
    with bounded(9 * MB):
        for a in (x, y, x, z, x):
            f(a)
            jax.effects_barrier()
    assert where[0] == where[2] == where[4]


def test_what_is_larger_than_the_bound_is_not_kept():
    f = chain(1)
    with bounded(5 * MB) as held:
        jax.block_until_ready(f(jnp.ones(MB)))
        jax.block_until_ready(f(jnp.ones(2 * MB)))
        assert X <= held() < X + NEARLY


def test_a_smaller_bound_frees_at_once():
    with bounded(8 * MB) as held:
        jax.block_until_ready(chain(1)(jnp.ones(MB)))
        assert held() >= X
        with jaxpyop.config.override(max_scratch_bytes=MB):
            assert held() < NEARLY


@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_memory_of_large_inputs_is_used_again(api):
    where = []
    body = lambda v: where.append(v.unsafe_buffer_pointer() if api is py_function else v.ctypes.data)
    f = jax.jit(lambda x: api(body, [x], None, stateful=True))
    x = jnp.ones(2 * MB)
    with bounded(32 * MB) as held:
        for _ in range(6):
            f(x)
            jax.effects_barrier()
        assert held() < 3 * x.nbytes
    assert len(set(where)) <= 2


@pytest.mark.filterwarnings("ignore:Setting the dtype:DeprecationWarning")
@pytest.mark.parametrize("change", [lambda v: setattr(v, "dtype", np.int32), lambda v: v.setflags(write=False)])
def test_an_array_that_was_changed_in_place_suits_the_next_op(change):
    kinds = []

    def body(v):
        kinds.append((v.dtype, v.flags.carray))
        change(v)
        return np.float32(0)

    f = jax.jit(lambda x: numpy_function(body, [x], F, output_shapes=()))
    with jaxpyop.config.override(max_scratch_bytes=8 * MB):
        for x in (jnp.ones(MB), jnp.ones(MB, jnp.int32), jnp.ones(MB)):
            jax.block_until_ready(f(x))
    assert kinds == [(np.float32, True), (np.int32, True), (np.float32, True)]


def test_memory_that_is_in_use_is_never_used_again():
    kept = []
    f = jax.jit(lambda x: py_func(lambda v: v, [x], F))
    g = lambda k: py_function(lambda v: np.full(2 * MB, float(v), np.float32), [k], F)
    with jaxpyop.config.override(max_scratch_bytes=20 * MB):  # space for two
        for k in range(6):
            kept.append(g(float(k)))
            jax.block_until_ready(f(kept[-1]))
            if k % 2:
                kept.pop(0)
    assert [range_of(y) for y in kept] == [(k, k) for k in (3, 4, 5)]

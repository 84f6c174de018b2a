"""The arrays into which large inputs are copied: shared by all programs, and bounded in bytes."""

from __future__ import annotations

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host import SCRATCH
from tests.shared.util import numpy_function, run_python

F = jnp.float32
MB = 2**20
EXTRA = 64  # more bytes of memory than the array has, so that it can be aligned


@pytest.fixture(autouse=True)
def empty():
    with jaxpyop.config.override(max_scratch_bytes=1):
        yield


def _ops(count):
    def program(x):
        for k in range(count):
            x = x + numpy_function(lambda v, k=k: v[:1] * k, [x], F, output_shapes=(1,))
        return x

    return jax.jit(program)


def test_ops_share_their_scratch_arrays():
    with jaxpyop.config.override(max_scratch_bytes=32 * MB):
        f, x = _ops(20), jnp.ones(MB)
        tracemalloc.start()
        try:
            jax.block_until_ready(f(x))
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 2 * x.nbytes + MB
        assert 0 < SCRATCH.nbytes <= 2 * (x.nbytes + EXTRA)


def test_programs_and_shapes_share_one_bound():
    with jaxpyop.config.override(max_scratch_bytes=18 * MB):
        for k in range(1, 12):
            jax.block_until_ready(_ops(1)(jnp.ones(MB + k)))
            assert SCRATCH.nbytes <= 18 * MB
        assert SCRATCH.nbytes > 14 * MB


def test_the_oldest_goes_first():
    small, large = _ops(1), _ops(1)
    with jaxpyop.config.override(max_scratch_bytes=10 * MB):
        x, y = jnp.ones(MB), jnp.ones(2 * MB)
        for f, a in [(small, x), (large, y), (small, x)]:
            jax.block_until_ready(f(a))
        assert SCRATCH.nbytes == x.nbytes + EXTRA


def test_what_is_larger_than_the_bound_is_not_kept():
    with jaxpyop.config.override(max_scratch_bytes=5 * MB):
        jax.block_until_ready(_ops(1)(jnp.ones(MB)))
        jax.block_until_ready(_ops(1)(jnp.ones(2 * MB)))
        assert SCRATCH.nbytes == 4 * MB + EXTRA


def test_a_smaller_bound_frees_at_once():
    with jaxpyop.config.override(max_scratch_bytes=8 * MB):
        jax.block_until_ready(_ops(1)(jnp.ones(MB)))
        assert SCRATCH.nbytes == 4 * MB + EXTRA
        with jaxpyop.config.override(max_scratch_bytes=MB):
            assert SCRATCH.nbytes == 0


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


def test_the_bound_is_a_setting_that_doctor_shows():
    code = """
import sys, jax, jax.numpy as jnp, jaxpyop
from jaxpyop._cli.doctor import report
f = jax.jit(lambda x: jaxpyop.numpy_function(lambda v: v, [x], jnp.float32))
f(jnp.ones(2**20)).block_until_ready()
print(report())
"""
    shown = " ".join(run_python(code, JAXPYOP_MAX_SCRATCH_BYTES="5000000").stdout.split())
    assert "4194368 bytes kept for the next calls (at most 5000000)" in shown
    assert "max_scratch_bytes 5000000" in shown

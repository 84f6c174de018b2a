"""Without Python's global lock, reference counts do not tell whether memory is free: functions get copies."""

import jax
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host import memory

BIG = np.arange(1 << 21, dtype=np.float32)
SHAPE = jax.ShapeDtypeStruct(BIG.shape, BIG.dtype)


@pytest.fixture
def free_threads(monkeypatch):
    monkeypatch.setattr(memory, "COUNTS_ARE_EXACT", False)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"copy": False}, {"out": True}, {"copy": False, "out": True}], ids=str)
def test_what_a_function_keeps_stays_as_it_was(free_threads, how):
    """No warning says that it kept what was lent, because nothing is lent."""
    kept = []

    def keeping(x, out=None):
        kept.extend([x] if out is None else [x, out])
        return np.multiply(x, 2, out=out)

    op = lambda x: jaxpyop.numpy_function(keeping, [x], SHAPE, **how)
    program = jax.jit(op)
    for call in (program, op):
        kept.clear()
        np.testing.assert_array_equal(call(BIG), BIG * 2)
        before = [array.copy() for array in kept]
        for k in range(3):
            jax.block_until_ready(call(BIG + k + 1))
        for array, was in zip(kept, before, strict=False):
            np.testing.assert_array_equal(array, was)
        assert not any(np.shares_memory(a, b) for i, a in enumerate(kept) for b in kept[:i])


def test_memory_is_not_used_again(free_threads):
    scratch = memory.Scratch(1 << 30)
    first = scratch.copy_of(BIG)
    del first
    scratch.copy_of(BIG)
    assert scratch.nbytes == 0

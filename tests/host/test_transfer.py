"""NumPy's values become jax.Arrays that share memory with nobody, however they lie and however large they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host import SCRATCH
from tests.shared.util import numpy_function, py_func, py_function

F = jnp.float32
SIZES = {"scalar": (), "small": (5,), "medium": (70_000,), "large": (1_500_000,)}
every_size = pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)


def _at(shape, offset):
    """An array of zeros that lies so many bytes after a multiple of 64, where XLA takes memory over."""
    nbytes = int(np.prod(shape)) * 4
    memory = np.zeros(nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + nbytes].view(np.float32).reshape(shape)


@pytest.mark.parametrize("offset", [0, 16, 4])
@pytest.mark.parametrize("api", [py_function, numpy_function])
@every_size
def test_a_result_is_not_the_bodys_buffer(shape, api, offset, route):
    buffer = _at(shape, offset)

    def body(k):
        buffer[...] = np.asarray(k)
        return buffer

    f = (jax.jit if route.jit else lambda f: f)(lambda k: api(body, [k], F, output_shapes=shape))
    results = [jax.block_until_ready(f(jnp.float32(k))) for k in range(4)]
    buffer[...] = -1
    assert [(float(y.min()), float(y.max())) for y in results] == [(k, k) for k in range(4)]


@pytest.mark.parametrize("count", [1, 3])
@every_size
def test_inputs_that_a_body_keeps_share_no_memory(shape, count, route):
    kept = []

    def body(*xs):
        kept.append(xs)
        return xs[0]

    program = lambda *xs: py_function(body, list(xs), F, stateful=True, output_shapes=shape)
    f = jax.jit(program) if route.jit else program
    for k in range(6):
        jax.block_until_ready(f(*(jnp.full(shape, 10 * k + j, F) for j in range(count))))
    for k, xs in enumerate(kept):
        assert [(float(x.min()), float(x.max())) for x in xs] == [(10 * k + j,) * 2 for j in range(count)]


@every_size
def test_a_callers_array_may_change_after_a_direct_call(shape):
    x, kept = _at(shape, 0), []
    for k in range(4):
        x[...] = k
        py_function(lambda v: kept.append(v + 0), [x], None)
        x[...] = -1
    assert [(float(v.min()), float(v.max())) for v in kept] == [(k, k) for k in range(4)]


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint32, jnp.bfloat16, np.complex64], ids=lambda d: np.dtype(d).name
)
@every_size
def test_dtypes_and_mixed_inputs(shape, dtype, route):
    x, y = jnp.ones(shape, dtype), jnp.arange(3.0)
    out = route(lambda x, y: py_function(lambda x, y: (x, y), [x, y], (dtype, F), output_shapes=(shape, (3,))), x, y)
    assert out[0].dtype == dtype
    assert (np.asarray(out[0]) == np.ones(shape, dtype)).all()
    np.testing.assert_array_equal(out[1], [0, 1, 2])


def test_inputs_without_jit():
    with jax.disable_jit():
        seen = []
        jax.vmap(lambda x: py_function(lambda v: seen.append(v), [x], None))(jnp.arange(2.0))
    assert [type(v) for v in seen] == [type(jnp.zeros(()))] * 2


def test_memory_of_large_inputs_is_used_again():
    where = []
    f = jax.jit(lambda x: py_function(lambda v: where.append(v.unsafe_buffer_pointer()), [x], None))
    with jaxpyop.config.override(max_scratch_bytes=1):
        assert SCRATCH.nbytes == 0
    x = jnp.ones(2_000_000)
    for _ in range(8):
        f(x)
        jax.effects_barrier()
    assert len(set(where)) <= 2
    assert x.nbytes <= SCRATCH.nbytes < 3 * x.nbytes
    with jaxpyop.config.override(max_scratch_bytes=1):
        assert SCRATCH.nbytes == 0


def test_memory_that_is_in_use_is_never_used_again():
    kept = []
    f = jax.jit(lambda x: py_func(lambda v: v, [x], F))
    g = lambda k: py_function(lambda v: np.full(2_000_000, float(v), np.float32), [k], F)
    with jaxpyop.config.override(max_scratch_bytes=20_000_000):  # room for two
        for k in range(6):
            kept.append(g(float(k)))
            jax.block_until_ready(f(kept[-1]))
            if k % 2:
                kept.pop(0)
    assert sorted({float(v) for y in kept for v in (y.min(), y.max())}) == [3.0, 4.0, 5.0]


def test_a_direct_call_of_a_new_shape_compiles_nothing(caplog):
    """The inputs are NumPy arrays of shapes that no other test has."""
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for n in range(1511, 1515):
            x = np.ones((n, 3), np.float32)
            assert py_function(lambda x: x, [x], jnp.float32).shape == x.shape
            assert numpy_function(lambda x: x, [x], jnp.float32).shape == x.shape
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")] == []

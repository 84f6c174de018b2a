"""How arrays travel between JAX and the function: without copies where that is promised, and compiling nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.arrays.memory import LARGE, MEDIUM, F, address, direct_and_compiled
from tests.shared.functions import dtype_id, numpy_function, py_function


def test_nothing_is_copied_with_out_and_without_copies():
    seen = []

    def body(x, out):
        seen.extend(address(a) for a in (x, out))

    x = jnp.ones(LARGE)
    y = jax.jit(lambda x: numpy_function(body, [x], F, out=True, copy=False))(x)
    assert seen == [x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]


@pytest.mark.parametrize("dtype", [np.bool_, jnp.bfloat16, np.complex64], ids=dtype_id)
@direct_and_compiled
def test_dtypes_and_mixed_inputs(compiled, dtype):
    x, y = jnp.ones(MEDIUM, dtype), jnp.arange(3.0)
    op = lambda x, y: py_function(lambda x, y: (x, y), [x, y], (dtype, F), output_shapes=((MEDIUM,), (3,)))
    out = compiled(op)(x, y)
    assert out[0].dtype == dtype
    assert (np.asarray(out[0]) == np.asarray(x)).all()
    np.testing.assert_array_equal(out[1], [0, 1, 2])


def test_a_py_function_gets_jax_arrays_without_jit():
    seen = []
    with jax.disable_jit():
        jax.vmap(lambda x: py_function(lambda v: seen.append(v), [x], None))(jnp.arange(2.0))
    assert [type(v) for v in seen] == [type(jnp.zeros(()))] * 2


def test_a_direct_call_of_a_new_shape_compiles_nothing(caplog):
    """The inputs are NumPy arrays of shapes that no other test has."""
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for n in range(1511, 1515):
            x = np.ones((n, 3), np.float32)
            assert py_function(lambda x: x, [x], F).shape == x.shape
            assert numpy_function(lambda x: x, [x], F).shape == x.shape
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")] == []


@pytest.mark.parametrize("transport", ["auto", "callback"])
def test_a_report_counts_the_bytes(transport):
    with jaxpyop.config.override(transport=transport), jaxpyop.report() as report:
        jax.jit(lambda x: numpy_function(np.sum, [x], F(0)))(jnp.ones(100)).block_until_ready()
    (row,) = report.rows()
    assert (row["route"], row["bytes_in"], row["bytes_out"]) == ({"auto": "buffer"}.get(transport, transport), 400, 4)

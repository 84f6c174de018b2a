"""How arrays travel between JAX and the function: without copies where that is promised, and compiling nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.arrays.memory import LARGE, MEDIUM, F, address, direct_and_compiled
from tests.shared.functions import dtype_id, numpy_function, py_function


def test_nothing_is_copied_with_out_and_without_copies():
    seen = []

    def body(x, out):
        seen.extend(address(a) for a in (x, out))

    x = jnp.ones(LARGE)
    y = jax.jit(lambda x: numpy_function(body, [x], F, out=True, copy=False))(x)
    assert seen == [x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]


@pytest.mark.parametrize("dtype", [np.bool_, jnp.bfloat16], ids=dtype_id)
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
        for n in range(1511, 1514):
            for api in (py_function, numpy_function):
                assert api(lambda x: x, [np.ones((n, 3), np.float32)], F).shape == (n, 3)
    assert not [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]

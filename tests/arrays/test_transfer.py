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

"""How arrays travel between JAX and the function: without copies where that is promised, and compiling nothing."""

import jax
import jax.numpy as jnp

from tests.arrays.memory import LARGE, F, address
from tests.shared.functions import numpy_function


def test_nothing_is_copied_with_out_and_without_copies():
    seen = []

    def body(x, out):
        seen.extend(address(a) for a in (x, out))

    x = jnp.ones(LARGE)
    y = jax.jit(lambda x: numpy_function(body, [x], F, out=True, copy=False))(x)
    assert seen == [x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]

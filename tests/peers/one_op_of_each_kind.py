"""Imports jaxpyop and uses one op of each kind, as a plugin of pytest for the tests of others."""

import contextlib

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
import pytest

F = jnp.float32
ROWS = np.arange(3, dtype=np.float32)


def use():
    """Make every change that jaxpyop makes to JAX's tables."""
    stateful = lambda x, **how: jaxpyop.numpy_function(np.negative, [x], F, stateful=True, **how)
    fun = lambda x: jaxpyop.py_function(lambda x: x * jnp.sin(x), [x], F)
    jax.block_until_ready([jax.jit(jax.vmap(jax.grad(fun)))(ROWS), jaxpyop.jit(fun)(1.0), fun(1.0)])
    jax.block_until_ready(
        jax.jit(lambda x: jaxpyop.py_function(lambda x: x if x > 0 else -x, [x], F, mode="auto"))(1.0)
    )
    jax.block_until_ready([jax.jit(stateful)(1.0), jax.jit(lambda x: stateful(x, ordered=True))(1.0)])
    jax.jvp(stateful, (1.0,), (1.0,))
    with contextlib.suppress(Exception):
        jax.block_until_ready(jax.jit(lambda x: jaxpyop.numpy_function(lambda x: 1 / 0, [x], F))(1.0))
    jax.effects_barrier()
    jax.clear_caches()
    assert all(map(jaxpyop._jaxcore.is_made, jaxpyop._jaxcore.CHANGES))


@pytest.fixture(scope="session", autouse=True)
def _used():
    # Not when the plugin is loaded: JAX's tests set flags before the first operation.
    use()

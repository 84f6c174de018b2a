"""What random programs found: each test is named for the promise that was broken."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from util import SMALL_DTYPES, dtype_id, numpy_function, py_function

import jaxpyop

F = jnp.float32

# NumPy's own dtypes are not among them: ml_dtypes take a scalar from a number alone.
BATCHES = {
    "vmap": jax.vmap,
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).astype(F).sum()),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
}


@pytest.mark.parametrize("dtype", [d for d in SMALL_DTYPES if np.dtype(d).kind == "V"], ids=dtype_id)
@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_a_batch_of_scalars_of_any_dtype(dtype, method, transport):
    x = jnp.array([1.0, 0.5, 2.0]).astype(dtype)
    op = lambda x: py_function(lambda x: x, [x], dtype, vmap_method=method)
    got = jax.jit(jax.vmap(op))(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(F), x.astype(F))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=dtype_id)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_gradients_of_a_batch_of_narrow_scalars(batch, dtype, route):
    x = jnp.array([1.0, 0.5, 2.0], dtype)
    op = lambda x: py_function(lambda x: x * x, [x], dtype, output_shapes=())
    got = route(batch(op), x)
    np.testing.assert_array_equal(np.asarray(got, np.float32), batch(lambda x: x * x)(x).astype(F))


OPS = {
    "eager": lambda x: py_function(lambda x: jnp.sin(x), [x], F),
    "traced": lambda x: py_function(lambda x: jnp.sin(x), [x], F, mode="traced"),
    "stateful": lambda x: py_function(lambda x: jnp.sin(x), [x], F, stateful=True),
    "numpy_function": lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c[0]),
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_gradient_of_a_python_number_is_weakly_typed_as_jaxs_is(op, route):
    """So that `p - 0.1 * grad` of a bfloat16 model does not become float32."""
    got = route(jax.grad(op), 2.0)
    assert got.weak_type is jax.grad(jnp.sin)(2.0).weak_type is True
    np.testing.assert_allclose(got, np.cos(2.0), rtol=1e-6)
    assert not route(jax.grad(op), F(2.0)).weak_type
    assert not route(op, 2.0).weak_type


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_block_without_the_batchs_axis_says_so(method, route):
    """Each element's shape was right: writing it as output_shapes= would not help."""
    f = jax.vmap(lambda x: numpy_function(lambda x: np.ones((1, 3)), [x], F, vmap_method=method, output_shapes=(3,)))
    with (
        pytest.raises(ValueError, match=r"shape \(1, 3\) where \(2, 3\).*each element, with \(2,\) in front") as caught,
        jaxpyop.reraise(),
    ):
        route(f, jnp.ones((2, 3)))
    assert "write output_shapes" not in str(caught.value)

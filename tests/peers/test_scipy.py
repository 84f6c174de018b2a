"""A special function of SciPy, a ufunc with a gradient rule, and a scikit-learn model in a compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.peers.library import assert_near, library
from tests.shared.checks import Counter

pytestmark = pytest.mark.slow


def jv_vjp(inputs, outputs, cotangents):
    order, x = inputs
    return None, cotangents[0] * library("scipy.special").jvp(order, x)


X = np.linspace(0.1, 2.7, 5, dtype=np.float32)


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all", "parallel"])
def test_a_bessel_function(method):
    special = library("scipy.special")
    calls = Counter(special.jv)
    op = jaxpyop.numpy_function(Tout=jnp.float32, vjp=jv_vjp, vmap_method=method)(calls)
    f = jax.vmap(jax.value_and_grad(lambda x: op(2.0, x)))
    wanted = special.jv(2.0, X), (special.jv(1.0, X) - special.jv(3.0, X)) / 2
    for g in (f, jax.jit(f)):
        assert_near(g(jnp.asarray(X)), wanted, rtol=1e-4)
    assert calls.count == 2 * (5 if method in ("sequential", "parallel") else 1)


def test_a_scikit_learn_model():
    """Fitted on the host, it predicts in a compiled program, once for a whole batch."""
    linear_model = library("sklearn.linear_model")
    features = np.random.default_rng(0).normal(size=(20, 3))
    model = linear_model.LinearRegression().fit(features, features @ [1.0, -2.0, 3.0] + 4)
    predict = Counter(lambda rows: model.predict(rows).astype(np.float32))
    op = lambda row: jaxpyop.numpy_function(predict, [row], jnp.float32(0), vmap_method="expand_dims")
    rows = jnp.asarray(features[:5], jnp.float32)
    assert_near(jax.jit(jax.vmap(op))(rows), rows @ jnp.array([1.0, -2.0, 3.0]) + 4, rtol=1e-4)
    assert predict.count == 1

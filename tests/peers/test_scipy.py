"""SciPy's special functions, as ufuncs with gradient rules, and a scikit-learn model in a compiled program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import betainc

import jaxpyop
from tests.peers.library import assert_near, library
from tests.shared.checks import Counter

pytestmark = pytest.mark.slow


def jv_vjp(inputs, outputs, cotangents):
    order, x = inputs
    special = library("scipy.special")
    return None, cotangents[0] * (special.jv(order - 1, x) - special.jv(order + 1, x)) / 2


def betainc_vjp(inputs, outputs, cotangents):
    a, b, x = inputs
    return None, None, cotangents[0] * x ** (a - 1) * (1 - x) ** (b - 1) / library("scipy.special").beta(a, b)


def bessel(x):
    special = library("scipy.special")
    return special.jv(2.0, x), special.jvp(2.0, x)


# The derivative of a function by its last argument, that argument, the ones before it, and
# value and slope of what it is compared with.
X = np.linspace(0.1, 0.9, 5, dtype=np.float32)
SPECIAL = {
    "jv": (jv_vjp, (2.0,), 3 * X, bessel),
    "betainc": (betainc_vjp, (1.5, 2.5), X, jax.vmap(jax.value_and_grad(lambda x: betainc(1.5, 2.5, x)))),
}


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all", "parallel"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name, method):
    vjp, before, x, expected = SPECIAL[name]
    function = getattr(library("scipy.special"), name)
    op = jaxpyop.numpy_function(Tout=jnp.float32, vjp=vjp, vmap_method=method)(function)
    f = jax.vmap(jax.value_and_grad(lambda x: op(*before, x)))
    values, slopes = expected(x)
    for g in (f, jax.jit(f)):
        assert_near(g(jnp.asarray(x)), (np.asarray(values), np.asarray(slopes)), rtol=1e-4)


def test_a_ufunc_is_called_once_per_batch():
    special = library("scipy.special")
    calls = Counter(special.jv)
    op = jaxpyop.numpy_function(Tout=jnp.float32, vmap_method="expand_dims")(calls)
    assert_near(jax.jit(jax.vmap(lambda x: op(2.0, x)))(X), special.jv(2.0, X))
    assert calls.count == 1


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

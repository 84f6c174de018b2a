"""Gradients of inputs and results of all kinds: dtypes, pytrees, keys, integers, unused ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import py_function
from tests.gradients.bodies import X3, F
from tests.shared.checks import close, trees_close

X = jnp.asarray(X3)


@pytest.mark.slow
def test_pytrees():
    def body(params, batch, scale=1.0):
        y = batch["x"] * params["w"] + params["b"]
        return {"loss": jnp.sum(y * y) * scale, "y": y}

    params = {"w": jnp.full(3, 0.3), "b": jnp.array([0.1, -0.2, 0.0])}
    batch = {"x": X, "name": "train"}
    op = lambda p: py_function(body, [p, batch], {"loss": F, "y": F}, output_shapes={"loss": (), "y": (3,)})
    loss = lambda f: lambda p: f(p)["loss"] + f(p)["y"].sum()
    wanted = jax.grad(loss(lambda p: body(p, batch)))(params)
    trees_close(jax.grad(loss(op))(params), wanted)


@pytest.mark.parametrize("others", [[(1,)], pytest.param([(2,), (0, 2), (1, 2), ()], marks=pytest.mark.slow)])
def test_unused_results(others):
    """Their cotangents are not mistaken for those of the others, also when the pullback of another one is compiled."""
    body = lambda x: (x * x, 2 * x, x * x * x)
    x, slopes = jnp.float32(0.3), (0.6, 2.0, 0.27)
    op = lambda x: py_function(body, [x], [F] * 3)
    for used in [(0,)] * 5 + others:
        loss = lambda x: sum((op(x)[k] for k in used), x)  # noqa: B023
        close(jax.grad(loss)(x), sum(slopes[k] for k in used) + 1)


def test_some_of_several_inputs():
    op = lambda x, y, z: py_function(lambda x, y, z: x * y * y, [x, y, z], F, output_shapes=(3,)).sum()
    close(jax.grad(op, 1)(X, X + 1, X), 2 * X * (X + 1))
    trees_close(jax.grad(op, (2, 0))(X, X + 1, X), (jnp.zeros(3), (X + 1) ** 2))
    along_y = jax.jvp(lambda y: py_function(lambda x, y: (x * x, x * y), [X, y], [F, F]), (X,), (X + 1,))[1]
    trees_close(along_y, [jnp.zeros(3), X * (X + 1)])


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_floats_of_other_widths():
    op = lambda x: py_function(lambda x: x * x * x, [x], jnp.float64, output_shapes=())
    got = jax.jit(jax.grad(op))(jnp.float64(0.3))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, 3 * 0.3**2, rtol=1e-14)
    assert jax.grad(lambda x: py_function(lambda x: x.astype(jnp.float64) * 2, [x], F))(F(0.3)).dtype == F


def test_a_result_that_is_cast_to_tout_keeps_its_gradient():
    op = lambda x: py_function(lambda x: x.astype(jnp.float16) * 2, [x], F, output_shapes=(3,))
    close(jax.grad(lambda x: op(x).sum())(X), [2, 2, 2])


# What a function returns, and its gradient.
RETURNED = {
    "its input": (lambda x: x, 1),
    "a constant": (lambda x: jnp.ones(3), 0),
    "a list": (lambda x: [x[0], 2 * x[0], 0], [3, 0, 0]),
}


@pytest.mark.parametrize(("body", "slope"), RETURNED.values(), ids=RETURNED)
def test_what_a_function_may_return(body, slope):
    close(jax.grad(lambda x: py_function(body, [x], F, output_shapes=(3,)).sum())(X), np.broadcast_to(slope, (3,)))

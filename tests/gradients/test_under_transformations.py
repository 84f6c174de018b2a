"""How often a function runs in differentiated programs. Their values are in tests/routes and the other files here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop import py_function
from tests.gradients.bodies import TRANSFORMS, X3, F, clip_gradient
from tests.shared.checks import Counter, trees_close
from tests.shared.tables import rows

X = jnp.asarray(X3)


def plain(x):
    return x * x * x


# ----------------------------------------------------------------- how often


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_function_runs_once_for_each_differentiated_step(transform):
    body = Counter(lambda x: x * x * x)
    f = transform(jax.value_and_grad(lambda x: py_function(body, [x], F, output_shapes=(3,)).sum()))
    for k in range(1, 4):
        got = jax.block_until_ready(f(X * k))
        trees_close(got, (np.sum((X * k) ** 3), 3 * (X * k) ** 2))
        assert [float(x[0]) for (x,) in body.seen] == [0.5 * i for i in range(1, k + 1)]


def scan_of(f, x):
    return lax.scan(lambda c, _: (f(c), None), x, None, length=4)[0]


HOW_OFTEN = {
    "a pullback that is called three times": (lambda f, x: list(map(jax.vjp(f, x)[1], [x, x, x])), 1),
    "scan that is pulled back twice": (lambda f, x: list(map(jax.vjp(lambda x: scan_of(f, x), x)[1], [x, x])), 4),
    "vmap": (lambda f, x: jax.jacrev(jax.vmap(f))(jnp.stack([x, x])), 2),
    "checkpoint": (lambda f, x: jax.grad(lambda x: jax.checkpoint(f)(x).sum())(x), 1),
}


OFTEN_FAST = ["a pullback that is called three times", "scan that is pulled back twice", "checkpoint"]


@pytest.mark.parametrize("name", rows(HOW_OFTEN, OFTEN_FAST))
def test_how_often_a_function_runs(name):
    (program, runs), body = HOW_OFTEN[name], Counter(plain)
    jax.block_until_ready(program(lambda x: py_function(body, [x], F, output_shapes=(3,)), X))
    assert body.count == runs


@pytest.mark.slow
def test_forward_mode_through_a_backward_pass_that_is_not_linear():
    """JAX has no forward mode of a custom_vjp function at all."""
    op = lambda x: py_function(lambda x: jnp.sum(clip_gradient(0.5, x) * x), [x], F, output_shapes=())
    x = jnp.array([0.1, 2.9])
    with pytest.raises(TypeError, match=r"which is not linear; put jax.jit around.*jacrev"):
        jax.jacfwd(op)(x)

"""Second and higher derivatives of a `py_function`, which follow the path that it took.

Those of functions with rules are in rules/test_second_derivatives.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import py_function
from tests.gradients.bodies import X3, F
from tests.shared.checks import close, trees_close
from tests.shared.tables import rows

X = jnp.asarray(X3)


def halved(x):
    while jnp.sum(x * x) > 1:
        x = x / 2
    return x * x * x


BODIES = {
    "float": (lambda x: x * x * x if float(x[0]) > 0 else x, lambda x: x**3),
    "while": (halved, lambda x: (x / 4) ** 3),
    "relu": (lambda x: jax.nn.relu(x) * x, lambda x: jax.nn.relu(x) * x),
    "cond inside": (lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), jnp.sin),
    "an op inside": (lambda x: py_function(jnp.sin, [x], F) * x, lambda x: jnp.sin(x) * x),
}


def total(f):
    return lambda x: jnp.sum(f(x) * jnp.arange(1.0, 4.0))


DERIVATIVES = {
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(total(f))(x) ** 2)),
    "hessian": lambda f: jax.hessian(total(f)),
    "jvp of grad": lambda f: lambda x: jax.jvp(jax.grad(total(f)), (x,), (x + 1,))[1],
    "reverse over forward": lambda f: jax.grad(lambda x: jax.jvp(total(f), (x,), (jnp.ones(3),))[1]),
    "forward over forward": lambda f: jax.jacfwd(lambda x: jax.jvp(total(f), (x,), (x,))[1]),
    "third": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(jax.grad(total(f))(x)))(x))),
    "of a batch": lambda f: lambda x: jax.vmap(jax.grad(jax.grad(lambda s: jnp.sum(f(s * x)))))(jnp.array([1.0, 0.95])),
    "compiled": lambda f: jax.jit(DERIVATIVES["grad of grad"](f)),
}
ROWS = [(body, derivative) for body in ("float", "while") for derivative in DERIVATIVES]
ROWS += [
    (body, derivative) for body in ("relu", "cond inside", "an op inside") for derivative in ("hessian", "compiled")
]


@pytest.mark.parametrize(("body", "derivative"), rows(ROWS, [("float", "reverse over forward")]))
def test_equal_to_jax(body, derivative):
    (body, path), derive = BODIES[body], DERIVATIVES[derivative]
    f = lambda x: py_function(body, [x], F, output_shapes=(3,))
    np.testing.assert_allclose(derive(f)(X), jax.jit(derive(path))(X), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["direct", "compiled"])
def test_a_pullback_that_is_a_constant_still_finds_its_record(transform):
    """The function is then differentiated in an input of which its pullback knows nothing."""

    def derivative(f):
        def through_the_result(y):
            result, pull = jax.vjp(lambda x: f(x, y), jnp.float32(0.7))
            return result * jax.lax.stop_gradient(pull)(result)[0]

        return transform(jax.value_and_grad(through_the_result))(jnp.float32(1.3))

    product = lambda x, y: jnp.sin(x) * y**2
    trees_close(derivative(lambda x, y: py_function(product, [x, y], F)), derivative(product))


@pytest.mark.slow
def test_a_stateful_function_has_no_second_derivative():
    """The second derivative would run it again."""
    f = lambda x: py_function(lambda x: x * x * x, [x], F, output_shapes=(), stateful=True)
    close(jax.grad(f)(2.0), 12.0)
    for derivative in (jax.grad(jax.grad(f)), jax.jacfwd(jax.grad(f))):
        with pytest.raises(Exception, match=r"second derivative.*stateful"):
            derivative(2.0)

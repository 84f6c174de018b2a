"""Second and higher derivatives of a `py_function`, which follow the path that it took.

Those of functions with rules are in rules/test_second_derivatives.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import py_function
from tests.shared.checks import close

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])


def cubed(x):
    return x * x * x if float(x[0]) > 0 else x


def halved(x):
    while jnp.sum(x * x) > 1:
        x = x / 2
    return x * x * x


BODIES = {
    "float": (cubed, lambda x: x**3),
    "while": (halved, lambda x: (x / 4) ** 3),
    "relu": (lambda x: jax.nn.relu(x) * x, lambda x: jax.nn.relu(x) * x),
    "matrix": (lambda x: jnp.outer(x, x) @ jnp.tanh(x), lambda x: jnp.outer(x, x) @ jnp.tanh(x)),
    "cond inside": (lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), jnp.sin),
    "an op inside": (lambda x: py_function(jnp.sin, [x], F) * x, lambda x: jnp.sin(x) * x),
}


def total(f):
    return lambda x: jnp.sum(f(x) * jnp.arange(1.0, 4.0))


DERIVATIVES = {
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(total(f))(x) ** 2)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(total(f))),
    "hessian": lambda f: jax.hessian(total(f)),
    "jvp of grad": lambda f: lambda x: jax.jvp(jax.grad(total(f)), (x,), (x + 1,))[1],
    "reverse over forward": lambda f: jax.grad(lambda x: jax.jvp(total(f), (x,), (jnp.ones(3),))[1]),
    "forward over forward": lambda f: jax.jacfwd(lambda x: jax.jvp(total(f), (x,), (x,))[1]),
    "third": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(jax.grad(total(f))(x)))(x))),
    "of a batch": lambda f: jax.vmap(jax.grad(lambda s: jax.grad(lambda s: jnp.sum(f(s * X)))(s))),
}
ROWS = [(body, derivative) for body in BODIES for derivative in DERIVATIVES]
FAST = [("float", name) for name in ("jvp of grad", "reverse over forward", "third", "grad of grad")]
FAST += [("while", "jvp of grad"), ("an op inside", "jvp of grad")]


@pytest.mark.parametrize(
    ("body", "derivative"), [pytest.param(*row, marks=[] if row in FAST else pytest.mark.slow) for row in ROWS]
)
def test_equal_to_jax(body, derivative):
    body, path = BODIES[body]
    derive = DERIVATIVES[derivative]
    f = lambda x: py_function(body, [x], F, output_shapes=(3,))
    np.testing.assert_allclose(derive(f)(X), jax.jit(derive(path))(X), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("body", [b if b == "float" else pytest.param(b, marks=pytest.mark.slow) for b in BODIES])
def test_compiled(body):
    body, path = BODIES[body]
    derivative = DERIVATIVES["grad of grad"]
    f = lambda x: py_function(body, [x], F, output_shapes=(3,))
    np.testing.assert_allclose(jax.jit(derivative(f))(X), jax.jit(derivative(path))(X), rtol=2e-4, atol=1e-4)


def mixed(x, y, z):
    return x**3 * y * z**2 + jax.scipy.special.gammainc(y, x * z)


INPUTS = [(0, 1), (0, 2), (2, 0), (0, 0), (2, 1)]
MODES = [(a, b) for a in (jax.grad, jax.jacfwd) for b in (jax.grad, jax.jacfwd)]


@pytest.mark.slow
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["direct", "jit"])
@pytest.mark.parametrize(("first", "then"), INPUTS)
@pytest.mark.parametrize(("outer", "inner"), MODES, ids=lambda d: d.__name__)
def test_mixed_derivatives_in_different_inputs(first, then, inner, outer, transform):
    """What moves in one order need not move in the other; gammainc has no second derivative in y."""
    op = lambda *inputs: py_function(mixed, list(inputs), F, output_shapes=())
    inputs = (F(0.7), F(1.3), F(0.9))
    derivative = lambda f: outer(inner(f, first), then)
    for _ in range(3):
        got = transform(derivative(op))(*inputs)
        np.testing.assert_allclose(got, derivative(mixed)(*inputs), rtol=1e-3)


def test_a_mixed_derivative_of_a_product():
    op = lambda *inputs: py_function(lambda x, y, z: x * y * z, list(inputs), F, output_shapes=())
    for (outer, inner), (first, then) in zip(MODES, INPUTS[:4]):
        wanted = {(0, 1): 5.0, (0, 2): 3.0, (2, 0): 3.0, (0, 0): 0.0}[first, then]
        assert outer(inner(op, first), then)(F(2), F(3), F(5)) == wanted


def test_a_stateful_function_has_no_second_derivative():
    """The second derivative would run it again."""
    f = lambda x: py_function(lambda x: x * x * x, [x], F, output_shapes=(), stateful=True)
    close(jax.grad(f)(2.0), 12.0)
    for derivative in (jax.grad(jax.grad(f)), jax.jacfwd(jax.grad(f))):
        with pytest.raises(Exception, match=r"second derivative.*stateful"):
            derivative(2.0)

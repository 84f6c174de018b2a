"""What people build on callbacks, with the rules that it needs; each against JAX's own or an exact derivative."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import numpy_function
from tests.shared.checks import Counter

pytestmark = pytest.mark.slow

F = jnp.float32
X = jnp.array([0.5, 1.25, 2.0])


either = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["direct", "jit"])


def bessel(order, x):
    """Special functions that JAX does not have: `scipy.special.jv`, by `jax.custom_jvp` to any order."""
    from scipy import special

    @jax.custom_jvp
    def jv(v, x):
        return numpy_function(special.jv, [v, x], F, casting="unsafe", vmap_method="broadcast_all")

    @jv.defjvp
    def _(primals, tangents):
        v, x = primals
        return jv(v, x), tangents[1] * (jv(v - 1, x) - jv(v + 1, x)) / 2

    return jv(order, x)


@either
def test_bessel_to_the_third_order(transform):
    from scipy import special

    take = f = lambda x: bessel(1.0, x)
    for order in range(1, 4):
        take = jax.grad(take)
        np.testing.assert_allclose(transform(take)(1.5), special.jvp(1, 1.5, order), rtol=1e-4)
    np.testing.assert_allclose(transform(jax.hessian(f))(1.5), special.jvp(1, 1.5, 2), rtol=1e-4)


def laplacian(n):
    from scipy import sparse

    return sparse.diags([-1.0, 2.5, -1.0], [-1, 0, 1], shape=(n, n), format="csc")


@either
def test_a_sparse_solver_keeps_its_factorisation(transform):
    """Sparse solves in a loss: factorised once per step, in the forward pass."""
    from scipy.sparse import linalg

    factorise = Counter(lambda k: linalg.splu((laplacian(4) * float(k)).tocsc()))

    def fwd(k, b):
        lu = factorise(k)
        x = lu.solve(b.astype(np.float64))
        return x, (lu, float(k), x)

    def bwd(residuals, cotangents):
        lu, _, x = residuals
        adjoint = lu.solve(cotangents[0].astype(np.float64), "T")
        return -adjoint @ (laplacian(4) @ x), adjoint

    solve = lambda k, b: fwd(k, b)[0]
    op = lambda k, b: numpy_function(solve, [k, b], F, output_shapes=(4,), vjp=(fwd, bwd))
    b = jnp.arange(1.0, 5.0)
    loss = lambda solve: lambda k, b: (solve(k, b) ** 2).sum()
    got = transform(jax.grad(loss(op), (0, 1)))(2.0, b)
    assert factorise.count == 1
    dense = jnp.asarray(laplacian(4).toarray(), F)
    wanted = jax.grad(loss(lambda k, b: jnp.linalg.solve(dense * k, b)), (0, 1))(2.0, b)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, wanted)


@either
def test_a_projector_in_cg(transform):
    """Tomography: least squares over an external projector and its adjoint."""
    rng = np.random.default_rng(0)
    rays = rng.random((6, 4)).astype(np.float32)
    forth = lambda x: numpy_function(lambda x: rays @ x, [x], F, output_shapes=(6,), transpose=lambda c: rays.T @ c[0])
    adjoint = lambda y: jax.linear_transpose(forth, jnp.zeros(4))(y)[0]
    normal = lambda x: adjoint(forth(x)) + 0.1 * x
    rebuild = lambda y: jax.scipy.sparse.linalg.cg(normal, adjoint(y), maxiter=30)[0]
    y = jnp.arange(6.0)
    matrix = rays.T @ rays + 0.1 * np.eye(4)
    np.testing.assert_allclose(transform(rebuild)(y), np.linalg.solve(matrix, rays.T @ y), rtol=1e-3, atol=1e-3)
    got = transform(jax.grad(lambda y: rebuild(y).sum()))(y)
    np.testing.assert_allclose(got, rays @ np.linalg.solve(matrix, np.ones(4)), rtol=1e-3, atol=1e-3)


@either
def test_hungarian_matching_in_a_loss(transform):
    """Set prediction (DETR): an integer matching, through which nothing flows; both modes differentiate around it."""
    from scipy.optimize import linear_sum_assignment

    def match(cost):
        return linear_sum_assignment(cost)[1].astype(np.int32)

    def loss(x, y):
        cost = (x[:, None] - y[None, :]) ** 2
        columns = numpy_function(match, [cost], jnp.int32, output_shapes=(3,))
        return jnp.take_along_axis(cost, columns[:, None], 1).sum()

    y = jnp.array([2.1, 0.4, 1.2])
    wanted = 2 * (X - y[np.array([1, 2, 0])])
    np.testing.assert_allclose(transform(jax.grad(loss))(X, y), wanted, rtol=1e-4)
    np.testing.assert_allclose(transform(jax.jacfwd(loss))(X, y), wanted, rtol=1e-4)
    np.testing.assert_allclose(transform(jax.hessian(loss))(X, y), 2 * np.eye(3), atol=1e-5)


DOUBLE = {
    "vjp": {"vjp": lambda i, o, c: 2 * c[0]},
    "pair": {"vjp": (lambda x: (2 * x, None), lambda r, c: 2 * c[0])},
    "vjp and jvp": {"vjp": lambda i, o, c: 2 * c[0], "jvp": lambda i, o, t: 2 * t[0]},
    "transpose": {"transpose": lambda c: 2 * c[0]},
    "numerical": {"vjp": "numerical", "jvp": "numerical"},
}
rule = pytest.mark.parametrize("rule", DOUBLE)


def distance(rule):
    """How far twice an array is from three, doubled with a rule."""
    return lambda x, _=None: numpy_function(lambda x: 2 * x, [x], F, **DOUBLE[rule]) - 3


@rule
def test_training_with_optax(rule):
    """A step of an optimizer over a loss with each rule; of `jvp=` alone in forward mode."""
    import optax

    grad = jax.jacfwd if rule == "jvp" else jax.grad
    loss = lambda x: (distance(rule)(x) ** 2).sum()
    optimizer = optax.adam(0.1)

    @jax.jit
    def step(x, state):
        updates, state = optimizer.update(grad(loss)(x), state)
        return optax.apply_updates(x, updates), state

    x, state = X, optimizer.init(X)
    for _ in range(150):
        x, state = step(x, state)
    np.testing.assert_allclose(x, 1.5, atol=0.02)


@rule
def test_solvers_of_optimistix(rule):
    """Residuals by their Jacobian, in forward or reverse mode, and a loss by its gradient."""
    import optimistix

    mode = "bwd" if rule in ("vjp", "pair") else "fwd"
    solver = optimistix.LevenbergMarquardt(rtol=1e-3, atol=1e-3)
    found = optimistix.least_squares(distance(rule), solver, X, options={"jac": mode}, max_steps=20)
    np.testing.assert_allclose(found.value, 1.5, atol=0.01)
    loss = lambda x, _: (distance(rule)(x) ** 2).sum()
    options = {"autodiff_mode": "fwd" if rule == "jvp" else "bwd"}
    found = optimistix.minimise(loss, optimistix.BFGS(rtol=1e-3, atol=1e-3), X, options=options, max_steps=30)
    np.testing.assert_allclose(found.value, 1.5, atol=0.01)

"""`transpose=`: functions that are linear in their inputs, to any order and under JAX's linear solvers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.shared.util import Counter, numpy_function, run, trees_close

F = jnp.float32
M = np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 3.0]], np.float32)
X = jnp.array([0.5, -1.25, 2.0])
Y = jnp.array([1.0, -2.0])


def project(x):
    return x @ M.T


def back(cotangents):
    return cotangents[0] @ M


def op(x, **options):
    shapes = lambda x: (2,)
    return numpy_function(project, [x], F, output_shapes=shapes, transpose=back, **options)


PROGRAMS = {
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "vjp": lambda f: jax.vjp(f, X)[1](Y),
    "jacrev": lambda f: jax.jacrev(f)(X),
    "jacfwd": lambda f: jax.jacfwd(f)(X),
    "hessian of its square": lambda f: jax.hessian(lambda x: (f(x) ** 2).sum())(X),
    "third derivative": lambda f: jax.jacfwd(jax.hessian(lambda x: (f(x) ** 3).sum()))(X),
    "linear_transpose": lambda f: jax.linear_transpose(f, X)(Y),
    "transpose of the transpose": lambda f: jax.linear_transpose(lambda y: jax.linear_transpose(f, X)(y)[0], Y)(X),
    "vmap": lambda f: jax.vmap(jax.grad(lambda x: (f(x) ** 2).sum()))(jnp.stack([X, X + 1])),
    "grad of vmap": lambda f: jax.grad(lambda x: (jax.vmap(f)(x) ** 2).sum())(jnp.stack([X, X + 1])),
    "scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (c + f(c).sum(), None), x, None, length=3)[0].sum())(X),
    "checkpoint": lambda f: jax.grad(lambda x: (jax.checkpoint(f)(x) ** 2).sum())(X),
}


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all", "parallel"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_against_jax(program, method, jit):
    f = lambda x: op(x, vmap_method=method)
    got = run(jax.jit(lambda: program(f)) if jit else lambda: program(f))
    wanted = program(lambda x: jnp.asarray(M) @ x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, wanted)


def test_a_block_method_calls_each_once(route):
    forth, backward = Counter(project), Counter(back)
    f = lambda x: numpy_function(forth, [x], F, output_shapes=(2,), transpose=backward, vmap_method="broadcast_all")
    route(lambda x: jax.grad(lambda x: (jax.vmap(f)(x) ** 2).sum())(x), jnp.ones((4, 3)))
    assert (forth.count, backward.count) == (1, 1)


def test_integers_and_statics_are_not_moved(route):
    """An input that is not floating is a parameter; what the function closes over can be static."""
    take = lambda x, k, scale: x[: int(k)].sum() * scale
    f = lambda x, k: numpy_function(
        lambda x, k, s: np.float32(take(x, k, float(s))),
        [x, k, "2.0"],
        F,
        output_shapes=(),
        transpose=lambda c: (np.array([2, 2, 0], np.float32) * c[0], None),
    )
    trees_close(route(jax.grad(f), X, jnp.int32(2)), jnp.array([2.0, 2.0, 0.0]))


def test_several_inputs_and_results(route):
    def both(x, y):
        return x + 2 * y, x[0]

    def transposed(c):
        first = np.zeros(3, np.float32)
        first[0] = c[1]
        return c[0] + first, 2 * c[0]

    f = lambda x, y: numpy_function(both, [x, y], [F, F], output_shapes=[(3,), ()], transpose=transposed)
    program = lambda f: lambda x, y: jax.grad(lambda x, y: (f(x, y)[0] ** 2).sum() * f(x, y)[1], (0, 1))(x, y)
    trees_close(route(program(f), X, X + 1), program(lambda x, y: (x + 2 * y, x[0]))(X, X + 1))


# ---------------------------------------------------------------- JAX's solvers

S = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]], np.float32)


def symmetric(x):
    return numpy_function(lambda x: S @ x, [x], F, transpose=lambda c: S @ c[0], name="symmetric")


def test_cg_and_its_gradient(route):
    solve = lambda b: jax.scipy.sparse.linalg.cg(symmetric, b, maxiter=20)[0]
    np.testing.assert_allclose(route(solve, X), np.linalg.solve(S, X), rtol=1e-4)
    weights = jnp.array([1.0, 2.0, 3.0])
    got = route(jax.grad(lambda b: solve(b) @ weights), X)
    np.testing.assert_allclose(got, np.linalg.solve(S.T, weights), rtol=1e-4)


def test_custom_linear_solve(route):
    upper = np.triu(S)
    matvec = lambda x: numpy_function(lambda x: upper @ x, [x], F, transpose=lambda c: upper.T @ c[0])

    def solve_by(matrix):
        return lambda _, b: numpy_function(lambda b: np.linalg.solve(matrix, b), [b], F)

    solve = lambda b: lax.custom_linear_solve(matvec, b, solve_by(upper), solve_by(upper.T))
    weights = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(route(solve, X), np.linalg.solve(upper, X), rtol=1e-4)
    np.testing.assert_allclose(
        route(jax.grad(lambda b: solve(b) @ weights), X), np.linalg.solve(upper.T, weights), rtol=1e-4
    )


WRONG = {
    "count": (lambda c: (c[0], c[0]), r"transpose returned 2 cotangents for 1 array inputs"),
    "shape": (
        lambda c: c[0],
        r"transpose returned, for input 0, shape \(2,\); a cotangent has its input's",
    ),
    "dtype": (lambda c: back(c) * 1j, r"transpose returned, for input 0, complex"),
}


@pytest.mark.parametrize(("transpose", "text"), WRONG.values(), ids=WRONG)
def test_wrong_transposes_are_named(transpose, text, route):
    f = lambda x: numpy_function(project, [x], F, output_shapes=(2,), transpose=transpose, name="mine")
    with pytest.raises((ValueError, TypeError), match=f"(?s)'mine'.*{text}"), jaxpyop.reraise():
        jax.block_until_ready(route(jax.grad(lambda x: f(x).sum()), X))


def test_linear_transpose_of_another_op_says_what_to_do():
    f = lambda x: numpy_function(project, [x], F, output_shapes=(2,), vjp=lambda i, o, c: back(c))
    with pytest.raises(NotImplementedError, match="only works for functions declared linear"):
        jax.linear_transpose(f, X)(Y)

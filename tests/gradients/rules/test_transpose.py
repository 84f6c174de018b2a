"""transpose=: functions that are linear in their inputs, to any order and under JAX's linear solvers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import numpy_function
from tests.gradients.bodies import F
from tests.gradients.rules.cases import X, close_to
from tests.shared.checks import Counter, close, trees_close
from tests.shared.tables import rows

M = np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 3.0]], np.float32)
Y = jnp.array([1.0, -2.0])
METHODS = ("sequential", "expand_dims", "broadcast_all", "parallel")


def project(x):
    return x @ M.T


def back(cotangents):
    return cotangents @ M


def op(x, **options):
    return numpy_function(project, [x], F, output_shapes=lambda x: (2,), transpose=back, **options)


PROGRAMS = {
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "jacrev": lambda f: jax.jacrev(f)(X),
    "hessian of its square": lambda f: jax.hessian(lambda x: (f(x) ** 2).sum())(X),
    "transpose of the transpose": lambda f: jax.linear_transpose(lambda y: jax.linear_transpose(f, X)(y)[0], Y)(X),
    "grad of vmap": lambda f: jax.grad(lambda x: (jax.vmap(f)(x) ** 2).sum())(jnp.stack([X, X + 1])),
    "vmap of the transpose": lambda f: jax.vmap(lambda y: jax.linear_transpose(f, X)(y)[0])(jnp.stack([Y, -Y])),
    "checkpoint": lambda f: jax.grad(lambda x: (jax.checkpoint(f)(x) ** 2).sum())(X),
}
FAST = [("vmap of the transpose", "broadcast_all"), ("hessian of its square", "sequential")]
FAST += [("jvp", "sequential"), ("transpose of the transpose", "sequential")]


@pytest.mark.parametrize(("program", "method"), rows([(p, m) for p in PROGRAMS for m in METHODS], FAST))
def test_equal_to_jax(program, method):
    program = PROGRAMS[program]
    wanted = jax.jit(lambda: program(lambda x: jnp.asarray(M) @ x))()
    for transform in (lambda f: f, jax.jit):
        close_to(transform(lambda: program(lambda x: op(x, vmap_method=method)))(), wanted)


def test_a_block_method_calls_each_once():
    forth, backward = Counter(project), Counter(back)
    f = lambda x: numpy_function(forth, [x], F, output_shapes=(2,), transpose=backward, vmap_method="broadcast_all")
    close(jax.grad(lambda x: jax.vmap(f)(x).sum())(jnp.ones((4, 3))), np.tile(M.sum(0), (4, 1)))
    assert (forth.count, backward.count) == (1, 1)


def test_integers_and_statics_are_not_moved():
    """An input that is not floating is a parameter, for which the transpose gives None."""
    func = lambda x, k, s: np.float32(x[: int(k)].sum() * float(s))
    transpose = lambda c: (np.array([2, 2, 0], np.float32) * c, None)
    f = lambda x, k: numpy_function(func, [x, k, "2.0"], F, output_shapes=(), transpose=transpose)
    close(jax.grad(f)(X, jnp.int32(2)), [2.0, 2.0, 0.0])


@pytest.mark.slow
def test_several_inputs_and_results():
    def transposed(c):
        return c[0] + np.array([1, 0, 0], np.float32) * c[1], 2 * c[0]

    both = lambda x, y: (x + 2 * y, x[0])
    f = lambda x, y: numpy_function(both, [x, y], [F, F], output_shapes=[(3,), ()], transpose=transposed)
    program = lambda f: jax.grad(lambda x, y: (f(x, y)[0] ** 2).sum() * f(x, y)[1], (0, 1))
    trees_close(program(f)(X, X + 1), program(both)(X, X + 1))
    trees_close(jax.linear_transpose(f, X, X)([X, F(2)]), (X + jnp.array([2.0, 0, 0]), 2 * X))


def test_another_op_has_no_transpose():
    f = lambda x: numpy_function(project, [x], F, output_shapes=(2,), vjp=lambda i, o, c: back(c))
    with pytest.raises(NotImplementedError, match="only works for functions declared linear"):
        jax.linear_transpose(f, X)(Y)


# ---------------------------------------------------------------- JAX's solvers

S = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]], np.float32)
WEIGHTS = jnp.array([1.0, 2.0, 3.0])


@pytest.mark.slow
def test_cg_and_its_gradient():
    symmetric = lambda x: numpy_function(lambda x: S @ x, [x], F, transpose=lambda c: S @ c)
    solve = lambda b: jax.scipy.sparse.linalg.cg(symmetric, b, maxiter=20)[0]
    value, slope = jax.jit(jax.value_and_grad(lambda b: solve(b) @ WEIGHTS))(X)
    np.testing.assert_allclose(value, np.linalg.solve(S, X) @ WEIGHTS, rtol=1e-4)
    np.testing.assert_allclose(slope, np.linalg.solve(S.T, WEIGHTS), rtol=1e-4)


@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_a_constant_beside_the_inputs(transform):
    """JAX hands a scalar constant of a traced function to the derivative as a Python number."""
    beside = {"output_shapes": (2,), "transpose": lambda cotangents: (None, cotangents @ M)}
    first = lambda x: numpy_function(lambda b, x: x @ M.T, [jnp.array(True), x], F, **beside)
    where = lambda x: op(x, when=jnp.array(True))
    for f in (first, where):
        np.testing.assert_allclose(jax.grad(lambda x, f=f: transform(f)(x) @ Y)(X), Y @ M, rtol=1e-6)


def test_a_batch_of_some_inputs():
    """An integer array comes before the input in which the function is linear, once it is taken apart."""
    double = numpy_function(Tout=F, output_shapes=(), transpose=lambda ct: (2 * ct, None))(lambda x, n: 2 * x)
    x = jnp.arange(3.0)
    batch = lambda x: jax.vmap(double, (0, None))(x, jnp.arange(3))
    np.testing.assert_array_equal(jax.jvp(batch, (x,), (x + 1,))[1], 2 * (x + 1))
    np.testing.assert_array_equal(jax.jit(jax.vjp(batch, x)[1])(x)[0], 2 * x)

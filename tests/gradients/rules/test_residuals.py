"""Residuals of vjp=(fwd, bwd): any object, on the host, each with its element."""

import concurrent.futures
import multiprocessing
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_func
from tests.gradients.bodies import TRANSFORMS, F
from tests.gradients.rules.cases import X
from tests.shared.checks import Counter
from tests.shared.tables import rows

METHODS = ("sequential", "expand_dims")
every_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


class Session:
    """An object that NumPy, JAX and pickle know nothing of."""

    def __init__(self, slope):
        self.slope = slope
        self.lock = threading.Lock()


def square(x):
    return x * x


def in_session(x):
    return x * x, Session(2 * x)


def of_session(session, cotangents):
    return session.slope * cotangents[0]


def in_array(x):
    return x * x, [2 * x]


def of_array(residuals, cotangents):
    return residuals[0] * cotangents[0]


@every_transform
def test_any_object_is_kept(transform):
    op = lambda x: numpy_function(square, [x], F, vjp=(in_session, of_session))
    np.testing.assert_allclose(transform(jax.grad(lambda x: (op(x) + 3 * op(x + 1)).sum()))(X), 8 * X + 6)


@every_transform
def test_fwd_may_write_into_its_residuals_later(transform):
    buffer = np.zeros(3, np.float32)

    def fwd(x):
        buffer[...] = x
        return x * x, {"kept": [buffer]}

    op = lambda x: numpy_function(square, [x], F, vjp=(fwd, lambda r, ct: 2 * ct[0] * r["kept"][0]))
    np.testing.assert_allclose(transform(jax.grad(lambda x: (op(x) + op(2 * x)).sum()))(X), 10 * X)


def test_bwd_may_not_write_into_residuals():
    def bwd(residuals, cotangents):
        residuals *= cotangents[0]
        return residuals

    op = lambda x: numpy_function(square, [x], F, vjp=(lambda x: (x * x, 2 * x), bwd))
    with pytest.raises(ValueError, match="read-only"), jaxpyop.reraise():
        jax.grad(lambda x: op(x).sum())(X)


@every_transform
def test_a_stateful_op_runs_fwd_once_in_place_of_the_function(transform):
    func, fwd = Counter(square), Counter(in_array)
    op = lambda x: py_func(func, [x], F, vjp=(fwd, of_array))
    np.testing.assert_allclose(transform(jax.jacrev(op))(X), np.diag(2 * X))
    assert (func.count, fwd.count) == (0, 1)


CHANGES = {"the same": lambda a: a, "swapped": lambda a: jnp.swapaxes(a, 0, 1), "a part": lambda a: a[:, 1:]}


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize(
    ("name", "method"), rows([(c, m) for c in CHANGES for m in METHODS], [("swapped", "expand_dims")])
)
def test_residuals_belong_to_their_elements(name, method, stateful):
    """Pullbacks are data, which a program may transpose, reverse or slice. `fwd` runs once for each element."""
    fwd, change = Counter(lambda x: (x * x, np.array(2 * x))), CHANGES[name]

    def op(x):
        rule = (fwd, lambda r, ct: [r * ct[0]])
        return numpy_function(square, [x], F, vjp=rule, vmap_method=method, stateful=stateful)

    def pulled(x):
        pulls = jax.vmap(jax.vmap(lambda x: jax.vjp(op, x)[1]))(x)
        return jax.vmap(jax.vmap(lambda pull: pull(F(1))[0]))(jax.tree.map(change, pulls))

    x = jnp.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(pulled(x), change(2 * x))
    assert fwd.count == 9


# ------------------------------------------- processes, threads, devices


@pytest.mark.slow
def test_in_worker_processes():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        options = {"vmap_method": "parallel", "executor": pool, "name": "mine"}
        op = lambda x: numpy_function(square, [x], F, vjp=(in_array, of_array), **options)
        for transform in (lambda f: f, jax.jit):
            np.testing.assert_allclose(transform(jax.vmap(jax.grad(op)))(X), 2 * X)
        op = lambda x: numpy_function(square, [x], F, vjp=(in_session, of_session), **options)
        with pytest.raises(ValueError, match=r"'mine': the residuals of fwd cannot be sent between processes.*threads"):
            jax.vmap(jax.grad(op))(X)

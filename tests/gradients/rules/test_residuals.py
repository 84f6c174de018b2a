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
    return session.slope * cotangents


def in_array(x):
    return x * x, [2 * x]


def of_array(residuals, cotangents):
    return residuals[0] * cotangents


@every_transform
def test_any_object_is_kept(transform):
    op = lambda x: numpy_function(square, [x], F, vjp=(in_session, of_session))
    np.testing.assert_allclose(transform(jax.grad(lambda x: (op(x) + 3 * op(x + 1)).sum()))(X), 8 * X + 6)


@every_transform
def test_fwd_may_write_into_its_residuals_later(transform):
    buffer = np.zeros(3, np.float32)

    def fwd(x):
        buffer[...] = x
        return x * x, {"kept": ([buffer],)}

    op = lambda x: numpy_function(square, [x], F, vjp=(fwd, lambda r, ct: 2 * ct * r["kept"][0][0]))
    np.testing.assert_allclose(transform(jax.grad(lambda x: (op(x) + op(2 * x)).sum()))(X), 10 * X)


def test_bwd_may_not_write_into_residuals():
    def bwd(residuals, cotangents):
        residuals *= cotangents
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


# ----------------------------------------------------------- whole blocks

# What a program does with pullbacks, and how often `fwd` then runs for whole blocks.
CHANGES = {
    "the same": (lambda a: a, 1),
    "swapped": (lambda a: jnp.swapaxes(a, 0, 1), 2),
    "reversed": (lambda a: a[:, ::-1], 2),
    "a part": (lambda a: a[:, 1:], 2),
    "some twice": (lambda a: a[jnp.array([0, 0, 1])], 2),
}
FAST = [(name, "expand_dims", stateful) for name in CHANGES for stateful in (False, True)]
ROWS = FAST + [(name, method, False) for name in CHANGES for method in ("sequential", "broadcast_all")]


@pytest.mark.parametrize(("name", "method", "stateful"), rows(ROWS, FAST[1:]))
def test_the_residuals_of_a_block_belong_to_their_elements(name, method, stateful):
    """Pullbacks are data, which a program may transpose, reverse or slice."""
    (change, often), block = CHANGES[name], method != "sequential"
    fwd, bwd = Counter(lambda x: (x * x, np.array(2 * x))), Counter(lambda r, ct: [r * ct])

    def op(x):
        return numpy_function(square, [x], F, vjp=(fwd, bwd), vmap_method=method, stateful=stateful)

    def pulled(x):
        pulls = jax.vmap(jax.vmap(lambda x: jax.vjp(op, x)[1]))(x)
        return jax.vmap(jax.vmap(lambda pull: pull(F(1))[0]))(jax.tree.map(change, pulls))

    x = jnp.arange(9.0).reshape(3, 3)
    if stateful and often > 1:
        with pytest.raises(Exception, match=r"fwd ran for a block of \(3, 3\) elements.*pull back the whole block"):
            jax.block_until_ready(pulled(x))
    else:
        np.testing.assert_allclose(pulled(x), change(2 * x))
        assert (fwd.count, bwd.count) == ((often, 1) if block else (9, change(x).size))


@pytest.mark.parametrize("count", [1, 3])
def test_one_element_of_a_block(count):
    op = lambda x: numpy_function(square, [x], F, vjp=(in_array, of_array), vmap_method="expand_dims")
    pulls = jax.vmap(lambda x: jax.vjp(op, x)[1])(X[:count])
    assert jax.tree.map(lambda a: a[-1], pulls)(F(1))[0] == 2 * X[count - 1]


def test_receipts_of_several_runs():
    op = lambda x: numpy_function(square, [x], F, vjp=(in_array, of_array), vmap_method="expand_dims")
    first, second = (jax.vmap(lambda x: jax.vjp(op, x)[1])(x) for x in (X, 5 * X))
    mixed = jax.tree.map(lambda a, b: jnp.stack([a[0], b[1], a[2]]), *map(jax.tree.leaves, (first, second)))
    pulls = jax.tree.unflatten(jax.tree.structure(first), mixed)
    np.testing.assert_allclose(jax.vmap(lambda pull: pull(F(1))[0])(pulls), 2 * X * jnp.array([1, 5, 1]))


@pytest.mark.parametrize(
    ("cleared", "method"), [(False, "expand_dims"), (True, "expand_dims"), (False, "broadcast_all")]
)
def test_further_axes_of_the_backward_pass(cleared, method):
    """The axis of `jax.jacrev` may be between those of `fwd`, which runs again if its record is gone."""
    fwd, bwd = Counter(in_array), Counter(of_array)
    op = lambda x: numpy_function(square, [x], F, vjp=(fwd, bwd), vmap_method=method)
    x, cts = jnp.arange(6.0).reshape(2, 3), jnp.arange(1.0, 5.0)
    pulls = jax.vmap(jax.vmap(lambda x: jax.vjp(op, x)[1]))(x)
    if cleared:
        jaxpyop.clear_records()
    each = jax.vmap(lambda pull, ct: pull(ct)[0], (None, 0))
    found = jax.vmap(jax.vmap(jax.vmap(lambda pull, ct: pull(ct)[0], (0, None)), (None, 0)), (0, None))(pulls, cts)
    np.testing.assert_allclose(found, 2 * x[:, None] * cts[:, None])
    np.testing.assert_allclose(jax.vmap(jax.vmap(each, (0, None)), (0, None))(pulls, cts), 2 * x[..., None] * cts)
    assert (fwd.count, bwd.count) == (1 + 2 * cleared, 2)


@pytest.mark.parametrize("cleared", [False, True])
def test_elements_of_a_block_that_did_not_run(cleared):
    """A `cond` under `vmap` gives `bwd` zeros for the elements that took the other branch."""

    def checked(x):
        assert (x != 0).all()
        return in_array(x)

    fwd, bwd = Counter(checked), Counter(of_array)
    op = lambda x: numpy_function(square, [x], F, vjp=(fwd, bwd), vmap_method="expand_dims")
    x = jnp.arange(1.0, 5.0)
    pulls = jax.vmap(lambda x: jax.vjp(lambda x: jax.lax.cond(x > 2, op, lambda x: 7 * x, x), x)[1])(x)
    if cleared:
        jaxpyop.clear_records()
    found = jax.vmap(lambda pull: pull(F(1))[0])(pulls)
    np.testing.assert_allclose(found, [7, 7, 6, 8])
    assert (fwd.count, bwd.count) == (1 + cleared, 1)


@pytest.mark.parametrize("method", ["sequential", "expand_dims"])
def test_pairs_in_two_branches(method):
    """JAX hands the receipts of both branches over in one array, and their residuals are no arrays of one kind."""

    def op(factor, key, x):
        fwd, bwd = Counter(lambda x: (factor * x * x, {key: 2 * factor * x})), Counter(lambda r, ct: r[key] * ct)
        counters.extend([fwd, bwd])
        return numpy_function(lambda x: factor * x * x, [x], F, vjp=(fwd, bwd), vmap_method=method)

    counters, x = [], jnp.arange(1.0, 5.0)
    program = lambda x: jax.lax.cond(x > 2, lambda x: op(1, "one", x), lambda x: op(5, "five", x), x)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(program)))(x), [10, 20, 6, 8])
    if method == "expand_dims":
        assert [counter.count for counter in counters if counter.count] == [1, 1, 1, 1]


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

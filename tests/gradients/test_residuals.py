"""Residuals of `vjp=(fwd, bwd)`: any object, on the host, within the bounds of the store."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxpyop
from jaxpyop._op import RECORDS
from tests.shared.util import Counter, numpy_function, py_func, run

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])


@pytest.fixture
def one_record(monkeypatch):
    monkeypatch.setattr(jaxpyop.config, "max_records", 1)


class Session:
    """An object that NumPy, JAX and pickle know nothing of."""

    def __init__(self, slope):
        self.slope = slope
        self.lock = threading.Lock()


def in_session(x):
    return np.sin(x), Session(np.cos(x))


def of_session(session, cotangents):
    return session.slope * cotangents[0]


def as_array(x):
    return np.sin(x), [np.cos(x)]


def of_array(residuals, cotangents):
    return residuals[0] * cotangents[0]


def sine(x):
    return np.sin(x)


def test_any_object_is_kept(route):
    op = lambda x: numpy_function(sine, [x], F, vjp=(in_session, of_session))
    np.testing.assert_allclose(route(jax.grad(lambda x: op(x).sum()), X), np.cos(X), rtol=1e-6)


def test_their_bytes_count(transport):
    before = RECORDS.stats()["nbytes"]
    fwd = lambda x: (x, {"a": np.zeros(1_000_000), "b": [Session(np.zeros(1_000_000))]})
    f = lambda x: numpy_function(sine, [x], F, vjp=(fwd, lambda r, c: c[0])).sum()
    pull = jax.vjp(f, X)[1]
    assert 16_000_000 <= RECORDS.stats()["nbytes"] - before < 17_000_000
    pull(1.0)


@pytest.mark.filterwarnings("ignore:.*records of forward passes were pushed out")
def test_fwd_runs_again_when_they_are_gone(one_record, route):
    fwd, bwd = Counter(as_array), Counter(of_array)
    op = lambda x: numpy_function(sine, [x], F, vjp=(fwd, bwd))
    steps = lambda x: jax.lax.scan(lambda c, _: (op(c), None), x, None, length=3)[0].sum()
    wanted = jax.grad(lambda x: jnp.sin(jnp.sin(jnp.sin(x))).sum())(X)
    np.testing.assert_allclose(route(jax.grad(steps), X), wanted, rtol=1e-5)
    assert bwd.count == 3
    assert fwd.count > 3


def test_of_a_stateful_op_the_error_names_the_setting(one_record, transport):
    op = lambda x: py_func(sine, [x], F, vjp=(as_array, of_array), name="mine")
    steps = lambda x: jax.lax.scan(lambda c, k: (op(c + k), None), x, jnp.arange(3.0))[0].sum()
    with pytest.raises(RuntimeError, match=r"'mine': the residuals .* are gone.*max_records"), jaxpyop.reraise():
        jax.block_until_ready(jax.jit(jax.grad(steps))(X))


def test_a_stateful_op_runs_fwd_once(transport):
    fwd = Counter(as_array)
    op = lambda x: py_func(sine, [x], F, vjp=(fwd, of_array))
    run(jax.jit(jax.grad(lambda x: op(x).sum())), X)
    assert fwd.count == 1


@pytest.fixture(scope="module")
def processes():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_in_worker_processes(processes, route):
    op = lambda x: numpy_function(sine, [x], F, vjp=(as_array, of_array), vmap_method="parallel", executor=processes)
    np.testing.assert_allclose(route(jax.vmap(jax.grad(op)), X), np.cos(X), rtol=1e-5)


def test_what_cannot_leave_a_worker_is_said(processes):
    op = lambda x: numpy_function(
        sine, [x], F, vjp=(in_session, of_session), vmap_method="parallel", executor=processes, name="mine"
    )
    with pytest.raises(ValueError, match=r"'mine': the residuals of fwd cannot be sent between processes.*threads"):
        jax.vmap(jax.grad(op))(X)


def test_many_threads(transport):
    op = lambda x: numpy_function(sine, [x], F, vjp=(in_session, of_session))
    f = jax.jit(jax.grad(lambda x: op(x).sum()))
    f(X)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for k, got in enumerate(pool.map(lambda k: np.asarray(f(X + k)), range(40))):
            np.testing.assert_allclose(got, np.cos(X + k), rtol=1e-4, atol=1e-6)


def test_in_shard_map(transport):
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    rules = [
        {"vjp": (as_array, of_array)},
        {"vjp": lambda i, o, c: np.cos(i[0]) * c[0]},
        {"vjp": "numerical"},
    ]
    for rule in rules:
        op = lambda x, rule=rule: numpy_function(sine, [x], F, **rule)
        each = jax.shard_map(
            lambda x, op=op: jax.grad(lambda x: op(x).sum())(x),
            mesh=mesh,
            in_specs=PartitionSpec("i"),
            out_specs=PartitionSpec("i"),
        )
        np.testing.assert_allclose(jax.jit(each)(X), np.cos(X), rtol=1e-3)


def _transformed(change):
    """The cotangents of a square block, pulled back through receipts that were changed like any array."""

    def run(f, x):
        _, pulls = jax.vmap(jax.vmap(lambda x: jax.vjp(f, x)))(x)
        return jax.vmap(jax.vmap(lambda pull: pull(jnp.float32(1))[0]))(jax.tree.map(change, pulls))

    return run


CHANGES = {
    "the same": lambda a: a,
    "swapped": lambda a: jnp.swapaxes(a, 0, 1),
    "reversed": lambda a: a[::-1],
    "a part": lambda a: a[:, 1:],
}


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all", "sequential"])
@pytest.mark.parametrize("name", CHANGES)
def test_residuals_of_a_block_belong_to_their_elements(name, method, stateful):
    runs = []

    def fwd(x):
        runs.append(x)
        return np.sin(x), np.array(np.cos(x))

    def op(x):
        rules = (fwd, lambda r, ct: [r * ct[0]])
        return jaxpyop.numpy_function(np.sin, [x], jnp.float32, vjp=rules, vmap_method=method, stateful=stateful)

    x, block = jnp.arange(9.0).reshape(3, 3), method != "sequential"
    if stateful and block and name != "the same":
        with pytest.raises(Exception, match=r"fwd ran for a block of \(3, 3\) elements.*pull back the whole block"):
            jax.block_until_ready(_transformed(CHANGES[name])(op, x))
    else:
        found = _transformed(CHANGES[name])(op, x)
        np.testing.assert_allclose(found, CHANGES[name](np.cos(x)), rtol=1e-5)
    assert not stateful or len(runs) == (1 if block else 9)


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
def test_residuals_of_a_block_outlive_the_array_of_its_receipts(stateful):
    """The elements of a block share one record, which a copy of their receipts still reads."""
    rules = (lambda a, b: (a * b, (a, b)), lambda r, ct: (ct[0] * r[1], ct[0] * r[0]))
    op = lambda a, b: numpy_function(np.multiply, [a, b], F, vjp=rules, vmap_method="expand_dims", stateful=stateful)
    x = jnp.arange(6.0).reshape(2, 3)
    pull = jax.vmap(jax.vmap(lambda a, b: jax.vjp(op, a, b)[1]))(x, x + 1)
    pull = jax.tree.map(lambda a: a[::-1], pull)
    back = jax.vmap(jax.vmap(lambda pull: pull(jnp.float32(1))))
    if stateful:
        with pytest.raises(RuntimeError, match=r"fwd ran for a block of \(2, 3\) elements.*in another order"):
            back(pull)
    else:
        np.testing.assert_allclose(back(pull), [(x + 1)[::-1], x[::-1]])


_buffer = np.zeros(3, np.float32)


def _fwd_with_one_buffer(x):
    _buffer[...] = x
    return np.sin(x), {"kept": [_buffer]}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jaxpyop.jit], ids=["direct", "jit", "cut"])
def test_fwd_may_write_into_its_residuals_later(transform):
    bwd = lambda residuals, cotangents: cotangents[0] * np.cos(residuals["kept"][0])
    op = lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32, output_shapes=(3,), vjp=(_fwd_with_one_buffer, bwd))
    x = jnp.arange(3, dtype=jnp.float32)
    got = transform(jax.grad(lambda x: (op(x) + op(2 * x)).sum()))(x)
    np.testing.assert_allclose(got, np.cos(x) + 2 * np.cos(2 * x), rtol=1e-5)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jaxpyop.jit], ids=["direct", "jit", "cut"])
def test_bwd_may_not_write_into_residuals(transform):
    def bwd(residuals, cotangents):
        residuals *= cotangents[0]
        return residuals

    op = lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32, output_shapes=(3,), vjp=(_fwd_of_sin, bwd))
    with pytest.raises(ValueError, match="read-only"), jaxpyop.reraise():
        jax.block_until_ready(transform(jax.grad(lambda x: op(x).sum()))(jnp.ones(3)))


def _fwd_of_sin(x):
    return np.sin(x), np.cos(x)

"""Derivatives of batches: by the tape and by rules, of every method, with one host call per batch and pass."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.batches import bodies
from tests.batches.programs import (
    BLOCKS,
    FORWARD_AND_HIGHER,
    GRADIENTS,
    METHODS,
    F,
    InCaller,
    counted,
    grid,
    numpy_plain,
    numpy_vjp,
    plain,
)
from tests.shared.functions import numpy_function, py_function

every_method = pytest.mark.parametrize("method", METHODS)
X, W = np.array([0.5, -1.0, 2.0], np.float32), np.array([1.0, 2.0, -0.5], np.float32)
slow = pytest.mark.slow


# The programs of the fast tests.
TYPICAL = ["vmap of grad", "grad of vmap, w unbatched", "grad of nested vmap", "axis size 0"]


def rows(names, fast):
    """The names of programs as rows of a table, of which some are fast."""
    return pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in fast else slow) for n in names])


@functools.cache
def in_plain_jax(name):
    program = (GRADIENTS | FORWARD_AND_HIGHER)[name]
    return jax.tree.map(np.asarray, jax.jit(program(plain))(X, W))


def assert_same_gradients(name, op, run=lambda f: f):
    got = run((GRADIENTS | FORWARD_AND_HIGHER)[name](op))(jnp.asarray(X), jnp.asarray(W))
    same = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    jax.tree.map(same, got, in_plain_jax(name))


@rows([*GRADIENTS, *FORWARD_AND_HIGHER], ["grad of vmap, w unbatched", "vmap of grad of vmap", "vmap of grad of grad"])
def test_gradients_of_py_function(name):
    assert_same_gradients(name, lambda x, w: py_function(plain, [x, w], F))


@rows([*GRADIENTS, *FORWARD_AND_HIGHER], ["vmap of grad"])
@pytest.mark.parametrize("method", METHODS[1:])
def test_gradients_of_py_function_of_other_methods(method, name):
    assert_same_gradients(name, lambda x, w: py_function(plain, [x, w], F, vmap_method=method))


@rows(GRADIENTS, TYPICAL)
@every_method
def test_gradients_of_a_numpy_function(method, name):
    assert_same_gradients(name, lambda x, w: numpy_function(numpy_plain, [x, w], F, vmap_method=method, vjp=numpy_vjp))


@slow
@pytest.mark.parametrize("name", GRADIENTS)
@every_method
def test_gradients_of_compiled_programs(method, name):
    rule = lambda x, w: numpy_function(numpy_plain, [x, w], F, vmap_method=method, vjp=numpy_vjp)
    assert_same_gradients(name, rule, jax.jit)
    assert_same_gradients(name, lambda x, w: py_function(plain, [x, w], F, vmap_method=method), jax.jit)


@rows(GRADIENTS, ["grad of vmap, w unbatched"])
def test_gradients_on_an_executor_of_an_unknown_kind(name):
    """It may be another process, so nothing is recorded there, and the function runs again."""
    op = lambda x, w: py_function(plain, [x, w], F, vmap_method="parallel", executor=InCaller())
    assert_same_gradients(name, op)


# The host calls of a forward and a backward pass; a scan over three steps has three of each.
PASSES = {"vmap of grad": 2, "grad of nested vmap": 2, "grad of scan of vmap": 6, "jacrev": 2}


@rows(PASSES, ["grad of nested vmap", "jacrev"])
@pytest.mark.parametrize("method", ["sequential", pytest.param("parallel", marks=slow)])
def test_one_host_call_per_batch_and_pass(method, name):
    """In one program for a tape and for a rule."""
    options = {"vmap_method": method, "output_shapes": ()}
    tape = GRADIENTS[name](lambda x, w: py_function(plain, [x, w], F, name="tape", **options))
    rule = GRADIENTS[name](lambda x, w: numpy_function(numpy_plain, [x, w], F, name="rule", vjp=numpy_vjp, **options))
    with jaxpyop.report() as report:
        jax.block_until_ready(jax.jit(lambda x, w: (tape(x, w), rule(x, w)))(X, W))
    assert {row["op"]: row["calls"] for row in report.rows()} == dict.fromkeys(["tape", "rule"], PASSES[name])


@pytest.mark.parametrize(("executor", "runs"), [(None, 3), (InCaller(), 6)], ids=["threads", "other workers"])
def test_a_record_is_replayed_and_other_workers_have_none(executor, runs):
    """Where nothing is recorded the function runs once more in the backward pass."""
    seen = []
    body = lambda x: (seen.append(1), x**2)[1]
    op = lambda x: py_function(body, [x], F, vmap_method="parallel", output_shapes=(), executor=executor)
    np.testing.assert_array_equal(jax.vmap(jax.grad(op))(grid(3)), 2 * grid(3))
    assert len(seen) == runs


# --------------------------------------------------------------- (fwd, bwd) of blocks

BLOCK_GRADIENTS = {
    "vmap of grad": lambda f, x: jax.vmap(jax.grad(lambda x: f(x).sum()))(x),
    "grad of vmap": lambda f, x: jax.grad(lambda x: jax.vmap(f)(x).sum())(x),
    "jacrev": lambda f, x: jax.jacrev(jax.vmap(f))(x),
    "vmap of jacrev": lambda f, x: jax.vmap(jax.jacrev(f))(x),
    "vmap of vmap of grad": lambda f, x: jax.vmap(jax.vmap(jax.grad(lambda x: f(x).sum())))(x[:, None]),
}


@rows(BLOCK_GRADIENTS, ["vmap of grad", "vmap of vmap of grad"])
@pytest.mark.parametrize("method", BLOCKS)
@pytest.mark.parametrize("executor", [None, InCaller()], ids=["here", "elsewhere"])
def test_fwd_and_bwd_of_blocks(executor, method, name):
    program = BLOCK_GRADIENTS[name]
    rules = (bodies.norm_fwd, bodies.norm_bwd)
    op = lambda x: numpy_function(bodies.norm, [x], F, vmap_method=method, executor=executor, vjp=rules)
    x = grid(3, 4)
    if "jacrev" in name:
        wanted = program(bodies.norm, x)
    else:
        (wanted,) = bodies.norm_bwd((x, x.sum(-1, keepdims=True)), (np.ones_like(x),))
    got = program(op, x)
    np.testing.assert_allclose(got, np.reshape(wanted, got.shape), rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_rule_is_called_as_often_as_the_function(method):
    op = lambda x: numpy_function(bodies.cube, [x], F, vjp=bodies.cube_vjp, vmap_method=method)
    out, row = counted(jax.vmap(jax.grad(op)), grid(3))
    np.testing.assert_array_equal(out, 3 * grid(3) ** 2)
    assert row["runs"] == row["rules"] == (1 if method in BLOCKS else 3)

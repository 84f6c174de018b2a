"""How often functions run for derivatives of batches: host calls, records, and residuals of whole blocks.

The values under `vmap` are in gradients/test_under_vmap.py, those of rules of every method in gradients/rules/.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.batches.programs import F, InCaller, grid
from tests.shared.checks import trees_close
from tests.shared.functions import numpy_function, py_function

X, W = np.array([0.5, -1.0, 2.0], np.float32), np.array([1.0, 2.0, -0.5], np.float32)


def numpy_vjp(inputs, outputs, cotangents):
    (x, w), (ct,) = inputs, cotangents
    return ct * np.cos(x) * w**2, ct * np.sin(x) * 2 * w


def summed(f):
    return lambda x, w: f(x, w).sum()


def folded(f):
    return lambda x, w: lax.scan(lambda c, v: (f(c, v), None), x, w)[0]


OPS = {
    "tape": lambda **how: lambda x, w: py_function(lambda x, w: jnp.sin(x) * w**2, [x, w], F, name="tape", **how),
    "rule": lambda **how: (
        lambda x, w: numpy_function(lambda x, w: np.sin(x) * w**2, [x, w], F, vjp=numpy_vjp, name="rule", **how)
    ),
}
# What differentiates an f(x, w) of two numbers, as a function of two arrays of three numbers, and how often the host is
# called in both passes; a scan over three steps has three calls of each.
PASSES = {
    "grad of nested vmap": (lambda f: jax.grad(summed(jax.vmap(jax.vmap(f, (None, 0)), (0, None))), (0, 1)), 2),
    "jacrev": (lambda f: jax.jacrev(jax.vmap(f), (0, 1)), 2),
    "grad of scan of vmap": (lambda f: jax.grad(summed(folded(jax.vmap(f, (0, None)))), (0, 1)), 6),
}
slow_scan = pytest.param("grad of scan of vmap", "parallel", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "method"), [("grad of nested vmap", "sequential"), ("jacrev", "parallel"), slow_scan])
def test_one_host_call_per_batch_and_pass(method, name):
    """In one program for a tape and for a rule."""
    take, passes = PASSES[name]
    tape, rule = (take(make(vmap_method=method, output_shapes=())) for make in OPS.values())
    with jaxpyop.report() as report:
        found = jax.block_until_ready(jax.jit(lambda x, w: (tape(x, w), rule(x, w)))(X, W))
    assert {row["op"]: row["calls"] for row in report.rows()} == dict.fromkeys(OPS, passes)
    for slopes in found:
        trees_close(slopes, jax.jit(take(lambda x, w: jnp.sin(x) * w**2))(X, W))


@pytest.mark.parametrize(("executor", "runs"), [(None, 3), (InCaller(), 6)], ids=["threads", "other workers"])
def test_a_record_is_replayed_and_other_workers_have_none(executor, runs):
    """Where nothing is recorded the function runs once more in the backward pass."""
    seen = []
    body = lambda x: (seen.append(1), x**2)[1]
    op = lambda x: py_function(body, [x], F, vmap_method="parallel", output_shapes=(), executor=executor)
    np.testing.assert_array_equal(jax.vmap(jax.grad(op))(grid(3)), 2 * grid(3))
    assert len(seen) == runs

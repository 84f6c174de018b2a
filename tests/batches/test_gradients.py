"""Derivatives of batches: by the tape and by rules, of every method, with one host call per batch and pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.batches import bodies
from tests.batches.programs import BLOCKS, METHODS, F, InCaller, counted, grid
from tests.shared.functions import numpy_function, py_function

slow = pytest.mark.slow
X, W = np.array([0.5, -1.0, 2.0], np.float32), np.array([1.0, 2.0, -0.5], np.float32)


def plain(x, w):
    return jnp.sin(x) * w**2


def numpy_plain(x, w):
    return np.sin(x) * w**2


def numpy_vjp(inputs, outputs, cotangents):
    (x, w), (ct,) = inputs, cotangents
    return ct * np.cos(x) * w**2, ct * np.sin(x) * 2 * w


def summed(f):
    return lambda x, w: f(x, w).sum()


def folded(f):
    return lambda x, w: lax.scan(lambda c, v: (f(c, v), None), x, w)[0]


# What differentiates an f(x, w) of two numbers, as a function of two arrays of three numbers.
GRADIENTS = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1))),
    "grad of vmap, w unbatched": lambda f: lambda x, w: jax.grad(summed(jax.vmap(f, (0, None))), (0, 1))(x, w[0]),
    "vmap of grad of vmap": lambda f: lambda x, w: jax.vmap(jax.grad(summed(jax.vmap(f, (None, 0)))), (0, None))(x, w),
    "grad of nested vmap": lambda f: jax.grad(summed(jax.vmap(jax.vmap(f, (None, 0)), (0, None))), (0, 1)),
    "jacrev": lambda f: jax.jacrev(jax.vmap(f), (0, 1)),
    "axis size 0": lambda f: lambda x, w: jax.vmap(jax.grad(f))(x[:0], w[:0]),
    "grad of scan of vmap": lambda f: jax.grad(summed(folded(jax.vmap(f, (0, None)))), (0, 1)),
    "vmap of grad of scan": lambda f: jax.vmap(jax.grad(lambda x, w: folded(f)(x, jnp.stack([w, w])), (0, 1))),
}
# The same for what only a `py_function` without rules has.
FORWARD_AND_HIGHER = {
    "jvp of vmap": lambda f: lambda x, w: jax.jvp(jax.vmap(f), (x, w), (w, x)),
    "vmap of grad of grad": lambda f: jax.vmap(jax.grad(jax.grad(f), 1)),
    "hessian": lambda f: jax.hessian(summed(jax.vmap(f)), (0, 1)),
}
OPS = {
    "tape": lambda **options: lambda x, w: py_function(plain, [x, w], F, **options),
    "rule": lambda **options: lambda x, w: numpy_function(numpy_plain, [x, w], F, vjp=numpy_vjp, **options),
}
# An executor of an unknown kind may be another process, so nothing is recorded there, and the function runs again.
WAYS = {method: {"vmap_method": method} for method in METHODS}
WAYS["elsewhere"] = {"vmap_method": "parallel", "executor": InCaller()}
FAST = {
    ("tape", "sequential"): ["vmap of grad of vmap", "vmap of grad of grad"],
    ("tape", "elsewhere"): ["grad of vmap, w unbatched"],
    ("rule", "sequential"): ["vmap of grad", "axis size 0"],
    ("rule", "expand_dims"): ["grad of nested vmap", "axis size 0"],
}


def rows(keys, is_fast):
    return [pytest.param(*key, id="-".join(key), marks=[] if is_fast(*key) else slow) for key in keys]


@functools.cache
def in_plain_jax(name):
    return jax.tree.map(np.asarray, jax.jit((GRADIENTS | FORWARD_AND_HIGHER)[name](plain))(X, W))


CASES = [
    (op, way, name)
    for op in OPS
    for way in WAYS
    for name in (GRADIENTS if op == "rule" or way == "elsewhere" else GRADIENTS | FORWARD_AND_HIGHER)
]


@pytest.mark.parametrize("run", [lambda f: f, pytest.param(jax.jit, marks=slow)], ids=["direct", "jit"])
@pytest.mark.parametrize(
    ("op", "way", "name"), rows(CASES, lambda op, way, name: name in FAST.get((op, way), ["vmap of grad"]))
)
def test_equal_to_jax(op, way, name, run):
    got = run((GRADIENTS | FORWARD_AND_HIGHER)[name](OPS[op](**WAYS[way])))(jnp.asarray(X), jnp.asarray(W))
    same = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    jax.tree.map(same, got, in_plain_jax(name))


# The host calls of a forward and a backward pass; a scan over three steps has three of each.
PASSES = {"grad of nested vmap": 2, "jacrev": 2, "grad of scan of vmap": 6}


@pytest.mark.parametrize(("name", "method"), [("grad of nested vmap", "sequential"), ("jacrev", "parallel"),
                         pytest.param("grad of scan of vmap", "parallel", marks=slow)])  # fmt: skip
def test_one_host_call_per_batch_and_pass(method, name):
    """In one program for a tape and for a rule."""
    tape, rule = (GRADIENTS[name](OPS[op](name=op, vmap_method=method, output_shapes=())) for op in OPS)
    with jaxpyop.report() as report:
        jax.block_until_ready(jax.jit(lambda x, w: (tape(x, w), rule(x, w)))(X, W))
    assert {row["op"]: row["calls"] for row in report.rows()} == dict.fromkeys(OPS, PASSES[name])


@pytest.mark.parametrize(("executor", "runs"), [(None, 3), (InCaller(), 6)], ids=["threads", "other workers"])
def test_a_record_is_replayed_and_other_workers_have_none(executor, runs):
    """Where nothing is recorded the function runs once more in the backward pass."""
    seen = []
    body = lambda x: (seen.append(1), x**2)[1]
    op = lambda x: py_function(body, [x], F, vmap_method="parallel", output_shapes=(), executor=executor)
    np.testing.assert_array_equal(jax.vmap(jax.grad(op))(grid(3)), 2 * grid(3))
    assert len(seen) == runs


BLOCK_GRADIENTS = {
    "vmap of jacrev": lambda f: jax.vmap(jax.jacrev(f)),
    "vmap of vmap of grad": lambda f: lambda x: jax.vmap(jax.vmap(jax.grad(lambda x: f(x).sum())))(x[:, None]),
}


@pytest.mark.parametrize("program", BLOCK_GRADIENTS.values(), ids=BLOCK_GRADIENTS)
@pytest.mark.parametrize(("executor", "method"), [(None, "expand_dims"), (InCaller(), "broadcast_all")])
def test_fwd_and_bwd_of_blocks(executor, method, program):
    rules, x = (bodies.norm_fwd, bodies.norm_bwd), grid(3, 4)
    op = lambda x: numpy_function(bodies.norm, [x], F, vmap_method=method, executor=executor, vjp=rules)
    np.testing.assert_allclose(program(op)(x), program(bodies.norm)(x), rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_rule_is_called_as_often_as_the_function(method):
    op = lambda x: numpy_function(bodies.cube, [x], F, vjp=bodies.cube_vjp, vmap_method=method)
    out, row = counted(jax.vmap(jax.grad(op)), grid(3))
    np.testing.assert_array_equal(out, 3 * grid(3) ** 2)
    assert row["runs"] == row["rules"] == (1 if method in BLOCKS else 3)

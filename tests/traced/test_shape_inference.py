"""How often shape inference runs a body before it gives up, and which path it takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop._tape import TapeTracer
from tests.shared.util import py_function

F = jnp.float32


def _after_ifs(x, runs):
    runs.append(1)
    for k in range(8):
        if x > k:
            x = x + 1
    return np.sin(x)


def _after_a_loop(x, runs):
    runs.append(1)
    while x > 1:
        x = x / 2
    return np.sin(x)


def _in_a_function(x, runs):
    def finish(x):
        return float(x)

    runs.append(1)
    if x > 2:
        return finish(x) * 2
    if x > 1:
        return finish(x) + 1
    return finish(x)


@pytest.mark.parametrize(
    ("body", "most"), [(_after_ifs, 2), (_after_a_loop, 3), (_in_a_function, 2)], ids=["ifs", "loop", "function"]
)
def test_paths_that_end_at_one_line_are_not_all_tried(body, most):
    runs = []
    jaxpr = jax.make_jaxpr(lambda x: py_function(lambda x: body(x, runs), [x], F))(0.5)
    assert jaxpr.out_avals[0].shape == ()
    assert len(runs) <= most


def _one_branch_completes(x):
    if x > 1:
        if x > 2:
            x = x + 1
        return np.sin(x)
    return jnp.stack([x, x])


def _a_branch_between_completes(x):
    if x > 1:
        return np.sin(x)
    if x > 0:
        return jnp.stack([x, x])
    return float(x)


def _the_end_of_a_loop_completes(x):
    while x > 1:
        x = x / 2
    return jnp.stack([x, x])


@pytest.mark.parametrize(
    "body", [_one_branch_completes, _a_branch_between_completes, _the_end_of_a_loop_completes], ids=lambda f: f.__name__
)
def test_a_path_that_completes_is_found(body):
    assert jax.make_jaxpr(lambda x: py_function(body, [x], F))(0.5).out_avals[0].shape == (2,)


# ------------------------------------------------- how often a body is run abstractly


def _counted(body):
    """A body that counts its runs, those that find shapes apart from the others."""
    runs = {"abstract": 0, "run": 0}

    def counted(x):
        # The arrays of the tape are tracers too, and have values.
        runs["abstract" if isinstance(x, jax.core.Tracer) and not isinstance(x, TapeTracer) else "run"] += 1
        return body(x)

    return counted, runs


TRANSFORMATIONS = {
    "jit": (jax.jit, 1),
    "vmap under jit": (lambda f: jax.jit(lambda x: jax.vmap(f)(x[None])), 1),
    "grad": (jax.grad, 0),
    "value_and_grad": (jax.value_and_grad, 0),
    "vjp": (lambda f: lambda x: jax.vjp(f, x)[1](1.0), 0),
    "grad under jit": (lambda f: jax.jit(jax.grad(f)), 1),
    "grad of grad under jit": (lambda f: jax.jit(jax.grad(jax.grad(f))), 1),
    "grad of a scan": (lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), 0), x, None, 3)[0]), 1),
}


@pytest.mark.parametrize(("over", "abstract"), TRANSFORMATIONS.values(), ids=TRANSFORMATIONS)
def test_a_body_runs_abstractly_at_most_once_in_a_trace(over, abstract):
    body, runs = _counted(lambda x: jnp.sin(x) * jnp.ones(2).sum())
    f = over(lambda x: py_function(body, [x], F))
    jax.block_until_ready(f(0.5))
    assert runs["abstract"] == abstract
    if type(f).__name__ == "PjitFunction":
        runs["abstract"] = 0
        jax.block_until_ready(f(0.25))
        assert runs["abstract"] == 0


def test_the_eager_gradient_of_a_stateful_body_has_its_shape():
    """A stateful body is never run abstractly, so that its derivative has to know what the call returned."""
    body, runs = _counted(jnp.sum)
    g = jax.grad(lambda x: py_function(body, [x], F, stateful=True))(jnp.arange(3.0))
    np.testing.assert_array_equal(g, [1, 1, 1])
    assert runs == {"abstract": 0, "run": 1}


N = 2


def _over_a_global(patch):
    yield lambda x: jnp.full(N, x)
    patch.setitem(globals(), "N", 3)


def _over_a_list(patch):
    sizes = [2]
    yield lambda x: jnp.full(sizes[0], x)
    sizes[0] = 3


@pytest.mark.parametrize("make", [_over_a_global, _over_a_list], ids=lambda f: f.__name__)
def test_each_trace_finds_the_shapes_anew(make, monkeypatch):
    steps = make(monkeypatch)
    body = next(steps)

    def shape():
        return jax.make_jaxpr(lambda x: py_function(body, [x], F))(0.5).out_avals[0].shape

    assert shape() == (2,)
    next(steps, None)
    assert shape() == (3,)

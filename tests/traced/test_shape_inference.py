"""How often shape inference runs a body before it gives up, and which path it takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

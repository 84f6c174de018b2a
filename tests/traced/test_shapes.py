"""Under jit, the shape of a result is found behind ifs and loops on values, by few abstract runs of the function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.traced.rows import F


def shape(body, x=0.5):
    return jax.make_jaxpr(lambda x: jaxpyop.py_function(body, [x], F))(x).out_avals[0].shape


def a_loop(x):
    while x > 1:
        x = x / 2
    return jnp.stack([x, x])


def an_if_after_which_values_are_needed(x):
    if x > 1:
        if x > 2:
            x = x + 1
        return np.sin(x) * np.ones(2)
    return jnp.stack([x, x])


def a_branch_in_between(x):
    if x > 1:
        return np.full(2, np.sin(x))
    if x > 0:
        return jnp.stack([x, x])
    return np.full(2, float(x))


BODIES = [a_loop, an_if_after_which_values_are_needed, a_branch_in_between]


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_the_shape_of_a_path_is_found(body):
    assert shape(body) == (2,)


def test_the_shape_is_found_by_few_runs():
    runs = []

    def body(x):
        runs.append(1)
        for k in range(8):
            if x > k:
                x = x + 1
        return np.sin(x)

    assert shape(body) == ()
    assert len(runs) <= 2


def test_the_shape_is_found_anew_in_each_trace():
    sizes = [2]
    body = lambda x: jnp.full(sizes[0], x)
    assert shape(body) == (2,)
    sizes[0] = 3
    assert shape(body) == (3,)


def counted(body):
    """A body that counts its runs, those on values apart from the others."""
    runs = {"abstract": 0, "values": 0}

    def count(x):
        try:
            float(jnp.sum(x))
            runs["values"] += 1
        except jax.errors.ConcretizationTypeError:
            runs["abstract"] += 1
        return body(x)

    return count, runs


def test_a_direct_gradient_needs_no_abstract_run():
    body, runs = counted(jnp.sin)
    jax.value_and_grad(lambda x: jaxpyop.py_function(body, [x], F))(0.5)
    assert runs == {"abstract": 0, "values": 1}

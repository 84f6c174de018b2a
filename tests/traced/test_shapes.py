"""Under jit, the shape of a result is found by one abstract run of the function at each trace."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import jaxpyop
from tests.traced.rows import F


def shape(body, x=0.5):
    return jax.make_jaxpr(lambda x: jaxpyop.py_function(body, [x], F))(x).out_avals[0].shape


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


def test_a_compiled_gradient_needs_one_abstract_run():
    body, runs = counted(lambda x: x if x > 0 else -x)
    assert jax.jit(jax.grad(lambda x: jaxpyop.py_function(body, [x], F)))(-0.5) == -1
    assert runs == {"abstract": 1, "values": 1}


def test_a_direct_gradient_needs_no_abstract_run():
    body, runs = counted(jnp.sin)
    jax.value_and_grad(lambda x: jaxpyop.py_function(body, [x], F))(0.5)
    assert runs == {"abstract": 0, "values": 1}

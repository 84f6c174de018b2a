"""An input that is an object with state is a copy: a change of it is told, once for each op and input."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest

from tests.shared.util import py_function


@jax.tree_util.register_pytree_with_keys_class
class Counter:
    def __init__(self, count):
        self.count = count

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("count"), self.count),), None

    @classmethod
    def tree_unflatten(cls, aux, leaves):
        return cls(*leaves)


def step(counter, x):
    counter.count = counter.count + 1
    return x * counter.count


@pytest.mark.parametrize("over", [lambda f: f, jax.jit, jax.grad], ids=["direct", "jit", "grad"])
def test_a_changed_input_warns_once(over, request):
    f = over(lambda x: py_function(step, [Counter(jnp.float32(1)), x], jnp.float32, name=request.node.name))
    with pytest.warns(RuntimeWarning, match=r"func changed \.count of inp\[0\].*return the new state"):
        jax.block_until_ready(f(3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(f(3.0)) in (6.0, 2.0)


def test_what_only_reads_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert py_function(lambda c, x: c.count * x, [Counter(jnp.float32(2)), 3.0], jnp.float32) == 6

"""An input that is an object with state is a copy: a change of it is told, once for each op and input."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

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


CONTAINERS = {
    "a list": (lambda c: [c], lambda held: held[0], r"inp\[0\]\[0\]"),
    "a dict in a tuple": (lambda c: (1, {"m": c}), lambda held: held[1]["m"], r"inp\[0\]\[1\]\['m'\]"),
}


@pytest.mark.parametrize(("held", "taken", "named"), CONTAINERS.values(), ids=CONTAINERS)
def test_an_object_in_a_container(held, taken, named, request):
    f = lambda held, x: step(taken(held), x)
    with pytest.warns(RuntimeWarning, match=rf"func changed \.count of {named}"):
        py_function(f, [held(Counter(jnp.float32(1))), 3.0], jnp.float32, name=request.node.name)


class Grows(Counter):
    def tree_flatten_with_keys(self):
        return tuple((jax.tree_util.GetAttrKey(name), x) for name, x in vars(self).items()), tuple(vars(self))

    @classmethod
    def tree_unflatten(cls, names, leaves):
        made = cls.__new__(cls)
        vars(made).update(zip(names, leaves))
        return made


jax.tree_util.register_pytree_with_keys_class(Grows)


@pytest.mark.parametrize("change", [lambda c: setattr(c, "new", c.count), lambda c: delattr(c, "count")])
def test_a_leaf_that_comes_or_goes(change, request):
    def f(c, x):
        change(c)
        return x

    with pytest.warns(RuntimeWarning, match=r"func changed \.(new|count) of inp\[0\]"):
        py_function(f, [Grows(jnp.float32(1)), 3.0], jnp.float32, name=request.node.name)


def test_a_module_of_flax():
    bn = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    with pytest.warns(RuntimeWarning, match=r"func changed .* of inp\[0\].*nnx\.split"):
        py_function(lambda m, x: m(x), [bn, jnp.ones((3, 2))], jax.ShapeDtypeStruct((3, 2), jnp.float32))


@pytest.mark.parametrize("mode", ["eager", "traced", "auto"])
@pytest.mark.parametrize("over", [lambda f: f, jax.jit, jax.grad], ids=["direct", "jit", "grad"])
def test_a_changed_input_warns_once(over, mode, request):
    f = over(lambda x: py_function(step, [Counter(jnp.float32(1)), x], jnp.float32, mode=mode, name=request.node.name))
    with pytest.warns(RuntimeWarning, match=r"func changed \.count of inp\[0\].*return the new state"):
        jax.block_until_ready(f(3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(f(3.0)) in (6.0, 2.0)


def test_what_only_reads_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert py_function(lambda c, x: c.count * x, [Counter(jnp.float32(2)), 3.0], jnp.float32) == 6

"""Random stacks of transformations around the features give what plain JAX gives, or are refused.

A refusal is a `NotImplementedError` that names the op: of a stateful function in a batched `cond`, for example.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import jaxpyop
from tests.routes.features import FEATURES, X
from tests.shared.examples import few, many

pytestmark = pytest.mark.filterwarnings("ignore:.*on_error= filled:RuntimeWarning")


def several(x):
    return jnp.stack([x, x + 0.125, x + 0.25])


def total(tree):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


# Each makes a function of one array from a function of one array of the same shape.
PLAIN = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(several(x)),
    "vmap over the last axis": lambda f: lambda x: jax.vmap(f, in_axes=1)(several(x).T),
    "nested vmap": lambda f: lambda x: jax.vmap(jax.vmap(f))(several(several(x).reshape(-1))[:, None].reshape(3, 3, 3)),
    "scan": lambda f: lambda x: lax.scan(lambda c, x: (c + 1, f(x)), 0, several(x))[1],
    "while_loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda i, s: s + total(f(x * s)), jnp.float32(0.5)),
    "cond": lambda f: lambda x: lax.cond(x[0] > 0.3, lambda x: total(f(x)), lambda x: total(x), x),
    "vmap of cond": lambda f: (
        lambda x: jax.vmap(lambda x: lax.cond(x[0] > 0.3, lambda x: total(f(x)), total, x))(several(x))
    ),
    "map": lambda f: lambda x: lax.map(f, several(x)),
    "checkpoint": jax.checkpoint,
    "used twice": lambda f: lambda x: (f(x), f(2 * x)),
}
DERIVATIVES = {
    "grad": lambda f: jax.grad(lambda x: total(f(x))),
    "jvp": lambda f: lambda x: jax.jvp(f, [x], [2 * x])[1],
    "jacrev": lambda f: jax.jacrev(lambda x: total(f(x))),
    "jacfwd": lambda f: jax.jacfwd(lambda x: total(f(x))),
    "vjp": lambda f: lambda x: jax.vjp(lambda x: total(f(x)), x)[1](jnp.float32(0.5))[0],
}


@st.composite
def programs(draw):
    """A feature, and the names of the transformations around it, the innermost first."""
    feature = draw(st.sampled_from(sorted(FEATURES)))
    order = FEATURES[feature].order
    around = draw(st.lists(st.sampled_from(sorted(PLAIN)), max_size=3))
    derivatives = draw(st.lists(st.sampled_from(sorted(DERIVATIVES)), max_size=min(order or 0, 2)))
    names = draw(st.permutations(around + derivatives))
    return feature, tuple(names), draw(st.sampled_from(["directly", "jax.jit", "jaxpyop.jit"]))


def run(function, names, jit):
    for name in names:
        function = (PLAIN | DERIVATIVES)[name](function)
    outside = {"directly": lambda f: f, "jax.jit": jax.jit, "jaxpyop.jit": jaxpyop.jit}[jit]
    out = [np.asarray(leaf) for leaf in jax.tree.leaves(outside(function)(X))]
    jax.effects_barrier()
    return out


def check_it_equals_plain_jax(program):
    name, names, jit = program
    feature = FEATURES[name]
    try:
        wanted = run(feature.plain, names, "directly")
    except (TypeError, ValueError):
        return  # These transformations do not fit together, or do not take a tree.
    try:
        got = run(feature.program, names, jit)
    except NotImplementedError as refusal:
        if re.search(r"py_func|numpy_function", str(refusal)):
            return
        raise
    assert [leaf.dtype for leaf in got] == [leaf.dtype for leaf in wanted]
    for ours, plain in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-2 if feature.tolerance > 1e-4 else 1e-4, atol=1e-3)


test_a_random_stack_equals_plain_jax = few(given(programs()), check_it_equals_plain_jax, 3)
test_many_random_stacks_equal_plain_jax = many(given(programs()), check_it_equals_plain_jax, 20)

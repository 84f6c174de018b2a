"""Derivatives of loops on values: of any order, in both modes, in batches, and without a bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import trees_close
from tests.traced.rows import op

POINT = (jnp.float32(4.0), jnp.float32(0.8))


def shrink(x, a):
    while x > 1:
        x = x * a
    return x


def at_the_point(x, a):
    """What `shrink` is around the point."""
    return x * a**7


def traced(function, max_steps=20):
    return op(function, "traced", max_steps=max_steps)


FORWARD, REVERSE = (lambda f: jax.jacfwd(f, (0, 1))), (lambda f: jax.jacrev(f, (0, 1)))
SECOND = {
    "forward over reverse": lambda f: FORWARD(REVERSE(f)),
    "reverse over reverse": lambda f: REVERSE(REVERSE(f)),
    "forward over forward": lambda f: FORWARD(FORWARD(f)),
    "reverse over forward": lambda f: REVERSE(FORWARD(f)),
}


@pytest.mark.slow
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_second_derivatives(second):
    trees_close(jax.jit(second(traced(shrink)))(*POINT), second(at_the_point)(*POINT))


def test_a_bound_that_is_not_exceeded_does():
    trees_close(jax.grad(traced(shrink, 7), (0, 1))(*POINT), jax.grad(at_the_point, (0, 1))(*POINT))


def test_a_bound_that_is_exceeded_gives_the_value_and_no_gradient():
    value, slope = jax.jit(jax.value_and_grad(traced(shrink, 6)))(*POINT)
    np.testing.assert_allclose(value, at_the_point(*POINT), rtol=1e-5)
    assert np.isnan(slope)


@pytest.mark.slow
def test_what_overflows_beside_the_result_is_not_in_its_slopes():
    def body(x, y):
        for _ in range(int(x * 0) + 6):
            x, y = (x**4, y - 0.5) if x > 2 else (x, y - 1.0)
        return jnp.sin(y)

    np.testing.assert_allclose(jax.grad(traced(body), (0, 1))(3.0, 1.0), (0, np.cos(2)), rtol=1e-5)


def test_the_slope_of_an_element_of_a_batch_is_that_of_its_own_turns():
    """The slope of one more is infinite, and the loop of a path that is not taken has too many turns."""

    def root(x):
        if x < 8:
            while x > 1:
                x = jnp.sqrt(x - 1)
        return x

    slopes = jax.jit(jax.grad(lambda x: jax.vmap(traced(root, 3))(x).sum()))(jnp.array([5.0, 1.0, 1e9]))
    np.testing.assert_allclose(slopes, [0.125, 1, 1])


def test_without_a_bound_only_a_backward_pass_is_refused():
    forward = jax.jit(jax.jacfwd(op(shrink, "traced")))(*POINT)
    np.testing.assert_allclose(forward, 0.8**7, rtol=1e-5)
    with pytest.raises(NotImplementedError, match=r"py_function 'shrink': .*test_loop_gradients\.py:.*max_steps="):
        jax.jit(jax.grad(op(shrink, "traced")))(*POINT)


def test_without_a_bound_mode_auto_calls_what_has_a_gradient():
    slope = jax.jit(jax.grad(op(shrink, "auto")))(*POINT)
    np.testing.assert_allclose(slope, jax.grad(at_the_point)(*POINT), rtol=1e-5)


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "ten"])
def test_what_is_no_bound(steps):
    with pytest.raises(ValueError, match=rf"py_function: max_steps is {steps!r}; expected .* at least 1"):
        traced(shrink, steps)(*POINT)


def test_what_has_no_derivative_needs_no_bound():
    def turns(x):
        k = 0
        while x > 1:
            x, k = x / 2, k + 1
        return k * 1.0

    assert jax.grad(lambda x: op(turns, "traced")(x) + x)(8.0) == 1.0


def halve(x):
    return jaxpyop.py_function(lambda x: shrink(x, 0.5), [x], x.dtype, mode="traced", max_steps=9)


@pytest.mark.slow
def test_other_precisions(x64):
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float64):
        value, slope = jax.jit(jax.value_and_grad(halve))(jnp.asarray(6.0, dtype))
        assert (value.dtype, float(value), slope.dtype, float(slope)) == (dtype, 0.75, dtype, 0.125)


@pytest.mark.slow
def test_in_checkpoint_and_shard_map():
    slope = jax.jit(jax.grad(jax.checkpoint(traced(shrink))))(*POINT)
    np.testing.assert_allclose(slope, 0.8**7, rtol=1e-5)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    mapped = lambda **options: jax.shard_map(jax.vmap(halve), mesh=mesh, in_specs=spec, out_specs=spec, **options)
    with pytest.raises(ValueError, match="check_vma=False"):  # JAX says so
        jax.jit(mapped())(jnp.ones(3))
    over, x = mapped(check_vma=False), jnp.asarray([4.0, 9.0, 0.5])
    np.testing.assert_allclose(jax.jit(over)(x), [1.0, 0.5625, 0.5])
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: over(x).sum()))(x), [0.25, 0.0625, 1.0])

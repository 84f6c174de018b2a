"""Bodies that keep, change and return arrays across calls, and change their mind about shapes."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import both_sides, numpy_function, py_function, run

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


SIZES = [3, 10_000]  # below and above the size from which arrays are recycled


@pytest.mark.parametrize("n", SIZES)
@both_sides
def test_one_buffer_returned_each_time_and_changed_afterwards(api, n, route):
    buffer = np.zeros(n, np.float32)

    def body(x):
        buffer[:] = np.asarray(x) * 2
        return buffer

    f = lambda x: api(body, [x], F, output_shapes=(n,))
    f = jax.jit(f) if route.jit else f
    results = [f(jnp.full(n, float(i))) for i in range(5)]
    jax.block_until_ready(results)
    buffer[:] = -1
    for i, y in enumerate(results):
        np.testing.assert_array_equal(y, np.full(n, 2.0 * i))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_one_buffer_for_all_elements_of_a_batch(n, method, route):
    buffers = threading.local()  # one per thread that runs elements

    def body(x):
        if not hasattr(buffers, "own"):
            buffers.own = np.zeros(n, np.float32)
        buffers.own[:] = x
        return buffers.own

    x = jnp.broadcast_to(jnp.arange(20.0)[:, None], (20, n))
    y = route(jax.vmap(lambda x: numpy_function(body, [x], F, vmap_method=method)), x)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("n", SIZES)
def test_views_of_inputs_that_the_body_changes_later(n, route):
    kept = []

    def body(x):
        for old in kept:
            old[:] = -1
        kept.append(x)
        return x[:]

    f = lambda x: numpy_function(body, [x], F)
    f = jax.jit(f) if route.jit else f
    x = jnp.ones(n)
    results = [f(x * i) for i in range(5)]
    for i, y in enumerate(results):
        np.testing.assert_array_equal(y, np.full(n, float(i)))
    np.testing.assert_array_equal(x, np.ones(n))


@both_sides
def test_a_body_that_changes_its_mind_about_shapes(api, route):
    def body(x):
        return np.zeros(len(shapes_seen) or 3, np.float32)

    shapes_seen: list = []
    f = lambda x: api(body, [x], F, output_shapes=(3,))
    f = jax.jit(f) if route.jit else f
    for n in (3, 2, 4, 3, 1, 3):
        shapes_seen[:] = range(n)
        if n == 3:
            np.testing.assert_array_equal(run(f, X), np.zeros(3))
        else:
            with pytest.raises(ValueError, match=rf"shape \({n},\) where \(3,\) was declared"):
                run(f, X)


def test_a_body_that_changes_its_mind_within_a_batch(route):
    body = lambda x: np.zeros(int(x) % 2 + 1, np.float32)
    f = jax.vmap(lambda x: numpy_function(body, [x], F, output_shapes=(1,)))
    np.testing.assert_array_equal(route(f, jnp.array([0.0, 2.0])), np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(1,\) was declared"), jaxpyop.reraise():
        route(f, jnp.array([0.0, 1.0]))
    np.testing.assert_array_equal(route(f, jnp.array([4.0, 2.0])), np.zeros((2, 1)))


def test_an_input_kept_from_a_recorded_run_is_an_array_when_returned(route):
    """A body that keeps what it saw under grad, and returns it later."""
    kept = []

    def body(x):
        kept.append(x)
        return kept[0]

    f = lambda x: py_function(body, [x], F, output_shapes=())
    assert jax.grad(f)(3.0) == 1
    y = route(f, F(4))
    assert type(y) is type(X)
    assert y == 3
    assert route(jax.grad(f), F(4)) == 0


def test_an_input_kept_from_a_recorded_run_is_an_error_when_used(route):
    kept = []

    def body(x, keep):
        kept.append(keep(x))
        return kept[0] * x

    f = lambda keep: lambda x: py_function(body, [x, keep], F, output_shapes=())
    assert route(jax.grad(f(lambda x: x)), F(3)) == 6
    with (
        pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer") as caught,
        jaxpyop.reraise(),
    ):
        route(f(lambda x: x), F(3))
    assert "keep jax.lax.stop_gradient(x)" in str(caught.value)
    kept.clear()
    assert route(jax.grad(f(jax.lax.stop_gradient)), F(3)) == 3
    assert route(f(jax.lax.stop_gradient), F(5)) == 15


KEEPING = {
    "jit": jax.jit,
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x]))[0],
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
}


@pytest.mark.parametrize("program", KEEPING.values(), ids=KEEPING)
def test_a_body_that_keeps_its_inputs_is_traced_again(program, transport):
    """Tracers of runs that are over are no traced values of the code around the op."""
    kept = []

    def body(x):
        kept.append(x)
        return x * 2

    f = lambda x: py_function(body, [x], F)
    for _ in range(3):
        assert program(lambda x: f(x))(F(1)) == 2
    assert kept


@pytest.mark.parametrize("program", KEEPING.values(), ids=KEEPING)
def test_a_traced_body_that_keeps_its_inputs_is_refused(program):
    """It would keep them once, while JAX traces, where Python keeps those of each call."""
    kept = []

    def body(x):
        kept.append(x)
        return x * 2

    with pytest.raises(TypeError, match="`kept` is changed, which would happen once"):
        program(lambda x: py_function(body, [x], F, mode="traced"))(F(1))
    assert kept == []

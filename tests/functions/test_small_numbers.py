"""Numbers below the normal range, which XLA's threads take for zero, and functions in a program do not."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import over_transport

F = jnp.float32
LEAST = np.finfo(np.float64).tiny


def scaled(x):
    """Return the input, if 64-bit numbers half as large as the least normal one are not zero in Python and NumPy."""
    by_python = float(x) * float(LEAST) / float(LEAST)
    by_numpy = np.full(3, float(x)) * LEAST / LEAST
    return np.float32(min(by_python, *by_numpy))


def fill(x, *, out):
    out[...] = scaled(x)


def op(x, api: Callable[..., Any] = jaxpyop.numpy_function, func=scaled, **options):
    return api(func, [x], jax.ShapeDtypeStruct((), F), **options)


def in_a_loop(x):
    return jax.lax.scan(lambda c, _: (op(c), None), x, None, length=3)[0]


def by_a_rule(x):
    return jax.grad(lambda x: op(x, vjp=lambda inputs, outputs, cotangents: scaled(inputs[0])))(x)


def batch(program):
    return lambda x: jax.vmap(program)(jnp.full(6, x))


def with_public_callbacks(program):
    def run(x):
        with over_transport("callback"):
            return jax.block_until_ready(jax.jit(program)(x))

    return run


ROUTES = {
    "numpy_function": jax.jit(op),
    "py_function": jax.jit(lambda x: op(x, jaxpyop.py_function)),
    "py_func": jax.jit(lambda x: op(x, jaxpyop.py_func)),
    "ordered": jax.jit(lambda x: op(x, jaxpyop.py_func, ordered=True)),
    "public callback": with_public_callbacks(op),
    "public stateful callback": with_public_callbacks(lambda x: op(x, jaxpyop.py_func)),
    "out=True": jax.jit(lambda x: op(x, func=fill, out=True)),
    "a batch": jax.jit(batch(op)),
    "a parallel batch": jax.jit(batch(lambda x: op(x, vmap_method="parallel"))),
    "a scan": jax.jit(in_a_loop),
    "a rule": jax.jit(by_a_rule),
    "cut": jaxpyop.jit(op),
    "cut, stateful": jaxpyop.jit(lambda x: op(x, jaxpyop.py_func)),
    "direct": op,
}


@pytest.mark.parametrize("run", ROUTES.values(), ids=ROUTES)
def test_a_function_has_the_smallest_numbers(run):
    np.testing.assert_array_equal(run(F(0.5)), 0.5)


def test_the_log_of_a_product_is_the_same_in_a_program():
    """As it came up: a likelihood of 31 events."""
    log = lambda p: np.log(np.prod(p.astype(np.float64))).astype(F)
    likelihood = lambda p: jaxpyop.numpy_function(log, [p], jax.ShapeDtypeStruct((), F))
    p = jnp.full(31, 1e-10, F)
    assert jax.jit(likelihood)(p) == likelihood(p) == pytest.approx(-713.8, abs=0.05)


def test_a_function_that_raises_leaves_xla_its_mode():
    def fail(x):
        raise ValueError("no")

    program = jax.jit(lambda x: op(x, func=fail))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"), jaxpyop.reraise():
            program(F(0.5)).block_until_ready()
    assert flushes_to_zero(lambda x: x)


def flushes_to_zero(program) -> bool:
    """Tell whether XLA takes the smallest numbers for zero after a program, in the same execution."""
    small = lambda x, least: program(x) * least
    return not np.asarray(jax.jit(small)(F(0.5), np.finfo(F).tiny)).any()


def test_xla_has_its_own_mode_after_the_function():
    assert flushes_to_zero(lambda x: x)
    assert flushes_to_zero(op)


@pytest.mark.parametrize("starts", ["a program", "a program of plain JAX"])
@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_the_threads_of_a_pool_that_starts_inside_a_program(starts, method):
    """They inherit the mode of the thread that starts them, and keep it."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        on_pool = batch(lambda x: op(x, executor=pool, vmap_method=method))
        if starts == "a program":
            np.testing.assert_array_equal(jax.jit(on_pool)(F(0.5)), 0.5)
        else:
            start = lambda x: np.float32(pool.submit(float, x).result())
            jax.jit(lambda x: jax.pure_callback(start, F(0), x))(F(0.5)).block_until_ready()
        np.testing.assert_array_equal(on_pool(F(0.5)), 0.5)
        np.testing.assert_array_equal(jax.jit(on_pool)(F(0.5)), 0.5)


def test_a_pool_that_the_function_starts():
    def on_threads(x):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return min(pool.map(scaled, [x, x]))

    assert jax.jit(lambda x: op(x, func=on_threads))(F(0.5)) == 0.5

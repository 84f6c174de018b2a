"""A call in each branch of a `cond` or `switch` under `vmap` of `grad`: each element has the gradient of its branch.

JAX runs both branches for all elements, and hands what they keep for the backward pass over in the same arrays. So each
of the two calls gets receipts of the other one.
"""

import concurrent.futures
import itertools
import multiprocessing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function, static
from tests.shared.checks import close
from tests.shared.tables import rows

F = jnp.float32(0)
X = jnp.array([-2.0, -0.5, 0.25, 2.5])


def square(x):
    return x * x


def of_square(inputs, _, cotangent):
    return (2 * inputs[0] * cotangent,)


def times_cosine(inputs, _, cotangent):
    return (np.cos(inputs[0]) * cotangent,)


def fails_below_minus_one(x):
    if x < -1:
        raise ValueError("below -1")
    return jnp.sin(x)


def multiples(x, count):
    count = count[1][0] if isinstance(count, tuple) else count
    return jnp.sin(x) * jnp.arange(1.0, count + 1)


def power(x, exponent):
    return x**exponent


# An op, and the same function of JAX.
KINDS = {
    "straight": (lambda x: py_function(lambda x: jnp.sin(x) * x, [x], F), lambda x: jnp.sin(x) * x),
    "looks at values": (
        lambda x: py_function(lambda x: x**2 if x > 0 else x**3, [x], F),
        lambda x: jnp.where(x > 0, x**2, x**3),
    ),
    "two inputs": (lambda x: py_function(lambda x, y: jnp.exp(x) * y, [x, 3 * x], F), lambda x: jnp.exp(x) * 3 * x),
    "two results": (lambda x: sum(py_function(lambda x: (x**2, jnp.cos(x)), [x], (F, F))), lambda x: x**2 + jnp.cos(x)),
    "other shapes": (
        lambda x: py_function(lambda x: x * x[::-1], [jnp.stack([x, x])], jnp.zeros(2)).sum(),
        lambda x: 2 * x * x,
    ),
    "rules": (
        lambda x: py_function(square, [x], F, vjp=of_square, jvp=lambda x, y, t: 2 * x[0] * t[0]),
        lambda x: x * x,
    ),
    "NumPy": (
        lambda x: numpy_function(lambda x: 5 * x * x, [x], F, vjp=lambda x, y, c: (10 * x[0] * c,)),
        lambda x: 5 * x * x,
    ),
    "pair": (
        lambda x: numpy_function(square, [x], F, vjp=(lambda x: (x**2, {"x": x}), lambda kept, c: 2 * kept["x"] * c)),
        lambda x: x * x,
    ),
    "one function, two results": (
        lambda x: py_function(multiples, [x, static(2)], jnp.zeros(2)).sum(),
        lambda x: 3 * jnp.sin(x),
    ),
    "one function, three results": (
        lambda x: py_function(multiples, [x, static(3)], jnp.zeros(3)).sum(),
        lambda x: 6 * jnp.sin(x),
    ),
    "one function, another table": (
        lambda x: py_function(multiples, [x, static(("count", (5,)))], jnp.zeros(5)).sum(),
        lambda x: 15 * jnp.sin(x),
    ),
    "one function, a table": (
        lambda x: py_function(multiples, [x, static(("count", (4,)))], jnp.zeros(4)).sum(),
        lambda x: 10 * jnp.sin(x),
    ),
    "one function, the square": (lambda x: py_function(power, [x, static(2)], F), lambda x: x**2),
    "one function, the cube": (lambda x: py_function(power, [x, static(3)], F), lambda x: x**3),
    "on_error": (
        lambda x: py_function(fails_below_minus_one, [x], F, on_error=0.0),
        lambda x: jnp.where(x < -1, 0, jnp.sin(x)),
    ),
}


def program(first, second):
    index = jnp.int32(X > -1) + (X > 1)

    def both(x, index):
        of_cond = jax.lax.cond(x > 0, first, second, x)
        # The order is the other one here, so that each pair of ops is tested in both.
        return of_cond + 10 * jax.lax.switch(index, [second, lambda x: 7 * x, first], x)

    gradients = jax.jit(jax.vmap(jax.grad(both)))
    return lambda: gradients(X, index)


def check(first, second):
    gradients = program(first[0], second[0])
    one, other = (jax.vmap(jax.grad(plain))(X) for plain in (first[1], second[1]))
    wanted = jnp.where(X > 0, one, other) + 10 * jnp.where(X > 1, one, jnp.where(X > -1, 7, other))
    close(gradients(), wanted)
    with jaxpyop.config.override(max_record_bytes=1):
        close(gradients(), wanted)


@pytest.mark.filterwarnings("ignore:.*(records of forward passes|on_error)")
@pytest.mark.parametrize(
    ("first", "second"),
    rows(
        itertools.combinations_with_replacement(KINDS, 2),
        [
            ("two inputs", "two results"),
            ("looks at values", "pair"),
            ("one function, two results", "one function, three results"),
            ("one function, a table", "one function, another table"),
            ("one function, the square", "one function, the cube"),
        ],
    ),
)
def test_a_call_in_each_branch(first, second):
    check(KINDS[first], KINDS[second])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*records of forward passes")
def test_in_worker_processes():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        taped = lambda x: py_function(square, [x], F, executor=pool)
        ruled = lambda x: numpy_function(np.sin, [x], F, vjp=times_cosine, executor=pool)
        check((taped, square), (taped, square))
        check((taped, square), (ruled, jnp.sin))
        check((ruled, jnp.sin), KINDS["pair"])

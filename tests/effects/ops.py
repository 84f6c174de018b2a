"""The ops with side effects, functions that note their runs, and the routes of a program."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.functions import numpy_function, py_func, py_function

F = jnp.float32
X = np.array([0.5, -1.0, 2.0], np.float32)

UNORDERED = {"py_func": py_func, "py_function": functools.partial(py_function, stateful=True)}
ORDERED = {
    "ordered py_func": functools.partial(py_func, ordered=True),
    "ordered py_function": functools.partial(py_function, ordered=True),
}
STATEFUL = UNORDERED | {"ordered py_func": ORDERED["ordered py_func"]}
STATELESS = {"py_function": py_function, "numpy_function": numpy_function}


class Log:
    """A function that notes its input, and returns it, or a result that is made from it."""

    __name__ = "log"

    def __init__(self, result=lambda x: x):
        self.seen = []
        self.result = result

    def __call__(self, x):
        self.seen.append(np.asarray(x).tolist())  # without a value this fails
        return self.result(x)


def wait(result):
    """The result of a program that has come to its end."""
    jax.block_until_ready(result)
    jax.effects_barrier()
    return result


# Most promises are kept on one route; the other is slow. tests/routes/ has all routes.
every_route = pytest.mark.parametrize(
    "route", [pytest.param(jax.jit, id="jit"), pytest.param(lambda f: f, id="direct", marks=pytest.mark.slow)]
)

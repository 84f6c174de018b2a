"""The ops with side effects, and a body that notes its runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.util import numpy_function, py_func, py_function

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])

OPS = {
    "py_func": lambda f, inp, tout, **o: py_func(f, inp, tout, **o),
    "numpy_function": lambda f, inp, tout, **o: numpy_function(f, inp, tout, stateful=True, **o),
    "py_function": lambda f, inp, tout, **o: py_function(f, inp, tout, stateful=True, **o),
    "ordered py_func": lambda f, inp, tout, **o: py_func(f, inp, tout, ordered=True, **o),
    "ordered py_function": lambda f, inp, tout, **o: py_function(f, inp, tout, ordered=True, **o),
}

UNORDERED = [name for name in OPS if not name.startswith("ordered")]
every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
ordered_ops = pytest.mark.parametrize(
    "op", [OPS[n] for n in OPS if n.startswith("ordered")], ids=[n for n in OPS if n.startswith("ordered")]
)


def wait(result):
    jax.block_until_ready(result)
    jax.effects_barrier()


class Log:
    """A body that logs its input and returns it."""

    __name__ = "log"

    def __init__(self, result=lambda x: x):
        self.seen = []
        self.result = result

    def __call__(self, x):
        self.seen.append(np.asarray(x).tolist())  # an abstract run would fail here
        return self.result(x)

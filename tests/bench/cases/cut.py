"""Programs cut at their Python calls beside the same under `jax.jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxpyop
from tests.bench.cases.case import Group, Program, compare, log_huber, numpy_negative


def _both(title: str, program: Program, *inputs: Any, **counts: int) -> Group:
    programs = {"jaxpyop.jit": jaxpyop.jit(program), "jax.jit": jax.jit(program)}
    return compare(title, programs, *inputs, **counts)


def _with_work(op: Program) -> Program:
    return lambda x: jnp.sin(op(x * 2)) + 1


def _looking(x: Any) -> Any:
    return x + 1 if float(x[0]) < 1e9 else x


def _calls(title: str, op: Program) -> Group:
    return _both(title, op, jnp.ones(1))


def _gradient() -> Group:
    loss = lambda x: jaxpyop.py_function(log_huber, [x, 2.0], jnp.float32)
    return _both("log-Huber gradient, cut", jax.value_and_grad(loss), jnp.float32(3.0), calls=10)


def _training_step() -> Group:
    """A step of two layers whose loss is a py_function."""
    inputs = jax.random.normal(jax.random.key(0), (32, 32))

    def loss(weights: Any) -> Any:
        outputs = jnp.tanh(inputs @ weights) @ weights
        body = lambda y: jnp.mean((y - 1) ** 2) if float(y[0, 0]) < 1e9 else jnp.sum(y)
        return jaxpyop.py_function(body, [outputs], jnp.float32, output_shapes=())

    def step(weights: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(weights)
        return weights - 0.01 * slope, value

    return _both("a training step, 32 wide, cut", step, jnp.eye(32), calls=10)


_STATEFUL, _ORDERED = numpy_negative(stateful=True), numpy_negative(ordered=True)
_PY_FUNCTION: Program = lambda x: jaxpyop.py_function(_looking, [x], jnp.float32)
_CALLS = {
    "a NumPy function, which stays whole": numpy_negative(),
    "a stateful one, cut": _STATEFUL,
    "stateful, jnp code around it": _with_work(_STATEFUL),
    "an ordered one, cut": _ORDERED,
    "ordered, jnp code around it": _with_work(_ORDERED),
    "a py_function, cut": _PY_FUNCTION,
    "py_function, jnp code around it": _with_work(_PY_FUNCTION),
}
GROUPS: list[Callable[[], Group]] = [
    *(functools.partial(_calls, title, op) for title, op in _CALLS.items()),
    _gradient,
    _training_step,
]

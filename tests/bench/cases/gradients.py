"""Gradient steps, compared with JAX and TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.bench.cases.case import SCALAR, Group, Program, compare, log_huber, optional


def _scalar_op(body: Callable[..., Any]) -> Program:
    return lambda *inputs: jaxpyop.py_function(body, inputs, SCALAR)


def gradients(title: str, x: float, m: float, *, both: bool = False) -> Group:
    """The gradient of the log-Huber loss in `x` alone, or in both inputs."""
    argnums = (0, 1) if both else (0,)

    def host_gradient(x: Any, m: Any) -> Any:
        value, pull = jax.vjp(log_huber, x, m)
        return pull(jnp.ones_like(value))[: len(argnums)]

    programs: dict[str, Program] = {
        "py_function": jax.jit(jax.grad(_scalar_op(log_huber), argnums)),
        "jax.vjp in pure_callback": jax.jit(
            lambda x, m: jax.pure_callback(host_gradient, (SCALAR,) * len(argnums), x, m)
        ),
    }
    if tf := optional("tensorflow"):

        def tf_log_huber(x: Any, m: Any) -> Any:
            if tf.abs(x) <= m:
                return x**2
            return m**2 * (1 - 2 * tf.math.log(m) + tf.math.log(x**2))

        programs["tf.py_function"] = _tensorflow_gradient(tf, tf_log_huber, len(argnums))
    return compare(title, programs, x, m, calls=5, samples=20)


def _tensorflow_gradient(tf: Any, body: Callable[..., Any], count: int) -> Program:
    """The gradient of `tf.py_function` in the first `count` inputs."""

    @tf.function
    def step(*inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs[:count])
            y = tf.py_function(body, inputs, tf.float32)
        return tape.gradient(y, inputs[:count])

    return lambda *inputs: [np.asarray(g) for g in step(*map(tf.constant, inputs))]


def direct_gradients() -> Group:
    """Without `jit`, as in a notebook."""
    programs = {"py_function": jax.grad(_scalar_op(log_huber)), "jax.grad": jax.grad(log_huber)}
    return compare("direct gradient, log-Huber", programs, jnp.float32(3.0), jnp.float32(2.0), calls=5, samples=20)


def many_primitives() -> Group:
    def repeated(sin: Any, tanh: Any) -> Program:
        def body(x: Any) -> Any:
            for _ in range(5):
                x = sin(x) * 0.5 + tanh(x) - 0.1
            return x

        return body

    body = repeated(jnp.sin, jnp.tanh)
    programs: dict[str, Program] = {
        "py_function": jax.jit(jax.grad(_scalar_op(body))),
        "jax.grad, directly": jax.grad(body),
    }
    if tf := optional("tensorflow"):
        programs["tf.py_function"] = _tensorflow_gradient(tf, repeated(tf.sin, tf.tanh), 1)
    return compare("gradient of 25 primitives", programs, np.float32(0.5), calls=3, samples=15)


def large_arrays() -> Group:
    def body(x: Any) -> Any:
        y = x
        for _ in range(5):
            y = y * x + x
        return jnp.sum(y)

    programs: dict[str, Program] = {
        "py_function": jax.jit(jax.grad(_scalar_op(body))),
        "jax.jit(jax.grad)": jax.jit(jax.grad(body)),
    }
    x = jnp.linspace(0.0, 1.0, 3_000_000)
    return compare("gradient over 12 MB, 10 operations", programs, x, calls=1, samples=7)


def varying_loop() -> Group:
    counts = itertools.cycle(range(1, 7))

    def repeated(x: Any, n: Any) -> Any:
        for _ in range(int(n)):
            x = jnp.sin(x) * x
        return x

    ours = jax.jit(jax.grad(_scalar_op(repeated)))
    programs: dict[str, Program] = {
        "py_function": lambda x: ours(x, next(counts)),
        "jax.grad, directly": lambda x: jax.grad(repeated)(x, next(counts)),
    }
    return compare("gradient, loop of 1 to 6 turns", programs, jnp.float32(0.5), calls=6, samples=15)


def data_without_tangents() -> Group:
    def body(x: Any, data: Any) -> Any:
        for _ in range(10):
            data = jnp.exp(data * 0.1) - 0.5
        return x * jnp.sum(data)

    programs: dict[str, Program] = {
        "py_function": jax.jit(jax.grad(_scalar_op(body))),
        "without the gradient": body,
    }
    inputs = jnp.float32(0.5), jnp.ones(16)
    return compare("gradient, most of it in constants", programs, *inputs, calls=5, samples=15)


def fresh_lengths() -> Group:
    lengths = itertools.count(5)

    def repeated(x: Any, n: Any) -> Any:
        for _ in range(int(n)):
            x = jnp.sin(x) * x
        return x

    def theirs(x: Any) -> Any:
        n = next(lengths)
        return jax.grad(lambda x: repeated(x, n))(x)

    ours = jax.grad(_scalar_op(repeated))
    programs: dict[str, Program] = {"py_function": lambda x: ours(x, next(lengths)), "jax.grad": theirs}
    return compare("direct gradient, a longer loop each time", programs, jnp.float32(0.5), calls=2, samples=8)

"""Gradient steps, beside those of JAX and TensorFlow."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop._cli.cases.case import Case, Group, log_huber, tensorflow


def gradients(title: str, x: float, m: float, *, both: bool = False) -> Group:
    """In `x` alone, or in both."""
    argnums = (0, 1) if both else (0,)
    shape = (jax.ShapeDtypeStruct((), jnp.float32),) * len(argnums)

    def loss(x: Any, m: Any) -> Any:
        return jaxpyop.py_function(log_huber, [x, m], jnp.float32, output_shapes=())

    def host_gradient(x: Any, m: Any) -> Any:
        value, pull = jax.vjp(log_huber, x, m)
        return pull(jnp.ones_like(value))[: len(argnums)]

    ours = jax.jit(jax.grad(loss, argnums))
    theirs = jax.jit(lambda x, m: jax.pure_callback(host_gradient, shape, x, m))
    cases = [
        Case("py_function", lambda: ours(x, m), 10),
        Case("jax.vjp in pure_callback", lambda: theirs(x, m), 5),
    ]
    return Group(title, cases + _tensorflow_gradient(x, m, both), samples=20)


def direct_gradients() -> Group:
    """Without `jit`, as in a notebook."""
    ours = jax.grad(lambda x, m: jaxpyop.py_function(log_huber, [x, m], jnp.float32))
    theirs, x, m = jax.grad(log_huber), jnp.float32(3.0), jnp.float32(2.0)
    cases = [Case("py_function", lambda: ours(x, m), 5), Case("jax.grad", lambda: theirs(x, m), 5)]
    return Group("direct gradient, log-Huber", cases, samples=20)


def many_primitives() -> Group:
    def body(x: Any) -> Any:
        for _ in range(5):
            x = jnp.sin(x) * 0.5 + jnp.tanh(x) - 0.1
        return x

    ours = jax.jit(jax.grad(lambda x: jaxpyop.py_function(body, [x], jnp.float32, output_shapes=())))
    theirs, x = jax.grad(body), jnp.float32(0.5)
    cases = [Case("py_function", lambda: ours(x), 5), Case("jax.grad, directly", lambda: theirs(x), 2)]
    return Group("gradient of 25 primitives", cases + _tensorflow_primitives(), samples=15)


def fresh_lengths() -> Group:
    lengths, x = itertools.count(5), jnp.float32(0.5)

    def repeated(x: Any, n: Any) -> Any:
        for _ in range(int(n)):
            x = jnp.sin(x) * x
        return x

    def theirs() -> Any:
        n = next(lengths)
        return jax.grad(lambda x: repeated(x, n))(x)

    ours = jax.grad(lambda x, n: jaxpyop.py_function(repeated, [x, n], jnp.float32))
    return Group(
        "direct gradient, a longer loop each time",
        [Case("py_function", lambda: ours(x, next(lengths)), 2), Case("jax.grad", theirs, 2)],
        samples=8,
    )


def _tensorflow_gradient(x: float, m: float, both: bool) -> list[Case]:
    if (tf := tensorflow()) is None:
        return []

    def log_huber(x: Any, m: Any) -> Any:
        if tf.abs(x) <= m:
            return x**2
        return m**2 * (1 - 2 * tf.math.log(m) + tf.math.log(x**2))

    @tf.function
    def step(x: Any, m: Any) -> Any:
        watched = [x, m] if both else [x]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            y = tf.py_function(log_huber, [x, m], tf.float32)
        return tape.gradient(y, watched)

    a, b = tf.constant(x), tf.constant(m)
    return [Case("tf.py_function", lambda: [np.asarray(g) for g in step(a, b)], 5)]


def _tensorflow_primitives() -> list[Case]:
    if (tf := tensorflow()) is None:
        return []

    def body(x: Any) -> Any:
        for _ in range(5):
            x = tf.sin(x) * 0.5 + tf.tanh(x) - 0.1
        return x

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.py_function(body, [x], tf.float32)
        return tape.gradient(y, x)

    x = tf.constant(0.5)
    return [Case("tf.py_function", lambda: np.asarray(step(x)), 5)]

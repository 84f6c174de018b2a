"""Gradient steps, beside those of JAX and TensorFlow."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop._cli.cases.case import Case, Group, log_huber, tensorflow


def gradients(title: str, x: float, m: float) -> Group:
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def loss(x: Any, m: Any) -> Any:
        return jaxpyop.py_function(log_huber, [x, m], jnp.float32, output_shapes=())

    def host_gradient(x: Any, m: Any) -> Any:
        value, pull = jax.vjp(log_huber, x, m)
        return pull(jnp.ones_like(value))[0]

    ours = jax.jit(jax.grad(loss))
    theirs = jax.jit(lambda x, m: jax.pure_callback(host_gradient, shape, x, m))
    cases = [
        Case("py_function", lambda: ours(x, m), 10),
        Case("jax.vjp in pure_callback", lambda: theirs(x, m), 5),
    ]
    return Group(title, cases + _tensorflow_gradient(x, m), samples=20)


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


def _tensorflow_gradient(x: float, m: float) -> list[Case]:
    if (tf := tensorflow()) is None:
        return []

    def log_huber(x: Any, m: Any) -> Any:
        if tf.abs(x) <= m:
            return x**2
        return m**2 * (1 - 2 * tf.math.log(m) + tf.math.log(x**2))

    @tf.function
    def step(x: Any, m: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.py_function(log_huber, [x, m], tf.float32)
        return tape.gradient(y, x)

    a, b = tf.constant(x), tf.constant(m)
    return [Case("tf.py_function", lambda: np.asarray(step(a, b)), 5)]

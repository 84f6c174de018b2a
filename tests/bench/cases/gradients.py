"""Gradient steps, compared with JAX and TensorFlow."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.bench.cases.case import SCALAR, compare, compare_compiled, log_huber, optional


def scalar_op(body):
    return lambda *inputs: jaxpyop.py_function(body, inputs, SCALAR)


def small_gradient(title, x, m, argnums=(0,)):
    """The gradient of the log-Huber loss in `x` alone, or in both inputs."""

    def host_gradient(x, m):
        value, pull = jax.vjp(log_huber, x, m)
        return pull(jnp.ones_like(value))[: len(argnums)]

    programs = {
        "py_function": jax.jit(jax.grad(scalar_op(log_huber), argnums)),
        "jax.vjp in pure_callback": jax.jit(
            lambda x, m: jax.pure_callback(host_gradient, (SCALAR,) * len(argnums), x, m)
        ),
    }
    if tf := optional("tensorflow"):
        body = lambda x, m: x**2 if tf.abs(x) <= m else m**2 * (1 - 2 * tf.math.log(m) + tf.math.log(x**2))
        programs["tf.py_function"] = gradient_in_tensorflow(tf, body, len(argnums))
    return compare(title, programs, x, m, calls=5, samples=20)


def gradient_in_tensorflow(tf, body, count):
    """The gradient of `tf.py_function` in the first `count` inputs."""

    @tf.function
    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs[:count])
            y = tf.py_function(body, inputs, tf.float32)
        return tape.gradient(y, inputs[:count])

    return lambda *inputs: [np.asarray(g) for g in step(*map(tf.constant, inputs))]


def direct_gradients():
    """Without `jit`, as in a notebook."""
    programs = {"py_function": jax.grad(scalar_op(log_huber)), "jax.grad": jax.grad(log_huber)}
    return compare("direct gradient, log-Huber", programs, jnp.float32(3.0), jnp.float32(2.0), calls=5, samples=20)


def many_primitives():
    def body(x):
        for _ in range(5):
            x = jnp.sin(x) * 0.5 + jnp.tanh(x) - 0.1
        return x

    programs = {"py_function": jax.jit(jax.grad(scalar_op(body))), "jax.grad, directly": jax.grad(body)}
    return compare("gradient of 25 primitives", programs, np.float32(0.5), calls=3, samples=15)


def large_arrays():
    def body(x):
        y = x
        for _ in range(5):
            y = y * x + x
        return jnp.sum(y)

    programs = {"py_function": jax.jit(jax.grad(scalar_op(body))), "jax.jit(jax.grad)": jax.jit(jax.grad(body))}
    x = jnp.linspace(0.0, 1.0, 3_000_000)
    return compare("gradient over 12 MB, 10 operations", programs, x, calls=1, samples=7)


def varying_loop():
    counts = itertools.cycle(range(1, 7))

    def repeated(x, n):
        for _ in range(int(n)):
            x = jnp.sin(x) * x
        return x

    ours = jax.jit(jax.grad(scalar_op(repeated)))
    programs = {
        "py_function": lambda x: ours(x, next(counts)),
        "jax.grad, directly": lambda x: jax.grad(repeated)(x, next(counts)),
    }
    return compare("gradient, loop of 1 to 6 turns", programs, jnp.float32(0.5), calls=6, samples=15)


def kept_errors(errors, count):
    return jnp.sort(errors)[: int(count)].mean()


def length_steps(size):
    """The gradient of a loss whose length depends on a value, by us and by plain JAX."""
    errors = jnp.linspace(0.0, 1.0, size)
    ours = jax.jit(jax.grad(scalar_op(kept_errors)))
    plain = jax.grad(kept_errors)
    return {"py_function": lambda n: ours(errors, n), "jax.grad, directly": lambda n: plain(errors, n)}


def new_lengths():
    """Each run has a length that no run had before, and takes two steps with it."""
    lengths = itertools.count(10)

    def twice(step):
        n = next(lengths)
        return step(n), step(n)

    programs = {name: lambda step=step: twice(step) for name, step in length_steps(1000).items()}
    return compare("gradient, a new length twice", programs, calls=1, samples=12)


def loop_on_values():
    """The square root in README.md, traced and eager, and by a callback that uses JAX."""

    def square_root(a):
        y = a
        while abs(y * y - a) > 1e-5 * a:
            y = (y + a / y) / 2
        return y

    def host_gradient(a):
        value, pull = jax.vjp(square_root, a)
        return pull(jnp.ones_like(value))[0]

    op = lambda **mode: jax.grad(lambda a: jaxpyop.py_function(square_root, [a], SCALAR, **mode))
    programs = {
        "py_function, traced": op(mode="traced", max_steps=50),
        "py_function, eager": op(),
        "jax.vjp in pure_callback": lambda a: jax.pure_callback(host_gradient, SCALAR, a),
    }
    return compare_compiled("gradient of a loop on values", programs, jnp.float32(4.0), calls=20, samples=30)


GROUPS = [
    lambda: small_gradient("log-Huber gradient, first branch", 1.0, 2.0),
    lambda: small_gradient("the other branch, in both inputs", 3.0, 2.0, (0, 1)),
    *(loop_on_values, many_primitives, large_arrays, varying_loop, new_lengths, direct_gradients),
]

"""The time that it takes to trace and lower a program of many ops, and what a traced function costs."""

import jax
import jax.numpy as jnp

import jaxpyop
from tests.bench.cases.case import ONE, callback_negative, compare, compare_compiled, numpy_negative


def repeated(op):
    def program(x):
        for _ in range(50):
            x = op(x)
        return x

    return program


def tracing():
    # A new function each time, for JAX would find the program of an old one in its cache.
    traced = lambda op: lambda x: jax.make_jaxpr(repeated(op))(x) and None
    programs = {
        "py_function": traced(lambda x: jaxpyop.py_function(lambda x: jnp.sin(x), [x], jnp.float32)),
        "jax.pure_callback": traced(lambda x: jax.pure_callback(jnp.sin, ONE, x)),
    }
    return compare("tracing 50 ops, no shapes given", programs, jnp.ones(1), calls=1, samples=15)


def lowering():
    lowered = lambda op: lambda x: jax.jit(repeated(op)).lower(x) and None
    ops = {"numpy_function": numpy_negative(), "jax.pure_callback": callback_negative(jax.pure_callback)}
    programs = {name: lowered(op) for name, op in ops.items()}
    return compare("tracing and lowering 50 ops", programs, jnp.ones(1), calls=1, samples=15)


def branch(x):
    return jnp.sin(x) if jnp.sum(x) > 0 else jnp.cos(x)


def traced(title, wrap):
    """`mode="traced"`, beside `jax.lax.cond` by hand."""
    by_hand = lambda x: jnp.sum(jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x))
    ours = lambda x: jnp.sum(jaxpyop.py_function(branch, [x], jnp.float32, mode="traced"))
    programs = {"py_function, traced": wrap(ours), "jax.lax.cond by hand": wrap(by_hand)}
    return compare_compiled(title, programs, jnp.full(1000, 0.5), calls=200)


def traced_log_huber():
    """An early return beside one `jax.lax.cond`."""
    outer = lambda x, m: m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))
    by_hand = lambda x, m: jax.lax.cond(abs(x) <= m, lambda x: x * x, lambda x: outer(x, m), x)
    ours = lambda x, m: jaxpyop.py_function(log_huber_with_a_return, [x, m], jnp.float32, mode="traced")
    programs = {"py_function, traced": jax.grad(ours), "jax.lax.cond by hand": jax.grad(by_hand)}
    title = "log-Huber with an early return, traced, gradient"
    return compare_compiled(title, programs, jnp.float32(3.0), jnp.float32(2.0), calls=500)


def log_huber_with_a_return(x, m):
    if abs(x) <= m:
        return x * x
    return m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))


GROUPS = [tracing, lowering]
TRACED = [
    lambda: traced("mode='traced', an if on a value", lambda f: f),
    lambda: traced("the same, gradient", jax.grad),
    traced_log_huber,
]

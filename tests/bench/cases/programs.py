"""The time that it takes to trace and lower a program of many ops."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import jaxpyop
from tests.bench.cases.case import ONE, Group, Program, callback_negative, compare, numpy_negative

_COUNT = 50


def _repeated(op: Program) -> Program:
    def program(x: jax.Array) -> jax.Array:
        for _ in range(_COUNT):
            x = op(x)
        return x

    return program


def _traced(op: Program) -> Program:
    # A new function each time, for JAX would find the program of an old one in its cache.
    return lambda x: jax.make_jaxpr(_repeated(op))(x) and None


def _lowered(op: Program) -> Program:
    return lambda x: jax.jit(_repeated(op)).lower(x) and None


def tracing() -> Group:
    programs = {
        "py_function": _traced(lambda x: jaxpyop.py_function(lambda x: jnp.sin(x), [x], jnp.float32)),
        "jax.pure_callback": _traced(lambda x: jax.pure_callback(jnp.sin, ONE, x)),
    }
    return compare("tracing 50 ops, no shapes given", programs, jnp.ones(1), calls=1, samples=15)


def lowering() -> Group:
    programs = {
        "numpy_function": _lowered(numpy_negative()),
        "jax.pure_callback": _lowered(callback_negative(jax.pure_callback)),
    }
    return compare("tracing and lowering 50 ops", programs, jnp.ones(1), calls=1, samples=15)

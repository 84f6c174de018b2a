"""Single calls: small, stateful, ordered, direct, and with large arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

import jaxpyop
from tests.bench.cases.case import (
    ONE,
    Group,
    Program,
    callback_negative,
    compare,
    compare_compiled,
    negative,
    negative_buffer,
    numpy_negative,
)

LARGE = jax.ShapeDtypeStruct((10_000_000,), jnp.float32)


def small_calls() -> Group:
    programs = {
        "numpy_function": numpy_negative(),
        "the same, copy=False": numpy_negative(copy=False),
        "jax.pure_callback": callback_negative(jax.pure_callback),
        "bare buffer_callback": buffer_callback(negative_buffer, ONE),
        "jit without a callback": jnp.negative,
    }
    return compare_compiled("float32[1] under jit", programs, jnp.ones(1))


def stateful_calls() -> Group:
    programs = {
        "numpy_function": numpy_negative(stateful=True),
        "io_callback": callback_negative(io_callback),
        "bare buffer_callback": buffer_callback(negative_buffer, ONE, has_side_effect=True),
    }
    return compare_compiled("the same, stateful", programs, jnp.ones(1))


def _ordered() -> dict[str, Program]:
    return {
        "numpy_function": numpy_negative(ordered=True),
        "io_callback": callback_negative(io_callback, ordered=True),
    }


def ordered_calls() -> Group:
    return compare_compiled("the same, ordered", _ordered(), jnp.ones(1))


def ordered_loops() -> Group:
    def loop(op: Program) -> Program:
        return lambda x: jax.lax.scan(lambda c, _: (op(c), None), x, None, length=200)[0]

    programs = {name: loop(op) for name, op in _ordered().items()}
    return compare_compiled("ordered, 200 times in a scan", programs, jnp.ones(1), calls=1, samples=15)


def direct_calls() -> Group:
    programs = {"numpy_function": numpy_negative(), "jax.pure_callback": callback_negative(jax.pure_callback)}
    return compare("direct call", programs, jnp.ones(1))


def fresh_calls() -> Group:
    programs: dict[str, Program] = {
        "numpy_function": lambda x: jaxpyop.numpy_function(lambda v: -v, [x], jnp.float32),
        "jax.pure_callback": lambda x: jax.pure_callback(lambda v: -v, ONE, x),
    }
    return compare("direct call, a fresh lambda each time", programs, jnp.ones(1), calls=3, samples=10)


def many_inputs() -> Group:
    identity = jax.jit(lambda values: values)

    def bare(ctx: Any, out: Any, *xs: Any) -> None:
        np.asarray(out)[...] = identity([np.asarray(x).copy() for x in xs])[0]

    programs = {
        "py_function": lambda *xs: jaxpyop.py_function(lambda *xs: xs[0], xs, jnp.float32),
        "buffer_callback and jit": buffer_callback(bare, jax.ShapeDtypeStruct((3,), jnp.float32)),
    }
    xs = [jnp.full(3, k, jnp.float32) for k in range(20)]
    return compare_compiled("20 small inputs as jax.Arrays", programs, *xs, calls=10, samples=15)


def large_calls() -> Group:
    programs = {"numpy_function": numpy_negative(), "jax.pure_callback": callback_negative(jax.pure_callback, LARGE)}
    return compare_compiled("40 MB np.negative under jit", programs, jnp.ones(LARGE.shape), calls=1, samples=15)


def out_calls() -> Group:
    def into(x: Any, out: Any) -> None:
        np.negative(x, out=out)

    programs = {
        "numpy_function(out=True)": lambda x: jaxpyop.numpy_function(into, [x], jnp.float32, out=True, copy=False),
        "bare buffer_callback": buffer_callback(negative_buffer, LARGE),
        "jax.pure_callback": lambda x: jax.pure_callback(negative, LARGE, x),
    }
    return compare_compiled("40 MB np.negative(x, out=out)", programs, jnp.ones(LARGE.shape), calls=1, samples=15)

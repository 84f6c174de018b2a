"""Batches: many calls under `vmap`."""

from __future__ import annotations

import time
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.bench.cases.case import SCALAR, Group, Program, compare, negative, numpy_negative


def _batched(op: Program) -> Program:
    return jax.jit(jax.vmap(op))


def _sequential(title: str, ours: Any, theirs: Any) -> Group:
    programs = {
        "numpy_function": _batched(lambda x: jaxpyop.numpy_function(ours, [x], jnp.float32)),
        "jax.pure_callback": _batched(lambda x: jax.pure_callback(theirs, SCALAR, x, vmap_method="sequential")),
    }
    return compare(title, programs, jnp.arange(1000.0), calls=1, samples=15)


def batches() -> Group:
    return _sequential("vmap over 1000 scalars, sequential", negative, negative)


def batches_of_floats() -> Group:
    return _sequential("the same, a Python float from each", float, np.float32)


def negative_on(pool: Executor) -> Program:
    """A program that negates each element on an executor."""
    return _batched(numpy_negative(vmap_method="parallel", executor=pool))


def batches_on_threads() -> Group:
    x, pool = jnp.arange(1000.0), ThreadPoolExecutor(4)
    elements = list(np.asarray(x))
    programs: dict[str, Program] = {
        "parallel": negative_on(pool),
        "pool.map": lambda _: np.stack(list(pool.map(negative, elements))),
    }
    return compare("1000 scalars on 4 threads", programs, x, calls=1, samples=15)


def waiting_batches() -> Group:
    def wait(x: Any) -> Any:
        time.sleep(0.01)
        return x

    def op(**options: Any) -> Program:
        return _batched(lambda x: jaxpyop.numpy_function(wait, [x], jnp.float32, **options))

    programs = {
        "parallel, 16 threads": op(vmap_method="parallel", executor=ThreadPoolExecutor(16)),
        "sequential": op(),
    }
    return compare("vmap over 16 bodies that wait 10 ms", programs, jnp.arange(16.0), calls=1, samples=5)

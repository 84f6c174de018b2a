"""Batches: many calls under `vmap`."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop._cli.cases.case import Case, Group, negative


def batches() -> Group:
    x = jnp.arange(1000.0)
    like = jax.ShapeDtypeStruct((), jnp.float32)
    ours = jax.jit(jax.vmap(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32)))
    theirs = jax.jit(jax.vmap(lambda x: jax.pure_callback(negative, like, x, vmap_method="sequential")))
    return Group(
        "vmap over 1000 scalars, sequential",
        [Case("numpy_function", lambda: ours(x), 1), Case("jax.pure_callback", lambda: theirs(x), 1)],
        samples=15,
    )


def batches_of_floats() -> Group:
    x = jnp.arange(1000.0)
    like = jax.ShapeDtypeStruct((), jnp.float32)
    ours = jax.jit(jax.vmap(lambda x: jaxpyop.numpy_function(float, [x], jnp.float32)))
    theirs = jax.jit(jax.vmap(lambda x: jax.pure_callback(np.float32, like, x, vmap_method="sequential")))
    return Group(
        "the same, a Python float from each",
        [Case("numpy_function", lambda: ours(x), 1), Case("jax.pure_callback", lambda: theirs(x), 1)],
        samples=15,
    )


def waiting_batches() -> Group:
    def wait(x: Any) -> Any:
        time.sleep(0.01)
        return x

    x, pool = jnp.arange(16.0), ThreadPoolExecutor(16)
    parallel = jax.jit(
        jax.vmap(lambda x: jaxpyop.numpy_function(wait, [x], jnp.float32, vmap_method="parallel", executor=pool))
    )
    sequential = jax.jit(jax.vmap(lambda x: jaxpyop.numpy_function(wait, [x], jnp.float32)))
    return Group(
        "vmap over 16 bodies that wait 10 ms",
        [Case("parallel, 16 threads", lambda: parallel(x), 1), Case("sequential", lambda: sequential(x), 1)],
        samples=5,
    )


def negative_on(pool: Executor) -> Callable[[jax.Array], jax.Array]:
    """A program that negates each element on an executor."""
    return jax.jit(
        jax.vmap(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32, vmap_method="parallel", executor=pool))
    )


def batches_on_threads() -> Group:
    x, pool = jnp.arange(1000.0), ThreadPoolExecutor(4)
    elements = list(np.asarray(x))
    ours = negative_on(pool)
    return Group(
        "1000 scalars on 4 threads",
        [
            Case("parallel", lambda: ours(x), 1),
            Case("pool.map", lambda: np.stack(list(pool.map(negative, elements))), 1),
        ],
        samples=15,
    )

"""Batches: many calls under `vmap`."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from tests.bench.cases.case import SCALAR, callback_negative, compare, negative, numpy_negative


def one_by_one():
    theirs = callback_negative(jax.pure_callback, SCALAR, vmap_method="sequential")
    programs = {"numpy_function": numpy_negative(), "jax.pure_callback": theirs}
    programs = {name: jax.jit(jax.vmap(program)) for name, program in programs.items()}
    return compare("vmap over 1000 scalars, sequential", programs, jnp.arange(1000.0), calls=1, samples=15)


def on_threads():
    x, pool = jnp.arange(1000.0), ThreadPoolExecutor(4)
    elements = list(np.asarray(x))
    programs = {
        "parallel": jax.jit(jax.vmap(numpy_negative(vmap_method="parallel", executor=pool))),
        "pool.map": lambda _: np.stack(list(pool.map(negative, elements))),
    }
    return compare("1000 scalars on 4 threads", programs, x, calls=1, samples=15)


GROUPS = [one_by_one, on_threads]

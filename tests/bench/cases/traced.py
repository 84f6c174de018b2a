"""`mode="traced"`, beside `jax.lax.cond` by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxpyop
from tests.bench.cases.case import Group, compare_compiled


def traced(title: str, wrap: Callable[[Any], Any]) -> Group:
    def body(x: Any) -> Any:
        return jnp.sin(x) if jnp.sum(x) > 0 else jnp.cos(x)

    def by_hand(x: Any) -> Any:
        return jnp.sum(jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x))

    programs = {
        "py_function, traced": wrap(lambda x: jnp.sum(jaxpyop.py_function(body, [x], jnp.float32, mode="traced"))),
        "jax.lax.cond by hand": wrap(by_hand),
    }
    return compare_compiled(title, programs, jnp.full(1000, 0.5), calls=200)

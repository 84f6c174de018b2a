"""`mode="traced"`, beside `jax.lax.cond` by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxpyop
from jaxpyop._cli.cases.case import Case, Group


def traced(title: str, wrap: Callable[[Any], Any]) -> Group:
    x = jnp.full(1000, 0.5)

    def body(x: Any) -> Any:
        return jnp.sin(x) if jnp.sum(x) > 0 else jnp.cos(x)

    def by_hand(x: Any) -> Any:
        return jnp.sum(jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x))

    ours = jax.jit(wrap(lambda x: jnp.sum(jaxpyop.py_function(body, [x], jnp.float32, mode="traced"))))
    theirs = jax.jit(wrap(by_hand))
    return Group(
        title,
        [Case("py_function, traced", lambda: ours(x), 200), Case("jax.lax.cond by hand", lambda: theirs(x), 200)],
    )

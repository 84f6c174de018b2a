"""What it takes to make a program of many ops, before it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxpyop
from jaxpyop._cli.cases.case import ONE, Case, Group, negative

_COUNT = 50


def _repeated(op: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        for _ in range(_COUNT):
            x = op(x)
        return x

    return program


def _made(program: Any) -> int:
    """Something to wait for: there is nothing."""
    return int(program is not None)


def tracing() -> Group:
    x = jnp.ones(1)
    ours = _repeated(lambda x: jaxpyop.py_function(lambda x: jnp.sin(x), [x], jnp.float32))
    theirs = _repeated(lambda x: jax.pure_callback(jnp.sin, ONE, x))
    return Group(
        "tracing 50 ops, no shapes given",
        [
            Case("py_function", lambda: _made(jax.make_jaxpr(lambda x: ours(x))(x)), 1),
            Case("jax.pure_callback", lambda: _made(jax.make_jaxpr(lambda x: theirs(x))(x)), 1),
        ],
        samples=15,
    )


def lowering() -> Group:
    x = jnp.ones(1)
    ours = _repeated(lambda x: jaxpyop.numpy_function(negative, [x], jnp.float32))
    theirs = _repeated(lambda x: jax.pure_callback(negative, ONE, x))
    return Group(
        "tracing and lowering 50 ops",
        [
            Case("numpy_function", lambda: _made(jax.jit(lambda x: ours(x)).lower(x)), 1),
            Case("jax.pure_callback", lambda: _made(jax.jit(lambda x: theirs(x)).lower(x)), 1),
        ],
        samples=15,
    )

"""Functions that can be watched, and a way to let go of the records of gradients."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp

import jaxpyop
from tests.shared.functions import py_function

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


class Func:
    """A function that a weak reference can watch."""

    __name__ = "func"

    def __init__(self, func=lambda x: x * 2):
        self.func = func

    def __call__(self, *args):
        return self.func(*args)


def watched(func=lambda x: x * 2):
    func = Func(func)
    return func, weakref.ref(func)


def push_out_all_records():
    """Records of gradients live within their bounds: one of a number takes the place of all others."""
    with jaxpyop.config.override(max_records=1):
        jax.vjp(lambda x: py_function(lambda x: x * 1, [x], F), 1.0)

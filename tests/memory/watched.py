"""Functions that a weak reference can watch."""

from __future__ import annotations

import weakref

import jax.numpy as jnp

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

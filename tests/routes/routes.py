"""The routes: the ways in which a program can reach a Python function.

Each route takes a function of one array and the array. It is applied to a program that calls Python and to the same
program in plain JAX, so that the two results can be compared.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxpyop
from tests.shared.checks import over_transport

# How many values the routes that take several of them take.
BATCH = 4

Function = Callable[[jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class Route:
    """A way to run a program.

    Attributes:
        run: the program's result, from a function and an array.
        plain: the same with a function that is plain JAX, where only `run` needs jaxpyop.
        runs: how often the program performs the op. A backward pass does not count.
        order: of the derivative of the op that the route needs; 0 if it needs none.
        slow: whether its tests are among the slow ones, because other routes show nearly the same.
    """

    run: Callable[[Function, jax.Array], Any]
    plain: Callable[[Function, jax.Array], Any] | None = None
    runs: int = 1
    order: int = 0
    slow: bool = False

    def with_plain_jax(self, f: Function, x: jax.Array) -> Any:
        return (self.plain or self.run)(f, x)


def _several(x: jax.Array) -> jax.Array:
    return jnp.stack([x + 0.25 * i for i in range(BATCH)])


def _total(f: Function) -> Function:
    return lambda x: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(f(x)))


def _directly(f: Function, x: jax.Array) -> Any:
    return f(x)


def _through_the_public_callback(f: Function, x: jax.Array) -> Any:
    with over_transport("callback"):
        return jax.block_until_ready(jax.jit(f)(x))


def _loaded(f: Function, x: jax.Array) -> Any:
    data = jaxpyop.export(f)(x).to_bytes()
    return jaxpyop.load(data, allow=["tests"])(x)


ROUTES = {
    "direct": Route(_directly),
    "compiled": Route(lambda f, x: jax.jit(f)(x)),
    "public callback": Route(_through_the_public_callback, slow=True),
    "batched": Route(lambda f, x: jax.jit(jax.vmap(f))(_several(x)), runs=BATCH),
    "in a scan": Route(lambda f, x: lax.scan(lambda c, x: (c, f(x)), 0, _several(x))[1], runs=BATCH, slow=True),
    "in a cond": Route(lambda f, x: jax.jit(lambda x: lax.cond(x[0] < 10, f, f, x))(x), slow=True),
    "gradient": Route(lambda f, x: jax.jit(jax.grad(_total(f)))(x), order=1),
    "tangents": Route(lambda f, x: jax.jvp(f, [x], [jnp.ones_like(x)]), order=1),
    "gradient of a batch": Route(lambda f, x: jax.jit(jax.grad(_total(jax.vmap(f))))(_several(x)), runs=BATCH, order=1),
    "batch of gradients": Route(
        lambda f, x: jax.jit(jax.vmap(jax.grad(_total(f))))(_several(x)), runs=BATCH, order=1, slow=True
    ),
    "second derivatives": Route(
        lambda f, x: jax.jit(jax.grad(lambda x: jax.grad(_total(f))(x).sum()))(x), order=2, slow=True
    ),
    "cut": Route(lambda f, x: jaxpyop.jit(f)(x), plain=_directly),
    "gradient, cut": Route(
        lambda f, x: jaxpyop.jit(jax.grad(_total(f)))(x), plain=lambda f, x: jax.grad(_total(f))(x), order=1, slow=True
    ),
    "loaded": Route(_loaded, plain=_directly),
}

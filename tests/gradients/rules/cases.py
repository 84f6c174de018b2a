"""One function of two inputs with every kind of rule, and programs that differentiate it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxpyop
from tests.gradients.bodies import X3
from tests.shared.checks import Counter

X = jnp.asarray(X3)
Y = X + 1
XX = jnp.stack([X, Y])


def func(x, y):
    return x * x * y


def vjp(inputs, outputs, cotangents):
    (x, y), ct = inputs, cotangents
    return 2 * x * y * ct, x * x * ct


def fwd(x, y):
    return func(x, y), (2 * x * y, x * x)


def bwd(residuals, cotangents):
    return [r * cotangents for r in residuals]


def jvp(inputs, outputs, tangents):
    (x, y), (dx, dy) = inputs, tangents
    along_x = None if dx is None else 2 * x * y * dx
    along_y = None if dy is None else x * x * dy
    return along_x if along_y is None else along_y if along_x is None else along_x + along_y


class Counted:
    """The function and its rules, each counting its calls."""

    def __init__(self) -> None:
        self.counters = {f.__name__: Counter(f) for f in (func, vjp, fwd, bwd, jvp)}

    def __getattr__(self, name: str):
        return self.counters[name]

    def rules(self, kind: str):
        if kind == "numerical":
            return {"vjp": jaxpyop.numerical(), "jvp": jaxpyop.numerical()}
        each = {"vjp": self.vjp, "pair": (self.fwd, self.bwd), "jvp": self.jvp}
        return {"jvp" if word == "jvp" else "vjp": each[word] for word in kind.split(" and ")}

    def counts(self) -> dict[str, int]:
        return {name: counter.count for name, counter in self.counters.items() if counter.count}


REVERSE_RULES = ("vjp", "pair", "pair and jvp", "numerical")
FORWARD_RULES = ("jvp", "vjp and jvp", "numerical")


def _three_steps(f, x):
    return lax.scan(lambda c, _: (f(c, 0.1 * c), None), x, None, length=3)[0]


def _while(f, x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1], 0.5)), (0, x))[1]


# Each with how often a rule runs: one by one, and of a block method.
REVERSE = {
    "grad": (lambda f: jax.grad(lambda x, y: (f(x, y) ** 2).sum(), (0, 1))(X, Y), 1, 1),
    "in one input": (lambda f: jax.grad(lambda x: (f(x, Y) ** 2).sum())(X), 1, 1),
    "jacrev": (lambda f: jax.jacrev(f, (0, 1))(X, Y), 3, 1),
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f, (0, 1)), (0, None))(X, 2.0), 3, 1),
    "grad of vmap": (lambda f: jax.grad(lambda x, y: (jax.vmap(f, (0, None))(x, y) ** 2).sum(), (0, 1))(X, 2.0), 3, 1),
    "jacrev of vmap": (lambda f: jax.jacrev(jax.vmap(f, (0, None)), (0, 1))(XX, Y), 12, 1),
    "scan": (lambda f: jax.grad(lambda x: _three_steps(f, x).sum())(X), 3, 3),
    "checkpoint": (lambda f: jax.grad(lambda x: jax.checkpoint(f)(x, Y).sum())(X), 1, 1),
}
FORWARD = {
    "jvp": (lambda f: jax.jvp(f, (X, Y), (Y, X)), 1, 1),
    "in one input": (lambda f: jax.jvp(lambda x: f(x, Y), (X,), (Y,)), 1, 1),
    "jacfwd": (lambda f: jax.jacfwd(f, (0, 1))(X, Y), 6, 1),
    "linearize": (lambda f: jax.linearize(f, X, Y)[1](Y, X), 1, 1),
    "vmap of jvp": (lambda f: jax.vmap(lambda x, t: jax.jvp(f, (x, 2.0), (t, 0.0)), (0, None))(X, 1.0), 3, 1),
    "jvp of vmap": (lambda f: jax.jvp(jax.vmap(f, (0, None)), (X, 2.0), (Y, 1.0)), 3, 1),
    "while_loop": (lambda f: jax.jvp(lambda x: _while(f, x), (X,), (Y,)), 3, 3),
}


@functools.cache
def wanted(name: str, *, forward: bool = False):
    """What JAX gives of the same function."""
    program = (FORWARD if forward else REVERSE)[name][0]
    return jax.jit(lambda: program(func))()


def close_to(got, wanted, tolerance: float = 1e-4) -> None:
    """Whether trees agree; in absolute terms for what is smaller than one."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    scale = lambda b: tolerance * max(1.0, float(jnp.max(jnp.abs(b))))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=scale(b)), got, wanted)

"""Values of stateless functions, and how often they run, under every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.effects.ops import STATELESS, Affine, F, X, every_route, wait
from tests.shared.tables import named

# What a program does with an elementwise op, and how often its function runs. batches/ has more of `vmap`.
PROGRAMS = {
    "twice": (lambda op: lambda x: op(op(x)), 2),
    "jit of jit": (lambda op: lambda x: jax.jit(op)(x) + jax.jit(op)(-x), 2),
    "scan": (lambda op: lambda x: lax.scan(lambda c, y: (op(c), op(y)), x[0], x, reverse=True), 6),
    "switch": (lambda op: lambda x: lax.switch(jnp.int32(x[2]), [lambda x: x, lambda x: -x, op], x), 1),
    "map of checkpoint": (lambda op: lambda x: lax.map(jax.checkpoint(op), x), 3),
    "vmap of jit": (lambda op: jax.vmap(jax.jit(op)), 3),
    "vmap, last axis": (lambda op: lambda x: jax.vmap(op, in_axes=1, out_axes=1)(jnp.stack([x, -x])), 3),
}


@every_route
@pytest.mark.parametrize(("program", "runs"), named(PROGRAMS, slow=["twice", "jit of jit"]))
def test_values_and_runs(program, runs, route):
    """Three programs in one: with each op, and in plain JAX."""
    bodies = {name: Affine() for name in STATELESS}

    def of(name):
        return lambda x: STATELESS[name](bodies[name], [x], F)

    f = route(lambda x: [program(op)(x) for op in [*map(of, STATELESS), lambda x: x * 2 + 1]])
    for n in (1, 2):
        *found, wanted = wait(f(jnp.asarray(X)))
        for got in found:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, wanted)
        assert [body.runs for body in bodies.values()] == [n * runs] * 2


def test_a_call_of_constants_belongs_to_the_program():
    """Under `jit`, it runs at each execution, and not while JAX traces."""
    bodies = [Affine(), Affine()]
    f = lambda x: sum(op(body, [1.0], F, output_shapes=()) for op, body in zip(STATELESS.values(), bodies)) + x
    compiled = jax.jit(f).lower(X).compile()
    assert [body.runs for body in bodies] == [0, 0]
    for n in (1, 2):
        np.testing.assert_allclose(compiled(X), X + 6)
        assert [body.runs for body in bodies] == [n, n]

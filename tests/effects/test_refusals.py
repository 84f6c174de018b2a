"""Where JAX allows no effects, the error names the op and says what to write; one predicate for a batch is allowed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.effects.ops import ORDERED, UNORDERED, F, Log, X, every_route, wait
from tests.shared.functions import py_func, py_function

WHEN = "as when=, which decides"
LIBRARY = "in a loop or branch that a library owns, call jax.debug.callback instead"
FORI = f"fori_loop, and pass as when= a boolean that is true while the element continues; {LIBRARY}"
FREE = "stateful=False"
scanned = lambda step: lambda x: lax.scan(lambda c, _: (step(c), None), x, None, length=2)[0]
REFUSED = {
    "grad of checkpoint": (lambda op: jax.grad(lambda x: jax.checkpoint(lambda x: op(x[0]))(x)), FREE),
    "cond": (lambda op: jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: x, x)), WHEN),
    "switch": (lambda op: jax.vmap(lambda x: lax.switch(jnp.int32(x), [op, lambda x: x], x)), WHEN),
    "jit of cond": (lambda op: jax.vmap(jax.jit(lambda x: lax.cond(x > 0, op, lambda x: x, x))), WHEN),
    "scan of cond": (lambda op: jax.vmap(scanned(lambda x: lax.cond(x > 0, op, lambda x: x, x))), WHEN),
    "while_loop": (lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: x < 3, lambda x: op(x) + 1, x)), FORI),
    "a test": (lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: op(x) < 3, lambda x: x + 1, x)), FREE),
}


@pytest.mark.parametrize(("program", "advice"), REFUSED.values(), ids=REFUSED)
def test_the_error_names_the_op_and_the_cure_and_nothing_runs(program, advice):
    log = Log()
    for op in (UNORDERED | ORDERED).values():
        with pytest.raises((NotImplementedError, ValueError, TypeError), match="stateful=False") as caught:
            wait(program(lambda x, op=op: op(log, [x], F, output_shapes=()))(X))
        assert "'log'" in str(caught.value)
        assert advice in str(caught.value)
    assert log.seen == []


# --------------------------------------- a predicate that is the same for the whole batch


@every_route
@pytest.mark.parametrize("ordered", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["unordered", "ordered"])
def test_a_log_at_every_second_step_of_a_batch(ordered, route):
    log = []

    def simulate(x):
        def step(x, i):
            write = lambda: py_func(lambda i, x: log.append((int(i), float(x))), [i, x], None, ordered=ordered)
            lax.cond(i % 2 == 0, write, lambda: None)
            return x + 1, x

        return lax.scan(step, x, jnp.arange(4))[0]

    xs = jnp.arange(2.0)[None]
    np.testing.assert_allclose(wait(route(jax.vmap(jax.vmap(simulate)))(xs)), xs + 4)
    assert log == [(0, 0), (0, 1), (2, 2), (2, 3)]


@every_route
def test_the_gradient_of_a_cond_on_one_predicate(route):
    f = lambda x, w: lax.cond(w, lambda: py_function(lambda x: x**2, [x], F, stateful=True), lambda: x * 0)
    slopes = route(jax.vmap(jax.grad(f), (0, None)))
    np.testing.assert_allclose(slopes(X, True), X * 2)
    np.testing.assert_allclose(slopes(X, False), X * 0)

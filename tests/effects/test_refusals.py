"""Where JAX allows no effects, the error names the op and says what to write; one predicate for a batch is allowed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.effects.ops import ORDERED, UNORDERED, F, Log, X, every_route, wait
from tests.shared.functions import py_func, py_function

REFUSED = {
    "grad of checkpoint": lambda op: jax.grad(lambda x: jax.checkpoint(lambda x: op(x[0]))(x)),
    "vmap of cond": lambda op: jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: x, x)),
    "vmap of switch": lambda op: jax.vmap(lambda x: lax.switch(jnp.int32(x), [op, lambda x: x], x)),
    "vmap of while_loop": lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: x < 3, lambda x: op(x) + 1, x)),
    "vmap of while_loop's test": lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: op(x) < 3, lambda x: x + 1, x)),
    "jit of vmap of cond": lambda op: jax.jit(jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: x, x))),
    "vmap of jit of cond": lambda op: jax.vmap(jax.jit(lambda x: lax.cond(x > 0, op, lambda x: x, x))),
    "vmap of scan of cond": lambda op: jax.vmap(
        lambda x: lax.scan(lambda c, _: (lax.cond(c > 0, op, lambda x: x, c), None), x, None, length=2)[0]
    ),
    "vmap of cond in cond": lambda op: jax.vmap(
        lambda x: lax.cond(jnp.array(True), lambda x: lax.cond(x > 1, op, lambda x: x, x), lambda x: x, x)
    ),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_the_error_names_the_op_and_the_cure_and_nothing_runs(program):
    log = Log()
    for op in (UNORDERED | ORDERED).values():
        with pytest.raises((NotImplementedError, ValueError, TypeError), match=r"(?s)'log'.*stateful=False"):
            wait(program(lambda x, op=op: op(log, [x], F, output_shapes=()))(X))
    assert log.seen == []


CONDITIONS = {name: program for name, program in REFUSED.items() if "cond" in name or "switch" in name}


@pytest.mark.parametrize("program", CONDITIONS.values(), ids=CONDITIONS)
def test_the_error_about_a_condition_advises_when(program):
    for ordered in (False, True):
        f = program(lambda x, ordered=ordered: py_func(lambda x: x, [x], F, ordered=ordered, name="log"))
        with pytest.raises(NotImplementedError, match=r"the stateful py_func 'log': .*as when=, which decides"):
            f(X)


def test_the_error_about_a_while_loop_advises_fori_loop_and_when():
    f = jax.vmap(lambda n: lax.while_loop(lambda i: i < n, lambda i: py_func(lambda i: i + 1, [i], F), 0.0))
    with pytest.raises(NotImplementedError, match="fori_loop, and pass as when= a boolean"):
        f(X)


# --------------------------------------- a predicate that is the same for the whole batch


@every_route
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_a_log_at_every_second_step_of_a_batch(ordered, route):
    log = []

    def simulate(x):
        def step(x, i):
            write = lambda: py_func(lambda i, x: log.append((int(i), float(x))), [i, x], None, ordered=ordered)
            lax.cond(i % 2 == 0, write, lambda: None)
            return x + 1, x

        return lax.scan(step, x, jnp.arange(4))[0]

    xs = jnp.arange(2.0)
    np.testing.assert_allclose(wait(route(jax.vmap(simulate))(xs)), xs + 4)
    assert log == [(0, 0), (0, 1), (2, 2), (2, 3)]
    log.clear()
    np.testing.assert_allclose(wait(route(jax.vmap(jax.vmap(simulate)))(xs[None])), xs[None] + 4)
    assert log == [(0, 0), (0, 1), (2, 2), (2, 3)]


@every_route
def test_a_switch_on_one_index(route):
    log = []
    branches = [lambda x, k=k: py_func(lambda x: log.append((k, float(x))) or x * k, [x], F) for k in range(3)]
    f = route(jax.vmap(lambda k, x: lax.switch(k, branches, x), (None, 0)))
    np.testing.assert_allclose(wait(f(2, X)), X * 2)
    assert log == [(2, float(x)) for x in X]


@every_route
def test_the_gradient_of_a_cond_on_one_predicate(route):
    f = lambda x, w: lax.cond(w, lambda: py_function(lambda x: x**2, [x], F, stateful=True), lambda: x * 0)
    slopes = route(jax.vmap(jax.grad(f), (0, None)))
    np.testing.assert_allclose(slopes(X, True), X * 2)
    np.testing.assert_allclose(slopes(X, False), X * 0)

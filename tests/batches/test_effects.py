"""Stateful batches: once per element, in batch order if they are ordered, and refused where JAX allows no effects."""

from __future__ import annotations

import concurrent.futures as cf
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.batches.programs import BLOCKS, METHODS, F, grid
from tests.shared.checks import run
from tests.shared.functions import py_func, py_function

# The first is the fast one.
STATEFUL = {
    "py_func": lambda f, inp, **o: py_func(f, inp, F, **o),
    "ordered py_function": lambda f, inp, **o: py_function(f, inp, F, ordered=True, **o),
    "ordered py_func": lambda f, inp, **o: py_func(f, inp, F, ordered=True, **o),
    "py_function": lambda f, inp, **o: py_function(f, inp, F, stateful=True, **o),
}
every_stateful = pytest.mark.parametrize(
    "op",
    [pytest.param(op, id=name, marks=pytest.mark.slow if k else []) for k, (name, op) in enumerate(STATEFUL.items())],
)
TENS = jnp.array([0.0, 10.0])
IN_ORDER = {
    "vmap": (lambda op: lambda x: jax.vmap(op)(x), [0, 1, 2]),
    "over the last axis": (lambda op: lambda x: jax.vmap(jax.vmap(op), 1)(jnp.stack([x, x + 3])), [0, 3, 1, 4, 2, 5]),
    "nested vmap": (lambda op: lambda x: jax.vmap(jax.vmap(op))(jnp.stack([x, x + 3])), [0, 1, 2, 3, 4, 5]),
    "scan of vmap": (
        lambda op: lambda x: lax.scan(lambda c, v: (c, jax.vmap(op)(x + v)), 0.0, TENS),
        [0, 1, 2, 10, 11, 12],
    ),
    "vmap of scan": (
        lambda op: jax.vmap(lambda x: lax.scan(lambda c, v: (c, op(x + v)), 0.0, TENS)),
        [0, 1, 2, 10, 11, 12],
    ),
    "cond of vmap": (lambda op: lambda x: lax.cond(x[1] > 0, jax.vmap(op), lambda x: x, x), [0, 1, 2]),
    "vmap, unused": (lambda op: lambda x: (jax.vmap(op)(x), x)[1], [0, 1, 2]),
}


class Noting:
    """A function that notes its inputs, after a wait for those of a batch that come early."""

    def __init__(self, seconds=0.0):
        self.seen = []
        self._seconds = seconds

    def __call__(self, x):
        time.sleep(self._seconds * max(0, 5 - float(x) % 10))
        self.seen.append(float(x))
        return x


@pytest.mark.parametrize(("program", "expected"), IN_ORDER.values(), ids=IN_ORDER)
@every_stateful
def test_once_per_element_in_batch_order(op, program, expected):
    body = Noting()
    run(jax.jit(program(lambda x: op(body, [x], output_shapes=()))), grid(3))
    assert body.seen == expected


@pytest.mark.parametrize("method", BLOCKS)
@every_stateful
def test_blocks_run_once(op, method):
    seen = []

    def body(x, y):
        seen.append((np.shape(x), np.shape(y)))
        return x * y

    f = jax.vmap(jax.vmap(lambda x, y: op(body, [x, y], vmap_method=method), (None, 0)), (0, None))
    np.testing.assert_array_equal(run(f, grid(3), grid(2)), np.outer(grid(3), grid(2)))
    assert seen == [((3, 1), (1, 2)) if method == "expand_dims" else ((3, 2), (3, 2))]


def twice(f):
    """A program with two batches, whose results it drops."""
    return jax.jit(lambda x: (f(x), f(x + 10), x)[2])


@every_stateful
def test_a_parallel_batch_runs_once_per_element(op):
    body = Noting()
    with cf.ThreadPoolExecutor(3) as threads:
        f = jax.vmap(lambda x: op(body, [x], output_shapes=(), vmap_method="parallel", executor=threads))
        run(twice(f), grid(4))
    assert sorted(body.seen) == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize("threads", [None, 1, 4])
def test_an_ordered_parallel_batch_keeps_the_order(threads):
    """Also where the elements that come first take longest."""
    body = Noting(0.001)
    with cf.ThreadPoolExecutor(threads) as pool:
        executor = threads and pool
        f = jax.vmap(lambda x: py_func(body, [x], F, ordered=True, vmap_method="parallel", executor=executor))
        run(twice(f), grid(5))
    assert body.seen == [*range(5), *range(10, 15)]


REFUSED = {
    "vmap of cond": lambda op: jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: x, x)),
    "vmap of switch": lambda op: jax.vmap(lambda x: lax.switch(jnp.int32(x), [op, lambda x: x], x)),
    "vmap of while_loop": lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: x < 3, lambda x: op(x) + 1, x)),
    "grad of checkpoint of vmap": lambda op: jax.grad(lambda x: jax.checkpoint(jax.vmap(op))(x).sum()),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("method", [METHODS[0], *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:])])
@pytest.mark.parametrize("name", ["py_func", "ordered py_function"])
def test_where_jax_refuses_effects(name, method, program):
    body = Noting()
    op = lambda x: STATEFUL[name](body, [x], output_shapes=(), vmap_method=method, name="body of mine")
    with pytest.raises((NotImplementedError, ValueError, TypeError), match=r"(?s)'body of mine'.*stateful=False"):
        program(op)(grid(3))
    assert body.seen == []

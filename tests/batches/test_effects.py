"""Stateful batches: once per element, in batch order if they are ordered. effects/ has where they are refused."""

import concurrent.futures as cf
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.batches.programs import BLOCKS, F, grid
from tests.shared.checks import Counter, run
from tests.shared.functions import py_func, py_function
from tests.shared.tables import named

STATEFUL = {
    "py_func": lambda f, inp, **o: py_func(f, inp, F, **o),
    "ordered py_function": lambda f, inp, **o: py_function(f, inp, F, ordered=True, **o),
    "ordered py_func": lambda f, inp, **o: py_func(f, inp, F, ordered=True, **o),
}
every_stateful = pytest.mark.parametrize("op", named(STATEFUL, slow=["ordered py_function", "ordered py_func"]))


def scan(f):
    return lambda x: lax.scan(lambda c, v: (c, f(x + v)), 0.0, jnp.array([0.0, 10.0]))


IN_ORDER = {
    "over the last axis": (lambda op: lambda x: jax.vmap(jax.vmap(op), 1)(jnp.stack([x, x + 3])), [0, 3, 1, 4, 2, 5]),
    "nested vmap": (lambda op: lambda x: jax.vmap(jax.vmap(op))(jnp.stack([x, x + 3])), [0, 1, 2, 3, 4, 5]),
    "scan of vmap": (lambda op: scan(jax.vmap(op)), [0, 1, 2, 10, 11, 12]),
    "vmap of scan": (lambda op: jax.vmap(scan(op)), [0, 1, 2, 10, 11, 12]),
    "cond of vmap": (lambda op: lambda x: lax.cond(x[1] > 0, jax.vmap(op), lambda x: x, x), [0, 1, 2]),
    "vmap, unused": (lambda op: lambda x: (jax.vmap(op)(x), x)[1], [0, 1, 2]),
}


@pytest.mark.parametrize(("program", "expected"), IN_ORDER.values(), ids=IN_ORDER)
@every_stateful
def test_once_per_element_in_batch_order(op, program, expected):
    body = Counter()
    run(jax.jit(program(lambda x: op(body, [x], output_shapes=()))), grid(3))
    assert [float(x) for (x,) in body.seen] == expected


@pytest.mark.parametrize("method", BLOCKS)
@every_stateful
def test_blocks_run_once(op, method):
    body = Counter(lambda x, y: x * y)
    f = jax.vmap(jax.vmap(lambda x, y: op(body, [x, y], vmap_method=method), (None, 0)), (0, None))
    np.testing.assert_array_equal(run(f, grid(3), grid(2)), np.outer(grid(3), grid(2)))
    ((x, y),) = body.seen
    assert (x.shape, y.shape) == (((3, 1), (1, 2)) if method == "expand_dims" else ((3, 2), (3, 2)))


@pytest.mark.parametrize("threads", [None, 1, 4])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_parallel_batch_runs_once_per_element_and_in_order_if_it_is_ordered(ordered, threads):
    """Also where the elements that come first take longest. Nobody uses the results of the two batches."""
    seen = []

    def body(x):
        time.sleep(0.001 * (5 - float(x) % 10))
        seen.append(float(x))
        return x

    with cf.ThreadPoolExecutor(threads) as pool:
        options = {"ordered": ordered, "vmap_method": "parallel", "executor": threads and pool}
        f = jax.vmap(lambda x: py_func(body, [x], F, **options))
        run(jax.jit(lambda x: (f(x), f(x + 10), x)[2]), grid(5))
    assert (seen if ordered else sorted(seen)) == [*range(5), *range(10, 15)]

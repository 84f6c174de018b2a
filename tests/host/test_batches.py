"""Batches: every method of `vmap`, with gradients, in loops and stateful, in one host call."""

from __future__ import annotations

import concurrent.futures as cf
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop._host import Host
from tests.shared import workers
from tests.shared.batch_cases import (
    FORWARD_AND_HIGHER,
    GRADIENTS,
    LOOPING,
    METHODS,
    VMAPS,
    F,
    assert_same_gradients,
    grid,
    plain,
)
from tests.shared.util import NUMPY_APIS, ROUTES, both_sides, contrib, every_api, numpy_function, py_func, py_function

every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture
def entries(monkeypatch):
    """Grows by one with every entry from a compiled program into Python."""
    found = []
    enter = Host.enter

    def counting(self, arrays, outs):
        found.append(self.call.title)
        return enter(self, arrays, outs)

    monkeypatch.setattr(Host, "enter", counting)
    return found


# ------------------------------------------------------------------------- vmap

every_vmap = pytest.mark.parametrize(("vmapped", "x_shape", "y_shape"), VMAPS.values(), ids=VMAPS)


def check_values_and_entries(api, method, vmapped, x_shape, y_shape, route, entries):
    x, y = grid(*x_shape), grid(*y_shape, start=10.0)
    f = vmapped(lambda x, y: api(workers.product, [x, y], F, vmap_method=method))
    got, wanted = route(f, x, y), vmapped(jnp.multiply)(x, y)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(got, wanted)
    if route.jit and got.size:  # XLA need not call for an empty result
        assert len(entries) == 1


@every_vmap
@every_method
@both_sides
def test_values_in_one_host_call(api, method, vmapped, x_shape, y_shape, route, entries):
    check_values_and_entries(api, method, vmapped, x_shape, y_shape, route, entries)


@every_method
@pytest.mark.parametrize("api", [py_func, contrib])
def test_the_other_functions(api, method, route, entries):
    check_values_and_entries(api, method, *VMAPS["nested, out transposed"], route, entries)


def test_one_host_call_at_each_execution(transport, entries):
    f = jax.jit(jax.vmap(lambda x: numpy_function(workers.double, [x], F)))
    for n in range(1, 4):
        jax.block_until_ready(f(grid(3)))
        assert len(entries) == n


def test_one_host_call_for_a_thousand(transport, entries):
    f = jax.jit(jax.vmap(lambda x: numpy_function(workers.double, [x], F)))
    np.testing.assert_array_equal(f(grid(1000)), 2 * grid(1000))
    assert len(entries) == 1


@pytest.mark.parametrize("shape", [(2, 0), (0, 2)], ids=str)
@every_method
@both_sides
def test_elements_of_nothing(api, method, shape, route):
    out = route(jax.vmap(lambda x: api(workers.double, [x], F, vmap_method=method)), jnp.zeros(shape))
    assert out.shape == shape


@pytest.mark.parametrize("method", LOOPING)
@every_api
def test_pytrees_static_leaves_and_several_results(api, method, route):
    def body(tree, label, by):
        assert label == "m"
        return {"sum": tree["a"].sum() * by, "parts": [tree["b"], tree["a"]]}

    tout, shapes = {"sum": F, "parts": [jnp.int32, F]}, {"sum": (), "parts": [(), (2,)]}
    op = lambda tree, by: api(body, [tree, "m", by], tout, output_shapes=shapes, vmap_method=method)
    f = jax.vmap(op, in_axes=({"a": 1, "b": None}, 0), out_axes={"sum": 0, "parts": [0, 1]})
    out = route(f, {"a": grid(2, 3), "b": jnp.int32(7)}, jnp.arange(3.0))
    np.testing.assert_array_equal(out["sum"], [0, 5, 14])
    np.testing.assert_array_equal(out["parts"][0], [7, 7, 7])
    np.testing.assert_array_equal(out["parts"][1], grid(2, 3))


@pytest.mark.parametrize("method", LOOPING)
def test_elements_may_write_into_their_inputs(method, route):
    """Also into an input that all of them share."""
    y = grid(2)
    f = jax.vmap(lambda x, y: numpy_function(workers.overwrite, [x, y], F, vmap_method=method), (0, None))
    np.testing.assert_array_equal(route(f, grid(3), y), grid(3)[:, None] + grid(2))
    np.testing.assert_array_equal(y, [0, 1])


# -------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    "program", [*GRADIENTS.values(), *FORWARD_AND_HIGHER.values()], ids=[*GRADIENTS, *FORWARD_AND_HIGHER]
)
@every_method
def test_gradients_of_py_function(method, program, transport):
    op = lambda x, w: py_function(plain, [x, w], F, vmap_method=method)
    assert_same_gradients(program, op, ROUTES[f"jit-{transport}"])


@pytest.mark.parametrize("program", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("method", ["expand_dims", "parallel"])
def test_gradients_of_py_function_outside_jit(method, program):
    assert_same_gradients(program, lambda x, w: py_function(plain, [x, w], F, vmap_method=method), ROUTES["direct"])


def numpy_plain(x, w):
    return np.sin(x) * w**2


def numpy_vjp(inputs, outputs, cotangents):
    (x, w), (ct,) = inputs, cotangents
    return ct * np.cos(x) * w**2, ct * np.sin(x) * 2 * w


@pytest.mark.parametrize("program", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("method", ["sequential", "expand_dims", "parallel"])
def test_gradients_of_numpy_functions(method, program, transport):
    op = lambda x, w: numpy_function(numpy_plain, [x, w], F, vmap_method=method, vjp=numpy_vjp)
    assert_same_gradients(program, op, ROUTES[f"jit-{transport}"])


@every_method
@pytest.mark.parametrize("api", NUMPY_APIS.values(), ids=NUMPY_APIS)
def test_gradients_of_every_numpy_function(api, method, route):
    op = lambda x, w: api(numpy_plain, [x, w], F, vmap_method=method, vjp=numpy_vjp)
    assert_same_gradients(GRADIENTS["grad of vmap, w unbatched"], op, route)


@pytest.mark.parametrize("method", LOOPING)
@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (GRADIENTS["vmap of grad"], 2),
        (GRADIENTS["grad of nested vmap"], 2),
        (GRADIENTS["jacrev"], 2),
        (GRADIENTS["grad of scan of vmap"], 6),
    ],
    ids=["vmap of grad", "grad of nested vmap", "jacrev", "grad of scan of vmap"],
)
@both_sides
def test_one_host_call_per_batch_and_pass(api, method, program, calls, transport, entries):
    options = {} if api is py_function else {"vjp": numpy_vjp}
    body = plain if api is py_function else numpy_plain
    f = jax.jit(program(lambda x, w: api(body, [x, w], F, vmap_method=method, output_shapes=(), **options)))
    jax.block_until_ready(f(grid(3), grid(3, start=1.0)))
    assert len(entries) == calls


# ------------------------------------------------------------------------ loops

# With how often the host is entered, for three elements.
LOOPS = {
    "scan of vmap": (lambda op: lambda x: lax.scan(lambda c, _: (jax.vmap(op)(c), c), x, None, length=3), 3),
    "vmap of scan": (
        lambda op: jax.vmap(lambda x: lax.scan(lambda c, v: (op(c) + v, op(v)), x, jnp.arange(2.0))),
        None,
    ),
    "vmap of fori_loop": (lambda op: jax.vmap(lambda x: lax.fori_loop(0, 4, lambda i, c: op(c) + i, x)), 4),
    "vmap of while_loop": (
        lambda op: jax.vmap(lambda x: lax.while_loop(lambda c: c < 9, lambda c: op(c) + 1, x)),
        None,
    ),
    "while_loop of vmap": (
        lambda op: lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: jax.vmap(op)(c) + 1, x),
        None,
    ),
    "vmap of cond": (lambda op: jax.vmap(lambda x: lax.cond(x > 0.5, op, lambda x: -x, x)), 1),
    "cond of vmap": (lambda op: lambda x: lax.cond(x[0] < 1, jax.vmap(op), lambda x: -x, x), 1),
    "vmap of map": (lambda op: lambda x: jax.vmap(lambda x: lax.map(op, x))(jnp.stack([x, x + 1])), 3),
    "map with batch_size": (lambda op: lambda x: lax.map(op, x, batch_size=3), 1),
    "vmap of checkpoint": (lambda op: jax.vmap(jax.checkpoint(op)), 1),
}


@pytest.mark.parametrize(("program", "calls"), LOOPS.values(), ids=LOOPS)
@every_method
@both_sides
def test_loops_and_branches(api, method, program, calls, transport, entries):
    x = grid(3)
    got = ROUTES[f"jit-{transport}"](program(lambda x: api(workers.double, [x], F, vmap_method=method)), x)
    jax.tree.map(np.testing.assert_array_equal, got, program(workers.double)(x))
    if calls is not None:
        assert len(entries) == calls


# --------------------------------------------------------------------- stateful


STATEFUL = {
    "py_func": lambda f, inp, **o: py_func(f, inp, F, **o),
    "ordered py_func": lambda f, inp, **o: py_func(f, inp, F, ordered=True, **o),
    "contrib": lambda f, inp, **o: contrib(f, inp, F, **o),
    "ordered contrib": lambda f, inp, **o: contrib(f, inp, F, ordered=True, **o),
    "numpy_function": lambda f, inp, **o: numpy_function(f, inp, F, stateful=True, **o),
    "ordered numpy_function": lambda f, inp, **o: numpy_function(f, inp, F, ordered=True, **o),
    "py_function": lambda f, inp, **o: py_function(f, inp, F, stateful=True, **o),
    "ordered py_function": lambda f, inp, **o: py_function(f, inp, F, ordered=True, **o),
}
every_stateful = pytest.mark.parametrize("op", STATEFUL.values(), ids=STATEFUL)
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


@pytest.mark.parametrize(("program", "expected"), IN_ORDER.values(), ids=IN_ORDER)
@every_stateful
def test_stateful_ops_run_once_per_element_in_batch_order(op, program, expected, route):
    seen = []

    def body(x):
        seen.append(float(x))
        return x

    route(program(lambda x: op(body, [x], output_shapes=())), grid(3))
    assert seen == expected


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@every_stateful
def test_stateful_blocks_run_once(op, method, route):
    seen = []

    def body(x, y):
        seen.append((np.shape(x), np.shape(y)))
        return x * y

    f = jax.vmap(jax.vmap(lambda x, y: op(body, [x, y], vmap_method=method), (None, 0)), (0, None))
    np.testing.assert_array_equal(route(f, grid(3), grid(2)), jnp.outer(grid(3), grid(2)))
    assert seen == [((3, 1), (1, 2)) if method == "expand_dims" else ((3, 2), (3, 2))]


@every_stateful
def test_parallel_stateful_ops_run_once_per_element(op, route):
    seen = []

    def body(x):
        seen.append(float(x))
        return x

    with cf.ThreadPoolExecutor(3) as threads:
        f = jax.vmap(lambda x: op(body, [x], output_shapes=(), vmap_method="parallel", executor=threads))
        route(lambda x: (f(x), f(x + 10), x)[2], grid(4))
    assert sorted(seen) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_parallel_batch_of_an_ordered_op_ends_before_the_next_begins(route):
    seen = []

    def body(x):
        time.sleep(0.01)
        seen.append(float(x))
        return x

    f = jax.vmap(lambda x: py_func(body, [x], F, ordered=True, vmap_method="parallel"))
    route(lambda x: (f(x), f(x + 10), f(x + 20), x)[3], grid(4))
    assert [int(x) // 10 for x in seen] == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("method", LOOPING)
def test_a_differentiated_stateful_batch_runs_once_per_element(method, route):
    seen = []

    def body(x):
        seen.append(float(x))
        return x**3

    f = lambda x: py_function(body, [x], F, stateful=True, output_shapes=(), vmap_method=method)
    np.testing.assert_allclose(route(jax.vmap(jax.grad(f)), grid(3)), 3 * grid(3) ** 2)
    assert sorted(seen) == [0, 1, 2]


REFUSED = {
    "vmap of cond": lambda op: jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: x, x)),
    "vmap of switch": lambda op: jax.vmap(lambda x: lax.switch(jnp.int32(x), [op, lambda x: x], x)),
    "vmap of while_loop": lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: x < 3, lambda x: op(x) + 1, x)),
    "grad of checkpoint of vmap": lambda op: jax.grad(lambda x: jax.checkpoint(jax.vmap(op))(x).sum()),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
@every_method
@pytest.mark.parametrize(
    "op", [STATEFUL["py_func"], STATEFUL["ordered py_function"]], ids=["py_func", "ordered py_function"]
)
def test_where_jax_refuses_effects(op, method, program):
    ran = []
    body = lambda x: (ran.append(1), x)[1]
    with pytest.raises((NotImplementedError, ValueError, TypeError), match=r"(?s)'body of mine'.*stateful=False"):
        program(lambda x: op(body, [x], output_shapes=(), vmap_method=method, name="body of mine"))(grid(3))
    assert ran == []

"""Batches and executors: every method of `vmap`, one host call, threads, processes and Dask."""

# ruff: noqa: B023  # what a loop makes is called in the same turn

from __future__ import annotations

import concurrent.futures as cf
import contextvars
import functools
import importlib.util
import logging
import math
import multiprocessing
import os
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import workers
from jax import lax
from util import APIS, NUMPY_APIS, ROUTES, contrib, numpy_function, py_func, py_function

import jaxpyop
from jaxpyop import _executors, _transport

F = jnp.float32
METHODS = ["sequential", "expand_dims", "broadcast_all", "parallel"]
LOOPING = ["sequential", "parallel"]
every_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
every_method = pytest.mark.parametrize("method", METHODS)
both_sides = pytest.mark.parametrize("api", [py_function, numpy_function])


def grid(*shape, start=0.0):
    return jnp.asarray(np.arange(start, start + math.prod(shape), dtype=np.float32).reshape(shape))


@pytest.fixture
def entries(monkeypatch):
    """Grows by one with every entry from a compiled program into Python."""
    found = []
    enter = _transport.Host._enter

    def counting(self, arrays, outs):
        found.append(self.call.title)
        return enter(self, arrays, outs)

    monkeypatch.setattr(_transport.Host, "_enter", counting)
    return found


# ------------------------------------------------------------------------- vmap

# What vmaps an f(x, y) of two elements, and the shapes that go in.
VMAPS = {
    "both": (lambda f: jax.vmap(f), (3,), (3,)),
    "y unbatched": (lambda f: jax.vmap(f, (0, None)), (3,), ()),
    "x unbatched": (lambda f: jax.vmap(f, (None, 0)), (), (3,)),
    "arrays, last axis in, first out": (lambda f: jax.vmap(f, (1, -1)), (2, 3), (2, 3)),
    "arrays, first axis in, last out": (lambda f: jax.vmap(f, (0, None), out_axes=-1), (3, 2), (2,)),
    "outer product": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)), (3,), (2,)),
    "nested, out transposed": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (0, None), out_axes=1), (3, 2), ()),
    "size 1": (lambda f: jax.vmap(f), (1,), (1,)),
    "size 1 in size 3": (lambda f: jax.vmap(jax.vmap(f)), (3, 1), (3, 1)),
    "size 0": (lambda f: jax.vmap(f, (0, None)), (0,), ()),
    "size 0 in size 3": (lambda f: jax.vmap(jax.vmap(f), (0, 0)), (3, 0), (3, 0)),
}
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


def plain(x, w):
    return jnp.sin(x) * w**2


GRADIENTS = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1))),
    "vmap of grad, w unbatched": lambda f: lambda x, w: jax.vmap(jax.grad(f, (0, 1)), (0, None))(x, w[0]),
    "grad of vmap": lambda f: jax.grad(lambda x, w: jax.vmap(f)(x, w).sum(), (0, 1)),
    "grad of vmap, w unbatched": lambda f: jax.grad(lambda x, w: jax.vmap(f, (0, None))(x, w[0]).sum(), (0, 1)),
    "vmap of grad of vmap": lambda f: jax.vmap(
        jax.grad(lambda x, w: jax.vmap(f, (None, 0))(x, jnp.stack([w, -w])).sum())
    ),
    "grad of nested vmap": lambda f: jax.grad(
        lambda x, w: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(x, w).sum(), (0, 1)
    ),
    "jacrev": lambda f: jax.jacrev(jax.vmap(f), (0, 1)),
    "value_and_grad": lambda f: jax.vmap(jax.value_and_grad(f)),
    "axis size 0": lambda f: lambda x, w: jax.vmap(jax.grad(f))(x[:0], w[:0]),
    "axis size 1": lambda f: lambda x, w: jax.vmap(jax.grad(f))(x[:1], w[:1]),
    "grad of scan of vmap": lambda f: jax.grad(
        lambda x, w: lax.scan(lambda c, v: (jax.vmap(f, (0, None))(c, v), None), x, w)[0].sum(), (0, 1)
    ),
    "vmap of grad of scan": lambda f: jax.vmap(
        jax.grad(lambda x, w: lax.scan(lambda c, _: (f(c, w), None), x, None, length=2)[0], (0, 1))
    ),
}
FORWARD_AND_HIGHER = {
    "jacfwd": lambda f: jax.jacfwd(jax.vmap(f), (0, 1)),
    "jvp of vmap": lambda f: lambda x, w: jax.jvp(jax.vmap(f), (x, w), (w, x)),
    "vmap of jvp": lambda f: jax.vmap(lambda x, w: jax.jvp(f, (x, w), (w, x))),
    "vmap of grad of grad": lambda f: jax.vmap(jax.grad(jax.grad(f), 1)),
    "hessian": lambda f: jax.hessian(lambda x, w: jax.vmap(f)(x, w).sum(), (0, 1)),
    "grad of vmap of grad": lambda f: jax.grad(lambda x, w: jax.vmap(jax.grad(f))(x, w).sum(), (0, 1)),
}


def assert_same_gradients(program, op, run):
    x, w = jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 2.0, -0.5])
    same = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    jax.tree.map(same, run(program(op), x, w), program(plain)(x, w))


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


# --------------------------------------------------------------------- executors


def parallel(api, body, inp, tout=F, **options):
    return api(body, inp, tout, vmap_method="parallel", **options)


class InCaller(cf.Executor):
    """Not a pool at all."""

    submitted = 0

    def submit(self, fn, /, *args, **kwargs):
        self.submitted += 1
        future = cf.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@every_api
def test_default_threads_run_elements_at_once(api, route):
    """Four bodies that wait for each other end only if all four run."""
    barrier = threading.Barrier(4, timeout=30)
    names = set()

    def body(x):
        barrier.wait()
        names.add(threading.current_thread().name)
        return x * 2

    np.testing.assert_array_equal(
        route(jax.vmap(lambda x: parallel(api, body, [x], output_shapes=())), grid(4)), 2 * grid(4)
    )
    assert len(names) == 4
    assert all(name.startswith("jaxpyop") for name in names)


@every_api
def test_a_given_thread_pool(api, route):
    names = set()

    def body(x):
        names.add(threading.current_thread().name)
        return x * 2

    with cf.ThreadPoolExecutor(2, thread_name_prefix="mine") as threads:
        f = jax.vmap(lambda x: parallel(api, body, [x], executor=threads, output_shapes=()))
        for k in range(3):  # it stays open
            np.testing.assert_array_equal(route(f, grid(6) + k), 2 * (grid(6) + k))
    assert {name.rpartition("_")[0] for name in names} == {"mine"}


@both_sides
def test_results_keep_their_places(api, route):
    """Later elements end first."""

    def body(x):
        time.sleep(0.02 * (5 - float(x)))
        return x * 2

    with cf.ThreadPoolExecutor(5) as threads:
        f = jax.vmap(lambda x: parallel(api, body, [x], executor=threads, output_shapes=()))
        np.testing.assert_array_equal(route(f, grid(5)), 2 * grid(5))


def test_an_executor_given_as_a_function(route):
    made = []

    def make():
        made.append(InCaller())
        return made[-1]

    f = jax.vmap(lambda x: parallel(numpy_function, workers.double, [x], executor=make))
    for n in range(1, 4):
        np.testing.assert_array_equal(route(f, grid(4)), 2 * grid(4))
        assert [e.submitted for e in made] == [4] * n  # asked anew for every batch


@pytest.mark.parametrize("program", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_on_an_executor_of_an_unknown_kind(program):
    """It may be another process, so nothing is recorded there."""
    op = lambda x, w: parallel(py_function, plain, [x, w], executor=InCaller())
    assert_same_gradients(program, op, ROUTES["jit-auto"])


def test_decorators_take_an_executor(route):
    with cf.ThreadPoolExecutor(1, thread_name_prefix="mine") as threads:

        @jaxpyop.numpy_function(Tout=F, vmap_method="parallel", executor=threads)
        def body(x):
            assert threading.current_thread().name.startswith("mine")
            return x * 2

        np.testing.assert_array_equal(route(jax.vmap(body), grid(3)), 2 * grid(3))


@every_api
def test_without_vmap_the_executor_is_not_used(api, route):
    executor = InCaller()
    np.testing.assert_array_equal(
        route(lambda x: parallel(api, workers.double, [x], executor=executor), grid(3)), 2 * grid(3)
    )
    assert executor.submitted == 0


VARIABLE = contextvars.ContextVar("variable", default="unset")


@both_sides
def test_threads_see_the_callers_context_and_x64(api, route):
    seen = []

    def body(x):
        seen.append((VARIABLE.get(), jax.config.jax_enable_x64, (jnp.asarray(1.0) / 3).dtype.name))
        return x

    token = VARIABLE.set("mine")
    try:
        f = lambda x: jax.vmap(lambda x: parallel(api, body, [x], output_shapes=()))(x)
        route(f, grid(3))
        assert seen == [("mine", False, "float32")] * 3
        del seen[:]
        with jax.enable_x64(True):
            route(lambda x: f(x), grid(3))
        assert seen == [("mine", True, "float64")] * 3
    finally:
        VARIABLE.reset(token)


def test_jax_programs_in_parallel_bodies(route):
    inner = jax.jit(lambda x: (jnp.outer(x * jnp.ones(100), jnp.ones(100)) @ jnp.ones(100)).sum())
    f = jax.vmap(lambda x: parallel(py_function, lambda x: inner(x), [x], output_shapes=()))
    np.testing.assert_allclose(route(f, grid(12)), 100.0**3 * grid(12) / 100 * 1, rtol=1e-5)


NESTED = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
from concurrent.futures import ThreadPoolExecutor
executor = {executor}
def batch(body):
    return jax.vmap(lambda x: jaxpyop.numpy_function(body, [x], jnp.float32, vmap_method="parallel", executor=executor))
def body(x):
    return np.asarray(batch(np.negative)(x * jnp.ones(3))).sum()
np.testing.assert_allclose({run}(batch(body))(jnp.arange(50.0)), -3 * np.arange(50.0))
"""


@pytest.mark.parametrize("run", ["", "jax.jit"], ids=["direct", "jit"])
@pytest.mark.parametrize("executor", ["None", "ThreadPoolExecutor(2)"], ids=["default threads", "two threads"])
def test_a_parallel_batch_inside_a_parallel_body(executor, run):
    """Elements that wait for elements of the same pool: it ends all the same."""
    from util import run_python

    run_python(NESTED.format(executor=executor, run=run), timeout=20)


def test_from_several_threads(transport):
    f = jax.jit(jax.vmap(lambda x: parallel(numpy_function, workers.double, [x])))
    f(grid(8))
    with cf.ThreadPoolExecutor(4) as callers:
        outs = list(callers.map(lambda k: np.asarray(f(grid(8) + k)), range(40)))
    for k, out in enumerate(outs):
        np.testing.assert_array_equal(out, 2 * (grid(8) + k))


# ----------------------------------------------------------------------- refused


@pytest.mark.parametrize("method", METHODS[:3])
@every_api
def test_an_executor_without_parallel_is_refused(api, method):
    with pytest.raises(
        ValueError, match=rf"executor= runs the elements of vmap_method='parallel', and here it is '{method}'"
    ):
        api(workers.double, [1.0], F, vmap_method=method, executor=_executors.default_executor())


@pytest.mark.parametrize("executor", [3, "threads", object()], ids=["int", "str", "object"])
@every_api
def test_what_is_no_executor_is_refused(api, executor):
    with pytest.raises(TypeError, match=r"executor is .*; expected a concurrent\.futures\.Executor, or a function"):
        api(workers.double, [1.0], F, vmap_method="parallel", executor=executor)


def test_a_decorator_refuses_at_once():
    with pytest.raises(ValueError, match=r"executor= runs the elements of vmap_method='parallel'"):
        jaxpyop.numpy_function(Tout=F, executor=InCaller())(workers.double)


def test_a_function_that_gives_no_executor(route):
    with pytest.raises(TypeError, match=r"executor.* (returned|gave) 3|executor is 3"), jaxpyop.reraise():
        route(jax.vmap(lambda x: parallel(numpy_function, workers.double, [x], executor=lambda: 3)), grid(3))


def test_a_thread_pool_that_is_shut_down(route):
    threads = cf.ThreadPoolExecutor(1)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"), jaxpyop.reraise():
        route(jax.vmap(lambda x: parallel(numpy_function, workers.double, [x], executor=threads)), grid(3))


# ------------------------------------------------------------------------ errors


class Tracked:
    """A body that fails at one value, and knows what runs and what ran."""

    def __init__(self, fails_at, wait=0.02):
        self.fails_at, self.wait = fails_at, wait
        self.running, self.ran, self.lock = 0, [], threading.Lock()

    def __call__(self, x):
        with self.lock:
            self.running += 1
        try:
            if float(x) == self.fails_at:
                raise KeyError("mine", float(x))
            time.sleep(self.wait)
            self.ran.append(float(x))
            return x
        finally:
            with self.lock:
                self.running -= 1


@pytest.mark.parametrize("fails_at", [0, 5])
@pytest.mark.parametrize("workers_", [1, 3], ids=["one thread", "three threads"])
@both_sides
def test_an_error_names_its_element_and_cancels_the_rest(api, workers_, fails_at, route):
    body = Tracked(fails_at)
    with cf.ThreadPoolExecutor(workers_) as threads:
        f = jax.vmap(lambda x: parallel(api, body, [x], executor=threads, output_shapes=()))
        with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise():
            route(f, grid(40))
        ran = list(body.ran)
        assert body.running == 0  # nothing is left running
        time.sleep(0.1)
        assert body.ran == ran  # and nothing starts later
    assert caught.value.args == ("mine", float(fails_at))
    assert f"at batch index {fails_at}" in caught.value.__notes__
    assert len(ran) <= fails_at + 4 * workers_


def test_an_error_cancels_the_rest_while_an_earlier_element_still_runs(route):
    ran = []

    def body(x):
        if x == 1:
            raise KeyError("mine")
        time.sleep(1 if x == 0 else 0.05)
        ran.append(float(x))
        return x

    with cf.ThreadPoolExecutor(2) as threads, pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise():
        route(jax.vmap(lambda x: parallel(numpy_function, body, [x], executor=threads)), grid(30))
    assert "at batch index 1" in caught.value.__notes__
    assert len(ran) <= 4


def test_the_text_of_a_compiled_programs_error_names_the_element(transport):
    f = jax.jit(jax.vmap(jax.vmap(lambda x: parallel(numpy_function, workers.fail_at_two, [x]))))
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"(?s)'fail_at_two'.*two is too much.*at batch index \(0, 2\)"
    ):
        jax.block_until_ready(f(grid(2, 3)))
    np.testing.assert_array_equal(f(grid(2, 3) + 3), grid(2, 3) + 3)


@pytest.mark.parametrize("method", LOOPING)
def test_a_wrong_result_of_one_element_names_it(method, route):
    f = jax.vmap(lambda x: numpy_function(lambda x: np.zeros(int(x)), [x], F, output_shapes=(1,), vmap_method=method))
    with pytest.raises(ValueError, match=r"shape \(0,\) where \(1,\)") as caught, jaxpyop.reraise():
        route(f, jnp.array([1.0, 0.0, 1.0]))
    assert "at batch index 1" in caught.value.__notes__


@pytest.mark.parametrize("method", LOOPING)
def test_an_error_in_a_gradient_names_its_element(method, route):
    def bad_vjp(inputs, outputs, cotangents):
        if inputs[0] == 2:
            raise KeyError("mine")
        return cotangents[0]

    f = jax.vmap(jax.grad(lambda x: numpy_function(workers.double, [x], F, vjp=bad_vjp, vmap_method=method)))
    with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise():
        route(f, grid(3))
    assert "at batch index 2" in caught.value.__notes__


def test_calls_after_an_error(route):
    with cf.ThreadPoolExecutor(2) as threads:
        f = jax.vmap(lambda x: parallel(numpy_function, workers.fail_at_two, [x], executor=threads))
        for _ in range(5):
            with pytest.raises(ValueError, match="two is too much"), jaxpyop.reraise():
                route(f, grid(8))
            np.testing.assert_array_equal(route(f, grid(8) + 3), grid(8) + 3)


# --------------------------------------------------------------------- processes


def spawn(count):
    return cf.ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def processes():
    with spawn(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def dask():
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@pytest.fixture(params=["processes", "dask"])
def elsewhere(request):
    """Workers that are not threads of this process."""
    return request.getfixturevalue(request.param)


@every_api
def test_bodies_in_other_processes(api, elsewhere, route):
    op = lambda x: parallel(api, workers.process_number, [x], jnp.int32, executor=elsewhere, output_shapes=())
    pids = set(np.asarray(route(jax.vmap(op), grid(8))).tolist())
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


@pytest.mark.parametrize(
    ("vmapped", "x_shape", "y_shape"), [VMAPS["outer product"], VMAPS["size 0"]], ids=["outer product", "size 0"]
)
@every_api
def test_values_from_other_processes(api, vmapped, x_shape, y_shape, elsewhere, route):
    x, y = grid(*x_shape), grid(*y_shape, start=10.0)
    f = vmapped(lambda x, y: parallel(api, workers.product, [x, y], executor=elsewhere))
    np.testing.assert_array_equal(route(f, x, y), vmapped(jnp.multiply)(x, y))


BRANCHING = {
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f)), lambda x: 3 * x * abs(x)),
    "grad of vmap": (lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()), lambda x: 3 * x * abs(x)),
    "second order": (lambda f: jax.vmap(jax.grad(jax.grad(f))), lambda x: 6 * abs(x)),
    "jacfwd": (lambda f: jax.jacfwd(jax.vmap(f)), lambda x: np.diag(3 * x * abs(x))),
}


@pytest.mark.parametrize(("program", "expected"), BRANCHING.values(), ids=BRANCHING)
def test_gradients_recompute_in_other_processes(program, expected, elsewhere, route):
    x = jnp.array([0.5, -1.0, 2.0])
    f = program(lambda x: parallel(py_function, workers.branching_cube, [x], executor=elsewhere, output_shapes=()))
    np.testing.assert_allclose(route(f, x), expected(np.asarray(x)), rtol=1e-5)


def test_the_vjp_of_a_numpy_function_runs_there_too(elsewhere, route):
    op = lambda x: parallel(numpy_function, workers.cube, [x], executor=elsewhere, vjp=workers.cube_vjp)
    np.testing.assert_allclose(route(jax.vmap(jax.grad(op)), grid(3)), 3 * grid(3) ** 2)


def test_a_gradient_of_a_stateful_op_elsewhere_says_why_not(elsewhere, route):
    """A worker keeps no records, and a stateful op cannot run again."""
    op = lambda x: parallel(py_function, workers.cube, [x], executor=elsewhere, output_shapes=(), stateful=True)
    with (
        pytest.raises((RuntimeError, NotImplementedError), match=r"'cube'.*(executor|process|worker).*stateful=False"),
        jaxpyop.reraise(),
    ):
        route(jax.vmap(jax.grad(op)), grid(3))


def test_static_leaves_travel(elsewhere, route):
    op = lambda x: parallel(
        numpy_function, workers.labelled, [{"label": "metre", "path": workers.README}, x], executor=elsewhere
    )
    np.testing.assert_array_equal(route(jax.vmap(op), grid(3)), grid(3) + 1)


def test_kwargs_and_pytrees_travel(elsewhere, route):
    def op(batch, by):
        return jaxpyop.contrib.framework.py_func(
            workers.scale, [batch], {"by": by, "unit": "m"}, {"x": F, "n": jnp.int32}, {"x": (2,), "n": ()},
            vmap_method="parallel", executor=elsewhere,
        )  # fmt: skip

    out = route(jax.vmap(op, (0, None)), {"x": grid(3, 2), "n": jnp.arange(3)}, jnp.float32(2))
    np.testing.assert_array_equal(out["x"], 2 * grid(3, 2))
    np.testing.assert_array_equal(out["n"], [1, 2, 3])


def test_typed_keys_travel(elsewhere, route):
    keys = jax.random.split(jax.random.key(0), 3)
    op = lambda key: parallel(py_function, workers.normal, [key], executor=elsewhere, output_shapes=())
    np.testing.assert_array_equal(route(jax.vmap(op), keys), jax.vmap(workers.normal)(keys))


def test_workers_see_the_callers_x64(elsewhere, route):
    with jax.enable_x64(True):
        x, n = jnp.array([1 / 3, 2 / 3]), jnp.array([2**40, -1])
        assert x.dtype == np.float64
        doubles = lambda api: jax.vmap(lambda x: parallel(api, workers.double, [x], x.dtype, executor=elsewhere))
        for api in (py_function, numpy_function):
            for value in (x, n):
                out = route(doubles(api), value)
                assert out.dtype == value.dtype
                np.testing.assert_array_equal(out, value * 2)
        thirds = route(
            jax.vmap(lambda x: parallel(numpy_function, workers.third, [x], jnp.float64, executor=elsewhere)), x
        )
        np.testing.assert_array_equal(thirds, x / 3)


def test_promised_shapes_are_checked_of_other_processes(elsewhere, route):
    """Also where a function of the inputs promises them."""
    op = lambda x: parallel(numpy_function, workers.pair, [x], executor=elsewhere, output_shapes=lambda x: (3,))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(3,\)"), jaxpyop.reraise():
        route(jax.vmap(op), grid(3))


def test_stateful_bodies_run_once_per_element_elsewhere(elsewhere, route, tmp_path):
    """Also where elements are alike, which a cluster could merge."""
    path = tmp_path / "lines"
    f = jax.vmap(lambda x: parallel(py_func, workers.append_line, [str(path), x], executor=elsewhere))
    for n in range(1, 3):
        route(f, jnp.ones(5))
        assert path.read_text().splitlines() == ["1.0"] * 5 * n


def test_an_error_elsewhere_names_its_element(elsewhere, route):
    f = jax.vmap(jax.vmap(lambda x: parallel(numpy_function, workers.fail_at_two, [x], executor=elsewhere)))
    with pytest.raises(ValueError, match="two is too much") as caught, jaxpyop.reraise():
        route(f, grid(2, 3))
    assert "at batch index (0, 2)" in caught.value.__notes__
    np.testing.assert_array_equal(route(f, grid(2, 3) + 3), grid(2, 3) + 3)


def test_an_error_elsewhere_cancels_the_rest(elsewhere, route, tmp_path):
    path = tmp_path / "lines"
    path.touch()
    f = jax.vmap(lambda x: parallel(numpy_function, workers.slow_unless_two, [str(path), x], executor=elsewhere))
    with pytest.raises(ValueError, match="two is too much") as caught, jaxpyop.reraise():
        route(f, grid(40))
    assert "at batch index 2" in caught.value.__notes__
    time.sleep(0.5)  # what runs in another process cannot be stopped, what waits there can
    ran = path.read_text().splitlines()
    time.sleep(0.5)
    assert path.read_text().splitlines() == ran
    assert len(ran) < 15


@pytest.mark.parametrize("unpicklable", ["func", "input", "vjp"])
def test_what_cannot_be_pickled(unpicklable, elsewhere, route):
    body, options, inp = workers.double, {}, []
    if unpicklable == "func":
        body = workers.locked()
    elif unpicklable == "input":
        body, inp = workers.product, [threading.Lock()]
    else:
        options = {"vjp": workers.locked()}
    op = lambda x: parallel(numpy_function, body, [*inp, x], executor=elsewhere, **options)
    f = jax.vmap(jax.grad(op) if unpicklable == "vjp" else op)
    with (
        pytest.raises(
            TypeError, match=r"numpy_function '\w+'.* cannot be pickled for executor=.*top of a module"
        ) as caught,
        jaxpyop.reraise(),
    ):
        route(f, grid(3))
    assert any(note.startswith("at batch index") for note in caught.value.__notes__)


def test_a_pool_whose_worker_died(route):
    with spawn(1) as pool:
        f = jax.vmap(lambda x: parallel(numpy_function, workers.die, [x], executor=pool))
        with (
            pytest.raises(
                RuntimeError, match=r"numpy_function 'die': a worker of executor= died.*executor=lambda: pool"
            ),
            jaxpyop.reraise(),
        ):
            route(f, grid(3))


def test_the_next_call_with_a_new_pool_works(processes, route):
    pools = [spawn(1)]
    f = jax.vmap(lambda x: parallel(numpy_function, workers.fail_at_two, [x], executor=lambda: pools[-1]))
    f = jax.jit(f) if route.jit else f
    pools[0].submit(workers.die, 0).exception()
    with pytest.raises(RuntimeError, match="a worker of executor= died"), jaxpyop.reraise():
        jax.block_until_ready(f(grid(2)))
    pools.append(processes)
    np.testing.assert_array_equal(f(grid(2)), grid(2))
    pools[0].shutdown()


def test_a_dask_worker_that_dies():
    """Its own cluster, which gives up at the first death."""
    import dask as dask_
    import distributed

    with (
        dask_.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        f = jax.vmap(lambda x: parallel(numpy_function, workers.die, [x], executor=client.get_executor()))
        with pytest.raises(RuntimeError, match=r"numpy_function 'die': a worker of executor= died"):
            f(grid(1))


# ---------------------------------------------------------------------- progress

BARS = {
    "sequential": {"vmap_method": "sequential"},
    "parallel": {"vmap_method": "parallel"},
}


@pytest.mark.parametrize("options", BARS.values(), ids=BARS)
@every_api
def test_a_bar_shows_title_and_total(api, options, route, capsys):
    f = jax.vmap(lambda x: api(workers.double, [x], F, progress=True, **options))
    np.testing.assert_array_equal(route(f, grid(7)), 2 * grid(7))
    said = capsys.readouterr()
    assert said.out == ""
    name = "contrib.framework.py_func" if api is contrib else api.__name__
    assert f"{name} 'double': 100%" in said.err
    assert " 7/7 " in said.err
    assert " 0/7 " in said.err


def test_a_bar_counts_all_axes(route, capsys):
    route(
        jax.vmap(jax.vmap(lambda x: numpy_function(workers.double, [x], F, progress=True, name="resample"))), grid(3, 4)
    )
    assert re.search(r"numpy_function 'resample': 100%\|.*\| 12/12 ", capsys.readouterr().err)


def test_no_bar_without_a_batch(route, capsys):
    route(lambda x: numpy_function(workers.double, [x], F, progress=True), grid(3))
    route(jax.vmap(lambda x: numpy_function(workers.double, [x], F)), grid(3))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", BARS.values(), ids=BARS)
def test_a_bar_stops_where_an_element_fails(options, route, capsys):
    f = jax.vmap(lambda x: numpy_function(workers.fail_at_two, [x], F, progress=True, **options))
    with pytest.raises(ValueError, match="two is too much"), jaxpyop.reraise():
        route(f, grid(5))
    assert re.search(r"'fail_at_two': +\d+%\|", capsys.readouterr().err)
    np.testing.assert_array_equal(route(f, grid(5) + 3), grid(5) + 3)
    assert " 5/5 " in capsys.readouterr().err


def test_a_bar_over_processes(processes, capsys):
    f = jax.vmap(lambda x: parallel(numpy_function, workers.double, [x], progress=True, executor=processes))
    np.testing.assert_array_equal(f(grid(6)), 2 * grid(6))
    assert " 6/6 " in capsys.readouterr().err


@every_api
def test_progress_without_tqdm(api, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(ImportError, match=r'progress=True needs tqdm; pip install "jaxpyop\[progress\]"'):
        api(workers.double, [1.0], F, progress=True)
    api(workers.double, [1.0], F)


# ------------------------------------------------------------ the README's table


def element_threads(**options):
    """On which threads three elements run, and in which order."""
    seen = []
    main = threading.current_thread()

    def body(x):
        seen.append((float(x), threading.current_thread() is main))
        return x

    jax.block_until_ready(jax.vmap(lambda x: numpy_function(body, [x], F, **options))(grid(3)))
    return seen


def check_sequential():
    assert element_threads() == [(0, True), (1, True), (2, True)]


def check_block():
    for method in ("expand_dims", "broadcast_all"):
        shapes = []
        f = jax.vmap(lambda x: numpy_function(lambda x: (shapes.append(x.shape), x)[1], [x], F, vmap_method=method))
        f(grid(3))
        assert shapes == [(3,)]


def check_threads():
    seen = element_threads(vmap_method="parallel")
    assert sorted(seen) == [(0, False), (1, False), (2, False)]


def check_given_threads():
    with cf.ThreadPoolExecutor(2) as threads:
        assert sorted(element_threads(vmap_method="parallel", executor=threads)) == [(0, False), (1, False), (2, False)]


def check_processes():
    with spawn(1) as pool:
        out = jax.vmap(lambda x: parallel(numpy_function, workers.process_number, [x], jnp.int32, executor=pool))(
            grid(3)
        )
    assert os.getpid() not in np.asarray(out)


def check_gradient(executor, runs):
    seen = []
    body = lambda x: (seen.append(1), x**2)[1]
    f = jax.vmap(jax.grad(lambda x: parallel(py_function, body, [x], output_shapes=(), executor=executor)))
    np.testing.assert_array_equal(f(grid(3)), 2 * grid(3))
    assert len(seen) == 3 * runs


ANY = "any; results keep their places"
ROWS = {
    '`vmap`, `"sequential"`': (
        check_sequential,
        "the calling process, one at a time",
        "once per element",
        "batch order",
    ),
    '`vmap`, `"expand_dims"`, `"broadcast_all"`': (check_block, "the calling process", "once per batch", "one call"),
    '`vmap`, `"parallel"`': (check_threads, "threads of jaxpyop's own", "once per element", ANY),
    "... with a `ThreadPoolExecutor`": (check_given_threads, "its threads", "once per element", ANY),
    "... with a `ProcessPoolExecutor` or Dask": (check_processes, "its workers", "once per element", ANY),
    "... `grad` of a `py_function`, threads": (
        lambda: check_gradient(None, 1),
        "its threads",
        "once per element; replayed",
        "any",
    ),
    "... `grad` of a `py_function`, other workers": (
        lambda: check_gradient(InCaller(), 2),
        "its workers",
        "once per element, and once more in the backward pass",
        "any",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_the_readme(row):
    check, *cells = ROWS[row]
    assert workers.scaling_table()[row] == tuple(cells)
    check()


def test_every_row_of_the_table_is_tested():
    import test_devices
    import test_processes

    assert list(workers.scaling_table()) == [*ROWS, *test_devices.ROWS, *test_processes.ROWS]

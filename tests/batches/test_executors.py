"""`executor=`: where the function runs, for single calls, batches of every method and backward passes; and threads."""

from __future__ import annotations

import concurrent.futures as cf
import contextvars
import threading
import time
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.batches import bodies
from tests.batches.programs import BLOCKS, LOOPING, METHODS, F, InCaller, grid
from tests.shared.checks import run
from tests.shared.functions import both_sides, every_api, numpy_function, py_function

every_method = pytest.mark.parametrize("method", METHODS)
slow = pytest.mark.slow


def pool_of(count):
    return cf.ThreadPoolExecutor(count, thread_name_prefix="mine")


@pytest.fixture
def mine():
    with pool_of(1) as threads:
        yield threads


def seeing(body=lambda x: x * 2):
    """A function that keeps the names of the pools on which it runs."""
    names = []

    def seen(*args):
        names.append(threading.current_thread().name.rpartition("_")[0])
        return body(*args)

    return seen, names


PROGRAMS = {
    "single": lambda op: op,
    "compiled": jax.jit,
    "scan": lambda op: lambda x: jax.lax.scan(lambda c, v: (c, op(v)), 0.0, x)[1],
    "cond": lambda op: lambda x: jax.lax.cond(x[0] < 1, op, lambda x: x, x),
    "vmap": jax.vmap,
    "compiled vmap": lambda op: jax.jit(jax.vmap(op)),
    "vmap of vmap": lambda op: lambda x: jax.vmap(jax.vmap(op))(x[None])[0],
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("method", [*LOOPING, *(pytest.param(m, marks=slow) for m in BLOCKS)])
def test_it_runs_there_and_nowhere_else(method, program, mine):
    body, names = seeing()
    shapes = lambda x: x.shape
    op = lambda x: numpy_function(body, [x], F, executor=mine, vmap_method=method, output_shapes=shapes)
    np.testing.assert_array_equal(program(op)(grid(3)), 2 * grid(3))
    assert set(names) == {"mine"}


@every_api
def test_every_function_takes_an_executor(api, mine):
    body, names = seeing()
    np.testing.assert_array_equal(api(body, [grid(3)], F, executor=mine), 2 * grid(3))
    assert set(names) == {"mine"}


@every_method
@both_sides
def test_backward_passes_call_where_the_op_runs(api, method, mine):
    body, names = seeing(bodies.cube)
    rule, names_of_rule = seeing(bodies.cube_vjp)
    options = {"vjp": rule} if api is numpy_function else {}
    op = lambda x: api(body, [x], F, executor=mine, vmap_method=method, **options)
    assert jax.grad(op)(2.0) == 12
    np.testing.assert_allclose(jax.vmap(jax.grad(op))(grid(3)), 3 * grid(3) ** 2)
    assert set(names + names_of_rule) == {"mine"}
    assert bool(names_of_rule) == bool(options)


@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "jit"])
def test_an_executor_given_as_a_function_is_asked_for_each_call(compiled):
    """The executor is of an unknown kind."""
    made = []

    def make():
        made.append(InCaller())
        return made[-1]

    op = lambda x: numpy_function(bodies.double, [x], F, executor=make, vmap_method="parallel")
    f, single = jax.vmap(op), op
    if compiled:
        f, single = jax.jit(f), jax.jit(op)
    for n in range(1, 3):
        np.testing.assert_array_equal(f(grid(4)), 2 * grid(4))
        np.testing.assert_array_equal(single(grid(4)), 2 * grid(4))
        assert [len(e.tasks) for e in made] == [4, 1] * n


@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunksize_is_the_number_of_elements_in_a_task(size):
    threads_of = {}

    def body(x):
        threads_of.setdefault(int(x) // size, set()).add(threading.get_ident())
        return x * 2

    pool = InCaller()
    options = {"vmap_method": "parallel", "chunksize": size}
    with pool_of(2) as threads:
        for executor in (pool, threads):
            threads_of.clear()
            f = jax.vmap(lambda x, executor=executor: numpy_function(body, [x], F, executor=executor, **options))
            np.testing.assert_array_equal(f(grid(10)), 2 * grid(10))
            assert all(len(one) == 1 for one in threads_of.values())
    assert len(pool.tasks) == -(-10 // size)


def in_chunks(api, body, size, **options):
    """An op on an executor of an unknown kind."""
    options |= {"vmap_method": "parallel", "executor": InCaller(), "chunksize": size}
    return lambda x: api(body, [x], F, **options)


def test_a_function_may_return_the_same_memory_for_each_element():
    buffer = np.zeros(2, np.float32)

    def body(x):
        buffer[...] = x * 2
        return buffer

    np.testing.assert_array_equal(jax.vmap(in_chunks(numpy_function, body, 3))(grid(10, 2)), 2 * grid(10, 2))


def test_each_element_of_a_chunk_has_a_record_of_its_own():
    """The backward pass compares the results of another run with those of the same element."""
    x = jnp.arange(-4.0, 8.0)
    op = in_chunks(py_function, bodies.branching_cube, 4, output_shapes=())
    np.testing.assert_allclose(jax.vmap(jax.grad(op))(x), 3 * x * abs(x))


def test_errors_in_a_chunk_name_their_element():
    with pytest.raises(ValueError, match="two is too much") as caught:
        jax.vmap(in_chunks(numpy_function, bodies.fail_at_two, 3))(grid(10) - 3)
    assert caught.value.__notes__[0] == "at batch index 5"
    op = in_chunks(numpy_function, lambda x: np.zeros(int(x)), 3, output_shapes=lambda x: (1,))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(1,\)") as caught:
        run(jax.jit(jax.vmap(op)), jnp.array([1.0, 1, 1, 1, 2, 1]))
    assert "at batch index 4" in caught.value.__notes__


# ---------------------------------------------------------------------- threads


@every_api
def test_default_threads_run_elements_at_once(api):
    """Four elements that wait for each other end only if all four run."""
    barrier = threading.Barrier(4, timeout=30)
    names = set()

    def body(x):
        barrier.wait()
        names.add(threading.current_thread().name)
        return x * 2

    f = jax.vmap(lambda x: api(body, [x], F, output_shapes=(), vmap_method="parallel"))
    np.testing.assert_array_equal(f(grid(4)), 2 * grid(4))
    assert len(names) == 4
    assert all(name.startswith("jaxpyop") for name in names)


def test_one_thread_takes_the_elements_in_batch_order_and_stays_open(mine):
    seen = []
    body = lambda x: (seen.append(float(x)), x * 2)[1]
    f = jax.jit(jax.vmap(lambda x: numpy_function(body, [x], F, vmap_method="parallel", executor=mine)))
    for k in range(3):
        np.testing.assert_array_equal(f(grid(6) + k), 2 * (grid(6) + k))
    assert seen == [float(x + k) for k in range(3) for x in range(6)]


@both_sides
def test_results_keep_their_places(api):
    """Later elements end first."""

    def body(x):
        time.sleep(0.01 * (5 - float(x)))
        return x * 2

    with pool_of(5) as threads:
        f = jax.vmap(lambda x: api(body, [x], F, executor=threads, output_shapes=(), vmap_method="parallel"))
        np.testing.assert_array_equal(f(grid(5)), 2 * grid(5))


VARIABLE = contextvars.ContextVar("variable", default="unset")


def test_jax_programs_in_parallel_elements():
    inner = jax.jit(lambda x: (jnp.outer(x * jnp.ones(100), jnp.ones(100)) @ jnp.ones(100)).sum())
    f = jax.jit(jax.vmap(lambda x: py_function(lambda x: inner(x), [x], F, output_shapes=(), vmap_method="parallel")))
    np.testing.assert_allclose(f(grid(12)), 100.0**2 * grid(12), rtol=1e-5)


def test_a_program_may_be_called_on_several_threads():
    f = jax.jit(jax.vmap(lambda x: numpy_function(bodies.double, [x], F, vmap_method="parallel")))
    with cf.ThreadPoolExecutor(4) as callers:
        outs = list(callers.map(lambda k: np.asarray(f(grid(8) + k)), range(20)))
    for k, out in enumerate(outs):
        np.testing.assert_array_equal(out, 2 * (grid(8) + k))


def test_programs_of_pools_that_are_gone_are_used_again():
    """A new pool for each call does not compile again what its functions call."""
    traced = []
    inner = jax.jit(lambda x: (traced.append(1), x * 2)[1])
    for _ in range(5):
        with pool_of(1) as threads:
            assert py_function(lambda x: inner(x), [jnp.float32(1)], F, executor=threads) == 2
        del threads
    assert len(traced) <= 2


def test_threads_see_the_callers_context_and_settings():
    seen = []

    def body(x):
        seen.append((VARIABLE.get(), (jnp.asarray(1.0) / 3).dtype.name))
        return x

    def batch():
        return jax.jit(jax.vmap(lambda x: py_function(body, [x], F, output_shapes=(), vmap_method="parallel")))

    context = contextvars.copy_context()
    context.run(VARIABLE.set, "mine")
    context.run(run, batch(), grid(3))
    with jax.enable_x64(True):
        run(batch(), grid(3))
    assert seen == [("mine", "float32")] * 3 + [("unset", "float64")] * 3


def test_a_shared_input_is_copied_for_the_elements_under_way_alone():
    table = np.ones(2**20, np.float32)
    body = lambda x, table: table[:1] + x
    op = lambda x, t: numpy_function(body, [x, t], F, output_shapes=(1,), vmap_method="parallel", executor=threads)
    with pool_of(2) as threads:
        tracemalloc.start()
        try:
            out = jax.vmap(op, (0, None))(np.arange(20, dtype=np.float32), table)
            assert tracemalloc.get_traced_memory()[1] < 5 * table.nbytes
        finally:
            tracemalloc.stop()
    np.testing.assert_array_equal(out[:, 0], np.arange(1.0, 21.0))


# ----------------------------------------------------------------------- refused


class Client:
    def get_executor(self):
        raise AssertionError


REFUSED = {
    "int": ({"executor": 3}, TypeError, r"executor is 3; expected a concurrent\.futures\.Executor, or a function"),
    "string": ({"executor": "threads"}, TypeError, "executor is 'threads'; expected"),
    "object": ({"executor": object()}, TypeError, "executor is <object.*; expected"),
    "a Dask client": ({"executor": Client()}, TypeError, r"Dask client.*pass client\.get_executor\(\)"),
    "a function that gives none": ({"executor": lambda: 3}, TypeError, "executor= gave 3; expected"),
    "chunksize 0": ({"chunksize": 0}, ValueError, "chunksize is 0.*expected at least 1"),
    "chunksize -3": ({"chunksize": -3}, ValueError, "chunksize is -3.*expected at least 1"),
    "chunksize 2.0": ({"chunksize": 2.0}, TypeError, r"chunksize is 2\.0.*a whole number of elem"),
}


@pytest.mark.parametrize(("options", "error", "text"), REFUSED.values(), ids=REFUSED)
@every_api
def test_what_is_refused(api, options, error, text):
    with pytest.raises(error, match=text):
        api(bodies.double, [1.0], F, vmap_method="parallel", **options)


@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_a_thread_pool_that_is_shut_down(method):
    threads = pool_of(1)
    threads.shutdown()
    op = lambda x: numpy_function(bodies.double, [x], F, executor=threads, vmap_method=method)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        run(jax.jit(jax.vmap(op)), grid(3))

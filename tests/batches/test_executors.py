"""`executor=`: where the function runs, for single calls, batches of every method and backward passes; and threads."""

import concurrent.futures as cf
import contextvars
import threading
import tracemalloc
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.batches import bodies
from tests.batches.programs import (
    METHODS,
    F,
    InCaller,
    LikeAProcess,
    assert_raises_at,
    counted,
    grid,
    parallel,
    sent_to,
)
from tests.shared.checks import run
from tests.shared.functions import both_sides, every_api, numpy_function, py_function
from tests.shared.tables import rows

fast_first = rows(METHODS, fast=METHODS[:1])


def pool_of(count):
    return cf.ThreadPoolExecutor(count, thread_name_prefix="mine")


@pytest.fixture
def mine():
    with pool_of(1) as threads:
        yield threads


def seeing(body=bodies.double):
    """A function that keeps the names of the pools on which it runs."""
    names = []

    def seen(*args):
        names.append(threading.current_thread().name.rpartition("_")[0])
        return body(*args)

    return seen, names


PROGRAMS = {
    "single": lambda op: op,
    "scan": lambda op: lambda x: jax.lax.scan(lambda c, v: (c, op(v)), 0.0, x)[1],
    "vmap": jax.vmap,
    "compiled vmap": lambda op: jax.jit(jax.vmap(op)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("method", fast_first)
def test_it_runs_there_and_nowhere_else(method, program, mine):
    body, names = seeing()
    op = lambda x: numpy_function(body, [x], F, executor=mine, vmap_method=method, output_shapes=lambda x: x.shape)
    np.testing.assert_array_equal(program(op)(grid(3)), 2 * grid(3))
    assert set(names) == {"mine"}


@every_api
def test_one_thread_takes_the_elements_in_batch_order_and_stays_open(api, mine):
    seen = []
    body, names = seeing(lambda x: (seen.append(float(x)), x * 2)[1])
    f = parallel(api, body, executor=mine, output_shapes=())
    for k in range(3):
        np.testing.assert_array_equal(f(grid(6) + k), 2 * (grid(6) + k))
    assert seen == [float(x + k) for k in range(3) for x in range(6)]
    assert set(names) == {"mine"}


@pytest.mark.parametrize("method", ["sequential", "expand_dims", *fast_first[-1:]])
@both_sides
def test_backward_passes_call_where_the_op_runs(api, method, mine):
    body, names = seeing(bodies.cube)
    rule, names_of_rule = seeing(bodies.cube_vjp)
    options = {"vjp": rule} if api is numpy_function else {}
    op = lambda x: api(body, [x], F, executor=mine, vmap_method=method, **options)
    np.testing.assert_allclose(jax.vmap(jax.grad(op))(grid(3)), 3 * grid(3) ** 2)
    assert set(names + names_of_rule) == {"mine"}
    assert bool(names_of_rule) == bool(options)


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit], ids=["direct", "jit"])
def test_an_executor_given_as_a_function_is_asked_for_each_call(compiled):
    """The executor is of an unknown kind."""
    made = []
    make = lambda: made.append(InCaller()) or made[-1]
    op = lambda x: numpy_function(
        bodies.double, [x], F, executor=jaxpyop.Workers(make, chunksize=1), vmap_method="parallel"
    )
    f, single = compiled(jax.vmap(op)), compiled(op)
    for n in range(1, 3):
        np.testing.assert_array_equal(f(grid(4)), 2 * grid(4))
        np.testing.assert_array_equal(single(grid(4)), 2 * grid(4))
        assert [len(e.tasks) for e in made] == [4, 1] * n


# ----------------------------------------------------------------------- chunks


@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunksize_is_the_number_of_elements_in_a_task(size):
    pool = InCaller()
    f = parallel(numpy_function, bodies.double, executor=pool, chunksize=size)
    np.testing.assert_array_equal(f(grid(10)), 2 * grid(10))
    assert len(pool.tasks) == -(-10 // size)


@pytest.mark.parametrize("size", [1, 3])
def test_a_function_and_a_rule_may_return_the_same_memory_for_each_element(size):
    buffer = np.zeros(2, np.float32)
    rule = lambda inputs, outputs, cotangents: np.multiply(inputs[0], 4, out=buffer)
    f = parallel(numpy_function, lambda x: np.multiply(x, 2, out=buffer), InCaller(), chunksize=size, vjp=rule)
    np.testing.assert_array_equal(f(grid(10, 2)), 2 * grid(10, 2))
    np.testing.assert_array_equal(jax.grad(lambda x: f(x).sum())(grid(10, 2)), 4 * grid(10, 2))


@pytest.mark.parametrize(("executor", "runs"), [(None, 4), (InCaller(), 7)], ids=["threads", "other workers"])
def test_a_record_is_replayed_and_other_workers_have_none(executor, runs):
    """It runs once on types. Where nothing is recorded, it runs once more in the backward pass for each element."""
    seen = []
    f = parallel(py_function, lambda x: (seen.append(1), x**2)[1], executor, output_shapes=())
    slopes, row = counted(jax.jit(jax.grad(lambda x: f(x).sum())), grid(3))
    np.testing.assert_array_equal(slopes, 2 * grid(3))
    assert (row["calls"], len(seen)) == (2, runs)


@pytest.mark.parametrize("pool", [InCaller(), [InCaller(), InCaller()]], ids=["one", "elements of its own"])
def test_errors_in_a_chunk_name_their_element(pool):
    f = parallel(numpy_function, bodies.fail_at_two, executor=pool, chunksize=3)
    assert_raises_at(5, ValueError, "two is too much", f, grid(10) - 3)


def test_a_chunk_has_at_most_4_mb_of_inputs():
    pool, sizes = InCaller(), []
    pool.run = lambda job, *shared: (sizes.append(len(job.numbers)), job(*shared))[1]
    f = parallel(numpy_function, bodies.length, pool, jnp.int32, output_shapes=())
    for _ in range(2):
        np.testing.assert_array_equal(f(np.zeros((20, 2**18), np.float32)), np.full(20, 2**18))
    assert max(sizes) == 4


@pytest.mark.parametrize("body", [bodies.exit_at_two, bodies.stop_at_two])
@pytest.mark.parametrize("pool", [InCaller(), LikeAProcess()], ids=["here", "elsewhere"])
def test_what_no_future_can_hold_is_an_ordinary_error(body, pool):
    """Else `sys.exit` would end the pool, and the program."""
    f = parallel(numpy_function, body, executor=pool, output_shapes=())
    assert_raises_at(2, RuntimeError, r"func raised (SystemExit\('done'\)|StopIteration\(\)) in a worker", f, grid(5))


def test_the_elements_of_a_lost_chunk_are_told():
    pool = InCaller()
    pool.run = lambda job: (_ for _ in ()).throw(cf.BrokenExecutor("gone"))
    f = parallel(numpy_function, bodies.double, executor=[pool, pool, pool], output_shapes=())
    with pytest.raises(RuntimeError, match="a worker of executor= died") as caught:
        f(grid(8))
    assert "at batch index 0 to 6 in steps of 3" in caught.value.__notes__


def test_a_function_on_one_executor_of_a_list_calls_an_op_on_another_one():
    """Which it would take for its own, and run the op in place, if jobs carried the number of the first executor."""
    here = threading.local()
    pools = [cf.ThreadPoolExecutor(1, initializer=setattr, initargs=(here, "number", k)) for k in range(3)]
    inner = lambda x: numpy_function(lambda x: x * 0 + here.number, [x], F, executor=pools[0])
    f = parallel(numpy_function, lambda x: 10 * np.float32(here.number) + inner(x), executor=pools, output_shapes=())
    np.testing.assert_array_equal(f(grid(3)), [0, 10, 20])


# ---------------------------------------------------------------------- threads


@every_api
def test_default_threads_run_elements_at_once(api):
    """And the caller too: four elements that wait for each other end only if all four run."""
    barrier = threading.Barrier(4, timeout=60)
    names = set()

    def body(x):
        barrier.wait()
        names.add(threading.current_thread().name)
        return x * 2

    np.testing.assert_array_equal(parallel(api, body, output_shapes=())(grid(4)), 2 * grid(4))
    assert len(names) == 4
    assert sum(name.startswith("jaxpyop") for name in names) == 3


def test_default_threads_record_elements_at_once():
    barrier = threading.Barrier(2, timeout=10)

    def body(x):
        barrier.wait()
        return x * x

    f = py_function(Tout=F, output_shapes=(), vmap_method="parallel")(body)
    np.testing.assert_array_equal(jax.vmap(jax.grad(f))(grid(2)), 2 * grid(2))


def test_threads_see_the_callers_context_and_settings():
    variable, seen = contextvars.ContextVar("variable", default="unset"), []

    def body(x):
        seen.append((variable.get(), (jnp.asarray(1.0) / 3.0).dtype.name, jax.config.jax_numpy_dtype_promotion))
        return x

    f = jax.jit(parallel(py_function, body, output_shapes=()))
    context = contextvars.copy_context()
    context.run(variable.set, "mine")
    context.run(run, f, grid(3))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        run(f, grid(3))
    assert seen == [("mine", "float32", "standard")] * 3 + [("unset", "float64", "strict")] * 3


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


def test_a_task_of_the_users_on_the_same_pool():
    """Its thread runs the function, also before the pool has noted that the thread is one of its own."""
    pool = pool_of(1)
    task = pool.submit(lambda: float(numpy_function(np.negative, [2.0], F, executor=pool)))
    try:
        assert task.result(timeout=60) == -2
    finally:
        pool.shutdown(cancel_futures=True)


# ----------------------------------------------------------------------- refused


def test_an_executor_without_a_hash():
    pool = type("Pool", (InCaller,), {"__hash__": None})()
    np.testing.assert_array_equal(parallel(numpy_function, np.negative, pool)(grid(4)), -grid(4))


BLOCKS = {"vmap_method": "expand_dims"}
REFUSED = {
    "int": ({"executor": 3}, TypeError, r"executor is 3; expected a concurrent\.futures\.Executor, a function"),
    "a function that gives none": ({"executor": lambda: 3}, TypeError, "executor= gave 3; expected"),
    "a list with an int": ({"executor": [InCaller(), 3]}, TypeError, r"executor is 3; expected a concurrent"),
    "a list for blocks": ({"executor": [InCaller()]} | BLOCKS, ValueError, "a list as executor= .*'expand_dims'"),
    "the class": ({"executor": jaxpyop.Workers}, TypeError, "executor is <class .*Workers'>; expected a concurrent"),
    "retries, stateful": (sent_to(InCaller(), {"retries": 1, "stateful": True}), ValueError, "stateful=False"),
    "timeout on threads": (sent_to(pool_of(1), {"timeout": 1}), TypeError, "timeout= needs workers that can be"),
    "timeout for blocks": (sent_to(InCaller(), {"timeout": 1}) | BLOCKS, ValueError, "timeout=1 is for single elem"),
}


@pytest.mark.parametrize(("options", "error", "text"), REFUSED.values(), ids=REFUSED)
@both_sides
def test_what_is_refused(api, options, error, text):
    with pytest.raises(error, match=text):
        api(bodies.double, [1.0], F, **{"vmap_method": "parallel"} | options)


WRONG_WORKERS = {
    "a pool": ({"pool": 3}, TypeError, r"Workers: pool is 3; expected a concurrent\.futures\.Executor"),
    "Workers": ({"pool": jaxpyop.Workers(InCaller())}, TypeError, "Workers: pool is another Workers"),
    "retries -1": ({"retries": -1}, ValueError, r"Workers: retries is -1; expected a whole number from 0 on"),
    "retries 1.0": ({"retries": 1.0}, ValueError, r"retries is 1\.0; expected a whole"),
    "retries None": ({"retries": None}, ValueError, r"retries is None; expected a whole"),
    "timeout 0": ({"timeout": 0}, ValueError, "timeout is 0; expected a number of seconds above 0"),
    "timeout '1'": ({"timeout": "1"}, ValueError, "timeout is '1'; expected a number of seconds"),
    "chunksize 0": ({"chunksize": 0}, ValueError, "chunksize is 0; expected a whole number from 1 on"),
    "chunksize 2.0": ({"chunksize": 2.0}, ValueError, r"chunksize is 2\.0; expected a whole number"),
}


@pytest.mark.parametrize(("options", "error", "text"), WRONG_WORKERS.values(), ids=WRONG_WORKERS)
def test_wrong_workers(options, error, text):
    with pytest.raises(error, match=text):
        jaxpyop.Workers(**{"pool": InCaller()} | options)


def test_a_thread_pool_that_is_shut_down(mine):
    mine.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        run(jax.jit(parallel(numpy_function, bodies.double, executor=mine)), grid(3))


# ------------------------------------------------------------------ as processes do


def test_tasks_elsewhere_have_private_inputs_and_are_counted():
    op = lambda x, y: numpy_function(
        bodies.added_in_place, [x, y], F, vmap_method="parallel", executor=jaxpyop.Workers(LikeAProcess(), chunksize=4)
    )
    found, row = counted(jax.jit(jax.vmap(op, (0, None))), grid(4), jnp.float32(10))
    np.testing.assert_array_equal(found, [10, 11, 12, 13])
    assert row["runs"] == 4


def test_conditional_elements_have_private_inputs():
    """Also those that several elements share."""
    for pool in (InCaller(), LikeAProcess()):
        op = lambda x, y, pool=pool: numpy_function(
            bodies.added_in_place, [x, y], F, when=x[0] >= 0, vmap_method="parallel", executor=pool
        )
        found = jax.jit(jax.vmap(op, (0, None)))(grid(4, 1), jnp.full(1, 10.0))
        np.testing.assert_array_equal(found[:, 0], [10, 11, 12, 13])


def test_tasks_elsewhere_have_the_callers_settings(x64):
    x = jnp.array([2.0**40, 1 / 3])
    for api in (numpy_function, py_function):
        f = jax.vmap(
            lambda x, api=api: api(bodies.double, [x], x.dtype, vmap_method="parallel", executor=LikeAProcess())
        )
        np.testing.assert_array_equal(f(x), x * 2)


def test_tasks_elsewhere_get_read_only_inputs_with_copy_false():
    for pool in (InCaller(), LikeAProcess()):
        options = {"vmap_method": "parallel", "executor": jaxpyop.Workers(pool, chunksize=2), "copy": False}
        options |= {"output_shapes": ()}
        op = lambda x, y, options=options: numpy_function(bodies.both_are_read_only, [x, y], bool, **options)
        assert jax.jit(jax.vmap(op, (0, None)))(grid(4, 5000), grid(5000)).all()


class WithoutCancel(InCaller):
    """Its tasks run on a thread, and cannot be cancelled."""

    def submit(self, fn, /, *args, **kwargs):
        future = cf.Future()
        future.cancel = unittest.mock.Mock(side_effect=NotImplementedError)
        threading.Timer(0.01, lambda: future.set_exception(ValueError("two is too much"))).start()
        return future


def test_a_task_that_cannot_be_cancelled_hides_no_error():
    with pytest.raises(ValueError, match="two is too much"):
        parallel(numpy_function, bodies.fail_at_two, executor=WithoutCancel())(grid(5))


# ----------------------------------------------------- workers with elements of their own


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("count", [1, 7, 10])
def test_element_i_belongs_to_executor_i_mod_n(count, size):
    """Also elements that the body gets one by one, and a batch in a batch."""
    pools = [InCaller() for _ in range(3)]
    runs = []
    for number, pool in enumerate(pools):
        pool.run = lambda fn, *args, number=number: (runs.append(number), fn(*args))[1]
    body = lambda x, y: (np.float32(runs[-1]), np.float32(10 * x + y))
    op = lambda x, y: numpy_function(
        body,
        [x, y],
        [F, F],
        vmap_method="parallel",
        executor=jaxpyop.Workers(pools, chunksize=size),
        output_shapes=[(), ()],
    )
    homes, values = jax.jit(jax.vmap(op, (0, None)))(grid(count), 5.0)
    np.testing.assert_array_equal(homes, np.arange(count) % 3)
    np.testing.assert_array_equal(values, 10 * np.arange(count) + 5)
    assert len(runs) == (min(3, count) if size is None else sum(-(-len(range(j, count, 3)) // size) for j in range(3)))
    nested = jax.jit(jax.vmap(jax.vmap(op, (0, None)), (None, 0)))(grid(count), grid(2))[0]
    np.testing.assert_array_equal(nested.ravel(), np.arange(2 * count) % 3)


@both_sides
def test_ordered_elements_take_turns_on_their_workers(api):
    seen = []
    pools = [InCaller() for _ in range(2)]
    body = lambda x: seen.append(float(x)) or x
    jax.block_until_ready(jax.vmap(lambda x: api(body, [x], F, ordered=True, executor=pools))(grid(5)))
    assert seen == [0, 1, 2, 3, 4]
    assert [len(pool.tasks) for pool in pools] == [3, 2]

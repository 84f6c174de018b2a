"""`executor=` is where the function runs: single calls, batches of every method, backward passes."""

from __future__ import annotations

import concurrent.futures as cf
import os
import sqlite3
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared import workers
from tests.shared.batch_cases import METHODS, F, InCaller, grid
from tests.shared.util import APIS, both_sides, every_api, numpy_function, py_func, py_function, run_python

every_method = pytest.mark.parametrize("method", METHODS)
CUBE_VJP = {"numpy_function": {"vjp": workers.cube_vjp}, "py_func": {"vjp": workers.cube_vjp}}


@pytest.fixture
def mine():
    with cf.ThreadPoolExecutor(1, thread_name_prefix="mine") as threads:
        yield threads


def seeing(body=lambda x: x * 2):
    """A body that keeps the names of the threads on which it runs."""
    names = []

    def seen(*args):
        names.append(threading.current_thread().name.rpartition("_")[0])
        return body(*args)

    return seen, names


PROGRAMS = {
    "single": lambda op: op,
    "in jit": lambda op: jax.jit(op),
    "scan": lambda op: lambda x: jax.lax.scan(lambda c, v: (c, op(v)), 0.0, x)[1],
    "cond": lambda op: lambda x: jax.lax.cond(x[0] < 1, op, lambda x: x, x),
    "vmap": jax.vmap,
    "vmap of vmap": lambda op: lambda x: jax.vmap(jax.vmap(op))(x[None])[0],
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@every_method
@every_api
def test_it_runs_there_and_nowhere_else(api, method, program, route, mine):
    body, names = seeing()
    op = lambda x: api(body, [x], F, executor=mine, vmap_method=method, output_shapes=lambda x: x.shape)
    np.testing.assert_array_equal(route(program(op), grid(3)), 2 * grid(3))
    assert set(names) == {"mine"}


@every_method
@pytest.mark.parametrize("name", ["py_function", "numpy_function", "py_func"])
@pytest.mark.parametrize("program", [jax.grad, lambda f: jax.grad(lambda x: jax.vmap(f)(x[None])[0])], ids=["", "vmap"])
def test_backward_passes_call_where_op_runs(program, name, method, route, mine):
    body, names = seeing(workers.cube)
    derivative, of_vjp = seeing(workers.cube_vjp)
    options = {"vjp": derivative} if name in CUBE_VJP else {}
    op = lambda x: APIS[name](body, [x], F, executor=mine, vmap_method=method, **options)
    np.testing.assert_allclose(route(program(op), jnp.float32(2)), 12.0)
    assert set(names + of_vjp) == {"mine"}
    assert len(of_vjp) == bool(options)


@every_api
def test_single_calls_in_another_executor(api, route):
    """Of an unknown kind: by NumPy arrays, and asked anew each time."""
    made = []

    def make():
        made.append(InCaller())
        return made[-1]

    f = lambda x: api(workers.double, [x], F, executor=make, output_shapes=(4,))
    for n in range(1, 4):
        np.testing.assert_array_equal(route(f, grid(4)), 2 * grid(4))
        assert [e.submitted for e in made] == [1] * n


@every_method
def test_a_crash_in_a_pool_of_one_leaves_the_program_alive(method):
    from multiprocessing import get_context

    with cf.ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        op = lambda body, x: numpy_function(body, [x], F, executor=pool, vmap_method=method)
        assert route_free(lambda x: op(workers.process_number, x), 1.0) != os.getpid()
        np.testing.assert_array_equal(jax.vmap(lambda x: op(workers.double, x))(grid(3)), 2 * grid(3))
        np.testing.assert_array_equal(jax.jit(lambda x: op(workers.double, x))(grid(3)), 2 * grid(3))
        with pytest.raises(RuntimeError, match=r"'die': a worker of executor= died"):
            op(workers.die, grid(3))


def route_free(f, x):
    return int(f(jnp.float32(x)))


def test_a_database_stays_on_its_thread(route):
    connection = []
    begin = lambda: connection.append(sqlite3.connect(":memory:"))
    with cf.ThreadPoolExecutor(1, initializer=begin) as threads:
        ask = lambda x: np.float32(connection[0].execute("select ? * 2", [float(x)]).fetchone()[0])
        f = lambda x: py_func(ask, [x], F, executor=threads, output_shapes=())
        assert route(f, jnp.float32(3)) == 6
        np.testing.assert_array_equal(route(jax.vmap(f), grid(4)), 2 * grid(4))
        threads.submit(lambda: connection[0].close()).result()


@both_sides
def test_errors_of_single_calls_come_back(api, route, mine):
    def body(x):
        raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
            route(lambda x: api(body, [x], F, executor=mine), grid(3))


@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_no_element_leaves_the_users_pool(method, mine):
    """Two threads run one program on a pool of one, whose elements take longer than anyone's patience."""
    now, most, names = [], [], []

    def body(x):
        now.append(1)
        most.append(len(now))
        names.append(threading.current_thread().name)
        time.sleep(0.6)
        now.pop()
        return x

    f = jax.jit(jax.vmap(lambda x: numpy_function(body, [x], F, executor=mine, vmap_method=method)))
    f = f.lower(grid(2)).compile()
    with cf.ThreadPoolExecutor(2) as callers:
        for out in callers.map(lambda k: np.asarray(f(grid(2) + k)), range(2)):
            assert out.shape == (2,)
    assert len(names) == 4
    assert max(most) == 1
    assert set(names) == {"mine_0"}


@pytest.mark.parametrize("threads", [1, 4])
def test_ordered_and_parallel_keeps_the_order(threads, route):
    seen = []

    def body(x):
        time.sleep(0.002 * (5 - float(x) % 10))
        seen.append(float(x))
        return x

    with cf.ThreadPoolExecutor(threads) as pool:
        f = jax.vmap(lambda x: py_func(body, [x], F, ordered=True, vmap_method="parallel", executor=pool))
        route(lambda x: (f(x), f(x + 10), x)[2], grid(5))
    assert seen == [*range(5), *range(10, 15)]


def test_ordered_and_parallel_keeps_the_order_on_threads_of_our_own(route):
    seen = []
    body = lambda x: (time.sleep(0.002 * (5 - float(x))), seen.append(float(x)), x)[2]
    route(jax.vmap(lambda x: py_func(body, [x], F, ordered=True, vmap_method="parallel")), grid(5))
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("kind", ["threads", "unknown"])
def test_chunksize(kind, size, route):
    with cf.ThreadPoolExecutor(2) as threads:
        executor = threads if kind == "threads" else InCaller()
        f = lambda x: numpy_function(workers.double, [x], F, vmap_method="parallel", executor=executor, chunksize=size)
        np.testing.assert_array_equal(route(jax.vmap(f), grid(10)), 2 * grid(10))
        if isinstance(executor, InCaller):
            assert executor.submitted == -(-10 // size)


@pytest.mark.parametrize(
    ("size", "error", "text"),
    [
        (0, ValueError, "expected at least 1"),
        (-3, ValueError, "at least 1"),
        (2.0, TypeError, "a whole number of elem"),
    ],
)
@every_api
def test_a_chunksize_that_is_none(api, size, error, text):
    with pytest.raises(error, match=rf"chunksize is {size}.*{text}"):
        api(workers.double, [1.0], F, vmap_method="parallel", chunksize=size)


SHARED = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, resource, sys
table = np.ones(8 * 2**18, np.float32)
op = lambda x, t: jaxpyop.numpy_function(lambda x, t: t[:1] + x, [x, t], jnp.float32, output_shapes=(1,), {options})
f = {run}(jax.vmap(op, (0, None)))
f(np.arange(2.0, dtype=np.float32), table)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
np.testing.assert_array_equal(f(np.arange(100.0, dtype=np.float32), table)[:, 0], np.arange(1.0, 101.0))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize("run", ["", "jax.jit"], ids=["direct", "jit"])
def test_a_shared_input_is_copied_for_the_elements_under_way_alone(run):
    done = run_python(SHARED.format(run=run, options="vmap_method='parallel'"))
    assert float(done.stdout) < 150, done.stdout  # MiB; 800 with a copy for each


# ---------------------------------------------------------------------- deadlocks

NESTED = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, threading, time
from concurrent.futures import ThreadPoolExecutor
F = jnp.float32
pool = ThreadPoolExecutor({threads})
def op(body, executor=pool, **options):
    return lambda x: jaxpyop.numpy_function(body, [x], F, executor=executor, **options)
def on_another_thread(f, x):
    found = []
    thread = threading.Thread(target=lambda: found.append(np.asarray(f(x))))
    thread.start()
    return thread, found
"""

IN_PLACE = {
    "an op in a body": "body = lambda x: np.asarray(op(np.negative)(x))",
    "a warm program in a body": """
inner = jax.jit(op(np.negative))
inner(1.0)
body = lambda x: np.asarray(inner(x))""",
    "a warm program of a batch": """
inner = jax.jit(jax.vmap(op(np.negative, vmap_method="parallel")))
inner(jnp.ones(3))
body = lambda x: np.asarray(inner(jnp.stack([x] * 3))[0])""",
    "a body of a body of a body": """
two = jax.jit(op(np.negative))
one = jax.jit(op(lambda x: np.asarray(two(x))))
one(1.0)
body = lambda x: np.asarray(one(x))""",
}


@pytest.mark.parametrize("run", ["", "jax.jit"], ids=["direct", "jit"])
@pytest.mark.parametrize("inner", IN_PLACE.values(), ids=IN_PLACE)
def test_ops_in_bodies_of_the_same_pool_of_one(inner, run):
    code = f"{NESTED.format(threads=1)}\n{inner}\nfor _ in range(3): assert {run}(op(body))(jnp.float32(2)) == -2"
    run_python(code, timeout=60)


STUCK = """
other = ThreadPoolExecutor(1)
def back(x):  # a body on another pool that needs the first one, whose thread waits for it
    return np.asarray(op(np.negative)(x))
body = lambda x: np.asarray({inner}(x))
try:
    jax.block_until_ready({run}(op(body))(jnp.float32(2)))
except Exception as error:
    assert "waits for a thread of executor=" in str(error) and "another executor" in str(error), error
else:
    raise AssertionError("no error")
assert op(np.negative)(jnp.float32(2)) == -2  # the pool lives on
"""


@pytest.mark.parametrize("run", ["", "jax.jit"], ids=["direct", "jit"])
@pytest.mark.parametrize("inner", ["op(back, other)", "jax.jit(op(back, other))"], ids=["direct inside", "jit inside"])
def test_a_circle_of_pools_is_an_error(inner, run):
    run_python(NESTED.format(threads=1) + STUCK.format(inner=inner, run=run), timeout=60)


def test_a_circle_of_larger_pools_ends():
    code = NESTED.format(threads=2) + STUCK.split("try:")[0].format(inner="op(back, other)")
    run_python(code + "assert op(body)(jnp.float32(2)) == -2", timeout=60)


def test_an_input_that_comes_from_the_same_pool():
    """A result in flight is waited for before its turn on the pool comes."""
    code = """
slow = jax.jit(op(lambda x: (time.sleep(0.2), x)[1]))
for _ in range(3):
    y = slow(jnp.ones(3))
    z = jaxpyop.py_function(lambda v: v + 1, [y], F, executor=pool)
    assert z.tolist() == [2, 2, 2]
"""
    run_python(NESTED.format(threads=1) + code, timeout=60)


def test_a_task_of_the_users_on_the_same_pool():
    code = "assert pool.submit(lambda: float(op(np.negative)(jnp.float32(2)))).result() == -2"
    run_python(NESTED.format(threads=1) + code, timeout=60)


def test_a_pool_that_is_shut_down_meanwhile():
    code = """
started = threading.Event()
busy = pool.submit(lambda: (started.wait(), time.sleep(0.5)))
op(np.negative, None)(jnp.float32(2))  # which compiles
threading.Timer(1.0, lambda: (started.set(), pool.shutdown(wait=False, cancel_futures=True))).start()
try:
    op(np.negative)(jnp.float32(2))
except RuntimeError as error:
    assert "shut down" in str(error) or "after shutdown" in str(error), error
else:
    raise AssertionError("no error")
"""
    run_python(NESTED.format(threads=1) + code, timeout=60)


def test_an_interrupt_leaves_nothing_running():
    code = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
ran = []
def body(x):
    time.sleep(0.2)
    if x == 0:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    ran.append(float(x))
    return x
try:
    jax.vmap(op(body, vmap_method="parallel"))(jnp.arange(10.0))
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("no interrupt")
assert ran == [0], ran
assert op(np.negative)(jnp.float32(2)) == -2
"""
    run_python(NESTED.format(threads=1) + code, timeout=60)


def test_programs_of_pools_that_are_gone_are_used_again():
    """A new pool for each call compiles what its bodies call once."""
    from jaxpyop._host.pools.executors import number_of

    traced = []
    inner = jax.jit(lambda x: (traced.append(1), x * 2)[1])
    for _ in range(5):
        with cf.ThreadPoolExecutor(1) as threads:
            number = number_of(threads)
            assert py_function(lambda x: inner(x), [jnp.float32(1)], F, executor=threads) == 2
        del threads
    assert len(traced) <= 2, (len(traced), number)

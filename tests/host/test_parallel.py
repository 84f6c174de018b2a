"""Executors: threads, what is refused, errors of one element, progress."""

from __future__ import annotations

import concurrent.futures as cf
import contextvars
import importlib.util
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared import workers
from tests.shared.batch_cases import (
    GRADIENTS,
    LOOPING,
    F,
    InCaller,
    assert_same_gradients,
    grid,
    parallel,
    plain,
)
from tests.shared.util import ROUTES, both_sides, contrib, every_api, numpy_function, py_function

# --------------------------------------------------------------------- executors


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
    from tests.shared.util import run_python

    run_python(NESTED.format(executor=executor, run=run), timeout=20)


def test_from_several_threads(transport):
    f = jax.jit(jax.vmap(lambda x: parallel(numpy_function, workers.double, [x])))
    f(grid(8))
    with cf.ThreadPoolExecutor(4) as callers:
        outs = list(callers.map(lambda k: np.asarray(f(grid(8) + k)), range(40)))
    for k, out in enumerate(outs):
        np.testing.assert_array_equal(out, 2 * (grid(8) + k))


# ----------------------------------------------------------------------- refused


@pytest.mark.parametrize("executor", [3, "threads", object()], ids=["int", "str", "object"])
@every_api
def test_what_is_no_executor_is_refused(api, executor):
    with pytest.raises(TypeError, match=r"executor is .*; expected a concurrent\.futures\.Executor, or a function"):
        api(workers.double, [1.0], F, vmap_method="parallel", executor=executor)


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


@every_api
def test_progress_without_tqdm(api, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(ImportError, match="progress=True needs tqdm; run `python -m pip install tqdm`"):
        api(workers.double, [1.0], F, progress=True)
    api(workers.double, [1.0], F)

"""Workers that are no threads of this process, in pools of processes and in Dask: what travels, and what is lost."""

from __future__ import annotations

import concurrent.futures as cf
import logging
import multiprocessing
import os
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.batches import bodies
from tests.batches.programs import F, grid
from tests.shared.checks import run
from tests.shared.functions import every_api, numpy_function, py_func, py_function
from tests.shared.processes import ROOT, run_python

pytestmark = pytest.mark.slow


def spawn(count):
    return cf.ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def processes():
    with spawn(2) as pool:
        yield pool


def cluster_of(workers):
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )


@pytest.fixture(scope="module")
def dask():
    with cluster_of(2) as cluster, cluster.get_client() as client:
        yield client.get_executor()


@pytest.fixture(params=["processes", "dask"])
def elsewhere(request):
    return request.getfixturevalue(request.param)


def parallel(api, body, inp, tout=F, **options):
    return api(body, inp, tout, vmap_method="parallel", **options)


# ------------------------------------------------------------------ values and effects


@every_api
def test_functions_run_in_other_processes(api, elsewhere):
    op = lambda x: parallel(api, bodies.process_number, [x], jnp.int32, executor=elsewhere, output_shapes=())
    pids = set(np.asarray(jax.jit(jax.vmap(op))(grid(8))).tolist())
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_results_that_are_filled(elsewhere):
    """Also where the promised shapes are a function's, which stays here."""
    shapes = lambda x: x.shape
    op = lambda x: parallel(numpy_function, bodies.fill_double, [x], executor=elsewhere, out=True, output_shapes=shapes)
    np.testing.assert_array_equal(jax.jit(op)(grid(3)), 2 * grid(3))
    np.testing.assert_array_equal(jax.jit(jax.vmap(op))(grid(4, 3)), 2 * grid(4, 3))


def test_stateful_functions_run_once_per_element(elsewhere, tmp_path):
    """Also where elements are alike, which a cluster could merge."""
    path = tmp_path / "lines"
    f = jax.vmap(lambda x: parallel(py_func, bodies.append_line, [str(path), x], executor=elsewhere))
    for n in range(1, 3):
        run(jax.jit(f), jnp.ones(5))
        assert path.read_text().splitlines() == ["1.0"] * 5 * n


def test_a_report_counts_what_workers_run(elsewhere):
    f = jax.vmap(lambda x: parallel(numpy_function, bodies.double, [x], executor=elsewhere))
    with jaxpyop.report() as report:
        f(grid(6))
    (row,) = report.rows()
    assert (row["calls"], row["runs"]) == (1, 6)


# --------------------------------------------------------------------- what travels


def test_static_inputs_keyword_arguments_and_pytrees(elsewhere):
    static = {"label": "metre", "parts": ("a", None)}
    op = lambda x: parallel(numpy_function, bodies.labelled, [static, x], executor=elsewhere)
    np.testing.assert_array_equal(jax.vmap(op)(grid(3)), grid(3) + 1)

    def scaled(batch, by):
        return jaxpyop.contrib.framework.py_func(
            bodies.scale, [batch], {"by": by, "unit": "m"}, {"x": F, "n": jnp.int32}, {"x": (2,), "n": ()},
            vmap_method="parallel", executor=elsewhere,
        )  # fmt: skip

    out = jax.vmap(scaled, (0, None))({"x": grid(3, 2), "n": jnp.arange(3)}, jnp.float32(2))
    np.testing.assert_array_equal(out["x"], 2 * grid(3, 2))
    np.testing.assert_array_equal(out["n"], [1, 2, 3])


def test_typed_keys(elsewhere):
    keys = jax.random.split(jax.random.key(0), 3)
    op = lambda key: parallel(py_function, bodies.normal, [key], executor=elsewhere, output_shapes=())
    np.testing.assert_array_equal(jax.vmap(op)(keys), jax.vmap(bodies.normal)(keys))


def test_workers_see_the_callers_x64(elsewhere, x64):
    x, n = jnp.array([1 / 3, 2 / 3]), jnp.array([2**40, -1])
    for api in (py_function, numpy_function):
        for value in (x, n):
            op = lambda x, api=api: parallel(api, bodies.double, [x], x.dtype, executor=elsewhere)
            out = jax.jit(jax.vmap(op))(value)
            assert out.dtype == value.dtype
            np.testing.assert_array_equal(out, value * 2)
    third = lambda x: parallel(numpy_function, bodies.third, [x], jnp.float64, executor=elsewhere)
    np.testing.assert_array_equal(jax.jit(jax.vmap(third))(x), x / 3)


def test_decorated_functions_and_methods_travel_by_name(elsewhere, monkeypatch):
    monkeypatch.setattr(bodies, "pool", elsewhere)
    np.testing.assert_array_equal(jax.vmap(bodies.decorated)(grid(3)), 2 * grid(3))
    np.testing.assert_array_equal(jax.vmap(bodies.Scaled().scaled)(grid(3)), 3 * grid(3))


def test_dask_sends_a_function_of_no_module(dask):
    by = 3
    op = lambda x: parallel(numpy_function, lambda x: x * by, [x], executor=dask)
    np.testing.assert_array_equal(jax.vmap(op)(grid(3)), 3 * grid(3))


@pytest.mark.parametrize("unpicklable", ["func", "input", "vjp"])
def test_what_cannot_be_pickled(unpicklable, elsewhere):
    body, options, inp = bodies.double, {}, []
    if unpicklable == "func":
        body = bodies.locked()
    elif unpicklable == "input":
        body, inp = bodies.product, [threading.Lock()]
    else:
        options = {"vjp": bodies.locked()}
    op = lambda x: parallel(numpy_function, body, [*inp, x], executor=elsewhere, **options)
    f = jax.vmap(jax.grad(op) if unpicklable == "vjp" else op)
    with pytest.raises(TypeError, match=r"'\w+'.* cannot be pickled for executor=.*top of a module") as caught:
        run(jax.jit(f), grid(3))
    assert any(note.startswith("at batch index") for note in caught.value.__notes__)


def test_a_function_that_workers_cannot_import():
    """As in a notebook or at a prompt; the pool lives on."""
    code = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import jaxpyop, jax, jax.numpy as jnp, bodies
def here(x):
    return x
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
    op = lambda f: jax.vmap(lambda x: jaxpyop.py_function(f, [x], jnp.float32, vmap_method="parallel", executor=pool))
    try:
        op(here)(jnp.arange(2.0))
    except TypeError as error:
        assert "cannot find func" in str(error) and "top of a module" in str(error), error
    else:
        raise AssertionError("no error")
    assert op(bodies.double)(jnp.arange(2.0)).tolist() == [0, 2]
"""
    run_python(code, PYTHONPATH=os.path.dirname(bodies.__file__) + os.pathsep + ROOT)


# ------------------------------------------------------------------------ gradients

BRANCHING = {
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f)), lambda x: 3 * x * abs(x)),
    "grad of vmap": (lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()), lambda x: 3 * x * abs(x)),
    "second order": (lambda f: jax.vmap(jax.grad(jax.grad(f))), lambda x: 6 * abs(x)),
    "jacfwd": (lambda f: jax.jacfwd(jax.vmap(f)), lambda x: np.diag(3 * x * abs(x))),
}


@pytest.mark.parametrize(("program", "expected"), BRANCHING.values(), ids=BRANCHING)
def test_gradients_run_the_function_again(program, expected, elsewhere):
    x = jnp.array([0.5, -1.0, 2.0])
    f = program(lambda x: parallel(py_function, bodies.branching_cube, [x], executor=elsewhere, output_shapes=()))
    np.testing.assert_allclose(f(x), expected(np.asarray(x)), rtol=1e-5)


def test_a_gradient_of_a_stateful_op_says_why_not(elsewhere):
    """A worker keeps no records, and a stateful op cannot run again."""
    op = lambda x: parallel(py_function, bodies.cube, [x], executor=elsewhere, output_shapes=(), stateful=True)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"'cube'.*(executor|process|worker).*stateful=False"):
        run(jax.jit(jax.vmap(jax.grad(op))), grid(3))


# --------------------------------------------------------------------------- errors


def test_an_error_names_its_element(elsewhere):
    f = jax.jit(jax.vmap(jax.vmap(lambda x: parallel(numpy_function, bodies.fail_at_two, [x], executor=elsewhere))))
    with pytest.raises(ValueError, match="two is too much") as caught:
        run(f, grid(2, 3))
    assert "at batch index (0, 2)" in caught.value.__notes__
    np.testing.assert_array_equal(f(grid(2, 3) + 3), grid(2, 3) + 3)


def test_promised_shapes_are_checked(elsewhere):
    op = lambda x: parallel(numpy_function, bodies.pair, [x], executor=elsewhere, output_shapes=lambda x: (3,))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(3,\)"):
        run(jax.jit(jax.vmap(op)), grid(3))


def test_an_error_cancels_the_rest(elsewhere, tmp_path):
    path = tmp_path / "lines"
    path.touch()
    f = jax.vmap(lambda x: parallel(numpy_function, bodies.slow_unless_two, [str(path), x], executor=elsewhere))
    with pytest.raises(ValueError, match="two is too much") as caught:
        run(f, grid(40))
    assert "at batch index 2" in caught.value.__notes__
    time.sleep(0.5)  # what runs in another process cannot be stopped, what waits there can
    ran = path.read_text().splitlines()
    time.sleep(0.5)
    assert path.read_text().splitlines() == ran
    assert len(ran) < 15


@pytest.mark.parametrize("body", [bodies.fail_in_jax, bodies.fail_oddly])
def test_an_exception_that_cannot_be_pickled_leaves_the_pool_alive(body, elsewhere):
    f = jax.vmap(lambda x: parallel(numpy_function, body, [x], executor=elsewhere))
    with pytest.raises(Exception, match=r"Concretization|Abstract tracer|too odd") as caught:
        run(jax.jit(f), grid(2))
    assert any(note.startswith("at batch index") for note in caught.value.__notes__)
    again = jax.vmap(lambda x: parallel(numpy_function, bodies.double, [x], executor=elsewhere))
    np.testing.assert_array_equal(again(grid(2)), 2 * grid(2))


# --------------------------------------------------------------------- lost workers


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all", "parallel"])
def test_a_worker_that_dies_leaves_the_program_alive(method):
    with spawn(1) as pool:
        op = lambda body: lambda x: numpy_function(body, [x], F, executor=pool, vmap_method=method)
        np.testing.assert_array_equal(jax.jit(jax.vmap(op(bodies.double)))(grid(3)), 2 * grid(3))
        text = r"numpy_function 'die': a worker of executor= died.*executor=lambda: pool"
        with pytest.raises(RuntimeError, match=text):
            run(jax.jit(jax.vmap(op(bodies.die))), grid(3))


def test_the_next_call_with_a_new_pool_works(processes):
    pools = [spawn(1)]
    op = lambda x: parallel(numpy_function, bodies.fail_at_two, [x], executor=lambda: pools[-1])
    f = jax.jit(jax.vmap(op))
    pools[0].submit(bodies.die, 0).exception()
    with pytest.raises(RuntimeError, match="a worker of executor= died"):
        run(f, grid(2))
    pools.append(processes)
    np.testing.assert_array_equal(f(grid(2)), grid(2))
    pools[0].shutdown()


def test_a_dask_worker_that_dies():
    """A cluster of its own, which gives up at the first death."""
    dask = pytest.importorskip("dask", reason="needs the extra `dask`")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster_of(1) as cluster,
        cluster.get_client() as client,
    ):
        f = jax.vmap(lambda x: parallel(numpy_function, bodies.die, [x], executor=client.get_executor()))
        with pytest.raises(RuntimeError, match=r"numpy_function 'die': a worker of executor= died"):
            f(grid(1))

"""Workers that are no threads of this process, in pools of processes and in Dask: what travels, and what is lost."""

import importlib
import importlib.metadata
import os
import threading
import time
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host.pools import engines
from tests.batches import bodies
from tests.batches.programs import F, assert_raises_at, cluster_of, grid, parallel, processes
from tests.shared.checks import run
from tests.shared.functions import every_api, numpy_function, py_func, py_function
from tests.shared.processes import ROOT, run_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool():
    with processes(2) as pool:
        yield pool


@pytest.fixture(params=["pool", "dask"])
def elsewhere(request):
    return request.getfixturevalue(request.param)


# ------------------------------------------------------------------ values and effects


@every_api
def test_functions_run_in_other_processes(api, elsewhere):
    f = parallel(api, bodies.process_number, elsewhere, jnp.int32, output_shapes=())
    with jaxpyop.report() as report:
        pids = set(np.asarray(jax.jit(f)(grid(8))).tolist())
    (row,) = report.rows()
    assert (row["calls"], row["runs"]) == (1, 8)
    assert os.getpid() not in pids


def test_results_that_are_filled(elsewhere):
    """Also where the promised shapes are a function's, which stays here."""
    shapes = lambda x: x.shape
    f = parallel(numpy_function, bodies.fill_double, elsewhere, out=True, output_shapes=shapes)
    np.testing.assert_array_equal(jax.jit(f)(grid(4, 3)), 2 * grid(4, 3))


def test_stateful_functions_run_once_per_element(elsewhere, tmp_path):
    """Also where elements are alike, which a cluster could merge."""
    path = tmp_path / "lines"
    f = parallel(py_func, bodies.append_line, elsewhere, static=[str(path)])
    for n in range(1, 3):
        run(jax.jit(f), jnp.ones(5))
        assert path.read_text().splitlines() == ["1.0"] * 5 * n


# --------------------------------------------------------------------- what travels


def test_static_inputs_keyword_arguments_and_pytrees(elsewhere):
    def scaled(batch, by):
        static = {"label": "metre", "parts": ("a", None)}
        return jaxpyop.contrib.framework.py_func(
            bodies.scale, [static, batch], {"by": by, "unit": "m"}, {"x": F, "n": jnp.int32}, {"x": (2,), "n": ()},
            vmap_method="parallel", executor=elsewhere,
        )  # fmt: skip

    out = jax.vmap(scaled, (0, None))({"x": grid(3, 2), "n": jnp.arange(3)}, jnp.float32(2))
    np.testing.assert_array_equal(out["x"], 2 * grid(3, 2))
    np.testing.assert_array_equal(out["n"], [1, 2, 3])


def test_workers_have_the_settings_of_the_callers_process_while_a_job_runs(pool):
    op = lambda body: lambda x: py_function(body, [x], F, output_shapes=(), executor=pool)
    before = pool.submit(bodies.settings, None).result()
    seed = jax.config.jax_random_seed_offset
    jax.config.update("jax_random_seed_offset", 7)
    try:
        assert op(bodies.draw)(0.0) == bodies.draw(0.0)
    finally:
        jax.config.update("jax_random_seed_offset", seed)
    with jaxpyop.config.override(constants="error"), pytest.raises(TypeError, match="NumPy takes a differentiated"):
        jax.grad(op(bodies.through_numpy))(1.0)
    assert pool.submit(bodies.settings, None).result() == before


UNPICKLABLE = {
    "func": lambda pool: parallel(numpy_function, bodies.locked(), pool),
    "input": lambda pool: parallel(numpy_function, bodies.product, pool, static=[threading.Lock()]),
    "vjp": lambda pool: jax.grad(lambda x: parallel(numpy_function, bodies.double, pool, vjp=bodies.locked())(x).sum()),
}


@pytest.mark.parametrize("make", UNPICKLABLE.values(), ids=UNPICKLABLE)
def test_what_cannot_be_pickled(make, elsewhere):
    text = r"'\w+'.* cannot be pickled for executor=.*top of a module"
    with pytest.raises(TypeError, match=text):
        run(make(elsewhere), grid(3))


def test_a_function_whose_name_a_decorator_has_taken(pool, dask):
    f = lambda executor: parallel(numpy_function, bodies.decorated.__wrapped__, executor)
    with pytest.raises(TypeError, match=r"cannot be pickled.*under a name that no decorator"):
        f(pool)(grid(3))
    np.testing.assert_array_equal(f(dask)(grid(3)), 2 * grid(3))


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


def test_large_inputs_of_conditional_elements_are_their_own(elsewhere):
    """Each is sent by itself, and is freed when its element has ended."""
    x = np.arange(40, dtype=np.float32)[:, None] * np.ones(2**17, np.float32)
    options = {"vmap_method": "parallel", "executor": elsewhere, "output_shapes": lambda x: x.shape}
    f = jax.vmap(lambda x: numpy_function(bodies.double, [x], F, when=x[0] >= 0, **options))
    np.testing.assert_array_equal(f(x), 2 * x)


# ------------------------------------------------------------------------ gradients

BRANCHING = {
    "grad": (lambda f: jax.grad(lambda x: f(x).sum()), lambda x: 3 * x * abs(x)),
    "jacfwd": (jax.jacfwd, lambda x: np.diag(3 * x * abs(x))),
    "second order": (lambda f: jax.hessian(lambda x: f(x).sum()), lambda x: np.diag(6 * abs(x))),
}


@pytest.mark.parametrize(("program", "expected"), BRANCHING.values(), ids=BRANCHING)
def test_gradients_run_the_function_again(program, expected, elsewhere):
    x = jnp.array([0.5, -1.0, 2.0])
    f = program(parallel(py_function, bodies.branching_cube, elsewhere, output_shapes=(), chunksize=2))
    np.testing.assert_allclose(f(x), expected(np.asarray(x)), rtol=1e-5)


@pytest.mark.parametrize("derivative", [jax.grad, jax.hessian], ids=["first", "second"])
@pytest.mark.parametrize("body", [bodies.bell, bodies.bell_in_a_checkpoint])
def test_a_derivative_runs_the_function_again_to_the_same_bits(body, derivative, elsewhere):
    op = lambda x: py_function(body, [x], jax.ShapeDtypeStruct((), F), executor=elsewhere)
    xs = grid(12) / 6
    np.testing.assert_allclose(
        jax.jit(jax.vmap(derivative(op)))(xs), jax.vmap(derivative(bodies.bell))(xs), rtol=1e-4, atol=1e-5
    )


def test_a_gradient_of_a_stateful_op_says_why_not(elsewhere):
    """A worker keeps no records, and a stateful op cannot run again."""
    f = parallel(py_function, bodies.cube, elsewhere, output_shapes=(), stateful=True)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"'cube'.*(executor|process|worker).*stateful=False"):
        run(jax.jit(jax.grad(lambda x: f(x).sum())), grid(3))


# --------------------------------------------------------------------------- errors


def test_an_error_names_its_element(elsewhere):
    f = jax.vmap(parallel(numpy_function, bodies.fail_at_two, elsewhere))
    assert_raises_at((0, 2), ValueError, "two is too much", f, grid(2, 3))
    np.testing.assert_array_equal(f(grid(2, 3) + 3), grid(2, 3) + 3)


def test_an_error_cancels_the_rest(elsewhere, tmp_path):
    path = tmp_path / "lines"
    path.touch()
    f = parallel(numpy_function, bodies.slow_unless_two, elsewhere, static=[str(path)])
    assert_raises_at(2, ValueError, "two is too much", f, grid(40))
    ran = path.read_text().splitlines()
    time.sleep(0.5)
    assert path.read_text().splitlines() == ran
    assert len(ran) < 30


def test_an_exception_that_cannot_be_pickled_leaves_the_pool_alive(elsewhere):
    f = parallel(numpy_function, bodies.fail_oddly, elsewhere)
    with pytest.raises(Exception, match="too odd"):
        run(f, grid(2))
    np.testing.assert_array_equal(parallel(numpy_function, bodies.double, elsewhere)(grid(2)), 2 * grid(2))


# --------------------------------------------------------------------- lost workers


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all", "parallel"])
def test_a_worker_that_dies_leaves_the_program_alive(method):
    with processes(1) as pool:
        vmap = lambda body: jax.vmap(lambda x: numpy_function(body, [x], F, executor=pool, vmap_method=method))
        np.testing.assert_array_equal(jax.jit(vmap(bodies.double))(grid(3)), 2 * grid(3))
        with pytest.raises(RuntimeError, match=r"'die': a worker of executor= died.*executor=lambda: pool"):
            run(jax.jit(vmap(bodies.die)), grid(3))


def test_dask_keeps_the_elements_until_a_worker_comes(monkeypatch):
    """As on a cluster that starts its workers when there is work."""
    monkeypatch.setattr("jaxpyop._host.pools.sending._WARN", 100)
    with cluster_of(0) as cluster, cluster.get_client() as client:
        threading.Timer(0.5, cluster.scale, [2]).start()
        slow = jax.jit(parallel(numpy_function, bodies.slow_process_number, client.get_executor(), jnp.int32))
        assert set(np.asarray(slow(grid(20))).tolist()) == set(client.run(os.getpid).values())


def test_a_call_does_not_wait_for_ever_for_a_worker(monkeypatch):
    """As where a cluster has lost all of them."""
    monkeypatch.setattr("jaxpyop._host.pools.sending._WARN", 0.5)
    dask = pytest.importorskip("dask", reason="needs the extra `dask`")
    # Dask's own text or ours, whichever of them looks first.
    match = "no worker came|without any running workers"
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "3s"}),
        cluster_of(0) as cluster,
        cluster.get_client() as client,
        pytest.warns(RuntimeWarning, match="executor= has no worker, and the call waits 3 seconds"),
    ):
        assert_raises_at(0, Exception, match, parallel(numpy_function, bodies.double, client), grid(3))


def test_workers_of_another_environment(dask, monkeypatch):
    monkeypatch.setattr(engines, "_fit", weakref.WeakKeyDictionary())
    with monkeypatch.context() as changed:
        other = [types.SimpleNamespace(version="0.0.1")]
        changed.setattr(importlib.metadata, "distributions", lambda name: other if name == "jax" else [])
        with pytest.raises(RuntimeError, match=r"the worker tcp.* has jax .*\(here 0.0.1\); executor= needs"):
            parallel(numpy_function, bodies.double, dask)(grid(3))
    np.testing.assert_array_equal(parallel(numpy_function, bodies.double, dask)(grid(3)), 2 * grid(3))


def test_dask_runs_a_stateless_job_again_only_if_it_had_ended(dask):
    """Its result may be lost with the worker. If it ran when the worker died, it may be why."""
    event = importlib.import_module("distributed").Event("begun", dask)
    send = lambda stateful: dask.submit(engines._run_unless_begun, "begun", stateful, abs, -2, pure=False).result()
    assert [send(False), send(False), send(True)] == [2, 2, 2]
    assert event.is_set()
    for stateful in (False, True):
        with pytest.raises(engines.LostWorkerError):
            send(stateful)
    event.clear()


def test_dask_workers_with_several_threads_are_no_workers_for_retries():
    """All of their elements die with one of them."""
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        f = parallel(numpy_function, bodies.double, cluster.get_client(), retries=1)
        with pytest.raises(RuntimeError, match=r"for retries= and timeout= .*threads_per_worker=1"):
            f(grid(2))


def test_processes_are_kept_off_a_gpu():
    """As the page on clusters says: the variable is set after JAX was imported."""
    code = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
import jax, jax.numpy as jnp, jaxpyop
import bodies
os.environ["JAX_PLATFORMS"] = "cpu"
assert not jax.config.jax_platforms
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
    print(jaxpyop.numpy_function(bodies.environment_variable, [1.0], jnp.float32, executor=pool))
"""
    environment = {"PYTHONPATH": os.path.dirname(bodies.__file__) + os.pathsep + ROOT, "JAX_PLATFORMS": ""}
    assert run_python(code, **environment).stdout == "1.0\n"


def test_a_call_to_a_cluster_in_this_process_ends_when_its_bodies_have_ended(tmp_path):
    """Its workers are threads, which read the memory of the call."""
    distributed, path = pytest.importorskip("distributed", reason="needs the extra `dask`"), tmp_path / "lines"
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 2, "dashboard_address": ":0"}
    with distributed.Client(**options) as client:
        with pytest.raises(TypeError, match="timeout= needs workers that can be ended"):
            parallel(numpy_function, bodies.double, client, timeout=1)(grid(2))
        f = parallel(numpy_function, bodies.slow_unless_two, client, static=[str(path)], chunksize=1)
        assert_raises_at(2, ValueError, "two is too much", f, grid(6))
        ran = path.read_text()
        time.sleep(0.5)
        assert path.read_text() == ran

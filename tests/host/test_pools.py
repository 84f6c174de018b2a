"""Other processes and Dask, and the table of the README."""

# ruff: noqa: B023  # what a loop makes is called in the same turn

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
from tests.shared import workers
from tests.shared.batch_cases import (
    VMAPS,
    F,
    InCaller,
    grid,
    parallel,
)
from tests.shared.util import ROOT, every_api, numpy_function, py_func, py_function, run_python

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


def test_results_that_are_filled_in_other_processes(elsewhere, route):
    """Also where the promised shapes are a function's, which stays here."""
    op = lambda x: parallel(
        numpy_function, workers.fill_double, [x], F, executor=elsewhere, out=True, output_shapes=lambda x: x.shape
    )
    np.testing.assert_array_equal(route(op, grid(3)), 2 * grid(3))
    np.testing.assert_array_equal(route(jax.vmap(op), grid(4, 3)), 2 * grid(4, 3))


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


@pytest.mark.parametrize("body", [workers.fail_in_jax, workers.fail_oddly])
def test_an_exception_that_cannot_be_pickled_leaves_the_pool_alive(body, elsewhere, route):
    f = jax.vmap(lambda x: parallel(numpy_function, body, [x], executor=elsewhere))
    with pytest.raises(Exception, match=r"Concretization|Abstract tracer|too odd") as caught, jaxpyop.reraise():
        route(f, grid(2))
    assert any(note.startswith("at batch index") for note in caught.value.__notes__)
    again = jax.vmap(lambda x: parallel(numpy_function, workers.double, [x], executor=elsewhere))
    np.testing.assert_array_equal(route(again, grid(2)), 2 * grid(2))


def test_each_element_of_a_chunk_has_a_record_of_its_own(elsewhere):
    """The backward pass compares the results of another run with those of the same element."""
    op = lambda x: parallel(py_function, workers.branching_cube, [x], executor=elsewhere, output_shapes=(), chunksize=4)
    x = jnp.arange(-4.0, 8.0)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(op)))(x), 3 * x * abs(x))


class Sending(cf.Executor):
    """An executor of another kind that sends pickles to processes."""

    def __init__(self, pool):
        self.pool = pool

    def submit(self, func, /, *args, **kwargs):
        return self.pool.submit(func, *args, **kwargs)


@pytest.mark.parametrize("body", [workers.fail_oddly, workers.exit_oddly], ids=["Exception", "BaseException"])
def test_an_exception_that_cannot_be_read_leaves_any_pool_alive(body, processes, route):
    pool = Sending(processes)
    with pytest.raises(RuntimeError, match="too odd"), jaxpyop.reraise():
        route(lambda x: numpy_function(body, [x], F, executor=pool), grid(2))
    again = lambda x: numpy_function(workers.double, [x], F, executor=pool)
    np.testing.assert_array_equal(route(again, grid(2)), 2 * grid(2))


BLOCK_GRADIENTS = {
    "jacrev": lambda f, x: jax.jacrev(jax.vmap(f))(x),
    "jit of vmap of grad": lambda f, x: jax.jit(jax.vmap(jax.grad(lambda x: f(x).sum())))(x),
    "grad of vmap": lambda f, x: jax.grad(lambda x: jax.vmap(f)(x).sum())(x),
    "vmap of jacrev": lambda f, x: jax.vmap(jax.jacrev(f))(x),
    "vmap of vmap of grad": lambda f, x: jax.vmap(jax.vmap(jax.grad(lambda x: f(x).sum())))(x[:, None]),
}


@pytest.mark.parametrize("program", BLOCK_GRADIENTS.values(), ids=BLOCK_GRADIENTS)
@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_fwd_and_bwd_of_blocks(program, method, elsewhere):
    rules = (workers.norm_fwd, workers.norm_bwd)
    op = lambda x: numpy_function(workers.norm, [x], F, vmap_method=method, executor=elsewhere, vjp=rules)
    x = jnp.asarray(grid(3, 4))
    np.testing.assert_allclose(program(op, x), program(workers.norm, x), rtol=1e-5)


def test_decorated_functions_and_methods_travel_by_name(elsewhere, route, monkeypatch):
    monkeypatch.setattr(workers, "pool", elsewhere)
    np.testing.assert_array_equal(route(jax.vmap(workers.decorated), grid(3)), 2 * grid(3))
    np.testing.assert_array_equal(route(jax.vmap(workers.Scaled().scaled), grid(3)), 3 * grid(3))


def test_a_function_that_workers_cannot_import():
    """As in a notebook or at a prompt; the pool lives on."""
    code = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import jaxpyop, jax, jax.numpy as jnp, workers
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
    assert op(workers.double)(jnp.arange(2.0)).tolist() == [0, 2]
"""
    run_python(code, PYTHONPATH=os.path.dirname(workers.__file__) + os.pathsep + ROOT)


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


def test_a_bar_over_processes(processes, capsys):
    f = jax.vmap(lambda x: parallel(numpy_function, workers.double, [x], progress=True, executor=processes))
    np.testing.assert_array_equal(f(grid(6)), 2 * grid(6))
    assert " 6/6 " in capsys.readouterr().err


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
    '`vmap`, `"parallel"`': (check_threads, "jaxpyop's own threads", "once per element", ANY),
    "... with a `ThreadPoolExecutor`": (check_given_threads, "the pool's threads", "once per element", ANY),
    "... with a `ProcessPoolExecutor`, Dask or MPI": (check_processes, "the pool's workers", "once per element", ANY),
    "... `grad` of a `py_function`, threads": (
        lambda: check_gradient(None, 1),
        "the pool's threads",
        "once per element; replayed",
        "any",
    ),
    "... `grad` of a `py_function`, other workers": (
        lambda: check_gradient(InCaller(), 2),
        "the pool's workers",
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
    from tests.host import test_devices, test_processes

    assert list(workers.scaling_table()) == [*ROWS, *test_devices.ROWS, *test_processes.ROWS]

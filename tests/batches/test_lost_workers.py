"""`retries=` and `timeout=` on each engine: workers that die, elements that kill them, functions that do not end."""

import contextlib
import copyreg
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.batches import bodies
from tests.batches.programs import F, assert_raises_at, grid, parallel, processes, sent_to
from tests.shared.functions import numpy_function
from tests.shared.processes import clean_environment

# On a busy machine the workers of a cluster take longer to come again than it takes to warn.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*executor= has no worker")]


def new_loky(workers):
    loky = pytest.importorskip("loky", reason="needs the extra `engines`")
    return loky.ProcessPoolExecutor(workers, timeout=None)


def new_processes():
    return processes(2)


CLUSTERS = ["dask", "ray"]
ENGINES = ["processes", "loky", *CLUSTERS]


@pytest.fixture
def workers(request):
    """How many workers the engine of a test has. Those of loky take long to start."""
    return 1 if request.node.callspec.params["engine"] == "loky" else 2


@pytest.fixture
def engine(request, workers):
    """What `executor=` gets: a function that makes a new pool where a death ends the pool."""
    if request.param in CLUSTERS:
        return request.getfixturevalue(request.param)
    make = {"processes": processes, "loky": new_loky}[request.param]
    make(workers).shutdown()
    return lambda: make(workers)


each_engine = pytest.mark.parametrize("engine", ENGINES, indirect=True)


# A warning of `on_error=` comes once for each name of an op.
names = map("op {}".format, itertools.count())


def compiled(body, executor, static=(), **options):
    options |= {"output_shapes": (), "name": next(names)}
    return jax.jit(parallel(numpy_function, body, executor, static=static, **options))


@each_engine
def test_what_was_lost_with_a_worker_runs_again(engine, workers, tmp_path):
    """And only that: a worker dies in the middle of a chunk."""
    f = compiled(bodies.die_once, engine, [str(tmp_path)], retries=1, chunksize=10)
    x = grid(400)
    np.testing.assert_array_equal(f(x), 2 * x)
    assert (tmp_path / "died").exists()
    runs = [len((tmp_path / str(k)).read_text().splitlines()) for k in range(400)]
    assert max(runs) == 2
    again = {k for k in range(400) if runs[k] == 2}
    assert again >= set(range(200, 205))
    chunks = {k // 10 for k in again}
    assert len(chunks) <= 2 * workers  # those that were under way
    if not callable(engine):  # a pool breaks as a whole; Dask may have lost results that were still on the worker
        assert again == {k for k in range(400) if k // 10 in chunks - {20}} | set(range(200, 205))
    np.testing.assert_array_equal(f(x), 2 * x)


@each_engine
@pytest.mark.parametrize("dies_at", [25, -1], ids=["in an element", "at some time"])
def test_a_stateful_function_never_runs_twice(engine, dies_at, tmp_path):
    path, count, over = tmp_path / "lines", random.randrange(1, 30), threading.Event()
    path.touch()

    def kill():
        while len(lines := path.read_text().splitlines()) < count and not over.wait(0.001):
            pass
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lines[-1].split()[1]), signal.SIGKILL)

    options = {"static": [str(path), dies_at], "stateful": True, "chunksize": 4, "output_shapes": ()}
    f = parallel(numpy_function, bodies.say_and_die_at, engine, **options)
    if killer := threading.Thread(target=kill) if dies_at < 0 else None:
        killer.start()
    # A worker of a cluster that is killed between two chunks has lost nothing.
    died = pytest.raises(RuntimeError, match="a worker of executor= died")
    with contextlib.suppress(RuntimeError) if killer else died:
        np.testing.assert_array_equal(f(grid(60)), grid(60))
    over.set()
    ran = [line.split()[0] for line in path.read_text().splitlines()]
    assert len(set(ran)) == len(ran), f"killed after {count}: {ran}"
    assert len(ran) >= count if killer else "25.0" in ran


@each_engine
def test_an_element_that_kills_each_worker_is_named_or_filled(engine):
    text = r"'op \d+': a worker of executor= died with this element \d times"
    assert_raises_at(5, RuntimeError, text, compiled(bodies.die_at_five, engine, retries=1, chunksize=1), grid(40))
    f = compiled(bodies.die_at_five, engine, retries=1, on_error=-1, chunksize=8)
    with pytest.warns(RuntimeWarning, match="filled the results of 1 element.*a worker of executor= died"):
        found = f(grid(40))
    np.testing.assert_array_equal(found, np.where(np.arange(40) == 5, -1, 2 * np.arange(40)))


@each_engine
def test_a_function_that_does_not_end(engine, workers):
    pids = compiled(bodies.slow_process_number, engine, tout=jnp.int32, chunksize=1)
    while len(set(np.asarray(pids(grid(8))).tolist())) < workers:
        pass  # the start of workers, also of those that died in another test, does not count
    f = compiled(bodies.hang_at_five, engine, timeout=2)
    assert_raises_at(5, TimeoutError, "func took longer than timeout=", f, grid(20))
    f = compiled(bodies.hang_at_five, engine, timeout=2, on_error=-1)
    with pytest.warns(RuntimeWarning, match="filled the results of 1 element.*timeout"):
        found = f(grid(20))
    np.testing.assert_array_equal(found, np.where(np.arange(20) == 5, -1, 2 * np.arange(20)))


BADLY = [bodies.wait_at_five, bodies.hang_on, bodies.hold_the_lock, bodies.die_at_five_by_a_signal]


@pytest.mark.parametrize("body", BADLY)
def test_a_function_that_an_exception_may_not_end(body):
    f = compiled(body, new_processes, timeout=2, on_error=-1, chunksize=4)
    with pytest.warns(RuntimeWarning, match="filled the results of 1 element"):
        found = f(grid(20))
    np.testing.assert_array_equal(found, np.where(np.arange(20) == 5, -1, 2 * np.arange(20)))


def filled(f, x):
    with pytest.warns(RuntimeWarning, match="filled the results of 1 element"):
        return np.asarray(f(x))


def single(body, executor, **options):
    options |= {"name": next(names), "output_shapes": (), "on_error": "nan"}
    options = sent_to(executor, options | {"retries": 1})
    return lambda x, **when: numpy_function(body, [x], F, **options, **when)


def test_derivatives_and_conditional_calls_are_filled_too():
    five = jnp.float32(5)
    assert np.isnan(filled(jax.jit(single(bodies.die_at_five, new_processes)), five))
    conditional = single(bodies.die_at_five, new_processes)
    assert np.isnan(filled(jax.jit(lambda x: conditional(x, when=x > 0)), five))
    rule = single(bodies.double, new_processes, vjp=bodies.die_at_five_vjp)
    assert np.isnan(filled(jax.jit(jax.grad(rule)), five))
    func = single(bodies.die_at_five, new_processes, vjp=bodies.double_vjp)
    assert np.isnan(filled(jax.jit(jax.value_and_grad(func)), five)).all()


def test_a_block_that_kills_its_worker_is_not_run_here():
    options = sent_to(new_processes, {"retries": 1, "output_shapes": (), "vmap_method": "expand_dims"})
    f = jax.vmap(lambda x: numpy_function(bodies.die_at_five_in_a_block, [x], F, **options))
    with pytest.raises(RuntimeError, match="a worker of executor= died with this element 2 times"):
        f(grid(8))


@each_engine
def test_a_large_shared_input_does_not_travel_with_each_chunk(engine, monkeypatch):
    options = {"vmap_method": "parallel", "output_shapes": (), "copy": False}
    options |= {"executor": jaxpyop.Workers(engine, chunksize=4)}
    table = jnp.arange(5e6)
    f = jax.jit(jax.vmap(lambda x, t: numpy_function(bodies.entry, [x, t], F, **options), (0, None)))
    pickled = []

    def note_large(array):
        pickled.append(array.nbytes)
        return array.__reduce__()

    monkeypatch.setitem(copyreg.dispatch_table, np.ndarray, note_large)
    for k in range(2):
        np.testing.assert_array_equal(f(grid(200), table + k), grid(200) + k)
    assert sum(nbytes > 10**6 for nbytes in pickled) <= 2


@pytest.mark.parametrize("engine", ["processes", "loky"])
def test_workers_and_files_end_with_a_program_that_is_killed(tmp_path, engine):
    """Those that ran the function."""
    start, new = PROGRAMS[engine]
    if engine == "loky":
        pytest.importorskip(engine, reason="needs the extra `engines`")
    program = f"""
import multiprocessing, os, signal, concurrent.futures
import jax, jax.numpy as jnp, numpy as np, jaxpyop
from tests.batches import bodies
if __name__ == "__main__":
    {start}
    pool = {new}
    options = dict(vmap_method="parallel", executor=jaxpyop.Workers(pool, chunksize=1), output_shapes=())
    op = lambda x, t: jaxpyop.numpy_function(bodies.slow_entry, [x, t], jnp.float32, **options)
    jax.vmap(op, (0, None))(jnp.arange(8.0), np.zeros(2**17, np.float32))
    print(*pool._processes, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "script.py").write_text(program)
    options = {"env": clean_environment() | {"TMPDIR": str(tmp_path)}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], check=False, **options)
    assert done.returncode == -signal.SIGKILL
    assert "Traceback" not in done.stderr, done.stderr
    until = time.monotonic() + 20
    while any(map(is_alive, map(int, done.stdout.split()))) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(is_alive, map(int, done.stdout.split())))
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("jaxpyop")] == []


def is_alive(process):
    """Whether a process runs, which nobody may have waited for."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return listed.stdout.strip() not in ("", "Z", "Zs", "Zl")


# Each engine is interrupted in a call with a function, and in one with what that returns: workers of a cluster have to
# be free again.
INTERRUPTED = """
import concurrent.futures, multiprocessing, signal, sys
import jax, jax.numpy as jnp, jaxpyop
from tests.batches import bodies, programs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background

def go(path, pool):
    op = lambda x: jaxpyop.numpy_function(
        bodies.say_and_hang, [path, x], jnp.float32, output_shapes=(), vmap_method="parallel", executor=pool)
    try:
        with jaxpyop.reraise():
            jax.block_until_ready(jax.jit(jax.vmap(op))(jnp.arange(10.0)))
    except KeyboardInterrupt:
        print("interrupted", flush=True)

if __name__ == "__main__":
    {start}
    new = lambda: {new}
    go(sys.argv[1], new)
    go(sys.argv[2], new())
"""
# A cluster of Dask's on this machine ends its workers itself if they are interrupted too, as at a terminal. This one
# waits for those that we end.
PATIENT = 'import dask; dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})'
PROGRAMS = {
    "processes": ("", "concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context('spawn'))"),
    "loky": ("import loky", "loky.ProcessPoolExecutor(2)"),
    "dask": (f"{PATIENT}; client = programs.cluster_of(2).get_client()", "client"),
    "ray": ("import ray; programs.start_ray(2)", "ray"),
}


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="the test signals a group of processes, and Windows has none")
@pytest.mark.parametrize("engine", PROGRAMS)
def test_an_interrupt_ends_the_bodies(engine, tmp_path):
    start, new = PROGRAMS[engine]
    if start:
        pytest.importorskip(start.split()[1].strip(";"), reason="needs the extra `engines`")
    (tmp_path / "script.py").write_text(INTERRUPTED.format(start=start, new=new))
    command = [sys.executable, *(str(tmp_path / name) for name in ("script.py", "first", "second"))]
    options = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, "env": clean_environment(), "text": True}
    program = subprocess.Popen(command, start_new_session=True, **options)
    try:
        for name in ("first", "second"):
            until = time.monotonic() + 150
            while not (tmp_path / name).exists() and time.monotonic() < until:
                time.sleep(0.05)
            assert (tmp_path / name).exists()
            (os.kill if engine == "dask" else os.killpg)(program.pid, signal.SIGINT)
            assert program.stdout.readline() == "interrupted\n"
        # The workers that a cluster of Dask's starts again have to be there before it can end.
        assert program.communicate(timeout=150) == ("", None)
        time.sleep(1)  # what starts and watches processes ends a little later
        listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
        alive = [line.split() for line in listed.splitlines() if "Z" not in line]
        assert str(program.pid) not in [group for group, _ in alive]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()

"""A process that ends while calls are in flight: it ends soon, with its own status, and without a word of ours."""

from __future__ import annotations

import re

import pytest

from tests.shared.processes import run_python

pytestmark = pytest.mark.slow

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, atexit, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
F = jnp.float32

def slow(x):
    print("begin")
    time.sleep(0.2)
    print("end", flush=True)
    return x

def parallel(**options):
    return jax.jit(jax.vmap(lambda x: jaxpyop.numpy_function(slow, [x], F, vmap_method="parallel", **options)))

# From JAX 0.12 on, a program whose inputs are not there yet runs in the background.
work = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, x: jnp.sin(x @ x), x))
start = jnp.ones((300, 300))
jax.block_until_ready(work(start))
busy = lambda: work(start)
numpy = jax.jit(lambda x: jaxpyop.numpy_function(slow, [x], F))
log = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F))
ordered = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F, ordered=True))
"""

# Code, the exit status, and how many runs of the slow function end.
CASES = {
    "stateless": ("y = numpy(busy())", 0, 1),
    "stateful, results dropped": ("log(busy()); log(busy()); del log", 0, 2),
    "ordered": ("ys = [ordered(busy()) for _ in range(3)]", 0, 3),
    "a function of JAX operations": (
        "y = jax.jit(lambda x: jaxpyop.py_function(lambda x: slow(x) @ x, [x], F, output_shapes=(300, 300)))(busy())",
        0,
        1,
    ),
    "sys.exit while ordered calls wait": ("ordered(busy()); ordered(busy()); sys.exit(3)", 3, 2),
    "a parallel batch": ("y = parallel()(busy()[:12])", 0, 12),
    "parallel batches of another thread": (
        "f = parallel(); threading.Thread(target=lambda: f(f(jnp.arange(3.0)))).start(); time.sleep(0.1); sys.exit(4)",
        4,
        6,
    ),
    "threads of a pool": (
        "pool = ThreadPoolExecutor(2); [pool.submit(numpy, 1.0) for _ in range(4)]; time.sleep(0.1)",
        0,
        4,
    ),
    "a daemon thread in a long function": (
        "f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: time.sleep(1000), [x], F))\n"
        "threading.Thread(target=lambda: f(1.0), daemon=True).start(); time.sleep(0.3)",
        0,
        0,
    ),
    "an exit handler": ("log(1.0); atexit.register(lambda: log(2.0))", 0, 2),
    "an exit handler with a parallel batch": (
        "f = parallel(); f(jnp.ones(2)); atexit.register(lambda: f(jnp.ones(3)))",
        0,
        5,
    ),
    "sys.exit in a function": (
        "f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: sys.exit(5), [x], F))\n"
        "with jaxpyop.reraise(): f(1.0).block_until_ready()",
        5,
        0,
    ),
    "os._exit in a function": ("jax.jit(lambda x: jaxpyop.numpy_function(lambda x: os._exit(6), [x], F))(1.0)", 6, 0),
}


@pytest.mark.parametrize(("code", "status", "ends"), CASES.values(), ids=CASES)
def test_the_process_ends(code, status, ends):
    done = run_python(START + code, timeout=40, check=False)
    assert done.stderr == ""
    assert done.returncode == status
    assert done.stdout.count("begin") == done.stdout.count("end") == ends


@pytest.mark.parametrize("name", ["ordered", "a parallel batch", "an exit handler"])
def test_the_process_ends_after_public_callbacks(name):
    code, status, ends = CASES[name]
    done = run_python(START + code, timeout=40, check=False, JAXPYOP_TRANSPORT="callback")
    assert (done.stderr, done.returncode, done.stdout.count("end")) == ("", status, ends)


def test_an_exception_of_the_program_is_all_that_is_shown():
    done = run_python(START + "ordered(busy())\nraise ValueError('mine')", timeout=40, check=False)
    frames = r'Traceback .*:\n  File "<string>", line \d+, in <module>\n(    .*\n)?ValueError: mine\n'
    assert re.fullmatch(frames, done.stderr)
    assert done.returncode == 1
    assert done.stdout.split() == ["begin", "end"]


@pytest.mark.parametrize("api", ["numpy_function", "py_func"])
def test_an_error_that_nobody_waited_for_is_shown(api):
    """By JAX: where the program is called (until 0.11), or when its exit handler waits."""
    code = f"""
def fail(x):
    slow(x)
    raise LookupError("of the function")
y = jax.jit(lambda x: jaxpyop.{api}(fail, [x], F))(busy())
"""
    done = run_python(START + code, timeout=40, check=False)
    assert f"PythonBodyError: {api} 'fail' failed: LookupError: of the function" in done.stderr
    assert done.returncode in (0, 1)

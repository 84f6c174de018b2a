"""A process that ends while calls are in flight: it ends soon, with its own status, and without a word of ours."""

import re

import pytest

from tests.shared.processes import on_devices, run_python

pytestmark = pytest.mark.slow

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, atexit, os, sys, threading, time
F = jnp.float32
begun = threading.Event()

def slow(x):
    begun.set()
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
log = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F))
thread = lambda f, *args, **options: threading.Thread(target=f, args=args, **options).start()
program = jax.jit(lambda x: jaxpyop.numpy_function(slow, [x], F))
leave = lambda how: jax.jit(lambda x: jaxpyop.numpy_function(lambda x: how(int(x)), [x], F))
gradient = jax.jit(jax.grad(lambda x: jaxpyop.py_function(slow, [x], F).sum()))
cut = jaxpyop.jit(lambda x: jaxpyop.py_func(slow, [x], F) + 1)
ordered = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F, ordered=True))
"""

# Code, the exit status, and how many runs of the slow function end. A `py_function` runs on types first.
CASES = {
    "stateful, results dropped": ("log(busy()); log(busy()); del log", 0, 2),
    "ordered": ("ys = [ordered(busy()) for _ in range(3)]", 0, 3),
    "a thread's batch": ("f = parallel(); thread(lambda: f(f(jnp.arange(3.0)))); time.sleep(0.1); sys.exit(4)", 4, 6),
    "stateless, in flight": ("y = program(busy())", 0, 1),
    "stateless, all wait for one result": ("z = busy(); program(z); program(z); program(z)", 0, 3),
    "stateless, sys.exit in between": ("y = program(start); y = program(program(busy())); sys.exit(3)", 3, 3),
    "stateless, on a daemon thread": ("thread(program, start, daemon=True); begun.wait(); sys.exit(2)", 2, 1),
    "a gradient, in flight": ("g = gradient(busy())", 0, 2),
    "cut, sys.exit between calls": ("y = cut(start); sys.exit(4)", 4, 1),
    "a long function": (
        "thread(leave(lambda s: begun.set() or time.sleep(s)), 1000.0, daemon=True); begun.wait()",
        0,
        0,
    ),
    "a batch of an exit handler": ("f = parallel(); f(jnp.ones(2)); atexit.register(lambda: f(jnp.ones(3)))", 0, 5),
    "sys.exit in a function": ("with jaxpyop.reraise(): leave(sys.exit)(5.0).block_until_ready()", 5, 0),
    "os._exit in a function": ("leave(os._exit)(6.0)", 6, 0),
}


@pytest.mark.parametrize(("name", "transport"), [*((name, "auto") for name in CASES), ("ordered", "callback")])
def test_the_process_ends(name, transport):
    code, status, ends = CASES[name]
    done = run_python(START + code, check=False, JAXPYOP_TRANSPORT=transport)
    assert (done.stderr, done.returncode) == ("", status)
    assert done.stdout.count("begin") == done.stdout.count("end") == ends


@pytest.mark.parametrize("program", ["ordered", "program"])
def test_an_exception_of_the_program_is_all_that_is_shown(program):
    done = run_python(START + f"{program}({program}(busy()))\nraise ValueError('mine')", check=False)
    frames = r'Traceback .*:\n  File "<string>", line \d+, in <module>\n(    .*\n)?ValueError: mine\n'
    assert re.fullmatch(frames, done.stderr)
    assert done.returncode == 1
    assert done.stdout.split() == ["begin", "end"] * 2


DROPPED = """
mesh = jax.make_mesh((len(jax.devices()),), ("i",))
if place == "mesh":
    program = jax.jit(jax.shard_map(program, in_specs=jax.P(), out_specs=jax.P(), mesh=mesh, check_vma=False))
start = jax.device_put(start, jax.NamedSharding(mesh, jax.P()) if place == "mesh" else jax.devices()[place])
long = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, x: jnp.sin(x @ x), x))
jax.block_until_ready([long(start), program(start)])
program(program(long(start)))
"""


@pytest.mark.parametrize(("devices", "place", "runs"), [(1, 0, 3), (2, 1, 3), (2, "mesh", 6)], ids=str)
def test_a_program_whose_results_were_dropped_ends(devices, place, runs):
    done = run_python(START + f"place = {place!r}\n" + DROPPED, check=False, **on_devices(devices))
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.count("begin") == done.stdout.count("end") == runs


LATE = """
from jaxpyop._host import at_exit
at_exit._MAX_SECONDS = 0.4

def goes_on(x):
    begun.set()
    print("begin", flush=True)
    try:
        for _ in range(1000):
            time.sleep(0.01)
    except SystemExit:
        print("told", flush=True)
        raise
    print("end", flush=True)
    return x

long = jax.jit(lambda x: jaxpyop.numpy_function(goes_on, [x], F))
thread(lambda: long(long(start)), daemon=True)
begun.wait()
sys.exit(3)
"""


def test_a_function_that_goes_on_is_ended():
    done = run_python(START + LATE, check=False)
    assert (done.returncode, done.stdout.split()) == (3, ["begin", "told"])


def test_an_error_that_nobody_waited_for_is_shown():
    """By JAX: where the program is called (until 0.11), or when its exit handler waits."""
    code = """
def fail(x):
    slow(x)
    raise LookupError("of the function")
y = jax.jit(lambda x: jaxpyop.py_func(fail, [x], F))(busy())
"""
    done = run_python(START + code, check=False)
    assert "PythonBodyError: py_func 'fail' failed: LookupError: of the function" in done.stderr
    assert done.returncode in (0, 1)

"""Functions that fork, start threads, take locks, run out of memory, print or clear JAX's caches end, and are right.

What could hang runs in a process of its own, several programs each.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxpyop
from tests.shared.processes import run_python

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
import gc, os, resource, subprocess, sys, threading, time, warnings
warnings.simplefilter("error")
jaxpyop.config.transport = {transport!r}
F = jnp.float32
APIS = [jaxpyop.numpy_function, jaxpyop.py_func, jaxpyop.py_function]
PROGRAMS = [lambda f: f, jax.jit, lambda f: jax.jit(lambda x: jax.vmap(f)(x[None])[0])]

def check(body, x, wanted, apis=APIS, **options):
    for api in apis:
        op = lambda x: api(body, [x], F, output_shapes=np.shape(wanted), **options)
        for program in PROGRAMS:
            f = program(op)
            for _ in range(2):
                np.testing.assert_allclose(f(x), wanted, rtol=1e-5)

def outcome(f, *args):
    try:
        with jaxpyop.reraise():
            jax.block_until_ready(f(*args))
            jax.effects_barrier()
    except BaseException as error:
        return type(error)

work = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, x: jnp.sin(x @ x), x))
busy = lambda: work(jnp.ones((300, 300)))  # from JAX 0.12 on, what takes it is run in the background
"""

FORK = """
warnings.simplefilter("ignore")  # os.fork() of a process with threads
def fork(x):
    child = os.fork()
    if child == 0:
        os._exit(9)
    return x + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def run(x):
    done = subprocess.run([sys.executable, "-c", "print(5)"], capture_output=True, text=True, check=True)
    return x + int(done.stdout)
check(fork, F(1), 10)
check(run, F(1), 6, apis=APIS[:1])
f = jax.jit(jax.grad(lambda x: jaxpyop.py_function(lambda x: fork(x) * x, [x], F)))
assert f(F(2)) == 13
"""

THREADS = """
double = jax.jit(lambda x: jnp.sin(x) * 2)
late, pending = [], []
def body(x):
    found = []
    threads = [threading.Thread(target=lambda: found.append(double(jnp.asarray(x)))) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    pending.append(threading.Thread(target=lambda: (time.sleep(0.02), late.append(double(jnp.asarray(x))))))
    pending[-1].start()  # ends after the body has returned
    assert len(found) == 4
    return found[0]
x = jnp.arange(4.0)
check(body, x, 2 * np.sin(x))
[t.join() for t in pending]
assert len(late) == len(pending)
for y in late:
    np.testing.assert_allclose(np.ravel(y), 2 * np.sin(x), rtol=1e-6)
large = jnp.full((400, 400), 1 / 400)
def matmul(x):
    found = []
    threads = [threading.Thread(target=lambda: found.append(jnp.asarray(x) @ large)) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return found[-1]
check(matmul, large, large)
alone = lambda x: body(jax.lax.stop_gradient(x))  # a tape records one thread
g = jax.jit(jax.grad(lambda x: jaxpyop.py_function(lambda x: x * alone(x), [x], F, output_shapes=())))
np.testing.assert_allclose(g(F(1)), 2 * np.sin(1.0), rtol=1e-6)
[t.join() for t in pending]
"""

LOCK = """
lock = threading.Lock()
def body(x):
    with lock:
        return x * 2
def release():
    time.sleep(0.1)
    lock.release()
for api, options in [(api, {}) for api in APIS] + [(jaxpyop.py_func, {"ordered": True})]:
    f = jax.jit(lambda x: api(body, [x], F, output_shapes=(300, 300), **options))
    for _ in range(3):
        lock.acquire()
        thread = threading.Thread(target=release)
        thread.start()
        y = f(busy())
        jax.block_until_ready(y)
        thread.join()
again = threading.RLock()
def reentrant(x):
    with again:
        return x * 2
for program in PROGRAMS[:2]:
    f = program(lambda x: jaxpyop.numpy_function(reentrant, [x], F))
    with again:
        y = f(F(1))  # inputs that are there: on this thread
    assert y == 2
"""

MEMORY = """
np_body = lambda x, n: np.ones(int(n), np.float32)[:3] * x
f = jax.jit(lambda x, n: jaxpyop.numpy_function(np_body, [x, n], F, output_shapes=(3,)))
g = jax.jit(lambda x, n: jaxpyop.py_function(lambda x, n: jnp.zeros(int(n))[:3] + x, [x, n], F, output_shapes=(3,)))
f(1.0, 3), g(1.0, 3)
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 300_000_000, now + 300_000_000))
for _ in range(3):
    assert issubclass(outcome(f, 1.0, 10**9), MemoryError)
    assert issubclass(outcome(g, 1.0, 10**9), (MemoryError, jax.errors.JaxRuntimeError, ValueError))
    np.testing.assert_array_equal(f(2.0, 3), [2, 2, 2])
    np.testing.assert_array_equal(g(2.0, 3), [2, 2, 2])
"""

CACHES = """
def body(x):
    jax.clear_caches()
    gc.collect()
    return x * 2
for method in ("sequential", "parallel"):
    op = lambda x: jaxpyop.py_function(body, [x], F, output_shapes=(), vmap_method=method)
    f, g, h = jax.jit(op), jax.jit(jax.grad(op)), jax.jit(jax.vmap(op))
    for _ in range(2):
        assert f(F(1)) == 2
        assert g(F(1)) == 2
        np.testing.assert_array_equal(h(jnp.ones(3)), [2, 2, 2])
        assert op(F(1)) == 2
        jax.clear_caches()
stop = threading.Event()
def clear():
    while not stop.is_set():
        jax.clear_caches()
        gc.collect()
        time.sleep(0.01)
thread = threading.Thread(target=clear)
thread.start()
f = jax.jit(lambda x: jaxpyop.py_function(lambda x: jnp.sin(x) * 2, [x], F))
g = jax.jit(jax.grad(f))
ordered = jax.jit(lambda x: jaxpyop.py_func(lambda x: x * 2, [x], F, ordered=True))
end = time.monotonic() + 1
while time.monotonic() < end:
    np.testing.assert_allclose([f(1.0), g(1.0), ordered(1.0)], [1.6829419, 1.0806046, 2], rtol=1e-5)
stop.set()
thread.join()
"""

BACKENDS = """
from jax.extend.backend import clear_backends
f = jax.jit(lambda x: jaxpyop.py_function(lambda x: jnp.sin(x), [x], F))
taken = jax.jit(lambda x: jax.vjp(lambda x: jaxpyop.py_function(lambda x: x * x, [x], F), x))
ordered = jax.jit(lambda x: jaxpyop.py_func(lambda x: x + 1, [x], F, ordered=True))
for _ in range(2):
    np.testing.assert_allclose([f(1.0), taken(3.0)[1](1.0)[0], ordered(1.0)], [np.sin(1), 6, 2], rtol=1e-6)
    clear_backends()
clearing = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: (clear_backends(), x)[1], [x], F))
assert clearing(1.0) == 1
assert f(0.0) == 0
with jaxpyop.report() as report:
    f(0.0)
assert report.rows()[0]["route"] == "buffer", report
"""

SLOW = """
def body(x):
    time.sleep(1.5)
    return x * 2
ops = [lambda x: jaxpyop.numpy_function(body, [x], F), lambda x: jaxpyop.py_func(body, [x], F, ordered=True)]
threads = [threading.Thread(target=lambda op=op: check_one(op)) for op in ops * 2]
right = []
def check_one(op):
    right.append(float(jax.jit(op)(F(1))) == 2)
[t.start() for t in threads]
quick = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: x + 1, [x], F))
begin = time.monotonic()
for _ in range(50):
    quick(F(1))
assert time.monotonic() - begin < 1.4  # slow bodies do not stand in the way
[t.join() for t in threads]
assert right == [True] * 4, right
"""

# With the transport of each.
CASES = {
    "fork": (FORK, "callback"),
    "threads": (THREADS, "auto"),
    "locks": (LOCK, "callback"),
    "memory": (MEMORY, "auto"),
    "caches": (CACHES, "callback"),
    "backends": (BACKENDS, "auto"),
    "slow functions": (SLOW, "callback"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "transport"), CASES.values(), ids=CASES)
def test_ends_and_is_right(code, transport):
    assert run_python(START.format(transport=transport) + code).stderr == ""


PRINTING = """
def body(x):
    print("body", float(x))
    print("error", float(x), file=sys.stderr)
    return x
for name, program in [("direct", lambda f: f), ("jit", jax.jit), ("vmap", lambda f: lambda x: jax.vmap(f)(x[None]))]:
    f = program(lambda x: jaxpyop.py_func(body, [x], F))
    for i in range(2):
        print("before", name, i)
        jax.block_until_ready(f(F(i)))
        print("after", name, i)
seen = []
@jax.jit
def loop(x):
    def step(i, x):
        jaxpyop.py_func(lambda i: print("step", int(i)), [i], None, ordered=True)
        return x + 1
    return jax.lax.fori_loop(0, 3, step, x)
loop(F(0))
jax.effects_barrier()
print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "callback"])
def test_what_functions_print_is_in_order(transport):
    done = run_python(START.format(transport=transport) + PRINTING)
    wanted = []
    for name in ("direct", "jit", "vmap"):
        for i in range(2):
            wanted += [f"before {name} {i}", f"body {float(i)}", f"after {name} {i}"]
    assert done.stdout.splitlines() == [*wanted, "step 0", "step 1", "step 2", "end"]
    assert done.stderr.splitlines() == [f"error {float(i)}" for i in (0, 1)] * 3


def test_what_a_function_prints_is_captured(capsys):
    f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: (print("in the function", x), x)[1], [x], jnp.float32))
    f(jnp.float32(2)).block_until_ready()
    assert capsys.readouterr().out == "in the function 2.0\n"


@pytest.mark.slow
def test_a_forked_child_that_leaves_jax_alone():
    """The package holds nothing that a fork could not leave: no hang, no text."""
    run_python("""
import warnings; warnings.simplefilter("ignore")
import os, sys, jaxpyop, jax, numpy as np
f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: x + 1, [x], np.float32))
assert f(1.0) == 2
child = os.fork()
if child == 0:
    ok = jaxpyop.config.transport == "auto" and callable(jaxpyop.py_function(Tout=np.float32))
    os._exit(7 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert f(2.0) == 3
""")


@pytest.mark.slow
def test_a_child_forked_before_the_first_operation():
    run_python("""
import os, jaxpyop, jax, numpy as np
child = os.fork()
assert jax.jit(jax.grad(lambda x: jaxpyop.py_function(lambda x: x * x, [x], np.float32)))(3.0) == 6
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""")

"""The end of a process while calls are in flight, and the package imported again.

Each case is a process of its own: it ends in bounded time, with the status
that it would have had, and writes nothing that the user did not write.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.shared.util import run_python

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
jaxpyop.config.transport = {transport!r}
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
"""

# Code, exit status, how many bodies end.
CASES = {
    "stateless": ("y = jax.jit(lambda x: jaxpyop.numpy_function(slow, [x], F))(busy())", 0, 1),
    "stateful, result dropped": (
        "f = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F)); f(busy()); f(busy()); del f",
        0,
        2,
    ),
    "ordered": (
        "f = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F, ordered=True)); ys = [f(busy()) for _ in range(3)]",
        0,
        3,
    ),
    "a body of JAX operations": (
        "y = jax.jit(lambda x: jaxpyop.py_function(lambda x: slow(x) @ x, [x], F, output_shapes=(300, 300)))(busy())",
        0,
        1,
    ),
    "a gradient": (
        "f = lambda x: jaxpyop.py_function(lambda x: (slow(x) @ x).sum(), [x], F, output_shapes=())\n"
        "y = jax.jit(jax.grad(f))(busy())",
        0,
        1,
    ),
    "sys.exit while ordered calls wait": (
        "f = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F, ordered=True)); f(busy()); f(busy()); sys.exit(3)",
        3,
        2,
    ),
    "a parallel batch": ("y = parallel()(busy()[:12])", 0, 12),
    "a parallel batch on a pool of the user's": (
        "pool = ThreadPoolExecutor(2); y = parallel(executor=pool)(busy()[:4]); time.sleep(0.1)",
        0,
        4,
    ),
    "parallel batches of another thread": (
        "f = parallel(); threading.Thread(target=lambda: f(f(jnp.arange(3.0)))).start(); time.sleep(0.1); sys.exit(4)",
        4,
        6,
    ),
    "other threads": (
        "f = jax.jit(lambda x: jaxpyop.numpy_function(slow, [x], F))\n"
        "threading.Thread(target=lambda: f(f(jnp.ones(3)))).start(); time.sleep(0.1); sys.exit(4)",
        4,
        2,
    ),
    "threads of a pool": (
        "f = jax.jit(lambda x: jaxpyop.numpy_function(slow, [x], F)); pool = ThreadPoolExecutor(2)\n"
        "[pool.submit(f, 1.0) for _ in range(4)]; time.sleep(0.1)",
        0,
        4,
    ),
    "a daemon thread in a long body": (
        "f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: time.sleep(1000), [x], F))\n"
        "threading.Thread(target=lambda: f(1.0), daemon=True).start(); time.sleep(0.3)",
        0,
        0,
    ),
    "an exit handler": (
        "f = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F)); f(1.0); atexit.register(lambda: f(2.0))",
        0,
        2,
    ),
    "an exit handler with a parallel batch": (
        "f = parallel(); f(jnp.ones(2)); atexit.register(lambda: f(jnp.ones(3)))",
        0,
        5,
    ),
    "an exit handler with the first parallel batch": (
        "f = jax.vmap(lambda x: jaxpyop.numpy_function(slow, [x], F, vmap_method='parallel'))\n"
        "atexit.register(lambda: f(jnp.ones(3)))",
        0,
        3,
    ),
    "sys.exit in a body": (
        "f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: sys.exit(5), [x], F))\n"
        "with jaxpyop.reraise(): f(1.0).block_until_ready()",
        5,
        0,
    ),
    "sys.exit in a direct call": ("jaxpyop.numpy_function(lambda x: sys.exit(5), [1.0], F)", 5, 0),
    "os._exit in a body": (
        "import os; jax.jit(lambda x: jaxpyop.numpy_function(lambda x: os._exit(6), [x], F))(1.0)",
        6,
        0,
    ),
}

# In turn, or, with JAXPYOP_TEST_LONG=1, each.
TRANSPORTS = [["auto", "callback"] if os.environ.get("JAXPYOP_TEST_LONG") else [t] for t in ("auto", "callback") * 9]


@pytest.mark.parametrize(
    ("name", "transport"), [(name, t) for name, transports in zip(CASES, TRANSPORTS, strict=True) for t in transports]
)
def test_the_process_ends(name, transport):
    code, status, ends = CASES[name]
    done = run_python(START.format(transport=transport) + code, timeout=40, check=False)
    assert done.stderr == ""
    assert done.returncode == status
    assert done.stdout.count("begin") == done.stdout.count("end") == ends


@pytest.mark.parametrize("transport", TRANSPORTS[0])
def test_an_exception_in_the_program_is_all_that_is_shown(transport):
    code = "f = jax.jit(lambda x: jaxpyop.py_func(slow, [x], F, ordered=True)); f(busy())\nraise ValueError('mine')"
    done = run_python(START.format(transport=transport) + code, timeout=40, check=False)
    assert re.fullmatch(
        r'Traceback .*:\n  File "<string>", line \d+, in <module>\n(    .*\n)?ValueError: mine\n', done.stderr
    )
    assert done.returncode == 1
    assert done.stdout.split() == ["begin", "end"]


@pytest.mark.parametrize("api", ["numpy_function", "py_func"])
def test_an_error_that_nobody_waited_for_is_shown(api):
    """By JAX: where the program is called (until 0.11), or when its exit handler waits."""
    code = f"""
def fail(x):
    slow(x)
    raise LookupError("of the body")
y = jax.jit(lambda x: jaxpyop.{api}(fail, [x], F))(busy())
"""
    done = run_python(START.format(transport="auto") + code, timeout=40, check=False)
    assert f"PythonBodyError: {api} 'fail' failed: LookupError: of the body" in done.stderr
    assert done.returncode in (0, 1)


# ------------------------------------------------------------- imported once more

PROGRAMS = """
import gc, importlib, warnings
warnings.simplefilter("error")
def programs(module):
    square = lambda x: module.py_function(lambda x: x * x, [x], F)
    count = lambda x: module.py_func(lambda x: x + 1, [x], F, ordered=True)
    pull = jax.jit(lambda x: jax.vjp(square, x))(F(3))[1]
    return square, jax.jit(square), jax.jit(jax.grad(square)), jax.jit(count), pull
def check(square, f, g, count, pull):
    assert f(3.0) == 9 and g(3.0) == 6 and count(1.0) == 2 and pull(F(1))[0] == 6
    assert jax.grad(square)(4.0) == 8 and jax.vmap(f)(jnp.ones(2)).sum() == 2
old = jaxpyop
first = programs(old)
check(*first)
"""

RELOAD = """
importlib.reload(jaxpyop)
check(*first)
check(*programs(jaxpyop))
for name in [name for name in sys.modules if name.startswith("jaxpyop")]:
    importlib.reload(sys.modules[name])
check(*first)
check(*programs(jaxpyop))
"""

AFRESH = """
failing = jax.jit(lambda x: old.py_func(lambda x: [][1], [x], F))
for name in [name for name in sys.modules if name.startswith("jaxpyop")]:
    del sys.modules[name]
gc.collect()
import jaxpyop as new
assert new.py_function is not old.py_function
second = programs(new)
check(*first)
check(*second)
# One in the other, and both in one program.
square, cube = first[0], lambda x: new.py_function(lambda x: square(x) * x, [x], F)
assert jax.grad(cube)(2.0) == jax.jit(jax.grad(cube))(2.0) == 12
both = jax.jit(lambda x: second[3](first[3](x)))  # ordered
assert both(1.0) == 3
try:
    with old.reraise():
        failing(1.0).block_until_ready()
except IndexError:
    check(*second)
else:
    raise SystemExit("no error")
"""


@pytest.mark.parametrize("transport", ["auto", "callback"])
@pytest.mark.parametrize("code", [RELOAD, AFRESH], ids=["reloaded", "imported afresh"])
def test_old_and_new_work_side_by_side(code, transport):
    done = run_python(START.format(transport=transport) + PROGRAMS + code)
    assert done.stderr == ""


def test_ordered_ops_beside_jaxs_own_ordered_callback():
    """All are one sequence."""
    done = run_python(
        START.format(transport="auto")
        + """
from jax.experimental import io_callback
@jax.jit
def f(x):
    jaxpyop.py_func(lambda x: print("a"), [x], None, ordered=True)
    io_callback(lambda x: print("b"), None, x, ordered=True)
    jaxpyop.py_func(lambda x: print("c", flush=True), [x], None, ordered=True)
    return x
for _ in range(3):
    f(1.0)
jax.effects_barrier()
"""
    )
    assert done.stdout.split() == ["a", "b", "c"] * 3


# --------------------------------------------------------------- several devices

LATE = """
import threading, time
import jax, jax.numpy as jnp, jaxpyop
from jaxpyop._host import host

def late(function):
    def wait(*args):
        for _ in range(30):  # in each turn another thread may get Python's lock
            time.sleep(0.005)
        return function(*args)
    return wait

{late}
mesh = jax.make_mesh((4,), ("i",))
x = jax.device_put(jnp.ones(80_000), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
f = jax.jit(lambda x: jaxpyop.numpy_function(lambda v: v * 2, [x], jnp.float32) + 1)

def use():
    y = f(x)
    while not any(shard.data.is_ready() for shard in y.addressable_shards):
        time.sleep(0.001)

thread = threading.Thread(target=use)
thread.start()
thread.join()
"""
# Where devices are late.
LATE_ONES = {
    "after the run": """
join = host.Shared._join
def joined(*args):
    run, is_first = found = join(*args)
    return found if is_first else late(lambda: found)()
host.Shared._join = joined""",
    "before the run": """
seen, join = [], host.Shared._join
host.Shared._join = lambda *args: (late(join) if seen else seen.append(1) or join)(*args)""",
}


@pytest.mark.parametrize("where", LATE_ONES.values(), ids=LATE_ONES)
def test_other_devices_still_call_when_the_process_ends(where):
    """Python aborted the process: it had ended the thread of a device inside a call."""
    program = LATE.replace("{late}", where)
    done = run_python(program, timeout=40, check=False, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert (done.returncode, done.stderr) == (0, "")


def test_devices_that_never_call_keep_no_process():
    """One whose program failed elsewhere does not come."""
    program = "import time\nfrom jaxpyop._host import host\none = type('Host', (), dict(results=[]))()\n"
    program += "one.enter = lambda *_: None\nshared = host.Shared(one, 2)\nshared.on_buffers(None, [])\n"
    program += (
        "assert shared.is_awaiting()\nbegan = time.monotonic()\nhost._wait()\nprint(time.monotonic() - began < 5)"
    )
    done = run_python(program, timeout=40)
    assert done.stdout == "True\n"

"""JAX code inside bodies ends: under load, undrained, nested, from threads.

Each program runs in a process of its own, where a hang is a failure by
timeout. JAXPYOP_TEST_REPEAT=10 runs each ten times in a row.
"""

from __future__ import annotations

import pytest

from tests.shared.util import REPEAT, run_python

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, threading
jaxpyop.config.transport = {transport!r}
F = jnp.float32
def ones(n):
    return jnp.full((n, n), 1.0 / n)
def all_threads(work, count=6):
    failed = []
    def run(k):
        try:
            work(k)
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if failed:
        raise failed[0]
"""

UNDRAINED = """
def body(x):
    return x @ ones({n})
f = jax.jit(lambda x: jaxpyop.py_function(body, [x], F, output_shapes=({n}, {n}){options}))
x = ones({n})
results = [f(x) for _ in range(100)]
for y in results[::25] + results[-1:]:
    np.testing.assert_allclose(y[0, :3], 1.0 / {n}, rtol=1e-3)
jax.effects_barrier()
"""

PROGRAMS = {
    "500x500 undrained": UNDRAINED.format(n=500, options=""),
    "1000x1000 undrained": UNDRAINED.format(n=1000, options=""),
    "500x500 undrained, stateful": UNDRAINED.format(n=500, options=", stateful=True"),
    "500x500 undrained, ordered": UNDRAINED.format(n=500, options=", ordered=True"),
    "nested bodies on six threads": """
def inner(x):
    return (x @ ones(300)) * 1.0
def middle(x):
    return jax.jit(lambda x: jaxpyop.py_function(inner, [x], F, output_shapes=(300, 300)))(x) @ ones(300)
f = jax.jit(lambda x: jaxpyop.py_function(middle, [x], F, output_shapes=(300, 300)))
all_threads(lambda k: [jax.block_until_ready(f(ones(300))) for _ in range(8)])
""",
    "matmul before the op and in it, on six threads": """
f = jax.jit(lambda x: jaxpyop.py_function(lambda x: x @ ones(600), [x @ x], F, output_shapes=(600, 600)))
f(ones(600))
all_threads(lambda k: [jax.block_until_ready(f(ones(600))) for _ in range(8)])
""",
    "NumPy body, matmul before and after, on six threads": """
f = jax.jit(lambda x: jaxpyop.numpy_function(lambda x: np.asarray(jnp.asarray(x) @ ones(600)), [x @ x], F) @ x)
all_threads(lambda k: [jax.block_until_ready(f(ones(600))) for _ in range(8)])
""",
    "logging from a while_loop": """
seen = []
def log(i, x):
    seen.append((int(i), float(jnp.sum(x @ x))))
@jax.jit
def program(x):
    def step(s):
        i, x = s
        jaxpyop.py_function(log, [i, x], None)
        return i + 1, x @ x
    return jax.lax.while_loop(lambda s: s[0] < 50, step, (0, x))
for _ in range(5):
    out = program(ones(200))
jax.block_until_ready(out)
jax.effects_barrier()
assert sorted(i for i, _ in seen) == sorted(list(range(50)) * 5), len(seen)
""",
    "gradients on six threads": """
def body(x):
    return jnp.sum((x @ ones(300)) ** 2)
f = jax.jit(jax.grad(lambda x: jaxpyop.py_function(body, [x], F, output_shapes=())))
all_threads(lambda k: [jax.block_until_ready(f(ones(300))) for _ in range(8)])
""",
    "ordered calls inside bodies of programs with ordered calls": """
seen = []
def log(x):
    seen.append(float(x))
inner = jax.jit(lambda x: (jaxpyop.py_func(log, [x], None, ordered=True), x)[1])
bodies = [
    lambda x: (jaxpyop.py_func(log, [x], None, ordered=True), x)[1],
    lambda x: np.asarray(inner(x)),
]
for body in bodies:
    del seen[:]
    op = lambda x: jaxpyop.numpy_function(body, [x], F, output_shapes=())
    before = lambda x: (jaxpyop.py_func(log, [x], None, ordered=True), op(x + 0.5))[1]
    after = lambda x: (jaxpyop.py_func(log, [op(x) + 0.5], None, ordered=True), x)[1]
    for f in map(jax.jit, (before, after)):
        del seen[:]
        for i in range(10):
            jax.block_until_ready(f(jnp.float32(i)))
            jax.effects_barrier()
        assert sorted(seen) == [i / 2 for i in range(20)], seen
    ordered = jax.jit(lambda x: jaxpyop.py_func(body, [x], F, output_shapes=(), ordered=True))
    jax.block_until_ready([ordered(jnp.float32(i)) for i in range(10)])
    jax.effects_barrier()
""",
    "vmap, undrained": """
f = jax.jit(jax.vmap(lambda x: jaxpyop.py_function(lambda x: x @ ones(300), [x], F, output_shapes=(300, 300))))
x = jnp.stack([ones(300)] * 4)
jax.block_until_ready([f(x) for _ in range(20)])
""",
}


CROWD = """
from jaxpyop._host import guard
guard._PATIENCE = 0.5
import time
any_number = not guard._needs_synchronous_dispatch()
active = []
def body(x):
    active.append(x)
    end = time.monotonic() + {meet}
    while len(active) < 32 and time.monotonic() < end:
        time.sleep(0.01)
    return {result}
fs = [jax.jit(lambda x, k=k: jaxpyop.{op}(body, [x], F, output_shapes=())) for k in range({count})]
{warm}
active.clear()
failed = []
def work(k):
    try:
        np.testing.assert_allclose(fs[k](jnp.float32(k)), np.sin(k), rtol=1e-5)
    except Exception as error:
        failed.append(str(error))
all_threads(work, {count})
"""
WARM = "active.extend([0] * 32); [jax.block_until_ready(f(1.0)) for f in fs]"
REFUSED = """
assert any_number or failed
assert len(failed) <= {most}, len(failed)
assert all("functions that use JAX run at once" in text and "Run at most 31 at once" in text for text in failed)
"""
CROWDS = {
    "32 of JAX": CROWD.format(meet=3, result="jnp.sin(x)", op="py_function", count=32, warm=WARM)
    + REFUSED.format(most=1),
    "40 NumPy functions that use JAX": CROWD.format(
        meet=3, result="np.asarray(jnp.sin(x))", op="numpy_function", count=40, warm=WARM
    )
    + REFUSED.format(most=9),
    "31 of JAX": CROWD.format(meet=0.3, result="jnp.sin(x)", op="py_function", count=31, warm=WARM)
    + "assert not failed, failed",
    "40 of NumPy alone": CROWD.format(meet=10, result="np.sin(x)", op="numpy_function", count=40, warm="")
    + "assert not failed, failed",
    "40 nested": """
from jaxpyop._host import guard
guard._PATIENCE = 0.5
def nest(depth):
    def body(x):
        return np.asarray(jax.jit(nest(depth - 1))(x)) if depth else np.sin(x)
    return lambda x: jaxpyop.numpy_function(body, [x], F, output_shapes=())
try:
    np.testing.assert_allclose(jax.jit(nest(40))(1.0), np.sin(1.0), rtol=1e-5)
    assert not guard._needs_synchronous_dispatch()
except jax.errors.JaxRuntimeError as error:
    assert "functions that use JAX run at once" in str(error), error
""",
}


@pytest.mark.parametrize("program", CROWDS.values(), ids=CROWDS)
def test_one_function_too_many_raises_where_all_would_wait(program):
    run_python(START.format(transport="auto") + program, timeout=60)


@pytest.mark.parametrize("transport", ["auto", "callback"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.timeout(100 * REPEAT + 20)
def test_ends(program, transport):
    for _ in range(REPEAT):
        run_python(START.format(transport=transport) + program, timeout=100)


def test_a_hang_is_a_failure():
    import subprocess

    with pytest.raises(subprocess.TimeoutExpired, match="timed out after 2"):
        run_python("import time; time.sleep(60)", timeout=2)


def test_a_failing_program_is_a_failure():
    with pytest.raises(AssertionError, match=r"(?s)exit status 1.*of the program"):
        run_python("raise SystemError('of the program')")


# -------------------------------------------------------------------- the guard

GUARD = {
    "before jax": "import jaxpyop, jax; jax.devices()",
    "after jax": "import jax, jaxpyop; jax.devices()",
    "after jax.numpy": "import jax, jax.numpy as jnp, jaxpyop; jnp.ones(3)",
}


@pytest.mark.parametrize("code", GUARD.values(), ids=GUARD)
def test_importing_before_the_first_operation_arranges_the_pool_silently(code):
    check = """
import os, pathlib
names = [p.read_text().strip() for p in pathlib.Path("/proc/self/task").glob("*/comm")]
assert int(os.environ["NPROC"]) >= 32, os.environ.get("NPROC")
assert sum("XLAEigen" in name for name in names) >= 32, names
if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12):
    assert jax.config.read("jax_cpu_enable_async_dispatch") is False
"""
    done = run_python(f"import warnings; warnings.simplefilter('error'); {code}\n{check}")
    assert "Warning" not in done.stderr


LATE = ["jax.devices()", "jax.numpy.ones(3)", "jax.jit(lambda x: x)(1.0)"]


@pytest.mark.parametrize("first", LATE)
def test_importing_after_it_warns_with_the_cure(first):
    done = run_python(f"import jax; {first}\nimport jaxpyop")
    assert "RuntimeWarning: jaxpyop was imported after JAX had started" in done.stderr
    assert "import jaxpyop before the first JAX operation" in done.stderr
    assert done.stderr.count("Warning") == 1


def test_a_late_import_that_is_safe_all_the_same_does_not_warn():
    code = """
import os, warnings
warnings.simplefilter("error")
os.environ["NPROC"] = "64"
import jax
if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12):
    jax.config.update("jax_cpu_enable_async_dispatch", False)
jax.devices()
import jaxpyop
"""
    run_python(code)


@pytest.mark.parametrize("value", ["77", "4"])
def test_a_pool_of_the_users_is_kept(value):
    """And `doctor` says what a small one means."""
    code = f"""
import jaxpyop, os
from jaxpyop._cli.doctor import report
assert os.environ['NPROC'] == '{value}'
text = " ".join(report().split())
assert ("NPROC=4 was set in the environment, and is kept" in text) == ({value} == 4), text
"""
    run_python(code, NPROC=value)


@pytest.mark.parametrize("value", ["many", ""])
def test_a_pool_that_is_none_is_made(value):
    run_python("import jaxpyop, os; assert int(os.environ['NPROC']) >= 32", NPROC=value)


def test_importing_alone_starts_no_backend():
    run_python("import jaxpyop; from jax._src import xla_bridge as b; assert not b.backends_are_initialized()")

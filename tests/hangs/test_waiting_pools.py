"""A pool that waits for itself: ops in functions of the same pool end or raise, and never hang.

Each program has a process of its own.
"""

import pytest

from tests.shared.processes import run_python

pytestmark = pytest.mark.slow

START = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, os, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
F = jnp.float32
pool, other = ThreadPoolExecutor({threads}), ThreadPoolExecutor(1)
def op(body, executor=pool, **options):
    return lambda x: jaxpyop.numpy_function(body, [x], F, executor=executor, **options)
def batch(body, executor):
    return jax.vmap(op(body, executor, vmap_method="parallel"))
def assert_raises(kind, f, *texts):
    try:
        jax.block_until_ready(f(jnp.float32(2)))
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError("no error")
"""
# A function on another pool that needs the first one, whose thread waits for it.
CIRCLE = """
back = lambda x: np.asarray(op(np.negative)(x))
body = lambda x: np.asarray({inner}(x))
"""
ALIVE = "\nassert op(np.negative)(jnp.float32(2)) == -2"


def ends(code, threads=1):
    run_python(START.format(threads=threads) + code, timeout=60)


def test_ops_in_functions_of_the_same_pool_of_one():
    """Also in programs that are compiled before."""
    ends("""
for inner in (op(np.negative), jax.jit(op(np.negative)), jax.jit(batch(np.negative, pool))):
    inner(jnp.ones(3))
    body = lambda x: np.asarray(inner(jnp.stack([x] * 3))[0])
    for f in (op(body), jax.jit(op(body))):
        for _ in range(3):
            assert f(jnp.float32(2)) == -2""")


@pytest.mark.parametrize("executor", ["None", "pool"], ids=["default threads", "two threads"])
def test_a_parallel_batch_inside_a_parallel_element(executor):
    """Elements that wait for elements of the same pool."""
    code = f"""
body = lambda x: np.asarray(batch(np.negative, {executor})(x * jnp.ones(3))).sum()
for f in (batch(body, {executor}), jax.jit(batch(body, {executor}))):
    np.testing.assert_allclose(f(jnp.arange(50.0)), -3 * np.arange(50.0))"""
    ends(code, threads=2)


@pytest.mark.parametrize(
    ("inner", "run"), [("op(back, other)", "jax.jit"), ("jax.jit(op(back, other))", "")], ids=["jit of op", "op of jit"]
)
def test_a_circle_of_pools_is_an_error(inner, run):
    stuck = f'assert_raises(Exception, {run}(op(body)), "waits for a thread of executor=", "another executor")'
    ends(CIRCLE.format(inner=inner) + stuck + ALIVE)


ENDS = {
    # A result in flight is waited for before its turn on the pool comes.
    "an input that comes from the same pool": """
slow = jax.jit(op(lambda x: (time.sleep(0.2), x)[1]))
for _ in range(3):
    assert jaxpyop.py_function(lambda v: v + 1, [slow(jnp.ones(3))], F, executor=pool).tolist() == [2, 2, 2]""",
    "a pool that is shut down meanwhile": """
started = threading.Event()
busy = pool.submit(lambda: (started.wait(), time.sleep(0.5)))
op(np.negative, None)(jnp.float32(2))  # which compiles
threading.Timer(1.0, lambda: (started.set(), pool.shutdown(wait=False, cancel_futures=True))).start()
assert_raises(RuntimeError, op(np.negative), "shut")""",
    "an interrupt, which leaves nothing running": """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
ran = []
def body(x):
    time.sleep(0.2)
    if x == 0:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    ran.append(float(x))
    return x
assert_raises(KeyboardInterrupt, lambda _: batch(body, pool)(jnp.arange(10.0)))
assert ran == [0], ran"""
    + ALIVE,
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_it_ends(code):
    ends(code)

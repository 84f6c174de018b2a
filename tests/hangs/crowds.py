"""As many functions at once as JAX has threads: all end, or the one too many raises where all would wait for good."""

import time
from unittest import mock

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import guard
from tests.hangs.deadlock_programs import F, on_threads
from tests.shared import many_programs

# Before JAX 0.12, a device runs 32 programs at once, and programs in functions count.
ANY_NUMBER = jax.__version_info__ >= (0, 12)


def crowd(op, result, count, meet):
    """What is raised by as many functions, of which each waits until 32 have begun, or for some seconds."""
    active, failed = [0] * 32, []

    def body(x):
        active.append(x)
        end = time.monotonic() + meet
        while len(active) < 32 and time.monotonic() < end:
            time.sleep(0.01)
        return result(x)

    fs = [jax.jit(lambda x, k=k: op(body, [x], F, output_shapes=())) for k in range(count)]
    [jax.block_until_ready(f(1.0)) for f in fs]
    active.clear()

    def work(k):
        try:
            np.testing.assert_allclose(fs[k](jnp.float32(k)), np.sin(k), rtol=1e-5)
        except Exception as error:
            failed.append(str(error))

    on_threads(work, count)
    return failed


def refused(failed, most):
    assert ANY_NUMBER or failed
    assert len(failed) <= most, len(failed)
    assert all("functions that use JAX run at once" in text and "Run at most 31 at once" in text for text in failed)


def all_end(failed):
    assert not failed, failed


def nest(depth):
    body = lambda x: np.asarray(jax.jit(nest(depth - 1))(x)) if depth else np.sin(x)
    return lambda x: jaxpyop.numpy_function(body, [x], F, output_shapes=())


def forty_nested():
    try:
        np.testing.assert_allclose(jax.jit(nest(40))(1.0), np.sin(1.0), rtol=1e-5)
        assert ANY_NUMBER
    except jax.errors.JaxRuntimeError as error:
        assert "functions that use JAX run at once" in str(error), error  # noqa: PT017


def forty_slow():
    """Functions that wait for nothing, and for no JAX, end by themselves, however slow they are."""
    with mock.patch.object(guard, "_PATIENCE", 0.5):
        all_end(crowd(jaxpyop.py_function, lambda x: time.sleep(1.5) or np.sin(np.asarray(x)), 40, 0))


CROWDS = {
    "40 slow": forty_slow,
    "31 of JAX": lambda: all_end(crowd(jaxpyop.py_function, jnp.sin, 31, 0.3)),
    "40 of NumPy alone": lambda: all_end(crowd(jaxpyop.numpy_function, np.sin, 40, 10)),
    "32 of JAX": lambda: refused(crowd(jaxpyop.py_function, jnp.sin, 32, 10), 1),
    "40 nested": forty_nested,
}

if __name__ == "__main__":
    many_programs.main(CROWDS)

"""`copy=False`: the function gets read-only views for the time of the call, and a warning if it keeps one."""

from __future__ import annotations

import concurrent.futures as cf
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.arrays.memory import LARGE, SMALL, F, address, both_sizes, direct_and_compiled, full
from tests.batches.programs import METHODS, InCaller
from tests.shared.checks import run
from tests.shared.functions import numpy_function, py_func

KEPT = "kept an input that copy=False lends"


@both_sizes
@direct_and_compiled
def test_lent_inputs_are_read_only(compiled, n):
    def body(x):
        assert type(x) is np.ndarray
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 1
        return x * 2

    x = jnp.arange(n, dtype=F)
    np.testing.assert_array_equal(compiled(lambda x: py_func(body, [x], F, copy=False))(x), x * 2)


@pytest.mark.parametrize(("n", "shared"), [(SMALL, False), (LARGE, True)], ids=["small", "large"])
def test_a_large_lent_input_is_the_programs_own_memory(n, shared):
    """A small one is a copy, which is faster than a view."""
    seen = []
    x = jnp.ones(n)
    run(jax.jit(lambda x: py_func(lambda x: seen.append(address(x)), [x], None, copy=False)), x)
    assert (seen == [x.unsafe_buffer_pointer()]) == shared


@pytest.mark.parametrize("method", METHODS)
@direct_and_compiled
def test_lent_inputs_of_a_batch(compiled, method):
    def body(x, y):
        assert not x.flags.writeable
        assert not y.flags.writeable
        return x + y

    f = compiled(jax.vmap(lambda x, y: py_func(body, [x, y], F, copy=False, vmap_method=method), in_axes=(0, None)))
    np.testing.assert_array_equal(f(jnp.arange(4.0), 1.0), [1, 2, 3, 4])


def test_returning_a_lent_input_gives_its_values():
    f = jax.jit(lambda x: py_func(lambda x: x, [x], F, copy=False))
    results = [jax.block_until_ready(f(full(LARGE, i))) for i in range(5)]
    assert [float(y[0]) for y in results] == list(range(5))


# ------------------------------------------------------------------ keeping them

PARTS = {
    "itself": lambda x: x,
    "element": lambda x: x[1, ...],
    "reshaped slice": lambda x: x[1:].reshape(1, -1),
    "memoryview": memoryview,
}


@pytest.mark.parametrize(("part", "n"), [*((part, LARGE) for part in PARTS), ("itself", SMALL)])
@direct_and_compiled
def test_keeping_a_part_warns(compiled, part, n):
    kept = []

    def greedy(x):
        kept.append(PARTS[part](x))

    with pytest.warns(RuntimeWarning, match=rf"py_func 'greedy'.*{KEPT}.*copy=True"):
        run(compiled(lambda x: py_func(greedy, [x], None, copy=False)), jnp.ones(n))


def test_keeping_an_element_of_a_batch_warns():
    kept = []
    f = jax.jit(jax.vmap(lambda x: py_func(kept.append, [x], None, copy=False)))
    with pytest.warns(RuntimeWarning, match=KEPT):
        run(f, jnp.ones((3, LARGE)))


def caught_and_named(x):
    """An exception that is caught and named holds the frame in a cycle, and with it the arrays."""
    try:
        raise KeyError
    except KeyError as error:
        caught = error  # noqa: F841
    return x * 2


NOT_KEPT = {"returned": lambda x: x, "as a slice": lambda x: np.asarray(x[::1]), "held by garbage": caught_and_named}


@pytest.mark.parametrize("body", NOT_KEPT.values(), ids=NOT_KEPT)
@both_sizes
def test_not_keeping_them_does_not_warn(n, body):
    x = jnp.ones(n)
    op = lambda x: py_func(body, [x], F, copy=False)
    np.testing.assert_array_equal(run(op, x), body(np.asarray(x)))
    np.testing.assert_array_equal(run(jax.jit(jax.vmap(op)), x[None]), body(np.asarray(x))[None])


class KeepsTasks(cf.ThreadPoolExecutor):
    """It holds on to each task, as a log or a dashboard of tasks does."""

    def __init__(self):
        super().__init__(1)
        self.tasks = []

    def submit(self, func, /, *args, **kwargs):
        self.tasks.append(func)
        return super().submit(func, *args, **kwargs)


@pytest.mark.parametrize("pool", [KeepsTasks, InCaller], ids=["threads", "workers"])
def test_an_executor_that_keeps_its_tasks_is_not_the_function(pool):
    n = LARGE
    with pool() as executor, warnings.catch_warnings():
        warnings.simplefilter("error")
        op = lambda x: numpy_function(lambda x: x * 2, [x], F, copy=False, executor=executor)
        assert run(jax.jit(op), jnp.ones(n)).sum() == 2 * n
        assert run(jax.vmap(op), jnp.ones((3, n))).sum() == 6 * n
        assert executor.tasks

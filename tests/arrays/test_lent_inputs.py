"""`copy=False`: the function gets read-only views for the time of the call, and a warning if it keeps one."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.arrays.memory import LARGE, SMALL, F, address, both_sizes, direct_and_compiled, held_by_garbage
from tests.batches.programs import InCaller
from tests.shared.checks import run
from tests.shared.functions import py_func
from tests.shared.tables import named

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


@direct_and_compiled
def test_writing_into_a_lent_input_says_what_to_write(compiled):
    op = lambda x: py_func(lambda x: x.__imul__(2), [x], F, copy=False)
    with pytest.raises(ValueError, match="func writes into an input, and copy=False lends inputs for reading"):
        run(compiled(op), jnp.arange(3.0))


@pytest.mark.parametrize(("n", "shared"), [(SMALL, False), (LARGE, True)], ids=["small", "large"])
def test_a_large_lent_input_is_the_programs_own_memory(n, shared):
    """A small one is a copy, which is faster than a view."""
    seen = []
    x = jnp.ones(n)
    run(jax.jit(lambda x: py_func(lambda x: seen.append(address(x)), [x], None, copy=False)), x)
    assert (seen == [x.unsafe_buffer_pointer()]) == shared


# ------------------------------------------------------------------ keeping them

PARTS = {
    "itself": lambda x: x,
    "element": lambda x: x[1, ...],
    "reshaped slice": lambda x: x[1:].reshape(1, -1),
    "memoryview": memoryview,
}


@pytest.mark.parametrize(
    ("part", "n"),
    [
        *(("itself", LARGE), ("itself", SMALL), ("reshaped slice", LARGE)),
        *(pytest.param(part, LARGE, marks=pytest.mark.slow) for part in ("element", "memoryview")),
    ],
)
@direct_and_compiled
def test_keeping_a_part_warns(compiled, part, n):
    kept = []

    def greedy(x):
        kept.append(PARTS[part](x))

    with pytest.warns(RuntimeWarning, match=rf"py_func 'greedy'.*{KEPT}.*copy=True"):
        run(compiled(lambda x: py_func(greedy, [x], None, copy=False)), jnp.ones(n))


@pytest.mark.slow
def test_keeping_an_element_of_a_batch_warns():
    kept = []
    f = jax.jit(jax.vmap(lambda x: py_func(kept.append, [x], None, copy=False)))
    with pytest.warns(RuntimeWarning, match=KEPT):
        run(f, jnp.ones((3, LARGE)))


NOT_KEPT = {
    "returned": lambda x: x,
    "as a slice": lambda x: np.asarray(x[::1]),
    "held by garbage": lambda x: held_by_garbage(x) or x * 2,
    "held by garbage that is old": lambda x: held_by_garbage(x, collect=gc.collect) or x * 2,
}


@pytest.mark.parametrize("body", named(NOT_KEPT, slow=["held by garbage that is old"]))
@both_sizes
def test_not_keeping_them_does_not_warn(n, body):
    x = jnp.ones(n)
    op = lambda x: py_func(body, [x], F, copy=False)
    np.testing.assert_array_equal(run(op, x), body(np.asarray(x)))
    np.testing.assert_array_equal(run(jax.jit(jax.vmap(op)), x[None]), body(np.asarray(x))[None])


def test_an_executor_that_keeps_its_tasks_is_not_the_function():
    op = lambda x: py_func(lambda x: x * 2, [x], F, copy=False, executor=InCaller())
    assert run(jax.jit(op), jnp.ones(LARGE)).sum() == 2 * LARGE


@pytest.mark.slow
@pytest.mark.filterwarnings(f"ignore:.*{KEPT}")
def test_a_lent_input_that_was_kept_does_not_get_into_other_calls():
    """Keeping it is undefined for that input, and for nothing else."""
    kept = []
    lend = jax.jit(lambda x: py_func(lambda x: kept.append(x) or np.array(x), [x], F, copy=False))
    add = jax.jit(lambda x, y: py_func(lambda x, y: x + 10 * y, [x, y], F))
    for n in (SMALL, LARGE) * 3:
        lend(jnp.ones(n)).block_until_ready()
        np.testing.assert_array_equal(add(jnp.ones(n), jnp.full(n, 2.0)), np.full(n, 21.0))

"""Errors of one element: they name its batch index, and the elements that have not begun are cancelled."""

from __future__ import annotations

import concurrent.futures as cf
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.batches import bodies
from tests.batches.programs import LOOPING, F, grid
from tests.shared.checks import run
from tests.shared.functions import both_sides, numpy_function, py_function

looping_methods = pytest.mark.parametrize("method", LOOPING)


def index_notes(error):
    return [note for note in error.__notes__ if note.startswith("at batch index")]


class Tracked:
    """A function that fails at one value, and knows what runs and what ran."""

    def __init__(self, fails_at):
        self.fails_at = fails_at
        self.running, self.ran, self.lock = 0, [], threading.Lock()

    def __call__(self, x):
        with self.lock:
            self.running += 1
        try:
            if float(x) == self.fails_at:
                raise KeyError("mine", float(x))
            time.sleep(0.01)
            self.ran.append(float(x))
            return x
        finally:
            with self.lock:
                self.running -= 1


@pytest.mark.parametrize("fails_at", [0, 5])
@pytest.mark.parametrize("count", [1, 3], ids=["one thread", "three threads"])
@both_sides
def test_an_error_names_its_element_and_cancels_the_rest(api, count, fails_at):
    body = Tracked(fails_at)
    with cf.ThreadPoolExecutor(count) as threads:
        op = lambda x: api(body, [x], F, executor=threads, output_shapes=(), vmap_method="parallel")
        with pytest.raises(KeyError, match="mine") as caught:
            run(jax.vmap(op), grid(40))
        ran = list(body.ran)
        assert body.running == 0  # nothing is left running
        time.sleep(0.05)
        assert body.ran == ran  # and nothing starts later
    assert caught.value.args == ("mine", float(fails_at))
    assert index_notes(caught.value) == [f"at batch index {fails_at}"]
    assert len(ran) <= fails_at + 4 * count


def test_an_error_cancels_the_rest_while_an_earlier_element_still_runs():
    ran, failed = [], threading.Event()

    def body(x):
        if x == 1:
            failed.set()
            raise KeyError("mine")
        failed.wait(10)
        time.sleep(0.1 if x == 0 else 0.05)
        ran.append(float(x))
        return x

    with cf.ThreadPoolExecutor(2) as threads:
        op = lambda x: numpy_function(body, [x], F, executor=threads, vmap_method="parallel")
        with pytest.raises(KeyError, match="mine") as caught:
            run(jax.vmap(op), grid(30))
    assert index_notes(caught.value) == ["at batch index 1"]
    assert len(ran) <= 4


@looping_methods
def test_the_text_of_a_compiled_programs_error_names_the_element(method):
    f = jax.jit(jax.vmap(jax.vmap(lambda x: numpy_function(bodies.fail_at_two, [x], F, vmap_method=method))))
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"(?s)'fail_at_two'.*two is too much.*at batch index \(0, 2\)"
    ):
        jax.block_until_ready(f(grid(2, 3)))
    np.testing.assert_array_equal(f(grid(2, 3) + 3), grid(2, 3) + 3)


def test_an_exception_object_that_is_raised_again_names_the_element_of_this_time():
    error, fails_at = ValueError("mine"), [0.0]

    def body(x):
        if x == fails_at[0]:
            raise error
        return x

    f = jax.jit(jax.vmap(lambda x: numpy_function(body, [x], F)))
    for k in (2, 0, 1):
        fails_at[0] = float(k)
        with pytest.raises(ValueError, match="mine") as caught:
            run(f, grid(3))
        assert index_notes(caught.value) == [f"at batch index {k}"]


def test_the_elements_of_batches_in_each_other_are_both_named():
    def fail(x):
        raise ValueError("mine")

    inner = jax.vmap(lambda x: numpy_function(fail, [x], F))
    outer = jax.vmap(lambda x: py_function(lambda x: jnp.sum(inner(x)) if x[0] < 0 else x[0], [x], F))
    with pytest.raises(ValueError, match="mine") as caught:
        run(outer, jnp.stack([grid(3, start=1.0), grid(3, start=-1.0)]))
    assert {"at batch index 0", "at batch index 1"} <= set(caught.value.__notes__)


@looping_methods
def test_a_wrong_result_of_one_element_names_it(method):
    f = jax.vmap(lambda x: numpy_function(lambda x: np.zeros(int(x)), [x], F, output_shapes=(1,), vmap_method=method))
    with pytest.raises(ValueError, match=r"shape \(0,\) where \(1,\)") as caught:
        run(f, jnp.array([1.0, 0.0, 1.0]))
    assert index_notes(caught.value) == ["at batch index 1"]


@looping_methods
def test_an_assumed_shape_is_checked_for_each_element(method):
    """A result of one number must not fill an element of two."""
    f = jax.jit(jax.vmap(lambda x: numpy_function(lambda x: x[: int(x[0])], [x], F, vmap_method=method)))
    with pytest.raises(ValueError, match=r"shape \(1,\)") as caught:
        run(f, jnp.array([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]]))
    assert index_notes(caught.value) == ["at batch index 1"]


@looping_methods
def test_an_error_in_a_gradient_names_its_element(method):
    def bad_vjp(inputs, outputs, cotangents):
        if inputs[0] == 2:
            raise KeyError("mine")
        return cotangents[0]

    f = jax.vmap(jax.grad(lambda x: numpy_function(bodies.double, [x], F, vjp=bad_vjp, vmap_method=method)))
    with pytest.raises(KeyError, match="mine") as caught:
        run(f, grid(3))
    assert index_notes(caught.value) == ["at batch index 2"]

"""Errors of one element: they name its batch index, and the elements that have not begun are cancelled."""

import concurrent.futures as cf
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.batches import bodies
from tests.batches.programs import LOOPING, F, assert_raises_at, grid
from tests.shared.checks import run
from tests.shared.functions import both_sides, numpy_function, py_function

looping_methods = pytest.mark.parametrize("method", LOOPING)


@pytest.mark.parametrize(("fails_at", "count"), [(0, 3), (5, 1)])
@both_sides
def test_an_error_cancels_the_rest(api, fails_at, count):
    begun, ended = [], []

    def body(x):
        begun.append(float(x))
        try:
            if float(x) == fails_at:
                raise KeyError("mine")
            time.sleep(0.01)
            return x
        finally:
            ended.append(float(x))

    with cf.ThreadPoolExecutor(count) as threads:
        op = lambda x: api(body, [x], F, executor=threads, output_shapes=(), vmap_method="parallel")
        assert_raises_at(fails_at, KeyError, "mine", jax.vmap(op), grid(40))
        ran = len(begun)
        assert len(ended) == ran <= fails_at + 1 + 4 * count  # nothing is left running
        time.sleep(0.05)
        assert len(begun) == ran  # and nothing starts later


@looping_methods
def test_the_text_of_a_compiled_programs_error_names_the_element(method):
    f = jax.jit(jax.vmap(jax.vmap(lambda x: numpy_function(bodies.fail_at_two, [x], F, vmap_method=method))))
    text = r"(?s)'fail_at_two'.*two is too much.*at batch index \(0, 2\)"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=text):
        jax.block_until_ready(f(grid(2, 3)))
    np.testing.assert_array_equal(f(grid(2, 3) + 3), grid(2, 3) + 3)


def test_an_exception_object_that_is_raised_again_names_the_element_of_this_time():
    error, fails_at = ValueError("mine"), [0.0]

    def body(x):
        if x == fails_at[0]:
            raise error
        return x

    f = jax.jit(jax.vmap(lambda x: numpy_function(body, [x], F)))
    for fails_at[0] in (2, 0, 1):  # the function reads it
        assert_raises_at(fails_at[0], ValueError, "mine", f, grid(3))


def test_the_elements_of_batches_in_each_other_are_both_named():
    inner = jax.vmap(lambda x: numpy_function(bodies.fail_at_two, [x], F))
    outer = jax.vmap(lambda x: py_function(lambda x: jnp.sum(inner(x)) if x[0] > 0 else x[0], [x], F))
    with pytest.raises(ValueError, match="two is too much") as caught:
        run(outer, jnp.stack([grid(3, start=1.0), grid(3, start=-1.0)]))
    assert {"at batch index 0", "at batch index 1"} <= set(caught.value.__notes__)


WRONG_RESULTS = {
    "promised": (lambda x: np.zeros(int(x[0])), {"output_shapes": (2,)}),
    "assumed, where one number must not fill an element of two": (lambda x: x[: int(x[0])], {}),
}


@pytest.mark.parametrize(("body", "options"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
@looping_methods
def test_the_shape_of_each_element_is_checked(method, body, options):
    f = jax.jit(jax.vmap(lambda x: numpy_function(body, [x], F, vmap_method=method, **options)))
    assert_raises_at(1, ValueError, r"shape \(1,\)", f, jnp.array([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]]))


@looping_methods
def test_an_error_in_a_gradient_names_its_element(method):
    vjp = lambda inputs, outputs, cotangents: bodies.fail_at_two(inputs[0])
    f = jax.vmap(jax.grad(lambda x: numpy_function(bodies.double, [x], F, vjp=vjp, vmap_method=method)))
    assert_raises_at(2, ValueError, "two is too much", f, grid(3))

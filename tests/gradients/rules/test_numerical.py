"""vjp=numerical() and jvp=numerical(): central differences of the function."""

import concurrent.futures
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import numerical, numpy_function
from tests.gradients.bodies import Z3, F
from tests.gradients.rules.cases import X, close_to
from tests.shared.checks import Counter

BOTH = {"vjp": numerical(), "jvp": numerical()}


def test_how_often_the_function_runs():
    """A cotangent takes a pair of calls for each element of the input, a tangent one for elements of like reach."""
    func = Counter(lambda x, y: np.sin(x) * y)
    op = lambda x: numpy_function(func, [x, X], F, **BOTH)
    np.testing.assert_allclose(jax.grad(lambda x: op(x).sum())(X), np.cos(X) * X, rtol=5e-3)
    assert func.count == 1 + 2 * 3
    np.testing.assert_allclose(jax.jvp(op, (X,), (X,))[1], np.cos(X) * X * X, rtol=5e-3)
    assert func.count == 7 + 1 + 2
    jax.jvp(op, (X,), (jnp.zeros(3),))
    assert func.count == 10 + 1
    jax.jvp(op, (X,), (X * jnp.array([1e-3, 1.0, 1.0]),))
    assert func.count == 11 + 1 + 2 * 2


@pytest.mark.parametrize(
    ("dtype", "base", "step"),
    [(jnp.bfloat16, 1, None), (jnp.float16, 1, None), (jnp.float8_e4m3fn, 1, None), (jnp.float32, 1000, (1e-3, 0.0))],
    ids=["bfloat16", "float16", "float8", "a short step"],
)
def test_rounding_does_not_bend_a_tangent(dtype, base, step):
    """An element may move by a tenth of its step along a tangent, and the spacing of its dtype may be as long."""
    weights = np.array([0.0, 64.0, -32.0])
    func = lambda x: np.float32((np.asarray(x, np.float64) - base) @ weights)
    op = numpy_function(Tout=F(0), jvp=numerical(step=step))(func)
    tangent = jnp.asarray([1.0, 0.17, 0.31], dtype)
    found = jax.jvp(op, (jnp.full(3, base, dtype),), (tangent,))[1]
    np.testing.assert_allclose(found, np.asarray(tangent, np.float64) @ weights, rtol=1e-3)


def test_the_step():
    """The cube root of the machine's epsilon, and in proportion to elements larger than one."""
    func = Counter(lambda x: x * 2)
    jax.grad(lambda x: numpy_function(func, [x], F(0), vjp=numerical()))(100.0)
    steps = sorted(abs(float(x) - 100) for (x,) in func.seen)
    np.testing.assert_allclose(steps, [0, 0.49, 0.49], rtol=2e-2)
    assert sorted(float(x) > 100 for (x,) in func.seen) == [False, False, True]


STEPS = {
    "a number": (1e-2, [1e-2, 1e-2, 1.0]),
    "absolute": ((1e-2, 0.0), [1e-2, 1e-2, 1e-2]),
    "relative": ((1e-6, 1e-2), [1e-2, 1e-6, 1.0]),
    "of each argument": ([(1e-2, 0), 0.25, None], [1e-2, 0.25, 0.5]),
}


@pytest.mark.parametrize(("step", "expected"), STEPS.values(), ids=STEPS)
def test_the_steps_of_the_user(step, expected):
    func = Counter(lambda *inputs: inputs)
    op = lambda *inputs: sum(numpy_function(func, inputs, [F(0)] * 3, vjp=numerical(step=step)))
    at = (1.0, 1e-5, 100.0)
    np.testing.assert_allclose(jax.jit(jax.grad(op, (0, 1, 2)))(*at), [1, 1, 1], rtol=1e-2)
    moved = np.array(func.seen[1:], float)[::2] - np.float32(at)
    np.testing.assert_allclose(moved, np.diag(expected), rtol=2e-2, atol=1e-9)
    np.testing.assert_allclose(jax.jvp(op, at, (1.0, 2.0, 3.0))[1], 6, rtol=1e-2)


def test_directions_that_are_zero_cost_nothing():
    """`jax.jacfwd` asks for the tangent along each of the inputs, which all have steps of their own."""
    func = Counter(lambda *inputs: sum(inputs))
    op = lambda *inputs: numpy_function(func, inputs, F(0), jvp=numerical(step=[1e-2, 2e-2, 3e-2, 4e-2]))
    np.testing.assert_allclose(jax.jacfwd(op, (0, 1, 2, 3))(1.0, 2.0, 3.0, 4.0), [1, 1, 1, 1], rtol=1e-3)
    assert func.count == 1 + 8


@pytest.mark.parametrize("step", [None, (1e-2, 0.0)])
def test_no_warning_of_numpys_own_comes_out(step):
    """All warnings are errors in tests."""
    steep = lambda x: np.float32(3e38 if np.max(x) > 1 else -3e38)
    for func in (lambda x: np.sum(x), steep, lambda x: np.float32("inf")):
        op = lambda x: numpy_function(func, [x], F(0), vjp=numerical(step=step))  # noqa: B023
        for x in map(F, (1.0, jnp.inf, jnp.nan, [jnp.inf, 1], *([3e38] if step is None else []))):
            for ct in (1.0, jnp.inf):
                jax.vjp(op, x)[1](F(ct)), jax.jvp(op, (x,), (jnp.full_like(x, ct * 3e38),))


@pytest.mark.usefixtures("x64")
def test_in_64_bits_it_is_more_exact():
    op = lambda x: numpy_function(np.sin, [x], jnp.float64, **BOTH)
    np.testing.assert_allclose(jax.grad(op)(jnp.float64(0.7)), np.cos(0.7), rtol=1e-9)


def test_results_of_few_digits_have_a_larger_step():
    op = lambda x: numpy_function(lambda x: np.sin(x).astype(np.float16), [x], jnp.float16, **BOTH)
    np.testing.assert_allclose(jax.vjp(op, X)[1](jnp.ones(3, jnp.float16))[0], np.cos(X), atol=1e-2)
    np.testing.assert_allclose(jax.jvp(op, (X,), (jnp.ones(3),))[1], np.cos(X), atol=1e-2)


def test_a_tangent_of_several_magnitudes_has_a_step_for_each():
    func = Counter(lambda x, y: np.sin(x[0]) + 1e-6 * x[1] + y)
    op = lambda x, y: numpy_function(func, [x, y], F(0), jvp=numerical())
    along = lambda x: jax.jvp(op, (x, 30.0), (jnp.ones(2), 2.0))[1]
    np.testing.assert_allclose(along(jnp.array([0.7, 1e6])), np.cos(0.7) + 1e-6 + 2, rtol=2e-3)
    assert func.count == 1 + 2 * 3
    assert np.isnan(along(jnp.array([jnp.nan, 1.0])))


def test_complex_numbers():
    """The conjugate is its own derivative, also transposed, and not holomorphic: each axis takes a pair of calls."""
    op = lambda z: numpy_function(np.conj, [z], jnp.complex64, **BOTH)
    ct = Z3 * np.complex64(2 - 1j)
    close_to(jax.vjp(op, jnp.asarray(Z3))[1](jnp.asarray(ct))[0], np.conj(ct), 5e-3)
    close_to(jax.jvp(op, (Z3,), (ct,))[1], np.conj(ct), 5e-3)


def test_it_runs_on_the_executor():
    seen = set()

    def body(x):
        seen.add(threading.current_thread().name)
        return np.sin(x)

    with concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="mine") as pool:
        options = {"vmap_method": "parallel", "executor": pool}
        op = lambda x: numpy_function(body, [x], F, vjp=numerical(), **options)
        np.testing.assert_allclose(jax.jit(jax.grad(lambda x: op(x).sum()))(X), np.cos(X), rtol=1e-3)
    assert any(name.startswith("mine") for name in seen)


def test_all_results_count_and_zero_has_a_step():
    both = lambda x: numpy_function(lambda x: (x**2, 3 * x), [x], [F(0), F(0)], vjp=numerical())

    def f(x):
        first, second = both(x)
        return first + 10 * second

    for x in (0.0, 1.5):
        np.testing.assert_allclose(jax.grad(f)(x), 2 * x + 30, rtol=1e-3)

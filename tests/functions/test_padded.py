"""`padded`: results whose length only the function knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import padded
from tests.shared.checks import close, run
from tests.shared.functions import both_sides, every_api, numpy_function, py_function
from tests.shared.tables import named

F, N = jnp.float32, jnp.int32
NAN = float("nan")
X = jnp.array([1.0, -1.0, 2.0, 0.0, 3.0])
ROWS = jnp.stack([X, -X, X * 0, X + 9])
FOUND = [[1, 2, 3, 0, 0], [1, 0, 0, 0, 0], [0] * 5, np.asarray(X) + 9], [3, 1, 0, 5]
positive = lambda x: x[x > 0]


def same(got, values, lengths):
    assert got._fields == ("values", "lengths")
    assert got.lengths.dtype == np.int32
    assert got.lengths.shape == np.shape(lengths)
    np.testing.assert_array_equal(got.values, values)
    np.testing.assert_array_equal(got.lengths, lengths)


@every_api
def test_it_is_filled_up_and_says_how_much_is_real(api):
    """In one compiled program for all lengths, and for each element of a batch."""
    op = lambda x: api(positive, [x], padded(F, 5, fill_value=-1))
    for f in (op, jax.jit(op)):
        same(f(X), [1, 2, 3, -1, -1], 3)
        same(f(X * 0), [-1] * 5, 0)
        same(f(X + 9), X + 9, 5)
    op = lambda x: api(positive, [x], padded(F, 5), when=x[0] > -9)
    same(jax.jit(jax.vmap(op))(ROWS), *FOUND)
    same(jax.vmap(op)(ROWS), *FOUND)
    same(
        jax.vmap(lambda x: api(positive, [x], padded(F, 2, fill_value=7), when=x[0] < 0))(ROWS[:2]),
        [[7, 7], [1, 7]],
        [0, 1],
    )


RETURNS = {
    "an empty list of rows": (padded(F, (2, 3)), [], np.zeros((2, 3)), 0),
    "full": (padded(N, 3), np.arange(3), [0, 1, 2], 3),
    "booleans": (padded(bool, 3, fill_value=True), [False], [False, True, True], 1),
    "complex": (padded(jnp.complex64, 2, fill_value=1j), [2.0], [2, 1j], 1),
    "NaN": (padded(F, 2, fill_value=NAN), [1.0], [1, np.nan], 1),
    "rows": (padded(F, (3, 2)), [[1.0, 2.0]], [[1, 2], [0, 0], [0, 0]], 1),
    "the last axis": (padded(F, (1, 3), axis=-1), [[1.0, 2.0]], [[1, 2, 0]], 2),
    "two axes in another order": (padded(F, (2, 3), axis=(1, 0)), np.ones((1, 2)), [[1, 1, 0], [0, 0, 0]], [2, 1]),
    "of none": (padded(F, 0), [], [], 0),
    "strided": (padded(N, 4), np.arange(8)[::-3], [7, 4, 1, 0], 3),
}


@pytest.mark.parametrize(("tout", "value", "values", "lengths"), RETURNS.values(), ids=RETURNS)
@both_sides
def test_what_a_function_may_return(api, tout, value, values, lengths):
    same(api(lambda: value, [], tout), values, lengths)


def test_beside_other_results_whose_shapes_are_found():
    tout = {"found": padded(N, 4), "score": F(0), "pair": [padded(F, 2), F]}
    body = lambda x: {"found": np.flatnonzero(x > 0), "score": 0.5, "pair": [[1.0], x * 2]}
    out = jax.jit(lambda x: numpy_function(body, [x], tout))(X)
    same(out["found"], [0, 2, 4, 0], 3)
    same(out["pair"][0], [1, 0], 1)
    close(out["score"], 0.5)
    close(out["pair"][1], X * 2)


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_whole_batch_has_one_length(method):
    op = jax.vmap(lambda x: numpy_function(lambda x: x[..., :2], [x], padded(F, 4), vmap_method=method))
    same(op(ROWS), np.pad(np.asarray(ROWS[:, :2]), ((0, 0), (0, 2))), [2] * 4)
    uneven = lambda x: [row[: 1 + k] for k, row in enumerate(x)]
    with pytest.raises(ValueError, match="a list of 4 where Tout="):
        jax.vmap(lambda x: numpy_function(uneven, [x], padded(F, 5), vmap_method=method))(ROWS)


def test_the_rest_is_never_another_arrays_memory():
    op = lambda n: numpy_function(lambda n: np.full(int(n), 7.0), [n], padded(F, 50_000))
    for f in (op, jax.jit(op)):
        for n in (50_000, 3, 49_999, 0):
            got = f(n)
            assert (np.asarray(got.values) == 7).sum() == n == got.lengths
            assert (np.asarray(got.values) == 0).sum() == 50_000 - n


def weighed(op):
    return lambda x: (op(x).values * jnp.arange(1.0, 7.0)).sum()


def of_real_part(inputs, outputs, cotangents):
    (x,), y, ct = inputs, outputs, cotangents
    assert y.shape == ct.shape == ((x > 0).sum(),)
    grad = np.zeros_like(x)
    grad[x > 0] = 2 * x[x > 0] * ct
    return grad


SQUARES = {
    "py_function": lambda x: py_function(lambda x: x[x > 0] ** 2, [x], padded(F, 6)),
    "filled with ones": lambda x: py_function(lambda x: x[x > 0] ** 2, [x], padded(F, 6, fill_value=1)),
    "vjp=": lambda x: numpy_function(lambda x: x[x > 0] ** 2, [x], padded(F, 6), vjp=of_real_part),
}


@pytest.mark.parametrize("op", named(SQUARES, slow=SQUARES))
def test_the_gradient_is_that_of_the_real_part(op):
    wanted = jax.vmap(jax.grad(lambda x: (x**2 * (x > 0) * jnp.cumsum(x > 0)).sum()))(ROWS[:1])
    close(jax.vmap(jax.grad(weighed(op)))(ROWS[:1]), wanted)


def test_traced_mode():
    op = lambda x: py_function(lambda x: x[:2] if x[0] > 0 else x[:1], [x], padded(F, 3), mode="traced")
    f = jax.jit(lambda x: (op(x), jax.grad(lambda x: (op(x).values ** 2).sum())(x)))
    for x, values, length, slope in ((X, [1, -1, 0], 2, [2, -2, 0, 0, 0]), (-X, [-1, 0, 0], 1, [-2, 0, 0, 0, 0])):
        found, slopes = f(x)
        same(found, values, length)
        close(slopes, slope)
    with pytest.raises(TypeError, match=r"an index of bools, whose number depends on values; use jnp\.where"):
        jax.jit(lambda x: py_function(positive, [x], padded(F, 5), mode="traced"))(X)


TOO_MUCH = {
    "too many": (padded(N, 4), np.arange(5), r"5 along axis 0 where padded\(int32, 4\) allows at most 4; declare more"),
    "rows": (padded(F, (2, 2)), np.ones((3, 2)), r"3 along axis 0 .* at most 2; .*the first 2"),
    "second axis": (padded(F, (2, 2), axis=(0, 1)), np.ones((1, 3)), r"3 along axis 1 .* at most 2"),
    "a fixed axis": (padded(F, (4, 4)), np.ones((2, 3)), r"3 along axis 1 .* allows just 4; .*axis=\(0, 1\)"),
    "a scalar": (padded(F, 4), 1.0, r"shape \(\) where padded\(float32, 4\) allows at most \(4,\)"),
    "another dtype": (padded(N, 4), [0.5], "casting='same_kind' does not turn into int32"),
    "a value that does not fit": (padded(jnp.int8, 4), [300], "the value 300, which does not fit int8"),
    "the second of two": ([F, padded(F, 2)], (1.0, [1.0] * 3), r"func returned, as result 1, 3 along axis 0"),
}


@pytest.mark.parametrize(("tout", "value", "text"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_more_or_other_than_promised_is_an_error(tout, value, text):
    op = lambda: numpy_function(lambda: value, [], tout)
    for f in (op, jax.jit(op)):
        with pytest.raises((ValueError, TypeError, OverflowError), match=text):
            run(f)


def made(tout, **options):
    return lambda: numpy_function(lambda: [1.0], [], tout, **options)


MALFORMED = {
    "negative": (lambda: padded(F, -1), "padded: shape is -1, and axis is 0; expected sizes"),
    "None": (lambda: padded(F, (None, 3)), r"padded: shape is \(None, 3\); expected an integer"),
    "another axis": (lambda: padded(F, 3, axis=1), "padded: shape is 3, and axis is 1; expected .* one of their axes"),
    "an axis twice": (lambda: padded(F, (3, 3), axis=(0, -2)), r"padded: shape is \(3, 3\), and axis is \(0, -2\)"),
    "no such dtype": (made(padded("floaty", 3)), "Tout has 'floaty', which is not a dtype"),
    "fill": (made(padded(jnp.uint8, 3, fill_value=-1)), "fill_value -1, which uint8 does not hold"),
    "NaN": (made(padded(N, 3, fill_value=NAN)), "fill_value nan, which int32 does not"),
    "complex": (made(padded(F, 3, fill_value=1j)), "fill_value 1j, which float32 does not hold"),
    "output_shapes": (made(padded(F, 3), output_shapes=(4,)), "for a padded result or a typed key; write None"),
}


@pytest.mark.parametrize(("make", "text"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_promise_is_an_error(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()

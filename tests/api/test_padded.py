"""`padded`: results whose length only the function knows."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import padded
from tests.shared.util import both_sides, close, every_api, numpy_function, on_devices, py_function, run_python
from tests.shared.ways import every_way

F, N = jnp.float32, jnp.int32
X = jnp.array([1.0, -1.0, 2.0, 0.0, 3.0])
ROWS = jnp.stack([X, -X, X * 0, X + 9])
positive = lambda x: x[x > 0]


def same(got, values, lengths):
    assert got._fields == ("values", "lengths")
    assert got.lengths.dtype == np.int32
    np.testing.assert_array_equal(got.values, values)
    np.testing.assert_array_equal(got.lengths, lengths)


@every_api
def test_it_is_filled_up_and_says_how_much_is_real(api, route):
    op = lambda x: api(positive, [x], padded(F, 6, fill_value=-1))
    same(route(op, X), [1, 2, 3, -1, -1, -1], 3)
    same(route(op, -X), [1, -1, -1, -1, -1, -1], 1)
    same(route(op, X * 0), [-1] * 6, 0)
    assert route(op, X).lengths.shape == ()


@every_way
@every_api
def test_each_element_has_its_length(api, way, route):
    op = lambda x: api(positive, [x], padded(F, 5))
    same(
        route(lambda xs: way(op, xs), ROWS),
        [[1, 2, 3, 0, 0], [1, 0, 0, 0, 0], [0] * 5, np.asarray(X) + 9],
        [3, 1, 0, 5],
    )


RETURNS = {
    "empty": (padded(N, 3), np.zeros(0, int), [0, 0, 0], 0),
    "an empty list": (padded(N, 3), [], [0, 0, 0], 0),
    "an empty list of rows": (padded(F, (2, 3)), [], np.zeros((2, 3)), 0),
    "a list": (padded(N, 3), [7, 8], [7, 8, 0], 2),
    "a list of one": (padded(N, 3), [7], [7, 0, 0], 1),
    "full": (padded(N, 3), np.arange(3), [0, 1, 2], 3),
    "another dtype": (padded(F, 3, fill_value=0.5), np.ones(2, np.float64), [1, 1, 0.5], 2),
    "integers": (padded(jnp.int8, 3, fill_value=-1), np.array([1, 2], np.uint64), [1, 2, -1], 2),
    "booleans": (padded(bool, 3, fill_value=True), [False], [False, True, True], 1),
    "bfloat16": (padded(jnp.bfloat16, 3, fill_value=2), [1.0], [1, 2, 2], 1),
    "complex": (padded(jnp.complex64, 2, fill_value=1j), [2.0], [2, 1j], 1),
    "NaN": (padded(F, 2, fill_value=float("nan")), [1.0], [1, np.nan], 1),
    "rows": (padded(F, (3, 2)), [[1.0, 2.0]], [[1, 2], [0, 0], [0, 0]], 1),
    "the last axis": (padded(F, (1, 3), axis=-1), [[1.0, 2.0]], [[1, 2, 0]], 2),
    "two axes": (padded(F, (2, 3), axis=(0, 1)), np.ones((1, 2)), [[1, 1, 0], [0, 0, 0]], [1, 2]),
    "one of several": (padded(F, (2, 3), axis=(1,)), np.ones((2, 1)), [[1, 0, 0], [1, 0, 0]], [1]),
    "of none": (padded(F, 0), [], [], 0),
    "strided": (padded(N, 4), np.arange(8)[::-3], [7, 4, 1, 0], 3),
}


@pytest.mark.parametrize(("tout", "value", "values", "lengths"), RETURNS.values(), ids=RETURNS)
@both_sides
def test_what_a_function_may_return(api, tout, value, values, lengths, route):
    got = route(lambda: api(lambda: value, [], tout))
    same(got, np.asarray(values).astype(got.values.dtype), lengths)
    assert got.values.shape == tout.most


@every_api
def test_among_other_results(api, route):
    tout = {"found": padded(N, 4), "score": jax.ShapeDtypeStruct((), F), "pair": [padded(F, 2), padded(F, 3)]}
    body = lambda x: {"found": np.flatnonzero(x > 0), "score": 0.5, "pair": [[1.0], [2.0, 3.0]]}
    out = route(lambda x: api(body, [x], tout), np.asarray(X))
    same(out["found"], [0, 2, 4, 0], 3)
    close(out["score"], 0.5)
    same(out["pair"][0], [1, 0], 1)
    same(out["pair"][1], [2, 3, 0], 2)


def test_other_shapes_are_inferred_beside_it(route):
    tout = (padded(F, 6), F, F)
    both = lambda x: (positive(x), x.sum(), x)
    found, total, whole = route(lambda x: py_function(both, [x], tout, output_shapes=(None, (), (5,))), X)
    same(found, [1, 2, 3, 0, 0, 0], 3)
    close(total, 5)
    close(whole, X)
    found, doubled = route(lambda x: numpy_function(lambda x: (positive(x), x * 2), [x], (padded(F, 5), F)), X)
    close(doubled, X * 2)
    same(found, [1, 2, 3, 0, 0], 3)


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_whole_batch_has_one_length(method, route):
    op = lambda x: numpy_function(lambda x: x[..., :2], [x], padded(F, 4), vmap_method=method)
    same(route(jax.vmap(op), ROWS[:, :3]), np.pad(np.asarray(ROWS[:, :2]), ((0, 0), (0, 2))), [2] * 4)


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@both_sides
def test_a_whole_batch_of_several_lengths_is_an_error(api, method, route):
    op = lambda x: api(lambda x: [row[: 1 + k] for k, row in enumerate(x)], [x], padded(F, 5), vmap_method=method)
    with pytest.raises(
        Exception, match=r"a list of 4 .*different lengths make no array: with vmap_method='sequential'"
    ):
        route(jax.vmap(op), ROWS)


@pytest.mark.parametrize("pool", [None, concurrent.futures.ThreadPoolExecutor(2)], ids=["default", "threads"])
def test_in_parallel(pool, route):
    op = lambda x: numpy_function(positive, [x], padded(F, 5), vmap_method="parallel", executor=pool)
    np.testing.assert_array_equal(route(jax.vmap(op), ROWS).lengths, [3, 1, 0, 5])


def test_as_a_decorator_and_with_copy_false(route):
    op = jaxpyop.numpy_function(Tout=padded(F, 5), copy=False)(positive)
    same(route(op, X), [1, 2, 3, 0, 0], 3)


def test_the_rest_is_never_another_arrays_memory(route):
    op = lambda n: numpy_function(lambda n: np.full(int(n), 7.0), [n], padded(F, 50_000))
    for n in (50_000, 3, 49_999, 0):
        got = route(op, n)
        assert (np.asarray(got.values) == 7).sum() == n == got.lengths
        assert (np.asarray(got.values) == 0).sum() == 50_000 - n


# ------------------------------------------------------------------- gradients


def weighed(op):
    return lambda x: (op(x).values * jnp.arange(1.0, 7.0)).sum()


def of_real_part(inputs, outputs, cotangents):
    (x,), (y,), (ct,) = inputs, outputs, cotangents
    assert y.shape == ct.shape == ((x > 0).sum(),)
    grad = np.zeros_like(x)
    grad[x > 0] = 2 * x[x > 0] * ct
    return grad


SQUARES = {
    "py_function": lambda x: py_function(lambda x: x[x > 0] ** 2, [x], padded(F, 6)),
    "on values": lambda x: py_function(lambda x: [v**2 for v in x if float(v) > 0], [x], padded(F, 6)),
    "vjp=": lambda x: numpy_function(lambda x: x[x > 0] ** 2, [x], padded(F, 6), vjp=of_real_part),
    "filled with ones": lambda x: py_function(lambda x: x[x > 0] ** 2, [x], padded(F, 6, fill_value=1)),
}


@every_way
@pytest.mark.parametrize("op", SQUARES.values(), ids=SQUARES)
def test_the_gradient_is_that_of_the_real_part(op, way, route):
    wanted = jax.vmap(jax.grad(lambda x: (x**2 * (x > 0) * jnp.cumsum(x > 0)).sum()))(ROWS)
    close(route(lambda xs: way(jax.grad(weighed(op)), xs), ROWS), wanted)


def test_higher_orders_and_forward_mode(route):
    f = weighed(SQUARES["py_function"])
    close(route(jax.jacfwd(f), X), [2, 0, 8, 0, 18])
    close(route(jax.hessian(f), X), np.diag([2.0, 0, 4, 0, 6]))


def test_traced_mode(route):
    op = lambda x: py_function(lambda x: x[:2] if x[0] > 0 else x[:1], [x], padded(F, 3), mode="traced")
    same(jax.jit(op)(X), [1, -1, 0], 2)
    same(jax.jit(op)(-X), [-1, 0, 0], 1)
    close(jax.grad(lambda x: (op(x).values ** 2).sum())(X), [2, -2, 0, 0, 0])


def test_traced_mode_with_when():
    op = lambda x: py_function(positive, [x], padded(F, 5, fill_value=-1), when=x[0] > 0, mode="traced")
    with pytest.raises(TypeError, match=r"boolean indices must be concrete.*jnp\.where"):
        jax.jit(op)(X)
    op = lambda x: py_function(lambda x: x[:2], [x], padded(F, 3, fill_value=-1), when=x[0] > 0, mode="traced")
    same(jax.jit(jax.vmap(op))(jnp.stack([X, -X])), [[1, -1, -1], [-1, -1, -1]], [2, 0])


@every_api
def test_with_when(api, route):
    op = lambda x: api(positive, [x], padded(F, 5, fill_value=-1), when=x[0] > 0)
    same(route(jax.vmap(op), ROWS[:2]), [[1, 2, 3, -1, -1], [-1] * 5], [3, 0])


# ---------------------------------------------------------------------- errors

TOO_MUCH = {
    "too many": (padded(N, 4), np.arange(9), r"9 along axis 0 where padded\(int32, 4\) allows at most 4; .* \(16,\)"),
    "one too many": (padded(N, 4), [1, 2, 3, 4, 5], r"5 along axis 0 .* at most 4; declare more, .*the first 4"),
    "rows": (padded(F, (2, 2)), np.ones((3, 2)), r"3 along axis 0 .* at most 2; .*the shape \(4, 2\)"),
    "second axis": (padded(F, (2, 2), axis=(0, 1)), np.ones((1, 3)), r"3 along axis 1 .* at most 2"),
    "a fixed axis": (padded(F, (4, 4)), np.ones((2, 3)), r"shape \(2, 3\) .* declares 4 along axis 1; .*axis=\(0, 1\)"),
    "a scalar": (padded(F, 4), 1.0, r"shape \(\) where padded\(float32, 4\) allows at most \(4,\)"),
    "a matrix": (padded(F, 4), np.ones((2, 2)), r"shape \(2, 2\) where .* at most \(4,\)"),
    "None": (padded(F, 4), None, "None where"),
    "text": (padded(F, 4), "a", "return numbers"),
    "another dtype": (padded(N, 4), [0.5], "casting='same_kind' does not turn into int32"),
    "a value that does not fit": (padded(jnp.int8, 4), [300], "the value 300, which does not fit int8"),
    "the second of two": ([F, padded(F, 2)], (1.0, [1.0] * 3), r"func returned, as result 1, 3 along axis 0"),
}


@pytest.mark.parametrize(("tout", "value", "text"), TOO_MUCH.values(), ids=TOO_MUCH)
@both_sides
def test_more_or_other_than_promised_is_an_error(api, tout, value, text, route):
    shapes = [(), None] if isinstance(tout, list) else None
    with pytest.raises((ValueError, TypeError, OverflowError), match=text), jaxpyop.reraise():
        route(lambda: api(lambda: value, [], tout, output_shapes=shapes))


MALFORMED = {
    "negative": (lambda: padded(F, -1), ValueError, "padded: shape is -1; expected sizes"),
    "no axes": (lambda: padded(F, ()), ValueError, r"padded: shape is \(\); expected sizes"),
    "None": (lambda: padded(F, (None, 3)), TypeError, r"padded: shape is \(None, 3\); expected an integer"),
    "a float": (lambda: padded(F, 1.5), TypeError, "padded: shape is 1.5; expected an integer"),
    "another axis": (lambda: padded(F, 3, axis=1), ValueError, r"padded: axis is 1; expected an axis of shape \(3,\)"),
    "an axis twice": (lambda: padded(F, (3, 3), axis=(0, -2)), ValueError, r"padded: axis is \(0, -2\)"),
    "no such dtype": (lambda: op(padded("floaty", 3)), TypeError, "Tout has 'floaty', which is not a dtype"),
    "fill": (lambda: op(padded(jnp.uint8, 3, fill_value=-1)), ValueError, "fill_value -1, which uint8 does not hold"),
    "fraction": (lambda: op(padded(N, 3, fill_value=0.5)), ValueError, "fill_value 0.5, which int32 does not hold"),
    "NaN": (lambda: op(padded(N, 3, fill_value=float("nan"))), ValueError, "fill_value nan, which int32 does not"),
    "complex": (lambda: op(padded(F, 3, fill_value=1j)), ValueError, "fill_value 1j, which float32 does not hold"),
    "an array": (lambda: op(padded(F, 3, fill_value=[1, 2])), ValueError, r"fill_value \[1, 2\], which float32"),
    "output_shapes": (lambda: op(padded(F, 3), output_shapes=(4,)), ValueError, "contradict each other; write None"),
}


def op(tout, **options):
    return numpy_function(lambda: [1.0], [], tout, **options)


@pytest.mark.parametrize(("make", "kind", "text"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_promise_is_an_error(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


ON_FOUR = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
jaxpyop.config.transport = {transport!r}
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.{kind},))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    op = lambda x: api(lambda x: x[x > 2.5], [x], jaxpyop.padded(jnp.float32, 8))
    values, length = jax.jit(op)(x)
    np.testing.assert_array_equal(values, [3, 4, 5, 6, 7, 0, 0, 0])
    assert length == 5
    op = lambda x: api(lambda x: x[x > 2.5], [x], jaxpyop.padded(jnp.float32, 2))
    f = lambda x: (lambda out: (out.values, out.lengths[None]))(op(x))
    values, lengths = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
    np.testing.assert_array_equal(values, [0, 0, 3, 0, 4, 5, 6, 7])
    np.testing.assert_array_equal(lengths, [0, 1, 2, 2])
"""


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_on_four_devices(kind, transport):
    code = ON_FOUR.format(kind=kind, transport=transport)
    run_python(code, **on_devices(4))

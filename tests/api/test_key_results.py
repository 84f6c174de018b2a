"""Typed PRNG keys as results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import close, contrib, numpy_function, py_func, py_function
from tests.shared.ways import every_way

F = jnp.float32
KEY = jax.random.key(7)
KEYS = jax.random.split(KEY, 4)


def same(got, wanted):
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(wanted))


TOUTS = {
    "dtype": lambda: KEY.dtype,
    "a key": lambda: KEY,
    "struct": lambda: jax.eval_shape(lambda: jax.random.key(0)),
}


@pytest.mark.parametrize("tout", TOUTS.values(), ids=TOUTS)
def test_a_key_comes_out_as_it_went_in(tout, route):
    same(route(lambda k: py_function(lambda k: jax.random.fold_in(k, 3), [k], tout()), KEY), jax.random.fold_in(KEY, 3))


@every_way
def test_under_transformations(way, route):
    op = lambda k: py_function(lambda k: jax.random.split(k)[1], [k], KEY)
    same(route(lambda ks: way(op, ks), KEYS), jax.vmap(lambda k: jax.random.split(k)[1])(KEYS))


@pytest.mark.parametrize("api", [numpy_function, py_func, contrib])
def test_numpy_functions_return_a_keys_data(api, route):
    same(route(lambda k: api(lambda data: data[::-1], [k], KEY), KEY), jax.random.wrap_key_data(KEY._base_array[::-1]))


def test_several_and_beside_others(route):
    keys, x = route(
        lambda k: py_function(lambda k: (jax.random.split(k, 4), jax.random.normal(k)), [k], (KEYS, F(0))), KEY
    )
    same(keys, KEYS)
    close(x, jax.random.normal(KEY))


def test_the_shape_is_found_under_jit(route):
    same(route(lambda k: py_function(lambda k: jax.random.split(k, 4), [k], KEY.dtype), KEY), KEYS)
    op = lambda k: py_function(lambda k: jax.random.split(k, 4), [k], KEY.dtype, output_shapes=(4,), stateful=True)
    same(route(op, KEY), KEYS)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_other_implementations(impl, route):
    key = jax.random.key(1, impl=impl)
    same(route(lambda k: py_function(lambda k: k, [k], key), key), key)


def test_beside_a_gradient(route):
    def f(x):
        y, key = py_function(lambda x, k: (x**2, jax.random.fold_in(k, 1)), [x, KEY], (F, KEY))
        return y, key

    slope, key = route(jax.grad(f, has_aux=True), 3.0)
    close(slope, 6)
    same(key, jax.random.fold_in(KEY, 1))


def test_traced_mode_and_when(route):
    same(
        route(lambda k: py_function(lambda k: jax.random.split(k)[0], [k], KEY, mode="traced"), KEY),
        jax.random.split(KEY)[0],
    )
    out = route(lambda k: py_function(lambda k: k, [k], KEY, when=False), KEY)
    assert not jax.random.key_data(out).any()


WRONG = {
    "another kind of key": (
        lambda k: jax.random.key(0, impl="rbg"),
        TypeError,
        r"keys of key<rbg> where Tout declares",
    ),
    "a float": (lambda k: 0.5, TypeError, "does not turn into uint32"),
    "two keys": (lambda k: jax.random.split(k), ValueError, r"shape \(2, 2\) where \(2,\) was declared"),
}


@pytest.mark.parametrize(("body", "kind", "text"), WRONG.values(), ids=WRONG)
def test_what_is_no_such_key_is_an_error(body, kind, text, route):
    with pytest.raises(kind, match=text), jaxpyop.reraise():
        route(lambda k: py_function(body, [k], KEY, stateful=True), KEY)

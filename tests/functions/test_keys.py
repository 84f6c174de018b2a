"""Typed PRNG keys as inputs and as results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.checks import run
from tests.shared.functions import every_numpy_api, numpy_function, py_func, py_function

F = jnp.float32
KEY = jax.random.key(7)
KEYS = jax.random.split(KEY, 4)


def same(got, wanted):
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(wanted))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_key_arrives_and_returns(impl):
    """As itself in a py_function, as its data in a numpy_function, which returns data for a key."""
    key = jax.random.key(7, impl=impl)
    got = []
    for api in (py_function, py_func):
        op = lambda k: api(lambda k: got.append(k) or k, [k], key, stateful=True)  # noqa: B023
        same(op(key), key)
        same(run(jax.jit(op), key), key)
    for keyed in got[:2]:
        assert keyed.shape == ()
        same(keyed, key)
    for data in got[2:]:
        assert isinstance(data, np.ndarray)
        np.testing.assert_array_equal(data, jax.random.key_data(key))


@pytest.mark.parametrize("tout", [KEY.dtype, KEY, jax.ShapeDtypeStruct((), KEY.dtype)], ids=["dtype", "key", "struct"])
def test_forms_of_tout(tout):
    op = lambda k: py_function(lambda k: jax.random.fold_in(k, 3), [k], tout)
    same(op(KEY), jax.random.fold_in(KEY, 3))
    same(jax.jit(jax.vmap(op))(KEYS), jax.vmap(lambda k: jax.random.fold_in(k, 3))(KEYS))


@every_numpy_api
def test_numpy_functions_return_a_keys_data(api):
    same(api(lambda data: data[::-1], [KEY], KEY), jax.random.wrap_key_data(jax.random.key_data(KEY)[::-1]))


@pytest.mark.slow
def test_the_shape_of_a_batch_of_keys_is_found():
    """The last axis of a key's data is no axis of the key."""
    same(jax.jit(lambda k: py_function(lambda k: jax.random.split(k, 4), [k], KEY.dtype))(KEY), KEYS)
    assert jax.eval_shape(lambda k: numpy_function(len, [k], F), KEY).shape == ()
    draw = lambda k: jax.random.uniform(k, (2,))
    np.testing.assert_array_equal(jax.vmap(lambda k: py_function(draw, [k], F))(KEYS), jax.vmap(draw)(KEYS))


@pytest.mark.slow
def test_traced_mode_and_when():
    op = lambda k: py_function(lambda k: jax.random.split(k)[0], [k], KEY, mode="traced")
    same(jax.jit(op)(KEY), jax.random.split(KEY)[0])
    assert not jax.random.key_data(py_function(lambda k: k, [KEY], KEY, when=False)).any()


WRONG = {
    "another kind": (lambda k: jax.random.key(0, impl="rbg"), r"keys of key<rbg> where Tout declares"),
    "a float": (lambda k: 0.5, "does not turn into uint32"),
    "two keys": (lambda k: jax.random.split(k), r"shape \(2, 2\) where \(2,\) was declared"),
}


@pytest.mark.parametrize(("body", "text"), WRONG.values(), ids=WRONG)
def test_what_is_no_such_key_is_an_error(body, text):
    with pytest.raises((TypeError, ValueError), match=text):
        py_function(body, [KEY], KEY)


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_key_where_numbers_are_declared_says_what_to_return(mode):
    with pytest.raises(TypeError, match=r"of dtype key<fry>; return .*jax.random.key_data\(key\)"):
        run(jax.jit(lambda: py_function(lambda: KEY, [], jnp.uint32, output_shapes=(), mode=mode)))

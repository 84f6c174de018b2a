"""What a body is given: structure and array leaves."""

from __future__ import annotations

import collections
import dataclasses

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from tests.shared.util import (
    GARBLED,
    ROUTES,
    SMALL_DTYPES,
    WIDE_DTYPES,
    contrib,
    dtype_id,
    every_api,
    numpy_function,
    py_func,
    py_function,
    seen,
)

F = jnp.float32
both_sides = pytest.mark.parametrize("api", [py_function, py_func])


# ------------------------------------------------------------------- structure


def test_one_array_is_a_list_of_one(route):
    for x in (jnp.arange(3.0), np.arange(3.0, dtype=np.float32), 2.0):
        got = route(lambda x: py_func(np.negative, x, F), x)
        np.testing.assert_array_equal(got, -np.asarray(x, np.float32))


def test_tuple_of_inputs(route):
    assert route(lambda x, y: numpy_function(np.subtract, (x, y), F), F(3), F(1)) == 2


Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: object
    b: object
    tag: str = dataclasses.field(metadata={"static": True}, default="t")


@every_api
def test_pytrees_arrive_in_their_structure(api, route):
    got = []

    def body(tree, point, state):
        got.append((tree, point, state))
        return tree["a"][0] + point.x + state.w

    def program(a, x, w):
        return api(body, [{"a": [a, None, "word"]}, Point(x, 7), State(w, (), "tag")], F)

    assert route(program, F(1), F(2), F(3)) == 6
    (tree, point, state) = got[-1]  # py_function's body runs abstractly first
    assert tree["a"][1:] == [None, "word"]
    assert isinstance(point, Point)
    assert point.y == 7
    assert isinstance(state, State)
    assert (state.b, state.tag) == ((), "tag")


def test_contrib_kwargs(route):
    def body(x, *, by, shift):
        return {"out": x * by["f"] + shift, "n": len(x)}

    out = route(
        lambda x, by: contrib(
            body,
            [x],
            {"out": F, "n": jnp.int32},
            kwargs={"shift": 1.0, "by": {"f": by}},
            output_shapes={"out": (3,), "n": ()},
        ),
        jnp.arange(3.0),
        F(2),
    )
    np.testing.assert_array_equal(out["out"], [1, 3, 5])
    assert out["n"] == 3


def test_contrib_without_args(route):
    assert route(lambda: jaxpyop.contrib.framework.py_func(lambda: 3, output_types=jnp.int32, output_shapes=())) == 3


leaves = st.one_of(
    st.sampled_from([None, "s", b"b", 1.5, 2, True, 1j]),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3), elements=st.just(1.0)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.tuples(inner, inner).map(lambda p: Point(*p)),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@given(tree=trees)
def test_any_pytree_arrives_as_it_is(route, tree):
    with jaxpyop.config.override(transport=route.transport):
        (got,) = seen(route, py_func, inp=[tree])
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(tree)):
        if isinstance(b, (str, bytes)):
            assert a is b
        else:
            assert isinstance(a, np.ndarray)
            np.testing.assert_array_equal(a, np.asarray(b, a.dtype))
            assert a.shape == np.shape(b)


# ---------------------------------------------------------------- array leaves


def some(dtype, shape=(3,)):
    return np.ones(shape, np.dtype(dtype))


@pytest.mark.parametrize("dtype", SMALL_DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", [(3,), (), (2, 0)], ids=str)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_every_dtype_arrives_and_returns(api, dtype, shape, route):
    x = some(dtype, shape)
    got = []

    def body(x):
        got.append(x)
        return x

    y = route(lambda x: api(body, [x], dtype, stateful=True, output_shapes=shape), x)
    assert len(got) == 1
    assert isinstance(got[0], jax.Array if api is py_function else np.ndarray)
    assert got[0].dtype == y.dtype == x.dtype
    assert got[0].shape == y.shape == shape
    np.testing.assert_array_equal(np.asarray(got[0]), x)
    np.testing.assert_array_equal(np.asarray(y), x)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=dtype_id)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_wide_dtypes_with_x64(api, dtype, route):
    x = np.array([1, 2, 2**40], np.dtype(dtype))
    got = []

    def body(x):
        got.append(x.dtype)
        return x

    y = route(lambda x: api(body, [x], dtype, stateful=True), x)
    assert got == [x.dtype]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


SUBBYTE = [d for d in (jnp.int2, jnp.uint2, jnp.int4, jnp.uint4, jnp.float4_e2m1fn) if d not in GARBLED]


@pytest.mark.parametrize("dtype", SUBBYTE, ids=dtype_id)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_packed_dtypes_keep_each_value(api, dtype, route):
    values = np.array([0, 1, 1, 0, 1, 0, 0], np.dtype(dtype))
    got = []

    def body(x):
        got.append(np.array(x))
        return np.asarray(x)[::-1]

    y = route(lambda x: api(body, [x], dtype, output_shapes=(7,)), values)
    np.testing.assert_array_equal(got[0], values)
    np.testing.assert_array_equal(np.asarray(y), values[::-1])
    y = route(jax.vmap(lambda x: api(body, [x], dtype, output_shapes=(7,))), np.stack([values, values[::-1]]))
    np.testing.assert_array_equal(np.asarray(y), np.stack([values[::-1], values]))


PYTHON_NUMBERS = {
    "float": (1.5, np.float32),
    "int": (-3, np.int32),
    "bool": (True, np.bool_),
    "complex": (1 + 2j, np.complex64),
    "int max": (2**31 - 1, np.int32),
    "int min": (-(2**31), np.int32),
    "inf": (float("inf"), np.float32),
    "np.float64": (np.float64(1.5), np.float32),
    "np.float32": (np.float32(1.5), np.float32),
    "np.int64": (np.int64(-5), np.int32),
    "np.uint64": (np.uint64(5), np.uint32),
    "np.bool": (np.bool_(True), np.bool_),
    "float64 array": (np.array([1.5, 1e30]), np.float32),
    "int64 array": (np.array([1, 2]), np.int32),
    "uint64 array": (np.array([1, 2], np.uint64), np.uint32),
    "complex128 array": (np.array([1j]), np.complex64),
    "big endian": (np.array([1.5, 2.5], ">f4"), np.float32),
    "big endian int": (np.array([1, 2], ">i2"), np.int16),
}


@pytest.mark.parametrize(("value", "dtype"), PYTHON_NUMBERS.values(), ids=PYTHON_NUMBERS)
@both_sides
def test_numbers_become_what_jax_makes_of_them(api, value, dtype, route):
    (got,) = seen(route, api, inp=[value])
    assert got.dtype == np.dtype(dtype)
    assert got.dtype.isnative
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(value).astype(dtype))
    assert isinstance(got, jax.Array if api is py_function else np.ndarray)


@pytest.mark.parametrize(("value", "dtype"), PYTHON_NUMBERS.values(), ids=PYTHON_NUMBERS)
def test_as_an_argument_of_jit_just_the_same(value, dtype, transport):
    (got,) = seen(
        ROUTES["jit-auto"],
        py_func,
        [value.astype(value.dtype.newbyteorder("=")) if hasattr(value, "astype") else value],
    )
    assert got.dtype == np.dtype(dtype)


TOO_WIDE = {
    "int": (2**31, "int32"),
    "negative int": (-(2**31) - 1, "int32"),
    "huge int": (2**70, "int32"),
    "between int64 and uint64": (2**63, "int32|uint32"),
    "np.int64": (np.int64(2**40), "int32"),
    "np.uint64": (np.uint64(2**32), "uint32"),
    "int64 array": (np.array([0, 2**31]), "int32"),
    "negative int64 array": (np.array([0, -(2**31) - 1]), "int32"),
    "uint64 array": (np.array([2**64 - 1], np.uint64), "uint32"),
    "in a pytree": ({"a": [2**31]}, "int32"),
}


@pytest.mark.parametrize(("value", "dtype"), TOO_WIDE.values(), ids=TOO_WIDE)
@both_sides
def test_integer_that_does_not_fit_is_an_error(api, value, dtype, route):
    with pytest.raises(OverflowError, match=rf"does not fit ({dtype}).*jax_enable_x64"):
        seen(route, api, inp=[value])


@pytest.mark.usefixtures("x64")
def test_wide_numbers_with_x64(route):
    (a, b, c) = seen(route, py_func, inp=[2**40, 1.5, np.array([1 + 2j])])
    assert (a.dtype, b.dtype, c.dtype) == (np.int64, np.float64, np.complex128)
    assert a == 2**40
    with pytest.raises(OverflowError, match="does not fit"):
        seen(route, py_func, inp=[2**70])


def test_empty_wide_array_fits(route):
    (got,) = seen(route, py_func, inp=[np.zeros((0, 2), np.int64)])
    assert got.dtype == np.int32
    assert got.shape == (0, 2)


def test_a_traced_ref_is_refused():
    ref = jax.new_ref(jnp.arange(3.0))
    with pytest.raises(
        TypeError, match=r"py_func 'lambda': an input is a traced Ref.*pass its contents.*ref\[\.\.\.\]"
    ):
        jax.jit(lambda ref: py_func(lambda x: x, [ref], F))(ref)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_keys(impl, route):
    key = jax.random.key(7, impl=impl)
    (got,) = seen(route, py_func, [key])
    assert isinstance(got, np.ndarray)
    np.testing.assert_array_equal(got, jax.random.key_data(key))
    (got,) = seen(route, py_function, [key])
    assert got.dtype == key.dtype
    assert got.shape == ()
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(key))


def test_batch_of_typed_keys(route):
    keys = jax.random.split(jax.random.key(0), 4)
    (got,) = seen(route, py_func, [keys])
    np.testing.assert_array_equal(got, jax.random.key_data(keys))
    out = route(lambda k: py_function(lambda k: jax.random.uniform(k[2], (2,)), [k], F, output_shapes=(2,)), keys)
    np.testing.assert_array_equal(out, jax.random.uniform(keys[2], (2,)))


def test_vmap_over_typed_keys(transport):
    keys = jax.random.split(jax.random.key(0), 4)
    draw = lambda k: jax.random.uniform(k, (2,))
    for op in (
        lambda k: py_function(draw, [k], F, output_shapes=(2,)),
        lambda k: py_function(draw, [k], F),
        lambda k: numpy_function(lambda d: np.asarray(draw(jax.random.wrap_key_data(d))), [k], F, output_shapes=(2,)),
    ):
        np.testing.assert_array_equal(jax.vmap(op)(keys), jax.vmap(draw)(keys))
        np.testing.assert_array_equal(jax.jit(jax.vmap(op))(keys), jax.vmap(draw)(keys))


def test_a_key_has_the_shape_of_its_batch_for_inference(transport):
    """The trailing axis of key data is no axis of the input."""
    draw = lambda k: np.float32(len(k))
    out = jax.jit(lambda k: numpy_function(draw, [k], F))(jax.random.key(1))
    assert out.shape == ()

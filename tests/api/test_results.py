"""What a body returns: forms of Tout, structures, arrays of all kinds."""

from __future__ import annotations

import collections
import dataclasses
import re
import warnings

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from tests.shared.result_cases import refused, returning
from tests.shared.util import (
    SMALL_DTYPES,
    both_sides,
    contrib,
    dtype_id,
    every_api,
    numpy_function,
    py_func,
    py_function,
)

F = jnp.float32


# ------------------------------------------------------------------------ Tout


class TensorFlowDtype:
    """Stands for tf.float32, which has as_numpy_dtype and no shape."""

    as_numpy_dtype = np.float32

    def __repr__(self):
        return "tf.float32"


TOUTS = {
    "np class": np.float32,
    "jnp class": jnp.float32,
    "string": "float32",
    "short string": "f4",
    "np.dtype": np.dtype("float32"),
    "struct": jax.ShapeDtypeStruct((3,), np.float32),
    "jax array": jnp.zeros(3),
    "numpy array": np.zeros(3, np.float32),
    "as_numpy_dtype": TensorFlowDtype(),
    "python float": float,
}


@pytest.mark.parametrize("tout", TOUTS.values(), ids=TOUTS)
@every_api
def test_forms_of_a_single_tout(api, tout, route):
    y = route(lambda x: api(lambda x: x * 2, [x], tout), jnp.arange(3.0))
    assert isinstance(y, jax.Array)
    assert y.dtype == np.float32
    assert not y.weak_type
    np.testing.assert_array_equal(y, [0, 2, 4])


SMALL_BY_NAME = [np.dtype(d).name for d in SMALL_DTYPES]


@pytest.mark.parametrize("name", SMALL_BY_NAME)
def test_every_dtype_by_name_by_class_and_by_dtype(name):
    dtype = np.dtype(getattr(jnp, name))
    for tout in (name, getattr(jnp, name), dtype):
        assert numpy_function(lambda: np.ones(2, dtype), [], tout).dtype == dtype


@pytest.mark.parametrize(
    ("python_type", "dtype"), [(bool, "bool"), (int, "int32"), (float, "float32"), (complex, "complex64")]
)
def test_python_types(python_type, dtype, route):
    y = route(lambda: py_func(lambda: python_type(1), [], python_type, output_shapes=()))
    assert y.dtype == dtype
    assert y == 1


Pair = collections.namedtuple("Pair", "first second")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Both:
    mean: object
    count: object


STRUCTURES = {
    "list": ([F, jnp.int32], [1.5, 2]),
    "tuple": ((F, jnp.int32), (1.5, 2)),
    "list of one": ([F], [1.5]),
    "tuple of one": ((F,), (1.5,)),
    "dict": ({"b": F, "a": jnp.int32}, {"a": 2, "b": 1.5}),
    "nested": ({"a": [F, (jnp.int32, {"c": F})], "b": F}, {"a": [1.0, (2, {"c": 3.0})], "b": 4.0}),
    "namedtuple": (Pair(F, jnp.int32), Pair(1.5, 2)),
    "dataclass": (Both(F, jnp.int32), Both(1.5, 2)),
    "dict of dataclass": ({"x": Both(F, [jnp.int32])}, {"x": Both(1.5, [2])}),
    "with None": ({"a": F, "b": None}, {"a": 1.5, "b": None}),
    "with empty": ([F, []], [1.5, []]),
    "ordered dict": (collections.OrderedDict(b=F, a=jnp.int32), collections.OrderedDict(b=1.5, a=2)),
    "default dict": (collections.defaultdict(list, b=F, a=jnp.int32), collections.defaultdict(list, b=1.5, a=2)),
    "dict for ordered dict": (collections.OrderedDict(b=F, a=F), {"a": 2.0, "b": 1.5}),
}


@pytest.mark.parametrize(("tout", "value"), STRUCTURES.values(), ids=STRUCTURES)
@both_sides
def test_result_has_the_structure_of_tout(api, tout, value, route):
    y = route(lambda: api(lambda: value, [], tout))
    assert jax.tree.structure(y) == jax.tree.structure(tout)
    if isinstance(tout, dict):
        assert type(y) is type(tout)
        value = type(tout)(value) if type(tout) is dict else value
        y, value, tout = ([tree[key] for key in sorted(tree)] for tree in (y, value, tout))
    for got, want, dtype in zip(jax.tree.leaves(y), jax.tree.leaves(value), jax.tree.leaves(tout)):
        assert isinstance(got, jax.Array)
        assert got.dtype == np.dtype(dtype)
        assert got.shape == ()
        assert got == want


LOOSE = {
    "tuple for list": ([F, F], (1.0, 2.0)),
    "list for tuple": ((F, F), [1.0, 2.0]),
    "namedtuple for tuple": ((F, F), Pair(1.0, 2.0)),
    "bare value for list of one": ([F], 1.0),
    "list of one for a bare value": (F, [1.0]),
    "mapping for dict": ({"a": F, "b": F}, collections.OrderedDict(b=2.0, a=1.0)),
    "array for list of one": ([F], np.float32(1)),
}


@pytest.mark.parametrize(("tout", "value"), LOOSE.values(), ids=LOOSE)
@every_api
def test_like_structures_are_taken(api, tout, value, route):
    y = route(lambda: api(lambda: value, [], tout, output_shapes=jax.tree.map(lambda _: (), tout)))
    assert jax.tree.structure(y) == jax.tree.structure(tout)
    assert [float(v) for v in jax.tree.leaves(y)] == [1.0, 2.0][: len(jax.tree.leaves(y))]


WRONG_STRUCTURES = {
    "too many": ([F, F], [1.0, 2.0, 3.0], r"a list of 3 .*declares 2 results"),
    "too few": ([F, F, F], [1.0, 2.0], r"a list of 2 .*declares 3 results"),
    "too few, tuple": ((F, F), (1.0,), r"a tuple of 1 .*declares 2 results"),
    "none of two": ([F, F], [], r"a list of 0 .*declares 2 results"),
    "two for one": (F, (1.0, 2.0), r"a tuple of 2 .*declares one result"),
    "list for one": (F, [1.0, 2.0], r"a list of 2 .*declares one result"),
    "one for two": ([F, F], 1.0, r"a float .*declares 2 results"),
    "array for two": ([F, F], np.zeros(2, np.float32), r"an array where"),
    "None for one": (F, None, r"None .*declares one result"),
    "None for two": ([F, F], None, r"None .*declares 2 results"),
    "None among two": ([F, F], [1.0, None], r"None at result\[1\] .*has float32 of shape \(\)"),
    "dict for one": (F, {"a": 1.0}, r"a dict .*declares one result"),
    "missing key": ({"a": F, "b": F}, {"a": 1.0}, r"a dict .*declares 2 results"),
    "extra key": ({"a": F}, {"a": 1.0, "b": 2.0}, r"a dict .*declares one result"),
    "other key": ({"a": F}, {"b": 1.0}, r"a dict with the keys \['b'\] .*declares one result"),
    "list for dict": ({"a": F}, [1.0], r"a list of 1 .*declares one result"),
    "dict for list": ([F, F], {"a": 1.0, "b": 2.0}, r"a dict .*declares 2 results"),
    "nested count": ([F, [F, F]], [1.0, [2.0]], r"a list of 1 at result\[1\] .*has a list of 2"),
    "other dataclass": (Both(F, F), Pair(1.0, 2.0), r"a Pair|a tuple of 2|a Pair of 2"),
    "value for nothing": ([], 1.0, r"a float where Tout=\[\] declares no result; pass Tout=None to ignore"),
    "values for nothing": ({}, [1.0], r"a list of 1 where Tout=\{\} declares no result"),
}


@pytest.mark.parametrize(("tout", "value", "text"), WRONG_STRUCTURES.values(), ids=WRONG_STRUCTURES)
@both_sides
def test_wrong_count_or_structure(api, tout, value, text, route):
    shapes = jax.tree.map(lambda _: (), tout) if tout else None
    with pytest.raises(ValueError, match=f"func returned .*({text})"), jaxpyop.reraise():
        route(lambda: api(lambda: value, [], tout, output_shapes=shapes))


@pytest.mark.parametrize("tout", [None, [], (), {}, {"a": []}, [None]], ids=str)
@pytest.mark.parametrize("value", [None, [], (), {}, {"a": []}, [None]], ids=str)
@both_sides
def test_no_result(api, tout, value, route):
    runs = []

    def body(x):
        runs.append(float(x))
        return value

    assert route(lambda x: api(body, [x], tout), F(3)) == tout
    assert runs == [3.0]


async def coroutine():
    return 1.0


def generator():
    yield 1.0


async def async_generator():
    yield 1.0


@pytest.mark.parametrize("make", [coroutine, generator, async_generator])
@pytest.mark.parametrize("tout", [F, [F], None], ids=["one", "list", "nothing"])
@both_sides
def test_what_nobody_ran_is_an_error(api, make, tout, route):
    text = r"func returned an? (coroutine|generator|async_generator), which was never run"
    shapes = None if tout is None else jax.tree.map(lambda _: (), tout)
    with pytest.raises(TypeError, match=text), jaxpyop.reraise():
        route(lambda: api(lambda: make(), [], tout, output_shapes=shapes))


NO_NUMBERS = {
    "str": "text",
    "bytes": b"raw",
    "object": object(),
    "set": {1.0},
    "object array": np.array([1.0, None], dtype=object),
    "string array": np.array(["a"]),
    "datetime": np.datetime64("2020-01-01"),
    "timedelta array": np.array([1], "timedelta64[s]"),
    "record": np.zeros(2, [("a", "f4")]),
    "function": np.sin,
    "exception": ValueError("x"),
}


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
@pytest.mark.parametrize("tout", [F, jnp.int32], ids=dtype_id)
@both_sides
def test_what_is_no_number_is_an_error(api, value, tout, route):
    refused(api, route, value, tout, TypeError, "func returned .*; return numbers", shapes=getattr(value, "shape", ()))


def test_a_typed_key_as_a_result_is_an_error(route):
    refused(
        py_function,
        route,
        jax.random.key(0),
        jnp.uint32,
        TypeError,
        r"typed key; return jax.random.key_data",
        shapes=(),
    )


# ---------------------------------------------------------- arrays of all kinds

VIEWS = {
    "input itself": lambda x: x,
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1, ::-1],
    "row": lambda x: x[1],
    "element": lambda x: x[0, 0],
    "0-d view": lambda x: x[0, 0, ...],
    "broadcast": lambda x: np.broadcast_to(x[0], (5, 3)),
    "reshaped": lambda x: x.reshape(-1),
    "empty slice": lambda x: x[:0],
    "fortran": np.asfortranarray,
    "float64 strided": lambda x: np.asarray(x, np.float64)[:, ::2],
}


@pytest.mark.parametrize("take", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "lent"])
def test_views_of_the_inputs(take, copy, route):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    shape = take(x).shape
    y = route(lambda x: py_func(lambda x: take(x), [x], F, copy=copy, output_shapes=shape), x)
    np.testing.assert_array_equal(y, take(x))


@both_sides
def test_the_same_array_twice(api, route):
    a, b = route(lambda x: api(lambda x: [x, x], [x], [F, F]), jnp.arange(3.0))
    np.testing.assert_array_equal(a, b)


def test_jax_arrays_from_a_numpy_function(route):
    np.testing.assert_array_equal(
        route(lambda x: py_func(lambda x: jnp.asarray(x) * 2, [x], F), jnp.arange(3.0)), [0, 2, 4]
    )


def test_numpy_arrays_from_a_py_function(route):
    f = lambda x: py_function(lambda x: np.asarray(x) * 2, [x], F, output_shapes=(3,))
    np.testing.assert_array_equal(route(f, jnp.arange(3.0)), [0, 2, 4])


class Arraylike:
    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0], dtype or np.float64)


@both_sides
def test_objects_with_array_protocol(api, route):
    np.testing.assert_array_equal(returning(api, route, Arraylike(), F, shapes=(2,)), [1, 2])


class BrokenArraylike:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no data")


@both_sides
def test_objects_whose_array_protocol_fails(api, route):
    refused(api, route, BrokenArraylike(), F, TypeError, "not an array .*no data", shapes=(2,))


@given(
    array=st.sampled_from(["?", "i4", "u2", "f2", "f4", "c8"]).flatmap(
        lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    ),
    jit=st.booleans(),
    transport=st.sampled_from(["auto", "callback"]),
    tree=st.sampled_from(["one", "list", "dict"]),
)
def test_any_array_comes_back_as_it_went(array, jit, transport, tree):
    wrap = {"one": lambda a: a, "list": lambda a: [a, a], "dict": lambda a: {"a": a, "b": {"c": a}}}[tree]
    struct = jax.ShapeDtypeStruct(array.shape, array.dtype)
    f = lambda x: py_func(lambda x: wrap(x), [x], wrap(struct))
    with jaxpyop.config.override(transport=transport), warnings.catch_warnings():
        warnings.simplefilter("error")
        y = (jax.jit(f) if jit else f)(array)
    for leaf in jax.tree.leaves(y):
        assert leaf.dtype == array.dtype
        np.testing.assert_array_equal(leaf, array)


# -------------------------------------------------------- results and programs


@both_sides
def test_results_are_not_weakly_typed(api, route):
    y = route(lambda: api(lambda: jnp.asarray(1.0) if api is py_function else 1.0, [], F, output_shapes=()))
    assert not y.weak_type


def test_results_do_not_depend_on_strict_promotion_or_leak_checks(route, checked):
    y = route(lambda x: py_function(lambda x: (x * x).sum(), [x], F), jnp.arange(3.0))
    assert y == 5
    y = route(lambda x: numpy_function(lambda x: np.float64(x.sum()), [x], F, output_shapes=()), jnp.arange(3.0))
    assert y == 3
    out = route(
        lambda x: contrib(lambda x: {"a": [x, 1]}, [x], {"a": [F, jnp.int32]}, output_shapes={"a": [(3,), ()]}),
        jnp.arange(3.0),
    )
    assert out["a"][1] == 1


def test_results_feed_jax_operations_in_the_same_program(route):
    f = lambda x: jnp.sin(py_func(np.cos, [jnp.exp(x)], F)) * 2
    x = jnp.linspace(0, 1, 5)
    np.testing.assert_allclose(route(f, x), jnp.sin(jnp.cos(jnp.exp(x))) * 2, rtol=1e-5)


def test_the_message_is_one_line_that_says_what_to_write(route):
    error = refused(
        py_func, route, np.ones(2), jnp.int32, TypeError, "return int32, write Tout=float32, or pass casting='unsafe'"
    )
    assert "\n" not in str(error)
    assert re.search(r"py_func '.*'", str(error))

"""What a body is given: how ops are written, and their inputs."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import inspect
import pathlib
import re
import threading
import warnings

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from util import (
    APIS,
    NUMPY_APIS,
    ROUTES,
    SMALL_DTYPES,
    WIDE_DTYPES,
    Counter,
    contrib,
    dtype_id,
    numpy_function,
    py_func,
    py_function,
)

import jaxpyop

F = jnp.float32
every_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
both_sides = pytest.mark.parametrize("api", [py_function, py_func])
every_numpy_api = pytest.mark.parametrize("api", NUMPY_APIS.values(), ids=NUMPY_APIS)


def seen(route, api, arrays=(), inp=None, **options):
    """What a body of `api` is given: `arrays` as jit arguments, or `inp` from the code around."""
    got = []

    def body(*args):
        got.append(args)

    def program(*xs):
        return api(body, list(xs) if inp is None else inp, None, **options)

    assert route(program, *arrays) == []
    assert len(got) == 1, f"the body ran {len(got)} times"
    return got[0]


# ------------------------------------------------------------ names, signatures


def test_aliases_are_the_functions_themselves():
    v1, v2 = jaxpyop.compat.v1, jaxpyop.compat.v2
    assert v1.py_func is jaxpyop.py_func
    assert v1.py_function is v2.py_function is jaxpyop.py_function
    assert v1.numpy_function is v2.numpy_function is jaxpyop.numpy_function
    assert not hasattr(v2, "py_func")


SIGNATURES = {
    "py_function": (jaxpyop.py_function, ["func", "inp", "Tout", "name"]),
    "numpy_function": (jaxpyop.numpy_function, ["func", "inp", "Tout", "stateful", "name"]),
    "py_func": (jaxpyop.py_func, ["func", "inp", "Tout", "stateful", "name"]),
    "contrib": (
        jaxpyop.contrib.framework.py_func,
        ["func", "args", "kwargs", "output_types", "output_shapes", "stateful", "name"],
    ),
}


@pytest.mark.parametrize(("function", "names"), SIGNATURES.values(), ids=SIGNATURES)
def test_positional_parameters_are_tensorflows(function, names):
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == names
    assert not [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


@pytest.mark.parametrize(
    ("function", "extras"),
    [
        (
            jaxpyop.py_function,
            {
                "output_shapes": None,
                "ordered": False,
                "vmap_method": "sequential",
                "casting": "same_kind",
                "stateful": False,
            },
        ),
        (
            jaxpyop.numpy_function,
            {
                "output_shapes": None,
                "ordered": False,
                "vmap_method": "sequential",
                "casting": "same_kind",
                "vjp": None,
                "copy": True,
            },
        ),
        (
            jaxpyop.py_func,
            {
                "output_shapes": None,
                "ordered": False,
                "vmap_method": "sequential",
                "casting": "same_kind",
                "vjp": None,
                "copy": True,
            },
        ),
        (jaxpyop.contrib.framework.py_func, {"ordered": False, "vmap_method": "sequential", "casting": "same_kind"}),
    ],
    ids=SIGNATURES,
)
def test_keyword_only_extras_and_their_defaults(function, extras):
    parameters = inspect.signature(function).parameters
    for name, default in extras.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == default


@pytest.mark.parametrize(
    ("function", "stateful"),
    [(jaxpyop.numpy_function, False), (jaxpyop.py_func, True), (jaxpyop.contrib.framework.py_func, True)],
    ids=["numpy_function", "py_func", "contrib"],
)
def test_default_of_stateful(function, stateful):
    assert inspect.signature(function).parameters["stateful"].default is stateful


def test_positional_calls_as_in_tensorflow(route):
    assert route(lambda x: jaxpyop.py_function(jnp.negative, [x], F, "neg"), F(2)) == -2
    assert route(lambda x: jaxpyop.numpy_function(np.negative, [x], F, True, "neg"), F(2)) == -2
    assert route(lambda x: jaxpyop.py_func(np.negative, [x], F, False, "neg"), F(2)) == -2
    times = lambda x, by: x * by
    assert route(lambda x: jaxpyop.contrib.framework.py_func(times, [x], {"by": 3}, F, (), True, "times"), F(2)) == 6


# ---------------------------------------------------------------- wrong calls

WRONG_CALLS = {
    "no Tout": (lambda f: f(np.sin, [1.0]), TypeError, r"Tout was not given; write .*Tout="),
    "no Tout, decorator": (lambda f: f(), TypeError, r"Tout was not given"),
    "decorator without parentheses": (lambda f: f(np.sin), TypeError, r"as a decorator, @\w+\(Tout=jnp.float32\)"),
    "inputs not in a list": (
        lambda f: f(np.add, F(1), F(1), F),
        TypeError,
        r"(name|stateful) is <class .*float32'>; expected .*inp=\[x, y\]",
    ),
    "ordered a word": (lambda f: f(np.sin, [1.0], F, ordered="yes"), TypeError, r"ordered is 'yes'; expected True or"),
    "no inp": (lambda f: f(np.sin, Tout=F), TypeError, r"inp was not given; write"),
    "no func": (lambda f: f(inp=[1.0], Tout=F), TypeError, r"func was not given"),
    "func no callable": (lambda f: f(3, [1.0], F), TypeError, r"func must be callable, got 3"),
    "decorator of no callable": (lambda f: f(Tout=F)(3), TypeError, r"func must be callable, got 3"),
    "inp a str": (lambda f: f(np.sin, "x", F), TypeError, r"inp is 'x'; expected a list"),
    "inp a dict": (lambda f: f(np.sin, {"x": 1.0}, F), TypeError, r"inp is .*expected a list"),
    "vmap_method": (
        lambda f: f(np.sin, [1.0], F, vmap_method="none"),
        ValueError,
        r"vmap_method='none'; expected one of 'sequential'",
    ),
    "casting": (lambda f: f(np.sin, [1.0], F, casting="safest"), ValueError, r"casting='safest'; expected one of"),
    "Tout a number": (lambda f: f(np.sin, [1.0], 3.0), TypeError, r"Tout has a leaf 3.0 of type float"),
    "Tout a shape": (lambda f: f(np.sin, [1.0], (3, 2)), TypeError, r"Tout has a leaf 3 of type int"),
    "Tout a word": (lambda f: f(np.sin, [1.0], "floaty"), TypeError, r"Tout has 'floaty', which is no dtype"),
    "Tout object": (
        lambda f: f(np.sin, [1.0], object),
        TypeError,
        r"Tout has the dtype object, which JAX does not have",
    ),
    "Tout str": (lambda f: f(np.sin, [1.0], str), TypeError, r"Tout has the dtype <U0"),
    "Tout datetime": (lambda f: f(np.sin, [1.0], "datetime64[s]"), TypeError, r"Tout has the dtype datetime64"),
    "Tout record": (lambda f: f(np.sin, [1.0], np.dtype([("a", "f4")])), TypeError, r"which JAX does not have"),
    "Tout key": (lambda f: f(np.sin, [1.0], jax.random.key(0)), TypeError, r"Tout cannot be a typed key"),
    "Tout key dtype": (lambda f: f(np.sin, [1.0], jax.random.key(0).dtype), TypeError, r"Tout"),
    "shape of wrong type": (
        lambda f: f(np.sin, [1.0], F, output_shapes="ab"),
        TypeError,
        r"output_shapes has 'ab' where a shape",
    ),
    "shape a number": (lambda f: f(np.sin, [1.0], F, output_shapes=3), TypeError, r"output_shapes has 3 where a shape"),
    "dimension": (
        lambda f: f(np.sin, [1.0], F, output_shapes=(1.5,)),
        TypeError,
        r"output_shapes has the dimension 1.5",
    ),
    "negative dimension": (
        lambda f: f(np.sin, [1.0], F, output_shapes=(-1,)),
        ValueError,
        r"output_shapes has the dimension -1; write None",
    ),
    "shapes' structure": (
        lambda f: f(np.sin, [1.0], [F, F], output_shapes=[()]),
        ValueError,
        r"output_shapes must have the structure of Tout",
    ),
    "two shapes": (
        lambda f: f(np.sin, [1.0], jax.ShapeDtypeStruct((3,), F), output_shapes=(4,)),
        ValueError,
        r"Tout says shape \(3,\) and output_shapes says \(4,\)",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), WRONG_CALLS.values(), ids=WRONG_CALLS)
@pytest.mark.parametrize("function", [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func])
def test_wrong_call_says_what_to_write(function, call, error, text):
    with pytest.raises(error, match=text) as caught:
        call(function)
    assert str(caught.value).startswith(f"{function.__name__}"), "the error names the function"


@pytest.mark.parametrize("vjp", [3, "x", [np.sin]])
@pytest.mark.parametrize("function", [jaxpyop.numpy_function, jaxpyop.py_func])
def test_vjp_must_be_callable(function, vjp):
    with pytest.raises(TypeError, match=r"vjp must be a function f\(inputs, outputs, cotangents\)"):
        function(np.sin, [1.0], F, vjp=vjp)


CONTRIB_WRONG = {
    "args no list": (lambda f: f(np.sin, 1.0, output_types=F), r"args is 1.0; expected a list or tuple"),
    "kwargs no dict": (lambda f: f(np.sin, [1.0], [2.0], F), r"kwargs is \[2.0\]; expected a dict"),
    "func no callable": (lambda f: f(None, [1.0], None, F), r"func must be callable"),
}


@pytest.mark.parametrize(("call", "text"), CONTRIB_WRONG.values(), ids=CONTRIB_WRONG)
def test_wrong_contrib_call(call, text):
    with pytest.raises(TypeError, match=text):
        call(jaxpyop.contrib.framework.py_func)


async def coroutine(x):
    return x


async def async_generator(x):
    yield x


def generator(x):
    yield x


class AsyncCall:
    async def __call__(self, x):
        return x


class GeneratorMethods:
    def body(self, x):
        yield x

    async def coroutine(self, x):
        return x


NOT_PLAIN = {
    "async": (coroutine, "async function"),
    "async generator": (async_generator, "async function"),
    "generator": (generator, "generator function"),
    "partial of async": (functools.partial(coroutine), "async function"),
    "partial of generator": (functools.partial(generator), "generator function"),
    "async __call__": (AsyncCall(), "async function"),
    "generator method": (GeneratorMethods().body, "generator function"),
    "async method": (GeneratorMethods().coroutine, "async function"),
}


@pytest.mark.parametrize(("func", "text"), NOT_PLAIN.values(), ids=NOT_PLAIN)
@both_sides
def test_async_and_generator_functions_are_refused_at_once(api, func, text):
    with pytest.raises(TypeError, match=rf"func is an? {text}.*write a plain function"):
        api(func, [1.0], F)


@pytest.mark.parametrize("function", [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func])
def test_decorator_refuses_async(function):
    with pytest.raises(TypeError, match="async function"):
        function(Tout=F)(coroutine)


# ----------------------------------------------------------------- decorators

DECORATORS = [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func]
every_decorator = pytest.mark.parametrize("function", DECORATORS)


@every_decorator
def test_decorator(function, route):
    @function(Tout=F)
    def scaled(x, m=2.0, *, by=1.0):
        """Scale."""
        return x * m * by

    assert scaled.__name__ == "scaled"
    assert scaled.__doc__ == "Scale."
    three = F(3)
    assert route(lambda x: scaled(x), three) == 6
    assert route(lambda x: scaled(x, 3.0), three) == 9
    assert route(lambda x: scaled(x, m=3.0), three) == 9
    assert route(lambda x: scaled(x, by=x), three) == 18
    assert route(lambda x: scaled(x=x, m=x, by=x), three) == 27


@every_decorator
def test_decorated_method_classmethod_staticmethod(function, route):
    class Model:
        factor = 2.0

        def __init__(self, w):
            self.w = w

        @function(Tout=F)
        def plain(self, x):
            return x * self.w

        @classmethod
        @function(Tout=F)
        def of_class(cls, x):
            return x * cls.factor

        @staticmethod
        @function(Tout=F)
        def static(x, y=1.0):
            return x + y

    model = Model(5.0)
    assert route(lambda x: model.plain(x), F(3)) == 15
    assert route(lambda x: model.plain(x=x), F(3)) == 15
    assert route(lambda x: Model.of_class(x), F(3)) == 6
    assert route(lambda x: Model.static(x), F(3)) == 4


@every_decorator
def test_decorator_with_all_options(function, route):
    @function(Tout=[F, jnp.int32], name="both", output_shapes=[(2,), ()], stateful=True)
    def body(x):
        return [x[:2], len(x)]

    a, n = route(body, jnp.arange(3.0))
    np.testing.assert_array_equal(a, [0, 1])
    assert n == 3


@every_decorator
def test_decorator_of_an_op_without_inputs_or_results(function, route):
    runs = []

    @function(Tout=None)
    def log():
        runs.append(1)

    assert route(log) == []
    assert runs == [1]


@every_decorator
def test_decorated_errors_are_those_of_the_call(function):
    @function(Tout=F)
    def body(x, y):
        return x

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        body(1.0)


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


SUBBYTE = [jnp.int2, jnp.uint2, jnp.int4, jnp.uint4, jnp.float4_e2m1fn]


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


class Opaque:
    pass


OPAQUE = Opaque()
STATIC = {
    "str": "text",
    "empty str": "",
    "bytes": b"\x00raw",
    "None": None,
    "Path": pathlib.Path("a/b"),
    "object array": np.array([None, "x"], dtype=object),
    "string array": np.array(["ab", "c"]),
    "bytes array": np.array([b"ab"]),
    "datetime": np.datetime64("2020-01-01"),
    "datetime array": np.array(["2020-01-01"], "datetime64[D]"),
    "record array": np.zeros(2, [("a", "f4")]),
    "function": np.sin,
    "lambda": lambda: 1,
    "class": Opaque,
    "object": OPAQUE,
    "unhashable": {1, 2},
    "dtype": np.dtype("float32"),
    "slice": slice(1, 2),
    "struct": jax.ShapeDtypeStruct((3,), np.float32),
}


@pytest.mark.parametrize("value", STATIC.values(), ids=STATIC)
@both_sides
def test_anything_else_reaches_the_body_as_it_is(api, value, route):
    (before, got, after) = seen(route, api, inp=[1.0, value, 2])
    assert got is value
    assert (before, after) == (1.0, 2)


@pytest.mark.parametrize("value", [v for k, v in STATIC.items() if k != "None"], ids=[k for k in STATIC if k != "None"])
def test_static_leaves_under_vmap_and_grad(value, transport):
    got = []

    def body(x, s):
        got.append(s)
        return x * 2

    f = lambda x: py_function(body, [x, value], F, output_shapes=())
    np.testing.assert_array_equal(jax.vmap(f)(jnp.arange(3.0)), [0, 2, 4])
    assert jax.grad(f)(1.0) == 2
    assert jax.jit(jax.grad(f))(1.0) == 2
    assert all(s is value for s in got)


def test_a_str_subclass_and_int_enum(route):
    import enum

    class Mode(enum.IntEnum):
        A = 1

    (got,) = seen(route, py_func, inp=[Mode.A])
    assert got == 1


def test_jax_array_protocol(route):
    class Wrapped:
        def __init__(self, x):
            self.x = x

        def __jax_array__(self):
            return self.x

    (got,) = seen(route, lambda f, inp, t: py_func(f, [Wrapped(inp[0])], t), [jnp.arange(3.0)])
    np.testing.assert_array_equal(got, [0, 1, 2])


def test_subclasses_of_arrays_are_plain_arrays(route):
    class Tagged(np.ndarray):
        pass

    for dtype in (np.float32, np.float64):
        (got,) = seen(route, py_func, inp=[np.ones((1, 2), dtype).view(Tagged)])
        assert type(got) is np.ndarray
        assert got.shape == (1, 2)


# --------------------------------------------------------------- private copies

BIG = 200_000  # bytes far above any threshold of small arrays


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
@every_numpy_api
def test_inputs_are_private_writable_contiguous(api, n, route):
    x = jnp.arange(n, dtype=F)
    keep = np.array(x)

    def body(x):
        assert type(x) is np.ndarray
        assert x.flags.writeable
        assert x.flags.c_contiguous
        assert x.flags.aligned
        x[0] = 100.0
        return x

    y = route(lambda x: api(body, [x], F), x)
    np.testing.assert_array_equal(x, keep)
    assert y[0] == 100
    np.testing.assert_array_equal(y[1:], keep[1:])


def test_the_callers_numpy_array_is_unchanged(route):
    x = np.array([1.0, 2.0], np.float32)

    def clear_first(x):
        x[0] = 0.0
        return x

    np.testing.assert_array_equal(route(lambda: py_func(clear_first, [x], F)), [0, 2])
    np.testing.assert_array_equal(route(lambda x: py_func(clear_first, [x], F), x), [0, 2])
    np.testing.assert_array_equal(x, [1, 2])


LAYOUTS = {
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "strided": np.arange(10, dtype=np.float32)[::2],
    "reversed": np.arange(10, dtype=np.float32)[::-1],
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "read-only": np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), np.float32),
}


@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_arrives_contiguous(x, route):
    def body(a):
        assert a.flags.c_contiguous
        assert a.flags.writeable
        assert a.flags.owndata or a.base is not x
        a += 1
        return a

    keep = x.copy()
    np.testing.assert_array_equal(route(lambda: py_func(body, [x], F)), keep + 1)
    np.testing.assert_array_equal(x, keep)


def test_layout_of_a_transpose_inside_the_program(transport):
    def body(a):
        assert a.flags.c_contiguous
        return a

    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jax.jit(lambda x: py_func(body, [x.T], F))(x), x.T)


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
@every_api
def test_inputs_that_the_body_keeps_stay_valid(api, n, route):
    kept = []

    def body(x):
        kept.append(x)
        return x

    f = (jax.jit if route.jit else lambda f: f)(lambda x: api(body, [x], F, stateful=True))
    for i in range(22):
        jax.block_until_ready(f(jnp.full(n, i, F)))
    assert [float(x[0]) for x in kept] == list(range(22))
    assert all((np.asarray(x) == i).all() for i, x in enumerate(kept))


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_a_kept_view_keeps_its_values(n, route):
    kept = []

    def body(x):
        kept.append(x[1:][::2])
        return x

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(body, [x], F))
    for i in range(22):
        jax.block_until_ready(f(jnp.full(n, i, F)))
    assert all((x == i).all() for i, x in enumerate(kept))


def test_a_kept_memoryview_or_torch_like_alias_keeps_its_values(route):
    kept = []

    def body(x):
        kept.append((memoryview(x), x.ctypes))
        return x

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(body, [x], F))
    for i in range(22):
        jax.block_until_ready(f(jnp.full(BIG, i, F)))
    assert [view[0] for view, _ in kept] == list(range(22))


def test_a_returned_large_input_is_not_overwritten_by_the_next_call(route):
    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(lambda x: x, [x], F))
    results = [f(jnp.full(BIG, i, F)) for i in range(22)]
    assert all((np.asarray(y) == i).all() for i, y in enumerate(results))


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_the_body_may_change_what_it_returned(n, route):
    """A body's own buffer, returned and then changed by the next call."""
    buffer = np.zeros(n, np.float32)

    def body(x):
        buffer[:] = x
        return buffer

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(body, [x], F))
    results = []
    for i in range(5):
        results.append(jax.block_until_ready(f(jnp.full(n, i, F))))
    buffer[:] = -1
    assert [float(y[-1]) for y in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_py_function_may_return_its_own_numpy_buffer(n, route):
    buffer = np.zeros(n, np.float32)

    def body(x):
        buffer[:] = x
        return buffer

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_function(body, [x], F, output_shapes=(n,)))
    results = []
    for i in range(5):
        results.append(jax.block_until_ready(f(jnp.full(n, i, F))))
    assert [float(y[-1]) for y in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n", [3, 50_000], ids=["small", "large"])
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_vmap_gives_each_element_private_inputs(n, jit, transport):
    """Batched (x) and unbatched (y): writes reach no other element and no caller."""
    x, y = jnp.ones((4, n), F), jnp.ones(n, F)
    kept = []

    def body(x, y):
        assert x.flags.writeable
        assert y.flags.writeable
        assert (x == 1).all()
        assert (y == 1).all()
        kept.append((x, y))
        x[:] = 5
        y += len(kept)
        return x + y

    f = jax.vmap(lambda x, y: py_func(body, [x, y], F), in_axes=(0, None))
    f = jax.jit(f) if jit else f
    out = jax.block_until_ready(f(x, y))
    np.testing.assert_array_equal(out[:, 0], [7, 8, 9, 10])
    assert (np.asarray(x) == 1).all()
    assert (np.asarray(y) == 1).all()
    assert [float(b[0]) for _, b in kept] == [2, 3, 4, 5]
    first = list(kept)
    for _ in range(3):
        kept.clear()
        jax.block_until_ready(f(x, y))
    assert all((a == 5).all() for a, _ in first)
    assert [float(b[-1]) for _, b in first] == [2, 3, 4, 5]


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_block_methods_give_private_inputs(method, jit, transport):
    x, y = jnp.ones((4, 3), F), jnp.ones(3, F)

    def body(x, y):
        assert x.flags.writeable
        assert y.flags.writeable
        assert y.flags.c_contiguous
        x[...] = 5
        y[...] = 6
        return x + y

    f = jax.vmap(lambda x, y: py_func(body, [x, y], F, vmap_method=method), in_axes=(0, None))
    assert (jax.block_until_ready((jax.jit(f) if jit else f)(x, y)) == 11).all()
    assert (x == 1).all()
    assert (y == 1).all()


def test_copies_in_a_scan(transport):
    kept = []

    def body(x):
        kept.append(x)
        x += 1
        return x

    def program(x):
        return jax.lax.scan(lambda c, _: (py_func(body, [c], F),) * 2, x, None, length=25)

    last, ys = jax.jit(program)(jnp.zeros(BIG, F))
    np.testing.assert_array_equal(ys[:, 0], np.arange(1, 26))
    assert all((x == i + 1).all() for i, x in enumerate(kept))
    assert last[-1] == 25


def test_threads_share_no_copies(transport):
    """Six threads in one compiled program; large arrays, which are recycled."""
    wrong = []

    def body(x):
        if not (x == x[0]).all():
            wrong.append(x[0])
        x += 1
        return x

    f = jax.jit(lambda x: numpy_function(body, [x], F))
    batched = jax.jit(jax.vmap(lambda x: numpy_function(body, [x], F)))

    def work(k):
        x = jnp.full(BIG, float(k))
        for _ in range(20):
            if not (np.asarray(f(x)) == k + 1).all() or not (np.asarray(batched(jnp.stack([x, x]))) == k + 1).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_donated_arguments(transport):
    kept = []
    f = jax.jit(lambda x: py_func(lambda x: kept.append(x) or x * 2, [x], F), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert float(f(jnp.full(BIG, 3.0))[0]) == 6
    assert (kept[0] == 3).all()


# ------------------------------------------------------------------- copy=False


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_lent_inputs_are_read_only(n, route):
    def body(x):
        assert type(x) is np.ndarray
        assert not x.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 1
        return x * 2

    x = jnp.arange(n, dtype=F)
    np.testing.assert_array_equal(route(lambda x: py_func(body, [x], F, copy=False), x), x * 2)


def test_lent_inputs_cannot_be_made_writable_into_the_caller(route):
    x = np.arange(3, dtype=np.float32)

    def body(x):
        assert not x.flags.writeable
        return x

    np.testing.assert_array_equal(route(lambda: py_func(body, [x], F, copy=False)), [0, 1, 2])
    assert x.flags.writeable, "the caller's own array stays writable"


def test_keeping_a_lent_input_directly_warns():
    kept = []
    with pytest.warns(RuntimeWarning, match=r"py_func 'append'.*kept an input that copy=False lends.*copy=True"):
        py_func(kept.append, [jnp.arange(3.0)], None, copy=False)


def test_keeping_a_lent_input_under_jit_warns(transport):
    kept = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.block_until_ready(
            jax.jit(lambda x: py_func(lambda x: kept.append(x) or x * 2, [x], F, copy=False))(jnp.arange(3.0))
        )
    assert [str(w.message) for w in caught if "kept an input that copy=False lends" in str(w.message)]


def test_not_keeping_lent_inputs_does_not_warn(route):
    for body in (lambda x: x, lambda x: x * 2, lambda x: x[::1], lambda x: np.asarray(x)):
        x = jnp.arange(3.0)
        got = route(lambda x, body=body: py_func(body, [x], F, copy=False), x)
        np.testing.assert_array_equal(got, body(np.asarray(x)))


def test_returning_a_lent_input_gives_its_values(route):
    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(lambda x: x, [x], F, copy=False))
    results = [jax.block_until_ready(f(jnp.full(BIG, i, F))) for i in range(10)]
    assert [float(y[0]) for y in results] == list(range(10))


def test_result_of_a_lent_input_is_independent_of_the_callers_array():
    x = np.arange(300_000, dtype=np.float32)
    y = py_func(lambda x: x, [x], F, copy=False)
    x[:] = -1
    assert float(y[5]) == 5


def test_lent_inputs_under_vmap(transport):
    def body(x, y):
        assert not x.flags.writeable
        assert not y.flags.writeable
        return x + y

    f = jax.vmap(lambda x, y: py_func(body, [x, y], F, copy=False), in_axes=(0, None))
    for g in (f, jax.jit(f)):
        np.testing.assert_array_equal(g(jnp.arange(4.0), 1.0), [1, 2, 3, 4])


# ---------------------------------------------------------- traced closures


def by_cell(x):
    return lambda y: y + x


def by_nested_function(x):
    def helper(y):
        return y + x

    def body(y):
        return helper(y)

    return body


def by_default(x):
    return lambda y, x=x: y + x


def by_keyword_default(x):
    def body(y, *, x=x):
        return y + x

    return body


def by_partial(x):
    return functools.partial(lambda x, y: x + y, x)


def by_partial_keyword(x):
    return functools.partial(lambda y, x: x + y, x=x)


def by_partial_of_closure(x):
    return functools.partial(lambda z, y: y + x + z, 1.0)


def by_list_in_cell(x):
    box = [x]
    return lambda y: y + box[0]


def by_dict_in_cell(x):
    x = {"x": [x]}
    return lambda y: y + x["x"][0]


def by_bound_method_of_closure(x):
    class Body:
        def run(self, y):
            return y + x

    return Body().run


FOUND = {
    "cell": (by_cell, "x"),
    "nested function": (by_nested_function, "x"),
    "default": (by_default, "x"),
    "keyword default": (by_keyword_default, "x"),
    "partial": (by_partial, "argument 0 of functools.partial"),
    "partial keyword": (by_partial_keyword, "x"),
    "partial of closure": (by_partial_of_closure, "x"),
    "list in cell": (by_list_in_cell, "box"),
    "dict in cell": (by_dict_in_cell, "x"),
    "bound method": (by_bound_method_of_closure, "x"),
}
TRACINGS = {
    "jit": lambda f: jax.jit(f)(1.0),
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c), None), jnp.float32(1), None, length=2),
    "jit of grad": lambda f: jax.jit(jax.grad(f))(1.0),
}


@pytest.mark.parametrize("trace", TRACINGS.values(), ids=TRACINGS)
@pytest.mark.parametrize(("make", "name"), FOUND.values(), ids=FOUND)
@both_sides
def test_a_traced_value_in_a_closure_is_named(api, make, name, trace):
    with pytest.raises(ValueError, match=rf"func uses '{name}' from the code around it.*pass it through inp"):
        trace(lambda x: api(make(x), [2.0], F))


class Holder:
    def __init__(self, x):
        self.x = x

    def method(self, y):
        return y + self.x

    def __call__(self, y):
        return y + self.x


holder: list = []


def by_global(x):
    holder[:] = [x]
    return lambda y: y + holder[0]


ONLY_IN_THE_BODY = {
    "attribute of self": lambda x: Holder(x).method,
    "attribute of callable": Holder,
    "global": by_global,
}


@pytest.mark.parametrize("make", ONLY_IN_THE_BODY.values(), ids=ONLY_IN_THE_BODY)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_a_traced_value_found_only_in_the_body_gets_the_same_advice(api, make, transport):
    try:
        with pytest.raises(Exception, match=r"(?s)(Tracer|traced).*pass it through inp") as caught:
            jax.block_until_ready(jax.jit(lambda x: api(make(x), [2.0], F, output_shapes=()))(1.0))
        assert not isinstance(caught.value, AssertionError)
    finally:
        holder.clear()


@every_api
def test_concrete_closures_work(api, route):
    y, box = 2.0, [np.float32(3)]
    z = jnp.float32(4)

    def body(x, w=1.0):
        return x + y + box[0] + z + w

    assert route(lambda x: api(body, [x], F), F(0)) == 10


def test_recursive_functions_and_unset_cells(route):
    def body(x):
        return x if x < 1 else body(x - 1)

    if False:
        unset = 0

    def other(x):
        if x > 1000:
            return unset
        return x

    assert route(lambda x: numpy_function(body, [x], F), F(3)) == 0
    assert route(lambda x: numpy_function(other, [x], F), F(3)) == 3


def test_mutual_recursion(route):
    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    assert route(lambda n: numpy_function(even, [n], jnp.bool_), jnp.int32(6))


def test_asyncio_inside_a_body_works(route):
    async def work(x):
        await asyncio.sleep(0)
        return x * 2

    assert route(lambda x: numpy_function(lambda x: asyncio.run(work(x)), [x], F), F(3)) == 6


# --------------------------------------------------------------- kinds of func


KINDS = {
    "ufunc": np.negative,
    "builtin": lambda x: -x,
    "partial": functools.partial(np.multiply, np.float32(-1)),
    "callable object": type("Neg", (), {"__call__": lambda self, x: -x})(),
    "bound method": type("Neg", (), {"run": lambda self, x: -x})().run,
    "jitted": jax.jit(lambda x: -x),
    "wrapped": functools.wraps(np.sin)(lambda x: -x),
    "jax function": jnp.negative,
}


@pytest.mark.parametrize("func", KINDS.values(), ids=KINDS)
@both_sides
def test_any_callable(api, func, route):
    assert route(lambda x: api(func, [x], F), F(3)) == -3


def test_unhashable_callable(route):
    class Body:
        __hash__ = None

        def __call__(self, x):
            return x * 2

    assert route(lambda x: numpy_function(Body(), [x], F), F(3)) == 6


def test_callable_with_odd_equality(route):
    class Body:
        def __init__(self, by):
            self.by = by

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

        def __call__(self, x):
            return x * self.by

    assert [route(lambda x, by=by: numpy_function(Body(by), [x], F), F(3)) for by in (1, 2)] == [3, 6]


def test_many_inputs(route):
    xs = [F(i) for i in range(70)]
    assert route(lambda *xs: numpy_function(lambda *a: sum(a), list(xs), F), *xs) == sum(range(70))


def test_counter_checks_itself():
    body = Counter()
    assert body(np.float32(1)) == 2
    assert body.count == 1
    assert re.match("counter", body.__name__)

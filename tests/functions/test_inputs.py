"""What a function receives: pytrees in their structure, arrays and numbers as JAX makes them, all else as it is."""

import collections
import dataclasses
import enum
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import run
from tests.shared.functions import SMALL_DTYPES, WIDE_DTYPES, both_sides, dtype_id, numpy_function, py_func, py_function
from tests.shared.tables import rows

F = jnp.float32


def received(inp, api=py_func):
    """What the function of a direct call is given."""
    got = []
    assert api(lambda *args: got.append(args), inp, None) is None
    (arguments,) = got
    return arguments


# ------------------------------------------------------------------- structure

Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: object
    b: object
    tag: str = dataclasses.field(metadata={"static": True}, default="t")


def test_one_array_is_a_list_of_one():
    for x in (jnp.arange(3.0), np.arange(3.0, dtype=np.float32), 2.0):
        np.testing.assert_array_equal(py_func(np.negative, x, F), -np.asarray(x, np.float32))


@both_sides
def test_pytrees_arrive_in_their_structure(api):
    got = []

    def body(tree, point, state):
        got.append((tree, point, state))
        return tree["a"][0] + point.x + state.w

    program = jax.jit(lambda a, x, w: api(body, [{"a": [a, None, "word"]}, Point(x, 7), State(w, (), "tag")], F))
    assert program(F(1), F(2), F(3)) == 6
    (tree, point, state) = got[-1]  # to find the shape, py_function's function runs without values first
    assert tree["a"][1:] == [None, "word"]
    assert (type(point), point.y) == (Point, 7)
    assert (type(state), state.b, state.tag) == (State, (), "tag")


# ---------------------------------------------------------------- array leaves


FAST = [jnp.bool_, jnp.int8, jnp.uint32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.complex64, jnp.int64, jnp.float64]


@pytest.mark.parametrize("dtype", rows([*SMALL_DTYPES, *WIDE_DTYPES], FAST), ids=dtype_id)
@both_sides
def test_every_dtype_arrives_and_returns(api, dtype):
    """Several shapes directly, and once a vector in a compiled program and a batch of scalars."""
    got = []

    def body(x):
        got.append(x)
        return x

    op = lambda x: api(body, [x], dtype, stateful=True, output_shapes=x.shape)
    some = np.array([0, 1, 1, 0, 1, 0, 0], np.dtype(dtype))
    wide = dtype in WIDE_DTYPES
    if wide:
        some[1] = 2**40 + 1
    with jax.enable_x64(wide):
        calls = [(op, some), (op, some[1].reshape(())), (op, some[:0].reshape(2, 0)), (jax.jit(op), some)]
        for call, x in calls if api is numpy_function else calls[:3]:
            got.clear()
            y = run(call, x)
            (arrived,) = got
            assert isinstance(arrived, jax.Array if api is py_function else np.ndarray if x.shape else np.generic)
            assert arrived.dtype == y.dtype == x.dtype
            assert arrived.shape == y.shape == x.shape
            assert np.asarray(arrived).tobytes() == np.asarray(y).tobytes() == x.tobytes()
        if api is numpy_function:
            assert np.asarray(jax.vmap(op)(some)).tobytes() == some.tobytes()


NUMBERS = {
    "float": (1.5, "float32"),
    "int": (-3, "int32"),
    "bool": (True, "bool"),
    "complex": (1 + 2j, "complex64"),
    "int max": (2**31 - 1, "int32"),
    "int min": (-(2**31), "int32"),
    "float64 array": (np.array([1.5, 1e30]), "float32"),
    "uint64 array": (np.array([1, 2], np.uint64), "uint32"),
    "big endian": (np.array([1.5, 2.5], ">f4"), "float32"),
    "an empty wide array": (np.zeros((0, 2), np.int64), "int32"),
    "a subclass": (np.ones((1, 2)).view(type("Tagged", (np.ndarray,), {})), "float32"),
}


@pytest.mark.parametrize(("value", "dtype"), NUMBERS.values(), ids=NUMBERS)
@both_sides
def test_numbers_become_what_jax_makes_of_them(api, value, dtype):
    (got,) = received([value], api)
    assert got.dtype == np.dtype(dtype)
    assert got.dtype.isnative
    assert got.shape == np.shape(value)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(value).astype(dtype))
    kind = np.ndarray if np.ndim(value) else np.generic
    assert isinstance(got, jax.Array if api is py_function else kind)


TOO_WIDE = {
    "int": (2**31, "int32"),
    "huge int": (2**70, "int32"),
    "between int64 and uint64": (2**63, "int32|uint32"),
    "int64 array": (np.array([0, 2**31]), "int32"),
    "negative int64 array": (np.array([0, -(2**31) - 1]), "int32"),
    "uint64 array": (np.array([2**64 - 1], np.uint64), "uint32"),
    "in a pytree": ({"a": [2**31]}, "int32"),
}


@pytest.mark.parametrize(("value", "dtype"), TOO_WIDE.values(), ids=TOO_WIDE)
def test_an_integer_that_does_not_fit_is_an_error(value, dtype):
    with pytest.raises(OverflowError, match=rf"does not fit ({dtype}).*jax_enable_x64"):
        received([value])


@pytest.mark.usefixtures("x64")
def test_wide_numbers_stay_wide_with_x64():
    (a, b, c) = received([2**40, 1.5, np.array([1 + 2j])])
    assert (a.dtype, b.dtype, c.dtype, a) == (np.int64, np.float64, np.complex128, 2**40)
    with pytest.raises(OverflowError, match="does not fit"):
        received([2**70])


class Quantity(np.ndarray):
    """As astropy's: numbers with a unit."""

    unit = "km"


def test_a_unit_is_not_lost():
    distance = np.ones(2, np.float32).view(Quantity)
    with pytest.raises(TypeError, match=r"an input is a Quantity, and its unit would be lost; pass .*x\.to_value"):
        received([distance])
    with pytest.raises(TypeError, match=r"func returned a Quantity, and its unit would be lost; return .*x\.to_value"):
        numpy_function(lambda: distance, [], jax.ShapeDtypeStruct((2,), F))
    np.testing.assert_array_equal(numpy_function(lambda x: x, [np.asarray(distance)], F), [1, 1])


def test_what_jax_turns_into_an_array_is_one_and_refs_and_masks_are_none():
    with pytest.raises(TypeError, match=r"an input is a masked array, .*pass x.filled\(value\)"):
        received([np.ma.masked_array([1.0, 2.0], [True, False])])
    wrapped = type("Wrapped", (), {"__jax_array__": lambda self: jnp.arange(3.0)})()
    np.testing.assert_array_equal(received([wrapped])[0], [0, 1, 2])
    with pytest.raises(TypeError, match=r"'lambda': an input is a traced Ref.*pass its contents.*ref\[\.\.\.\]"):
        jax.jit(lambda ref: py_func(lambda x: x, [ref], F))(jax.new_ref(jnp.arange(3.0)))


# ------------------------------------------------------------- anything else

STATIC = {
    "str": "text",
    "bytes": b"\x00raw",
    "None": None,
    "Path": pathlib.Path("a/b"),
    "object array": np.array([None, "x"], dtype=object),
    "string array": np.array(["ab", "c"]),
    "record array": np.zeros(2, [("a", "f4")]),
    "function": np.sin,
    "object": object(),
    "unhashable": {1, 2},
    "struct": jax.ShapeDtypeStruct((3,), np.float32),
    "an enum of integers": enum.IntEnum("Mode", "A").A,
}


@pytest.mark.parametrize("value", STATIC.values(), ids=STATIC)
def test_what_is_no_number_reaches_the_function_as_it_is(value):
    for api in (numpy_function, py_function):
        (before, got, after) = received([1.0, value, 2], api)
        assert got is value
        assert (before, after) == (1.0, 2)


KEPT = {"an integer": 2, "a bool": True, "a tuple": (2, 2), "an array": np.ones(2), "a dict": {True: 1}}


@pytest.mark.parametrize("value", KEPT.values(), ids=KEPT)
def test_a_static_value_reaches_the_function_as_it_is(value):
    got = []
    op = lambda x: py_function(lambda x, v: (got.append(v), 2 * x)[1], [x, jaxpyop.static(value)], F)
    xs = jnp.ones(3)
    for f in (op, jax.jit(op), jax.vmap(op), jaxpyop.jit(op)):
        np.testing.assert_array_equal(f(xs), 2 * xs)
    np.testing.assert_array_equal(jax.grad(lambda x: op(x).sum())(xs), [2, 2, 2])
    assert got
    assert all(v is value for v in got)


def test_a_static_list_is_the_callers_so_traced_mode_refuses_it():
    log = []
    op = lambda x, mode: py_function(lambda x, log: (log.append(1), 2 * x)[1], [x, jaxpyop.static(log)], F, mode=mode)
    with pytest.raises(TypeError, match=r"jaxpyop.static holds a list or a dict, which func may change"):
        jax.jit(lambda x: op(x, "traced"))(1.0)
    assert run(jax.jit(lambda x: op(x, "auto")), 1.0) == 2
    assert log


def test_a_traced_value_is_not_static():
    with pytest.raises(TypeError, match=r"jaxpyop.static: .* is traced, and has no value yet"):
        jax.jit(lambda x: numpy_function(np.sin, [jaxpyop.static((x, 1))], F))(1.0)


# ------------------------------------------------ objects that change their state


@jax.tree_util.register_pytree_with_keys_class
class Grows:
    """A pytree of its attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def tree_flatten_with_keys(self):
        return tuple((jax.tree_util.GetAttrKey(name), x) for name, x in vars(self).items()), tuple(vars(self))

    @classmethod
    def tree_unflatten(cls, names, leaves):
        return cls(**dict(zip(names, leaves)))


def add_one(counter):
    counter.count = counter.count + 1


CHANGES = {
    "itself": (lambda c: c, lambda held: held, add_one, r"\.count of its Grows"),
    "in a dict in a tuple": (lambda c: (1, {"m": c}), lambda h: h[1]["m"], add_one, r"\.count of its Grows"),
    "a leaf that comes": (lambda c: c, lambda c: c, lambda c: setattr(c, "new", c.count), r"\.new of its Grows"),
    "a leaf that goes": (lambda c: c, lambda c: c, lambda c: delattr(c, "count"), r"\.count of its Grows"),
}
OVER = {"direct": lambda f: f, "jit": jax.jit, "grad": jax.grad}


@pytest.mark.parametrize(("hold", "take", "change", "named"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("over", OVER.values(), ids=OVER)
def test_a_changed_object_warns_once_for_each_op(over, hold, take, change, named, request):
    """The function got a copy, so the change is lost."""
    body = lambda held, x: (change(take(held)), x)[1]
    f = over(lambda x: py_function(body, [hold(Grows(count=F(1))), x], F, name=request.node.name))
    with pytest.warns(RuntimeWarning, match=rf"func changed {named}.*return the new state"):
        jax.block_until_ready(f(3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(f(3.0))
        assert py_function(lambda c, x: c.count * x, [Grows(count=F(2)), 3.0], F) == 6  # which only reads


def test_another_function_of_the_same_name_warns_of_a_changed_object_too():
    def adding(held, x):
        held.count = held.count + 1
        return x

    def doubling(held, x):
        held.count = held.count * 2
        return x

    for body in (adding, doubling):
        with pytest.warns(RuntimeWarning, match="func changed .*count"):
            py_function(body, [Grows(count=F(1)), 3.0], F, name="one name")


def test_an_error_about_a_number_says_what_to_write():
    with pytest.raises(TypeError) as caught:
        numpy_function(lambda x, n: [0] * x, [1.0, 3], F)
    assert any("jaxpyop.static(3) in inp keeps a" in note for note in caught.value.__notes__)


# ------------------------------------------------------------------- NumPy's numbers


def picked(table):
    return lambda n: np.asarray(table[n], F)


# Functions of a number that is 3, and what they return: all need a number, and none takes an array without axes.
NUMBER_USES = {
    "key of a dict": (picked({3: 0.5}), 0.5),
    "member of a set": (lambda n: F(n in {3}), 1),
    "length of a list": (lambda n: F(len([0.5] * n)), 3),
    "kind of a number": (lambda n: F(isinstance(n, np.integer)), 1),
    "size": (lambda n: F(np.zeros((n, n)).size), 9),
    "seed": (lambda n: F(np.random.default_rng(n).integers(1, 2)), 1),
}
SCALAR_ROUTES = {
    "direct": lambda op, n: op(n),
    "compiled": lambda op, n: jax.jit(op)(n),
    "batch": lambda op, n: jax.jit(jax.vmap(op))(jnp.stack([n, n])),
    "cut": lambda op, n: jaxpyop.jit(op)(n),
}


@pytest.mark.parametrize("route", SCALAR_ROUTES.values(), ids=SCALAR_ROUTES)
@pytest.mark.parametrize(("use", "expected"), NUMBER_USES.values(), ids=NUMBER_USES)
@pytest.mark.parametrize("copy", [True, False], ids=["copied", "lent"])
def test_a_numpy_function_gets_numpys_numbers(use, expected, route, copy):
    op = lambda n: numpy_function(use, [n], jax.ShapeDtypeStruct((), F), copy=copy)
    np.testing.assert_array_equal(route(op, jnp.int32(3)), expected)


def test_a_structure_and_a_keyword_hold_numpys_numbers_too():
    use = lambda tree, out: out.fill({3: 0.5}[tree["n"]])
    op = lambda n: numpy_function(use, [{"n": n}], jax.ShapeDtypeStruct((2,), F), out=True)
    np.testing.assert_array_equal(jax.jit(op)(3), [0.5, 0.5])


def test_what_a_function_keeps_of_a_lent_number_stays():
    kept = []
    op = jax.jit(lambda n: numpy_function(lambda n: kept.append(n) or n, [n], jnp.int32, copy=False))
    for n in range(3):
        op(n).block_until_ready()
    assert kept == [0, 1, 2]


# ------------------------------------------------------------------- 64 bits by request


WIDE_API = {"numpy_function": jaxpyop.numpy_function, "py_function": py_function, "py_func": jaxpyop.py_func}
WIDE_ROUTES = SCALAR_ROUTES | {
    "eager batch": lambda op, n: jax.vmap(op)(jnp.stack([n, n])),
}


@pytest.fixture
def explicit_x64(request):
    """A value of JAX's setting for one test."""
    before = jax.config.jax_explicit_x64_dtypes
    jax.config.update("jax_explicit_x64_dtypes", request.param)
    yield
    jax.config.update("jax_explicit_x64_dtypes", before)


@pytest.mark.parametrize("explicit_x64", ["allow"], indirect=True)
@pytest.mark.parametrize("api", WIDE_API.values(), ids=WIDE_API)
@pytest.mark.parametrize("route", WIDE_ROUTES.values(), ids=WIDE_ROUTES)
@pytest.mark.usefixtures("explicit_x64")
def test_where_jax_allows_64_bits_by_request_tout_does(api, route):
    op = lambda x: api(lambda x: x * x, [x], jax.ShapeDtypeStruct((), jnp.float64))
    large = jnp.full((), 2, jnp.float64) ** 100
    found = route(op, large)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, 2.0**200)


@pytest.mark.parametrize("explicit_x64", ["allow"], indirect=True)
@pytest.mark.usefixtures("explicit_x64")
def test_the_gradient_has_64_bits_where_they_are_allowed():
    op = lambda x: py_function(lambda x: x * x, [x], jax.ShapeDtypeStruct((), jnp.float64))
    large = jnp.full((), 2, jnp.float64) ** 200
    for gradient in (jax.grad(op), jax.jit(jax.grad(op))):
        assert gradient(large).dtype == np.float64
        assert float(gradient(large)) == 2.0**201


def test_a_decorated_function_that_was_made_before_the_setting(request):
    with pytest.warns(UserWarning, match="float64"):
        third = numpy_function(Tout=jnp.float64)(lambda x: np.float64(1) / 3)
    for value, kind in (("allow", np.float64), ("warn", np.float32), ("allow", np.float64)):
        jax.config.update("jax_explicit_x64_dtypes", value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert third(F(1)).dtype == kind
        finally:
            jax.config.update("jax_explicit_x64_dtypes", "warn")


@pytest.mark.parametrize("explicit_x64", ["error"], indirect=True)
@pytest.mark.usefixtures("explicit_x64")
def test_where_jax_refuses_64_bits_tout_does():
    with pytest.raises(ValueError, match=r"dtype float64 requested in Tout is not available.*or declare float32"):
        numpy_function(lambda x: x, [1.0], jnp.float64)
    assert numpy_function(lambda x: x, [1.0], float).dtype == F

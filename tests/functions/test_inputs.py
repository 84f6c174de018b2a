"""What a function receives: pytrees in their structure, arrays and numbers as JAX makes them, all else as it is."""

from __future__ import annotations

import collections
import dataclasses
import enum
import pathlib
import warnings

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared.examples import few, many
from tests.shared.functions import (
    GARBLED,
    SMALL_DTYPES,
    WIDE_DTYPES,
    both_sides,
    dtype_id,
    every_api,
    numpy_function,
    py_func,
    py_function,
)

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


def test_a_tuple_of_inputs_keeps_their_order():
    assert numpy_function(np.subtract, (F(3), F(1)), F) == 2
    assert jax.jit(lambda x, y: numpy_function(np.subtract, (x, y), F))(F(3), F(1)) == 2


def test_seventy_inputs_keep_their_order():
    xs = [F(i) for i in range(70)]
    weighed = lambda *a: sum(k * v for k, v in enumerate(a))
    assert jax.jit(lambda *xs: numpy_function(weighed, list(xs), F))(*xs) == sum(k * k for k in range(70))


@every_api
def test_pytrees_arrive_in_their_structure(api):
    got = []

    def body(tree, point, state):
        got.append((tree, point, state))
        return tree["a"][0] + point.x + state.w

    @jax.jit
    def program(a, x, w):
        return api(body, [{"a": [a, None, "word"]}, Point(x, 7), State(w, (), "tag")], F)

    assert program(F(1), F(2), F(3)) == 6
    (tree, point, state) = got[-1]  # to find the shape, py_function's function runs without values first
    assert tree["a"][1:] == [None, "word"]
    assert isinstance(point, Point)
    assert point.y == 7
    assert isinstance(state, State)
    assert (state.b, state.tag) == ((), "tag")


def trees():
    leaves = st.one_of(
        st.sampled_from([None, "s", b"b", 1.5, 2, True, 1j]),
        hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3), elements=st.just(1.0)),
    )
    containers = lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
    )
    return st.recursive(leaves, containers, max_leaves=6)


def arrives_as_it_is(tree):
    (got,) = received([tree])
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(tree)):
        if isinstance(b, (str, bytes)):
            assert a is b
        else:
            assert isinstance(a, np.ndarray)
            np.testing.assert_array_equal(a, np.asarray(b, a.dtype))
            assert a.shape == np.shape(b)


test_any_pytree_arrives_as_it_is = few(given(tree=trees()), arrives_as_it_is, examples=20)
test_many_pytrees_arrive_as_they_are = many(given(tree=trees()), arrives_as_it_is, examples=300)


# ---------------------------------------------------------------- array leaves


@pytest.mark.parametrize("dtype", SMALL_DTYPES, ids=dtype_id)
@both_sides
def test_every_dtype_arrives_and_returns(api, dtype):
    """Directly for several shapes, and in a compiled program."""
    got = []

    def body(x):
        got.append(x)
        return x

    def check(call, x):
        got.clear()
        y = call(x)
        (arrived,) = got
        assert isinstance(arrived, jax.Array if api is py_function else np.ndarray)
        assert arrived.dtype == y.dtype == x.dtype
        assert arrived.shape == y.shape == x.shape
        np.testing.assert_array_equal(np.asarray(arrived), x)
        np.testing.assert_array_equal(np.asarray(y), x)

    op = lambda x: api(body, [x], dtype, stateful=True, output_shapes=x.shape)
    for shape in [(3,), (), (2, 0)]:
        check(op, np.ones(shape, np.dtype(dtype)))
    check(lambda x: jax.block_until_ready(jax.jit(op)(x)), np.ones(3, np.dtype(dtype)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=dtype_id)
@both_sides
def test_wide_dtypes_arrive_and_return_with_x64(api, dtype):
    x = np.array([1, 2, 2**40], np.dtype(dtype))
    got = []

    def body(x):
        got.append(x.dtype)
        return x

    op = lambda x: api(body, [x], dtype, stateful=True)
    for y in (op(x), jax.block_until_ready(jax.jit(op)(x))):
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, x)
    assert got == [x.dtype, x.dtype]


SUBBYTE = [d for d in (jnp.int2, jnp.uint2, jnp.int4, jnp.uint4, jnp.float4_e2m1fn) if d not in GARBLED]


@pytest.mark.parametrize("dtype", SUBBYTE, ids=dtype_id)
@both_sides
def test_packed_dtypes_keep_each_value(api, dtype):
    values = np.array([0, 1, 1, 0, 1, 0, 0], np.dtype(dtype))
    rows = np.stack([values, values[::-1]])
    op = lambda x: api(lambda x: np.asarray(x)[::-1], [x], dtype, output_shapes=(7,))
    np.testing.assert_array_equal(np.asarray(op(values)), values[::-1])
    np.testing.assert_array_equal(np.asarray(jax.jit(jax.vmap(op))(rows)), rows[::-1])


NUMBERS = {
    "float": (1.5, np.float32),
    "int": (-3, np.int32),
    "bool": (True, np.bool_),
    "complex": (1 + 2j, np.complex64),
    "int max": (2**31 - 1, np.int32),
    "int min": (-(2**31), np.int32),
    "inf": (float("inf"), np.float32),
    "np.float64": (np.float64(1.5), np.float32),
    "np.int64": (np.int64(-5), np.int32),
    "np.uint64": (np.uint64(5), np.uint32),
    "np.bool": (np.bool_(True), np.bool_),
    "float64 array": (np.array([1.5, 1e30]), np.float32),
    "int64 array": (np.array([1, 2]), np.int32),
    "uint64 array": (np.array([1, 2], np.uint64), np.uint32),
    "complex128 array": (np.array([1j]), np.complex64),
    "big endian": (np.array([1.5, 2.5], ">f4"), np.float32),
    "big endian int": (np.array([1, 2], ">i2"), np.int16),
    "an empty wide array": (np.zeros((0, 2), np.int64), np.int32),
}


@pytest.mark.parametrize(("value", "dtype"), NUMBERS.values(), ids=NUMBERS)
@both_sides
def test_numbers_become_what_jax_makes_of_them(api, value, dtype):
    (got,) = received([value], api)
    assert got.dtype == np.dtype(dtype)
    assert got.dtype.isnative
    assert got.shape == np.shape(value)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(value).astype(dtype))
    assert isinstance(got, jax.Array if api is py_function else np.ndarray)


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
def test_an_integer_that_does_not_fit_is_an_error(api, value, dtype):
    with pytest.raises(OverflowError, match=rf"does not fit ({dtype}).*jax_enable_x64"):
        received([value], api)


@pytest.mark.usefixtures("x64")
def test_wide_numbers_stay_wide_with_x64():
    (a, b, c) = received([2**40, 1.5, np.array([1 + 2j])])
    assert (a.dtype, b.dtype, c.dtype) == (np.int64, np.float64, np.complex128)
    assert a == 2**40
    with pytest.raises(OverflowError, match="does not fit"):
        received([2**70])


def test_subclasses_of_arrays_and_what_jax_turns_into_one_are_plain_arrays():
    class Tagged(np.ndarray):
        pass

    class Wrapped:
        def __jax_array__(self):
            return jnp.arange(3.0)

    for dtype in (np.float32, np.float64):
        (got,) = received([np.ones((1, 2), dtype).view(Tagged)])
        assert type(got) is np.ndarray
        assert got.shape == (1, 2)
    np.testing.assert_array_equal(received([Wrapped()])[0], [0, 1, 2])


def test_a_traced_ref_is_refused():
    ref = jax.new_ref(jnp.arange(3.0))
    with pytest.raises(TypeError, match=r"'lambda': an input is a traced Ref.*pass its contents.*ref\[\.\.\.\]"):
        jax.jit(lambda ref: py_func(lambda x: x, [ref], F))(ref)


# ------------------------------------------------------------- anything else


class Opaque:
    pass


STATIC = {
    "str": "text",
    "empty str": "",
    "bytes": b"\x00raw",
    "None": None,
    "Path": pathlib.Path("a/b"),
    "object array": np.array([None, "x"], dtype=object),
    "string array": np.array(["ab", "c"]),
    "datetime": np.datetime64("2020-01-01"),
    "datetime array": np.array(["2020-01-01"], "datetime64[D]"),
    "record array": np.zeros(2, [("a", "f4")]),
    "function": np.sin,
    "class": Opaque,
    "object": Opaque(),
    "unhashable": {1, 2},
    "dtype": np.dtype("float32"),
    "slice": slice(1, 2),
    "struct": jax.ShapeDtypeStruct((3,), np.float32),
    "an enum of integers": enum.IntEnum("Mode", "A").A,
}


@pytest.mark.parametrize("value", STATIC.values(), ids=STATIC)
@both_sides
def test_what_is_no_number_reaches_the_function_as_it_is(api, value):
    (before, got, after) = received([1.0, value, 2], api)
    assert got is value
    assert (before, after) == (1.0, 2)


def test_all_of_them_reach_it_under_jit_vmap_and_grad():
    got = []

    def body(x, *static):
        got.append(static)
        return x * 2

    f = lambda x: py_function(body, [x, *STATIC.values()], F, output_shapes=())
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(jnp.arange(3.0)), [0, 2, 4])
    assert jax.grad(f)(1.0) == jax.jit(jax.grad(f))(1.0) == 2
    for static in got:
        assert all(a is b for a, b in zip(static, STATIC.values(), strict=True))


# ------------------------------------------------ objects that change their state


@jax.tree_util.register_pytree_with_keys_class
class Grows:
    """A pytree of its attributes."""

    def __init__(self, count):
        self.count = count

    def tree_flatten_with_keys(self):
        return tuple((jax.tree_util.GetAttrKey(name), x) for name, x in vars(self).items()), tuple(vars(self))

    @classmethod
    def tree_unflatten(cls, names, leaves):
        made = cls.__new__(cls)
        vars(made).update(zip(names, leaves))
        return made


def add_one(counter):
    counter.count = counter.count + 1


CHANGES = {
    "itself": (lambda c: c, lambda held: held, add_one, r"\.count of inp\[0\]"),
    "in a list": (lambda c: [c], lambda held: held[0], add_one, r"\.count of inp\[0\]\[0\]"),
    "in a dict in a tuple": (
        lambda c: (1, {"m": c}),
        lambda held: held[1]["m"],
        add_one,
        r"\.count of inp\[0\]\[1\]\['m'\]",
    ),
    "a leaf that comes": (lambda c: c, lambda c: c, lambda c: setattr(c, "new", c.count), r"\.new of inp\[0\]"),
    "a leaf that goes": (lambda c: c, lambda c: c, lambda c: delattr(c, "count"), r"\.count of inp\[0\]"),
}


@pytest.mark.parametrize(("hold", "take", "change", "named"), CHANGES.values(), ids=CHANGES)
def test_a_changed_object_warns_once_for_each_op(hold, take, change, named, request):
    """The function got a copy, so the change is lost."""

    def f(held, x):
        change(take(held))
        return x

    op = lambda x: py_function(f, [hold(Grows(F(1))), x], F, name=request.node.name)
    with pytest.warns(RuntimeWarning, match=rf"func changed {named}.*return the new state"):
        op(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op(3.0)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("over", [jax.jit, jax.grad], ids=["jit", "grad"])
def test_a_changed_object_warns_in_programs_too(over, mode, request):
    def step(counter, x):
        add_one(counter)
        return x * counter.count

    f = over(lambda x: py_function(step, [Grows(F(1)), x], F, mode=mode, name=request.node.name))
    with pytest.warns(RuntimeWarning, match=r"func changed \.count of inp\[0\]"):
        assert jax.block_until_ready(f(3.0)) in (6, 2)


def test_an_object_that_is_only_read_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert py_function(lambda c, x: c.count * x, [Grows(F(2)), 3.0], F) == 6


@pytest.mark.slow
def test_a_module_of_flax():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    bn = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    with pytest.warns(RuntimeWarning, match=r"func changed .* of inp\[0\].*nnx\.split"):
        py_function(lambda m, x: m(x), [bn, jnp.ones((3, 2))], jax.ShapeDtypeStruct((3, 2), F))

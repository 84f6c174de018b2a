"""Bodies that return what they should not, or arrays of odd kinds.

Each case is a clear error or the right result, in every way to run a program,
and the next call of the same compiled program is right. What `Tout` allows in
general is in test_results.py. JAXPYOP_TEST_LONG=1 runs more programs.
"""

from __future__ import annotations

import array
import collections
import ctypes
import decimal
import functools
import os
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host.errors import KEPT
from tests.shared.util import both_sides, eventually, numpy_function, py_function, run

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


@functools.cache  # made outside the body
def leaked_tracer():
    kept = []
    jax.jit(lambda x: kept.append(x) or x)(X)
    return kept[0]


@functools.cache  # made outside the body
def deleted():
    x = jnp.ones(3) * 2
    x.delete()
    return x


@functools.cache  # made outside the body
def donated():
    x = jnp.ones(3) * 2
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x


def self_containing():
    made = []
    made.append(made)
    return made


def nested(depth=5000):
    made = []
    for _ in range(depth):
        made = [made]
    return made


async def coroutine():
    return 1.0


class NoArray:
    def __array__(self, dtype=None, copy=None):
        return "text"


class Lying:
    shape = (3,)
    dtype = np.dtype("float32")


class PretendsArray:
    __class__ = property(lambda self: np.ndarray)


class HostileList(list):
    def __len__(self):
        return 1

    def __iter__(self):
        raise RuntimeError("not to be read")


class HostileMapping(dict):
    def __getitem__(self, key):
        raise RuntimeError("not to be read")


class BrokenRepr:
    def __repr__(self):
        raise RuntimeError("no text")


WRONG = {
    "None": (lambda: None, "None"),
    "string": (lambda: "text", "numbers"),
    "object": (object, "numbers"),
    "broken repr": (BrokenRepr, "numbers"),
    "class": (lambda: np.float32, "numbers"),
    "ellipsis": (lambda: ..., "numbers"),
    "NotImplemented": (lambda: NotImplemented, "numbers"),
    "decimal": (lambda: decimal.Decimal("1.5"), "numbers"),
    "ragged list": (lambda: [[1.0], [1.0, 2.0], 3.0], "a list of 3"),
    "a list that holds itself": (self_containing, "a list of 1"),
    "a list nested 5000 deep": (nested, "a list of 1"),
    "a list that cannot be read": (lambda: HostileList([1.0]), "a HostileList of 1"),
    "a dict that cannot be read": (lambda: HostileMapping(a=1.0), "a HostileMapping"),
    "wrong count": (lambda: (1.0, 2.0), "a tuple of 2"),
    "dict": (lambda: {"a": 1.0}, "a dict"),
    "wrong shape": (lambda: np.ones((2, 2), np.float32), r"shape \(2, 2\)"),
    "scalar for an array": (lambda: 1.0, r"shape \(\)"),
    "wrong dtype kind": (lambda: np.ones(3, np.complex64), "complex64"),
    "generator": (lambda: (i for i in range(3)), "never run"),
    "coroutine": (lambda: coroutine(), "never run"),
    "map": (lambda: map(float, [1, 2, 3]), "numbers"),
    "dict values": (lambda: {1: 1.0}.values(), "numbers"),
    "masked array": (lambda: np.ma.array([1.0, 2, 3], mask=[0, 1, 0]), "mask would be lost"),
    "0-d object array": (lambda: np.array(1.0, object), "numbers"),
    "object array": (lambda: np.array([1.0, 2, 3], object), "numbers"),
    "strings of numbers": (lambda: np.array([b"1", b"2", b"3"]), "numbers"),
    "structured": (lambda: np.zeros(3, [("a", "f4")]), "numbers"),
    "record": (lambda: np.zeros(3, [("a", "f4")]).view(np.recarray)[0], "numbers"),
    "datetime64": (lambda: np.zeros(3, "datetime64[s]"), "numbers"),
    "float0": (lambda: np.zeros(3, jax.dtypes.float0), "numbers|bool"),
    "typed key": (lambda: jax.random.key(0), "key_data"),
    "no array from __array__": (NoArray, "numbers"),
    "shape and dtype alone": (Lying, "numbers"),
    "a struct": (lambda: jax.ShapeDtypeStruct((3,), F), "numbers"),
    "pretends to be an array": (PretendsArray, "numbers"),
    "a tracer from elsewhere": (leaked_tracer, "traced|Tracer"),
    "deleted array": (deleted, "deleted"),
    "donated array": (donated, "deleted"),
}
TO_INT = {
    "nan": lambda: np.array([1.0, np.nan, 2.0]),
    "too large int": lambda: np.array([1, 2**40, 3]),
    "far too large int": lambda: [2**100],
    "float": lambda: np.ones(3, np.float32),
}


class Sometimes:
    """A body that returns 2x, or what `make` makes while `hostile`."""

    def __init__(self, make):
        self.make = make
        self.hostile = False

    def __call__(self, x):
        return self.make() if self.hostile else x * 2

    def vjp(self, inputs, outputs, cotangents):
        return 2 * cotangents[0]


def total(op):
    return lambda x: op(x).sum()


# How to run an op of three numbers, and what it gives for X where the body doubles.
PROGRAMS = {
    "direct": (lambda op: op, X * 2),
    "jit": (jax.jit, X * 2),
    "vmap": (lambda op: lambda x: jax.vmap(op)(jnp.stack([x, x]))[1], X * 2),
    "jit of vmap": (lambda op: jax.jit(lambda x: jax.vmap(op)(jnp.stack([x, x]))[1]), X * 2),
    "grad": (lambda op: jax.grad(total(op)), jnp.full(3, 2.0)),
    "jit of grad": (lambda op: jax.jit(jax.grad(total(op))), jnp.full(3, 2.0)),
    "jit of vmap of grad": (
        lambda op: jax.jit(lambda x: jax.vmap(jax.grad(total(op)))(jnp.stack([x, x]))[1]),
        jnp.full(3, 2.0),
    ),
    "jit of scan": (
        lambda op: jax.jit(lambda x: jax.lax.scan(lambda c, _: (c, op(c)), x, None, length=2)[1][1]),
        X * 2,
    ),
}


if not os.environ.get("JAXPYOP_TEST_LONG"):
    PROGRAMS = {name: PROGRAMS[name] for name in ("direct", "jit", "jit of vmap", "jit of grad")}


def wrapped(api, body, **options):
    options |= {"vjp": body.vjp} if api is numpy_function else {}
    return lambda x: api(body, [x], F, output_shapes=(3,), **options)


@pytest.mark.parametrize(("make", "text"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(("program", "right"), PROGRAMS.values(), ids=PROGRAMS)
@both_sides
def test_a_wrong_result_is_a_clear_error_and_the_next_call_is_right(api, program, right, make, text, transport):
    body = Sometimes(make)
    f = program(wrapped(api, body))
    np.testing.assert_array_equal(run(f, X), right)
    body.hostile = True
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=f"'Sometimes': func returned.*({text})"):
            run(f, X)
    body.hostile = False
    np.testing.assert_array_equal(run(f, X), right)


@pytest.mark.parametrize("make", TO_INT.values(), ids=TO_INT)
@both_sides
def test_what_no_integer_is(api, make, route):
    body = Sometimes(make)
    f = lambda x: api(body, [x], jnp.int32)
    f = jax.jit(f) if route.jit else f
    x = jnp.arange(3)
    for hostile in (True, False, True, False):
        body.hostile = hostile
        if hostile:
            with pytest.raises((TypeError, OverflowError), match=r"func returned.*(fit|casting=)"):
                run(f, x)
        else:
            np.testing.assert_array_equal(run(f, x), x * 2)


# JAX finds a tracer that jit left behind later, and its error is JAX's own.
WRONG_WHEN_TRACED = {name: case for name, case in WRONG.items() if name != "a tracer from elsewhere"}


@pytest.mark.parametrize(("make", "text"), WRONG_WHEN_TRACED.values(), ids=WRONG_WHEN_TRACED)
def test_traced_mode_refuses_a_wrong_result_when_it_traces(make, text):
    body = Sometimes(make)
    f = jax.jit(lambda x: py_function(body, [x], F, output_shapes=(3,), mode="traced"))
    if make in (deleted, donated):
        make()
    body.hostile = True
    with pytest.raises((TypeError, ValueError), match=f"'Sometimes': func returned.*({text})"):
        jax.block_until_ready(f(X))
    body.hostile = False
    np.testing.assert_array_equal(f(X), X * 2)


class Subclass(np.ndarray):
    pass


class HostileSubclass(np.ndarray):
    """Every method that a library might call fails."""

    shape = property(lambda self: (7,))

    def _no(self, *args, **kwargs):
        raise RuntimeError("not to be called")

    __array_function__ = __array_ufunc__ = copy = astype = reshape = __getitem__ = _no


def read_only():
    x = np.array([1, 2, 3], np.float32)
    x.flags.writeable = False
    return x


ODD = {
    "subclass": lambda: np.array([1, 2, 3], np.float32).view(Subclass),
    "hostile subclass": lambda: np.array([1, 2, 3], np.float32).view(HostileSubclass),
    "hostile wide subclass": lambda: np.array([1, 2, 3], np.float64).view(HostileSubclass),
    "memoryview": lambda: memoryview(np.array([1, 2, 3], np.float32)),
    "bytearray": lambda: bytearray(b"\1\2\3"),
    "array.array": lambda: array.array("d", [1, 2, 3]),
    "ctypes array": lambda: (ctypes.c_float * 3)(1, 2, 3),
    "range": lambda: range(1, 4),
    "deque": lambda: collections.deque([1.0, 2.0, 3.0]),
    "read-only": read_only,
    "big-endian": lambda: np.array([1, 2, 3], ">f4"),
    "wide big-endian": lambda: np.array([1, 2, 3], ">f8"),
    "big-endian integers": lambda: np.array([1, 2, 3], ">i8"),
    "longdouble": lambda: np.array([1, 2, 3], np.longdouble),
    "column of a Fortran array": lambda: np.asfortranarray([[3.0, 0], [2, 0], [1, 0]])[::-1, 0],
    "negative strides": lambda: np.array([3, 2, 1], np.float32)[::-1],
    "unaligned": lambda: np.frombuffer(b"\0" + np.float32([1, 2, 3]).tobytes(), np.uint8)[1:].view(np.float32),
    "list of one": lambda: [np.array([1, 2, 3], np.float32)],
    "weakly typed": lambda: jnp.asarray([1.0, 2.0, 3.0]) * 1.0,
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
@pytest.mark.parametrize("program", ["direct", "jit", "jit of vmap", "jit of grad"])
@both_sides
def test_odd_arrays_are_arrays(api, program, make, transport):
    body = Sometimes(make)
    wrap, right = PROGRAMS[program]
    f = wrap(wrapped(api, body))
    for hostile in (True, False, True):
        body.hostile = hostile
        if not hostile:
            wanted = right
        elif program == "jit of grad":  # of a constant; vjp= is not told
            wanted = right * 0 if api is py_function else right
        else:
            wanted = [1, 2, 3]
        np.testing.assert_array_equal(run(f, X), wanted)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@both_sides
def test_a_matrix_is_an_array_of_two_axes(api, dtype, route):
    f = lambda x: api(lambda x: np.matrix([[1, 2, 3]], dtype), [x], F, output_shapes=(1, 3))
    np.testing.assert_array_equal(route(f, X), [[1, 2, 3]])
    f = lambda x: api(lambda x: np.matrix([[1, 2, 3]], dtype), [x], F, output_shapes=(3,))
    with pytest.raises(ValueError, match=r"shape \(1, 3\) where \(3,\) was declared"), jaxpyop.reraise():
        route(f, X)


def test_a_key_from_a_traced_body_says_what_to_return():
    with pytest.raises(TypeError, match=r"typed key; return jax.random.key_data\(key\)"):
        jax.jit(lambda: py_function(lambda: jax.random.key(0), [], jnp.uint32, output_shapes=(), mode="traced"))()


@both_sides
def test_hostile_results_are_freed(api, route):
    """After the error and as many as are kept, nothing holds what was returned."""
    refs = []

    class Thing:
        pass

    def body(x):
        thing = Thing()
        refs.append(weakref.ref(thing))
        return thing

    f = lambda x: api(body, [x], F, output_shapes=(3,))
    f = jax.jit(f) if route.jit else f
    for _ in range(KEPT + 10):
        with pytest.raises(TypeError, match="numbers"):
            run(f, X)
    assert eventually(lambda: sum(ref() is not None for ref in refs) <= KEPT + 1)

"""Inputs that are not arrays reach a body as they are."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.util import (
    py_func,
    py_function,
    seen,
)

F = jnp.float32
both_sides = pytest.mark.parametrize("api", [py_function, py_func])


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

"""The short way to a result: taken by what functions usually return, with the same outcome as the long way."""

from __future__ import annotations

import collections
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop._op.body import user as bodies
from jaxpyop._op.values.cast import usual_of
from jaxpyop._op.values.tout import read_tout
from tests.shared.util import numpy_function

F = jnp.float32
I32 = jnp.int32
BIG = 1e300

# What is returned, and Tout.
SHORT = {
    "float32 array": (np.ones((), np.float32), F),
    "float32": (np.float32(1), F),
    "float": (1.5, F),
    "float64 array": (np.full((), 0.1), F),
    "float64": (np.float64(0.1), F),
    "int64": (np.int64(7), I32),
    "int": (7, I32),
    "int as a float": (7, F),
    "int64 as a float": (np.int64(7), F),
    "bool": (True, jnp.bool_),
    "float to float16": (0.1, jnp.float16),
    "a vector of float64": (np.array([0.1, BIG]), F),
    "an empty array": (np.empty((0,), np.float64), F),
    "a tuple": ((np.float32(1), 2), (F, I32)),
    "a list": ([0.5, np.float64(2)], [F, F]),
    "a dict": ({"b": 1, "a": 0.5}, {"a": F, "b": I32}),
}
LONG = {
    "a float too large": (BIG, F),
    "nan": (float("nan"), F),
    "float64 nan": (np.float64("nan"), F),
    "float64 too large": (np.float64(BIG), F),
    "an int too large": (2**40, I32),
    "int64 too large": (np.int64(2**40), I32),
    "a negative number for uint8": (-1, jnp.uint8),
    "an int beyond 2**53": (2**60 + 2**36 + 1, F),
    "a float for int": (1.5, I32),
    "an array of integers": (np.arange(3), I32),
    "complex": (1j, F),
    "complex for complex": (1j, jnp.complex64),
    "bfloat16": (1.0, jnp.bfloat16),
    "float8": (1.0, jnp.float8_e5m2),
    "float8 as a float": (np.ones((), jnp.float8_e5m2), F),
    "bool as a float": (True, F),
    "a list as an array": ([1.0, 2.0], F),
    "one in a list": ([1.0], F),
    "one for a list": (1.0, [F]),
    "one result less": ((1.0,), (F, F)),
    "a list for a tuple": ([1.0, 2.0], (F, F)),
    "other keys": ({"a": 1.0, "c": 2.0}, {"a": F, "b": F}),
    "a subclass of dict": (collections.OrderedDict(b=1.0, a=2.0), {"a": F, "b": F}),
    "a nested tuple": ((1.0, (2.0,)), (F, (F,))),
    "a masked array": (np.ma.masked_array([1.0, 2.0], [True, False]), F),
    "a string": ("1", F),
    "None": (None, F),
    "a jax.Array": (jnp.float32(1), F),
}
CASTING = ["same_kind", "no", "unsafe"]


def outcome(value, tout, **options):
    """What comes of it, or how it fails."""
    try:
        found = numpy_function(lambda x: value, [0.0], tout, **options)
    except Exception as error:
        return str(error)
    return [(a.dtype, a.shape, np.asarray(a).tobytes()) for a in jax.tree.leaves(found)], jax.tree.structure(found)


@pytest.fixture
def matched(monkeypatch):
    """What goes the long way."""
    found = []
    match = bodies.UserBody._matched
    monkeypatch.setattr(bodies.UserBody, "_matched", lambda self, value: found.append(1) or match(self, value))
    return found


@pytest.mark.parametrize("casting", CASTING)
@pytest.mark.parametrize(("value", "tout"), (SHORT | LONG).values(), ids=SHORT | LONG)
def test_both_ways_end_alike(value, tout, casting, monkeypatch):
    short = outcome(value, tout, casting=casting)
    monkeypatch.setattr(bodies, "usual_of", lambda spec, casting: None)
    assert short == outcome(value, tout, casting=casting)


@pytest.mark.parametrize(("value", "tout"), SHORT.values(), ids=SHORT)
def test_the_short_way_is_taken(value, tout, matched):
    outcome(value, tout)
    assert not matched


@pytest.mark.parametrize(("value", "tout"), LONG.values(), ids=LONG)
def test_the_long_way_is_taken(value, tout, matched):
    outcome(value, tout)
    assert matched


@pytest.mark.parametrize(
    ("shapes", "said"),
    [((2,), "where (2,) was promised"), (lambda x: (2,), "where (2,) was promised"), ((), "")],
    ids=["another", "another, of a function", "the same"],
)
def test_a_promised_shape_is_checked(shapes, said):
    found = outcome(1.5, F, output_shapes=shapes)
    assert said in found if said else found[0][0][1] == ()


def test_a_function_for_shapes_is_asked_once_for_each_program():
    asked = []
    op = lambda x: numpy_function(lambda x: x, [x], F, output_shapes=lambda x: asked.append(x) or x.shape)
    f = jax.jit(jax.vmap(op))
    f(jnp.ones(20)).block_until_ready()
    f(jnp.ones(20)).block_until_ready()
    assert len(asked) <= 2  # while tracing, and at the first element


def test_it_travels_to_processes():
    usual = usual_of(read_tout((F, I32), "op"), "same_kind")
    assert pickle.loads(pickle.dumps(usual)).read((0.5, 2)) == [np.float32(0.5), np.int32(2)]

"""What functions commonly return: NumPy's and Python's numbers, alone and in containers."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.util import numpy_function

F = jnp.float32
I32 = jnp.int32
BIG = 1e300

# What is returned, and Tout.
ACCEPTED = {
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
    "a float too large": (BIG, F),
    "nan": (float("nan"), F),
    "float64 nan": (np.float64("nan"), F),
    "float64 too large": (np.float64(BIG), F),
    "an int beyond 2**53": (2**60 + 2**36 + 1, F),
    "an array of integers": (np.arange(3), I32),
    "an empty array of integers": (np.arange(0), jnp.int8),
    "complex for complex": (1j, jnp.complex64),
    "bfloat16": (1.0, jnp.bfloat16),
    "float8": (1.0, jnp.float8_e5m2),
    "float8 as a float": (np.ones((), jnp.float8_e5m2), F),
    "bool as a float": (True, F),
    "a subclass of dict": (collections.OrderedDict(b=1.0, a=2.0), {"a": F, "b": F}),
    "a nested tuple": ((1.0, (2.0,)), (F, (F,))),
    "a jax.Array": (jnp.float32(1), F),
}
REFUSED = {
    "an int too large": (
        2**40,
        I32,
        OverflowError,
        "the value 1099511627776, .* declare a wider Tout",
    ),
    "int64 too large": (np.int64(2**40), I32, OverflowError, "the value 1099511627776, which does not fit int32"),
    "an array with -inf": (np.array([1.0, -np.inf]), I32, OverflowError, "the value -inf, .* declare a floating Tout"),
    "a negative number for uint8": (-1, jnp.uint8, OverflowError, "the value -1, .* declare a signed Tout"),
    "a float for int": (1.5, I32, TypeError, "float, which casting='same_kind' does not turn into int32"),
    "complex": (1j, F, TypeError, "complex, which casting='same_kind' does not turn into float32"),
    "one result less": ((1.0,), (F, F), ValueError, "a tuple of 1 where"),
    "other keys": ({"a": 1.0, "c": 2.0}, {"a": F, "b": F}, ValueError, "a dict with the keys"),
    "a masked array": (np.ma.masked_array([1.0, 2.0], [True, False]), F, TypeError, "a masked array"),
    "a string": ("1", F, TypeError, "a str of dtype .*; return numbers or booleans"),
    "None": (None, F, ValueError, "None where"),
}


def outcome(value, tout, **options):
    """The results, or the text of the error."""
    try:
        found = numpy_function(lambda x: value, [0.0], tout, **options)
    except Exception as error:
        return str(error)
    return [(a.dtype, a.shape, np.asarray(a).tobytes()) for a in jax.tree.leaves(found)], jax.tree.structure(found)


def cast_by_numpy(value, dtype):
    with np.errstate(over="ignore"):
        array = np.asarray(value).astype(dtype)
    return array.dtype, array.shape, array.tobytes()


@pytest.mark.parametrize(("value", "tout"), ACCEPTED.values(), ids=ACCEPTED)
def test_results_are_those_of_numpys_astype(value, tout):
    values = [value[key] for key in sorted(value)] if isinstance(value, dict) else jax.tree.leaves(value)
    expected = [cast_by_numpy(v, dtype) for v, dtype in zip(values, jax.tree.leaves(tout), strict=True)]
    assert outcome(value, tout) == (expected, jax.tree.structure(tout))


@pytest.mark.parametrize(("value", "tout", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_is_an_error(value, tout, error, text):
    options = {"casting": "unsafe"} if error is OverflowError else {}
    with pytest.raises(error, match=f"func returned {text}"):
        numpy_function(lambda x: value, [0.0], tout, **options)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [((2,), "where (2,) was declared"), (lambda x: (2,), "where (2,) was declared"), ((), "")],
    ids=["another", "another, of a function", "the same"],
)
def test_a_declared_shape_is_checked(shapes, text):
    found = outcome(1.5, F, output_shapes=shapes)
    assert text in found if text else found[0][0][1] == ()


def test_a_function_for_shapes_is_asked_once_for_each_program():
    asked = []
    op = lambda x: numpy_function(lambda x: x, [x], F, output_shapes=lambda x: asked.append(x) or x.shape)
    f = jax.jit(jax.vmap(op))
    f(jnp.ones(20)).block_until_ready()
    f(jnp.ones(20)).block_until_ready()
    assert len(asked) <= 2  # while tracing, and at the first element

"""Which results go to which dtype: `casting=`, integers by value, Python's numbers, 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import run
from tests.shared.functions import SMALL_DTYPES, both_sides, dtype_id, every_api, numpy_function, py_function
from tests.shared.tables import rows

F = jnp.float32


def returned(value, tout, api=numpy_function, **options):
    """What a direct call gives whose function returns the value."""
    return api(lambda: value, [], tout, **options)


class Program:
    """A compiled program whose function returns what it is told to."""

    def __init__(self, tout, shape=(), **options):
        self.run = jax.jit(lambda: numpy_function(lambda: self.value, [], tout, output_shapes=shape, **options))

    def __call__(self, value):
        self.value = value
        return run(self.run)


# --------------------------------------------------------------- by kind

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
TARGETS = ["bool", *INTEGERS, "float16", "float32", "complex64"]
NATIVE = [*TARGETS, "int64", "uint64", "float64", "complex128"]


def numpy_allows(source, target, casting):
    source, target = np.dtype(source), np.dtype(target)
    by_value = source.kind in "iu" and target.kind in "iu" and casting != "no"
    return by_value or np.can_cast(source, target, casting)


@pytest.mark.parametrize("casting", rows(["same_kind", "unsafe", "safe", "equiv", "no"], ["same_kind", "safe"]))
@pytest.mark.parametrize("target", TARGETS)
def test_casting_is_numpys(casting, target):
    """Every pair of NumPy's dtypes, against np.can_cast; integers go by value."""
    for source in NATIVE:
        for value in (np.ones((), source)[()], np.ones(2, source)):
            if numpy_allows(source, target, casting):
                y = returned(value, target, casting=casting)
                assert y.dtype == target, source
                assert np.all(np.asarray(y) == 1), source
            else:
                text = f"func returned {source}, which casting='{casting}' does not turn into {target}; "
                with pytest.raises(TypeError, match=text):
                    returned(value, target, casting=casting)


# A compiled call refuses packed values before JAX 0.10.2.
PACKED = "uint4" if jax.__version_info__ >= (0, 10, 2) else "uint8"
LEVELS = {"bool": 0, "int8": 1, PACKED: 1, "int32": 1, "bfloat16": 2, "float8_e5m2": 2, "float32": 2, "complex64": 3}


@pytest.mark.parametrize("target", rows(LEVELS, fast=["bool", PACKED, "bfloat16"]))
def test_dtypes_that_numpy_does_not_know_go_by_kind(target):
    """Arrays of NumPy and of JAX, directly and from a compiled program that all of them share."""
    tout = getattr(jnp, target)
    program = Program(tout, (2,))
    for source in LEVELS:
        value = np.ones(2, np.dtype(getattr(jnp, source)))
        for call in (lambda v: returned(v, tout), lambda v: returned(jnp.asarray(v), tout, py_function), program):
            if LEVELS[source] <= LEVELS[target]:
                y = call(value)
                assert y.dtype == tout
                assert (np.asarray(y) == 1).all()
            else:
                with pytest.raises(
                    TypeError, match=f"func returned {source}, .*'same_kind' does not turn into {target}"
                ):
                    call(value)


UNSAFE = {
    "float to int": (np.array([1.7, -1.7]), jnp.int32, [1, -1]),
    "complex to float": (np.array([1.5 + 2j]), F, [1.5]),
    "float to bool": (np.array([0.0, 0.5]), jnp.bool_, [False, True]),
    "python float to int": (-1.7, jnp.int32, -1),
    "python complex to float": (1.5 + 2j, F, 1.5),
}


@pytest.mark.parametrize(("value", "tout", "expected"), UNSAFE.values(), ids=UNSAFE)
def test_unsafe_casting_converts(value, tout, expected):
    with pytest.raises(TypeError, match="casting='same_kind'"):
        returned(value, tout)
    for api in (numpy_function, py_function):
        np.testing.assert_array_equal(returned(value, tout, api, casting="unsafe"), expected)
    np.testing.assert_array_equal(Program(tout, np.shape(value), casting="unsafe")(value), expected)


@pytest.mark.parametrize("tout", [jnp.int8, F, jnp.bool_])
@pytest.mark.parametrize(
    "value", [np.array([]), np.array([], complex), np.zeros(0, bool)], ids=["float", "complex", "bool"]
)
@every_api
def test_an_array_without_elements_goes_to_any_dtype(api, value, tout):
    empty, padded = jax.ShapeDtypeStruct((0,), tout), jaxpyop.padded(tout, 3)
    for result in (returned(value, tout, api, casting="no"), jax.jit(lambda: api(lambda: value, [], empty))()):
        assert (result.dtype, result.shape) == (tout, (0,))
    found = jax.jit(lambda: api(lambda: value, [], padded))()
    assert (found.values.dtype, found.lengths) == (tout, 0)


# --------------------------------------------------------------- integers by value

INTS = [d for d in SMALL_DTYPES if jax.dtypes.issubdtype(d, np.integer)]
INT_FORMS = {
    "python": lambda v: v,
    "numpy scalar": lambda v: np.uint64(v) if v > 2**63 - 1 else np.int64(v),
    "int64 array": lambda v: np.array([0, v], np.int64),
    "uint64 array": lambda v: np.array([0, v], np.uint64) if v >= 0 else np.array([0, v]),
    "jax": lambda v: jnp.asarray(np.array([0, v], np.uint32 if v > 2**31 - 1 else np.int32)),
}


@pytest.mark.parametrize("dtype", INTS, ids=dtype_id)
@pytest.mark.parametrize("form", INT_FORMS)
def test_integers_go_by_value_and_are_never_wrapped(dtype, form):
    low, high = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    for inside in (low, high, 0, 1):
        y = returned(INT_FORMS[form](inside), dtype)
        assert y.dtype == np.dtype(dtype)
        assert int(np.asarray(y).ravel()[-1]) == inside
    for outside in (low - 1, high + 1):
        if form != "jax" or -(2**31) <= outside < 2**32:
            with pytest.raises(OverflowError, match=rf"value {outside}, which does not fit {np.dtype(dtype).name}"):
                returned(INT_FORMS[form](outside), dtype)


TOO_LARGE = {
    "negative for unsigned": (-1, jnp.uint32, "a signed"),
    "too large": (300, jnp.uint8, "a wider"),
    "an infinity": (-np.inf, jnp.int32, "a floating"),
    "nan": (np.nan, jnp.int32, "a floating"),
    "a large float": (1e20, jnp.int32, "a wider"),
}


@pytest.mark.parametrize(("value", "tout", "kind"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_no_integer_of_the_dtype_can_hold_is_an_error_even_unsafe(value, tout, kind):
    number, array = (Program(tout, shape, casting="unsafe") for shape in ((), (2,)))
    for call, found in (
        (number, value),
        (array, np.array([1, value])),
        (lambda v: returned(v, tout, casting="unsafe"), value),
    ):
        with pytest.raises(
            OverflowError, match=r"which does not fit .*declare (a signed|a wider|a floating) Tout"
        ) as caught:
            call(found)
        assert kind in str(caught.value)
    assert number(100) == 100
    np.testing.assert_array_equal(array(np.array([1, 100])), [1, 100])


# ------------------------------------------------------------- Python's numbers

BIG = 2**60 + 2**36 + 1
WEAK = {
    "float to float32": (1.5, F, 1.5),
    "float to float8": (1.5, jnp.float8_e5m2, 1.5),
    "nan": (float("nan"), F, np.nan),
    "too large float": (1e300, F, np.inf),
    "too large floats of NumPy": (np.array([1e300, -1e300]), F, [np.inf, -np.inf]),
    "int beyond 2**53 to float32": (BIG, F, np.array(BIG).astype(F)),
    "int to int8": (-128, jnp.int8, -128),
    "int to uint32": (2**32 - 1, jnp.uint32, 2**32 - 1),
    "bool to int": (True, jnp.int32, 1),
    "complex": (1 + 2j, jnp.complex64, 1 + 2j),
}


@pytest.mark.parametrize(("value", "tout", "expected"), WEAK.values(), ids=WEAK)
def test_a_python_number_takes_the_dtype_of_tout(value, tout, expected):
    """Without a warning, too: warnings are errors in all tests."""
    for y in (returned(value, tout), returned(value, tout, py_function), Program(tout, np.shape(value))(value)):
        assert (y.dtype, y.weak_type) == (np.dtype(tout), False)
        np.testing.assert_array_equal(np.asarray(y, np.complex128 if isinstance(expected, complex) else None), expected)


# ------------------------------------------------------------------- 64 bits

WIDE = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


@both_sides
@pytest.mark.parametrize(("wide", "narrow"), WIDE.items(), ids=WIDE)
def test_a_wide_tout_without_x64_warns_once_in_each_call_as_jax_does(wide, narrow, api):
    """At the user's line."""
    cls = getattr(np, wide)
    for tout in (cls, wide, np.dtype(wide), jax.ShapeDtypeStruct((3,), cls), type("T", (), {"as_numpy_dtype": cls})()):
        with pytest.warns(UserWarning, match=f"{wide} requested in Tout.*truncated to dtype {narrow}") as caught:
            y = api(lambda x: np.asarray(x).astype(wide), [jnp.arange(3, dtype=narrow)], tout)
        assert [warning.filename for warning in caught] == [__file__]
        assert y.dtype == narrow
        np.testing.assert_array_equal(y, [0, 1, 2])


@pytest.mark.skipif(
    np.dtype(np.longdouble).itemsize == 8, reason="NumPy has no float wider than float64 on this machine"
)
def test_extended_precision_is_refused():
    with pytest.raises(TypeError, match=r"Tout has the dtype float\d+, which JAX does not have.*jnp.float32"):
        returned(1.0, np.longdouble)
    with pytest.raises(TypeError, match=r"an input has the dtype float\d+, which JAX does not have.*astype"):
        numpy_function(lambda x: x, [np.ones(3, np.longdouble)], F)


@pytest.mark.usefixtures("x64")
def test_with_x64_both_widths_are_what_they_say():
    assert returned(np.ones(3), F).dtype == np.float32
    assert int(returned(2**63, jnp.uint64)) == 2**63
    for value, tout in ((np.array([2**40]), jnp.int32), (2**63, jnp.int64)):
        with pytest.raises(OverflowError, match="does not fit int"):
            returned(value, tout)

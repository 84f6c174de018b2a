"""Which results go to which dtype: `casting=`, integers by value, Python's numbers, 64 bits."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from tests.shared.checks import run
from tests.shared.examples import few, many
from tests.shared.functions import SMALL_DTYPES, both_sides, dtype_id, every_api, numpy_function
from tests.shared.processes import run_python

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


# --------------------------------------------------------------- casting table

NATIVE = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()
TARGETS = "bool int8 uint8 int16 uint16 int32 uint32 float16 float32 complex64".split()


def numpy_allows(source, target, casting):
    source, target = np.dtype(source), np.dtype(target)
    if source.kind in "iu" and target.kind in "iu" and casting != "no":
        return True  # by value
    return np.can_cast(source, target, casting)


@pytest.mark.parametrize("casting", ["same_kind", "unsafe", "safe", "equiv", "no"])
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


LEVEL = {"bool": 0, "int8": 1, "uint4": 1, "int32": 1, "int64": 1, "bfloat16": 2, "float8_e5m2": 2}
LEVEL |= {"float16": 2, "float32": 2, "float64": 2, "complex64": 3, "complex128": 3}


@pytest.mark.parametrize("target", [name for name in LEVEL if name not in ("int64", "float64", "complex128")])
@pytest.mark.parametrize("make", [lambda v: v, jnp.asarray], ids=["NumPy's", "JAX's"])
def test_casting_between_dtypes_that_numpy_does_not_know(make, target):
    """By kind, from an array of NumPy and from one of JAX."""
    for source in LEVEL:
        value = np.ones(2, np.dtype(getattr(jnp, source)))
        if make is not jnp.asarray:
            found = value
        elif source in ("int64", "float64", "complex128"):
            continue
        else:
            found = jnp.asarray(value)
        if LEVEL[source] <= LEVEL[target]:
            y = returned(found, getattr(jnp, target))
            assert y.dtype == getattr(jnp, target)
            assert (np.asarray(y) == 1).all()
        else:
            with pytest.raises(
                TypeError, match=f"func returned {source}, which .*'same_kind' does not turn into {target}"
            ):
                returned(found, getattr(jnp, target))


@pytest.mark.parametrize("target", ["float32", "int32", "complex64", "bfloat16"])
def test_casting_in_a_compiled_program(target):
    """One program for all rows: what was refused does not spoil the next call."""
    program = Program(getattr(jnp, target), (2,))
    for source in ["bool", "complex128", "int64", "float64", "uint8", "float16"]:
        value = np.ones(2, source)
        if LEVEL.get(source, 1) <= LEVEL[target] or (source == "float16" and LEVEL[target] >= 2):
            y = program(value)
            assert y.dtype == getattr(jnp, target)
            np.testing.assert_array_equal(np.asarray(y, np.complex64), [1, 1])
        else:
            with pytest.raises(TypeError, match=f"{source}.*casting='same_kind'.*{target}"):
                program(value)


UNSAFE = {
    "float to int": (np.array([1.7, -1.7]), jnp.int32, [1, -1]),
    "complex to float": (np.array([1.5 + 2j]), F, [1.5]),
    "complex to int": (np.array([1.5 + 2j]), jnp.int32, [1]),
    "float to bool": (np.array([0.0, 0.5]), jnp.bool_, [False, True]),
    "complex to bool": (np.array([0j, 1j]), jnp.bool_, [False, True]),
    "int to bool": (np.array([0, 3]), jnp.bool_, [False, True]),
    "python float to int": (1.7, jnp.int32, 1),
    "python negative float to int": (-1.7, jnp.int32, -1),
    "python complex to float": (1.5 + 2j, F, 1.5),
    "python complex to bool": (1j, jnp.bool_, True),
}


@pytest.mark.parametrize(("value", "tout", "expected"), UNSAFE.values(), ids=UNSAFE)
@both_sides
def test_unsafe_casting_converts(api, value, tout, expected):
    with pytest.raises(TypeError, match="casting='same_kind'"):
        returned(value, tout, api)
    np.testing.assert_array_equal(returned(value, tout, api, casting="unsafe"), expected)
    np.testing.assert_array_equal(Program(tout, np.shape(value), casting="unsafe")(value), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20, -1e20])
def test_what_no_integer_can_hold_is_an_error_even_unsafe(bad):
    for value in (np.array([1.0, bad]), bad, np.float64(bad), jnp.array([1.0, bad], F)):
        with pytest.raises(OverflowError, match="does not fit int32"):
            returned(value, jnp.int32, casting="unsafe")


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
def test_the_range_of_every_integer_dtype(dtype, form):
    bounds = jnp.iinfo(dtype)
    low, high = int(bounds.min), int(bounds.max)
    for inside in (low, high, 0, 1):
        y = returned(INT_FORMS[form](inside), dtype)
        assert y.dtype == np.dtype(dtype)
        assert int(np.asarray(y).ravel()[-1]) == inside
    for outside in (low - 1, high + 1):
        if form == "jax" and not -(2**31) <= outside < 2**32:
            continue
        with pytest.raises(OverflowError, match=rf"value {outside}, which does not fit {np.dtype(dtype).name}"):
            returned(INT_FORMS[form](outside), dtype)


def test_the_range_in_compiled_programs():
    number, array = Program(jnp.uint8), Program(jnp.uint8, (2,))
    for value in (300, -1, np.int64(256)):
        with pytest.raises(OverflowError, match="which does not fit uint8.*(signed|wider) Tout"):
            number(value)
        with pytest.raises(OverflowError, match="which does not fit uint8"):
            array(np.array([1, value]))
    assert number(255) == 255
    np.testing.assert_array_equal(array(np.array([1, 255])), [1, 255])


TOO_LARGE = {
    "negative for unsigned": (-1, jnp.uint32, "a signed"),
    "too large": (300, jnp.uint8, "a wider"),
    "too small": (-300, jnp.int8, "a wider"),
    "an infinity": (-np.inf, jnp.int32, "a floating"),
}


@pytest.mark.parametrize(("value", "tout", "kind"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_the_error_says_which_dtype_holds_the_value(value, tout, kind):
    for found in (value, np.full(2, value)):
        with pytest.raises(OverflowError, match=rf"the value {value}, which does not fit.*declare {kind} Tout"):
            returned(found, tout, casting="unsafe")


def integers_go_by_value(array, target):
    bounds = jnp.iinfo(target)
    if all(bounds.min <= int(v) <= bounds.max for v in array.ravel()):
        y = returned(array, target)
        assert y.shape == array.shape
        assert [int(v) for v in np.asarray(y).ravel()] == [int(v) for v in array.ravel()]
    else:
        with pytest.raises(OverflowError, match="does not fit"):
            returned(array, target)


some_integers = given(
    array=st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]).flatmap(
        lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    ),
    target=st.sampled_from(INTS),
)
test_integers_are_never_wrapped = few(some_integers, integers_go_by_value, examples=30)
test_many_integers_are_never_wrapped = many(some_integers, integers_go_by_value, examples=500)


# ------------------------------------------------------------- Python's numbers

WEAK = {
    "float to float32": (1.5, F, 1.5),
    "float to float16": (1.5, jnp.float16, 1.5),
    "float to bfloat16": (1.5, jnp.bfloat16, 1.5),
    "float to float8": (1.5, jnp.float8_e5m2, 1.5),
    "float to complex": (1.5, jnp.complex64, 1.5),
    "nan": (float("nan"), F, np.nan),
    "-inf": (float("-inf"), F, -np.inf),
    "too large float": (1e300, F, np.inf),
    "too large floats of NumPy": (np.array([1e300, -1e300]), F, [np.inf, -np.inf]),
    "int to float32": (3, F, 3.0),
    "large int to float32": (2**100, F, 2.0**100),
    "int beyond 2**53 to float32": (2**60 + 2**36 + 1, F, np.array(2**60 + 2**36 + 1).astype(F)),
    "int to bfloat16": (3, jnp.bfloat16, 3.0),
    "int to complex": (3, jnp.complex64, 3.0),
    "int to int8": (-128, jnp.int8, -128),
    "int to uint32": (2**32 - 1, jnp.uint32, 2**32 - 1),
    "bool to bool": (True, jnp.bool_, True),
    "bool to int": (True, jnp.int32, 1),
    "bool to float": (True, F, 1.0),
    "complex": (1 + 2j, jnp.complex64, 1 + 2j),
}


@pytest.mark.parametrize(("value", "tout", "expected"), WEAK.values(), ids=WEAK)
def test_a_python_number_takes_the_dtype_of_tout(value, tout, expected):
    """Without a warning, too: warnings are errors in all tests."""
    for y in (returned(value, tout), Program(tout, np.shape(value))(value)):
        assert y.dtype == np.dtype(tout)
        assert not y.weak_type
        np.testing.assert_array_equal(np.asarray(y, np.complex128 if isinstance(expected, complex) else None), expected)


WEAK_REFUSED = {
    "float to int": (1.0, jnp.int32, TypeError, "float, which casting='same_kind' does not turn into int32"),
    "float to bool": (1.0, jnp.bool_, TypeError, "float.*does not turn into bool"),
    "int to bool": (1, jnp.bool_, TypeError, "int.*does not turn into bool"),
    "complex to float": (1j, F, TypeError, "complex.*does not turn into float32"),
    "complex to int": (1j, jnp.int32, TypeError, "complex.*does not turn into int32"),
    "int too large": (2**31, jnp.int32, OverflowError, "value 2147483648, which does not fit int32"),
    "int far too large": (2**100, jnp.int32, OverflowError, "does not fit int32"),
    "negative to unsigned": (-1, jnp.uint8, OverflowError, "value -1, which does not fit uint8"),
}


@pytest.mark.parametrize(("value", "tout", "error", "text"), WEAK_REFUSED.values(), ids=WEAK_REFUSED)
@both_sides
def test_a_python_number_of_another_kind_is_refused(api, value, tout, error, text):
    with pytest.raises(error, match=text):
        returned(value, tout, api)


def test_the_error_has_the_result_the_op_and_what_to_write():
    with pytest.raises(TypeError, match=r"func returned, as result 1, float64.*int32"):
        returned([1.0, np.ones(2)], [F, jnp.int32])
    text = r"^numpy_function 'mine': func returned .*return int32, write Tout=float32, or pass casting='unsafe'$"
    with pytest.raises(TypeError, match=text):
        returned(np.ones(2), jnp.int32, name="mine")


# ------------------------------------------------------------------- 64 bits

WIDE = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


@pytest.mark.parametrize(("wide", "narrow"), WIDE.items(), ids=WIDE)
def test_a_wide_tout_without_x64_warns_as_jax_does(wide, narrow):
    cls = getattr(np, wide)
    tf = type("TF", (), {"as_numpy_dtype": cls})()
    x = jnp.arange(3, dtype=narrow)
    for tout in (cls, wide, np.dtype(wide), jax.ShapeDtypeStruct((3,), cls), tf):
        with pytest.warns(UserWarning, match=wide) as caught:
            y = numpy_function(lambda x: np.asarray(x).astype(wide), [x], tout)
        assert y.dtype == narrow
        np.testing.assert_array_equal(y, [0, 1, 2])
        (warning,) = caught
        assert f"truncated to dtype {narrow}" in str(warning.message)


def test_the_warning_of_a_wide_tout_is_at_the_users_line():
    with pytest.warns(UserWarning, match="float64 requested in Tout") as caught:
        jax.jit(lambda x: jaxpyop.py_func(lambda x: x, [x], np.float64))(1.0)
    assert {warning.filename for warning in caught} == {__file__}


@every_api
def test_a_wide_tout_warns_once_in_each_call(api):
    for _ in range(2):
        with pytest.warns(UserWarning, match="float64 requested in Tout") as caught:
            api(lambda x: x, [1.0], np.float64)
        assert len(caught) == 1


@pytest.mark.slow
def test_wide_touts_in_threads_leave_the_warnings_of_the_process_alone():
    run_python(
        """
import jaxpyop, numpy as np, threading, warnings
warnings.simplefilter("ignore")
before = warnings.filters[:], warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)
def work():
    for _ in range(200):
        jaxpyop.numpy_function(lambda x: x, [np.float32(1)], np.float64)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert before == (warnings.filters[:], warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None))
"""
    )


@pytest.mark.parametrize(("wide", "value"), [("int64", 2**31), ("uint64", 2**32), ("int64", -(2**31) - 1)])
def test_values_are_checked_against_the_narrow_dtype(wide, value):
    with (
        pytest.warns(UserWarning, match=wide),
        pytest.raises(OverflowError, match=r"does not fit u?int32.*jax_enable_x64"),
    ):
        returned(np.array(value), wide)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 on this machine")
def test_extended_precision_is_refused():
    with pytest.raises(TypeError, match=r"Tout has the dtype float\d+, which JAX does not have.*jnp.float32"):
        returned(1.0, np.longdouble)
    with pytest.raises(TypeError, match=r"an input has the dtype float\d+, which JAX does not have.*astype"):
        numpy_function(lambda x: x, [np.ones(3, np.longdouble)], F)


@pytest.mark.usefixtures("x64")
def test_with_x64_both_widths_are_what_they_say():
    for wide in WIDE:
        value = np.array([1, 2**40 + 1], wide)
        y = numpy_function(lambda x: x, [value], wide)
        assert y.dtype == wide
        np.testing.assert_array_equal(y, value)
    assert returned(np.ones(3), F).dtype == np.float32
    assert int(returned(2**63, jnp.uint64)) == 2**63
    for value, tout in ((np.array([2**40]), jnp.int32), (2**63, jnp.int64)):
        with pytest.raises(OverflowError, match="does not fit int"):
            returned(value, tout)


@pytest.mark.parametrize("dtype", [d for d in SMALL_DTYPES if np.dtype(d).kind == "V"], ids=dtype_id)
def test_a_batch_of_scalars_of_a_dtype_that_is_not_numpys(dtype):
    x = jnp.array([1.0, 0.5, 2.0]).astype(dtype)
    got = jax.vmap(lambda x: numpy_function(lambda x: x, [x], dtype))(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(F), x.astype(F))

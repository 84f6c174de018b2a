"""Which values go to which dtype: the casting table, integers by value, Python scalars, 64 bits."""

from __future__ import annotations

import contextlib
import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from tests.shared.result_cases import refused, returning
from tests.shared.util import ROUTES, SMALL_DTYPES, both_sides, dtype_id, every_api, numpy_function, py_func, run_python

F = jnp.float32


# --------------------------------------------------------------- casting table

NATIVE = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
TARGETS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64"]


def numpy_allows(source, target, casting):
    source, target = np.dtype(source), np.dtype(target)
    if source.kind in "iu" and target.kind in "iu":
        return True  # by value
    return np.can_cast(source, target, casting)


@pytest.mark.parametrize("casting", ["same_kind", "unsafe", "safe"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scalar", [False, True], ids=["array", "numpy scalar"])
@both_sides
def test_casting_table_of_numpy(api, casting, target, scalar):
    """Every pair of NumPy's dtypes, against np.can_cast."""
    for source in NATIVE:
        value = np.ones((), source)[()] if scalar else np.ones(2, source)
        call = lambda value=value: api(lambda: value, [], target, casting=casting)
        if numpy_allows(source, target, casting):
            y = call()
            assert y.dtype == target, source
            assert np.all(np.asarray(y) == 1), source
        else:
            with pytest.raises(
                TypeError, match=f"func returned {source}, which casting='{casting}' does not turn into {target}; "
            ):
                call()


@pytest.mark.parametrize("target", ["float32", "int32", "complex64", "bfloat16"])
@both_sides
def test_casting_table_under_jit(api, target, transport):
    route = ROUTES[f"jit-{transport}"]
    for source in ["bool", "int64", "uint8", "float64", "float16", "complex128"]:
        value = np.ones(2, source)
        kinds = "biufc"
        level = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
        assert set(level) == set(kinds)
        goal = {"float32": 2, "int32": 1, "complex64": 3, "bfloat16": 2}[target]
        if level[np.dtype(source).kind] <= goal:
            np.testing.assert_array_equal(
                np.asarray(returning(api, route, value, getattr(jnp, target)), np.complex64), [1, 1]
            )
        else:
            refused(api, route, value, getattr(jnp, target), TypeError, f"{source}.*casting='same_kind'.*{target}")


JAX_SOURCES = ["bool", "int8", "uint4", "int32", "bfloat16", "float8_e5m2", "float16", "float32", "complex64"]
LEVEL = {
    "bool": 0,
    "int8": 1,
    "uint4": 1,
    "int32": 1,
    "bfloat16": 2,
    "float8_e5m2": 2,
    "float16": 2,
    "float32": 2,
    "complex64": 3,
}


@pytest.mark.parametrize("target", JAX_SOURCES)
@pytest.mark.parametrize("make", [lambda v: v, jnp.asarray], ids=["numpy value", "jax value"])
@both_sides
def test_casting_between_all_kinds_of_jax_dtypes(api, make, target):
    """By kind, for the dtypes that NumPy's can_cast does not know."""
    for source in JAX_SOURCES:
        value = make(np.ones(2, np.dtype(getattr(jnp, source))))
        call = lambda value=value: api(lambda: value, [], getattr(jnp, target))
        if LEVEL[source] <= LEVEL[target]:
            y = call()
            assert y.dtype == getattr(jnp, target)
            assert (np.asarray(y) == 1).all()
        else:
            with pytest.raises(
                TypeError, match=f"func returned {source}, which casting='same_kind' does not turn into {target}"
            ):
                call()


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
def test_unsafe_casting_converts(api, value, tout, expected, route):
    refused(api, route, value, tout, TypeError, "casting='same_kind'", shapes=np.shape(value))
    y = returning(api, route, value, tout, shapes=np.shape(value), casting="unsafe")
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20, -1e20])
@pytest.mark.parametrize("form", ["array", "scalar", "numpy scalar", "jax"])
@both_sides
def test_what_no_integer_can_hold_is_an_error_even_unsafe(api, form, bad, route):
    forms = {
        "array": np.array([1.0, bad]),
        "scalar": bad,
        "numpy scalar": np.float64(bad),
        "jax": jnp.array([1.0, bad], F),
    }
    value = forms[form]
    refused(api, route, value, jnp.int32, OverflowError, "does not fit int32", casting="unsafe", shapes=np.shape(value))


# --------------------------------------------------------------- integer range

INTS = [d for d in SMALL_DTYPES if jax.dtypes.issubdtype(d, np.integer)]


@pytest.mark.parametrize("dtype", INTS, ids=dtype_id)
@pytest.mark.parametrize("form", ["python", "int64 array", "numpy scalar", "uint64 array", "jax"])
@both_sides
def test_range_of_every_integer_dtype(api, dtype, form):
    bounds = jnp.iinfo(dtype)
    low, high = int(bounds.min), int(bounds.max)

    def make(v):
        if form == "python":
            return v
        if form == "jax":
            wide = jnp.uint32 if v > 2**31 - 1 else jnp.int32
            return jnp.asarray(np.array([0, v], np.dtype(wide)))
        if form == "uint64 array":
            return np.array([0, v], np.uint64) if v >= 0 else np.array([0, v])
        return np.int64(v) if form == "numpy scalar" else np.array([0, v], np.int64)

    for inside in (low, high, 0, 1):
        y = api(functools.partial(make, inside), [], dtype)
        assert y.dtype == np.dtype(dtype)
        assert int(np.asarray(y).ravel()[-1]) == inside
    for outside in (low - 1, high + 1):
        if form == "jax" and not -(2**31) <= outside < 2**32:
            continue
        with pytest.raises(OverflowError, match=rf"value {outside}, which does not fit {np.dtype(dtype).name}"):
            api(functools.partial(make, outside), [], dtype)


@pytest.mark.parametrize("value", [np.array([1, 300]), 300, -1, np.int64(256), np.array([[-1]])], ids=repr)
@both_sides
def test_range_under_jit(api, value, route):
    refused(
        api,
        route,
        value,
        jnp.uint8,
        OverflowError,
        "which does not fit uint8.*(signed|wider) Tout",
        shapes=np.shape(value),
    )


@given(
    array=st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]).flatmap(
        lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    ),
    target=st.sampled_from(INTS),
)
def test_integers_go_by_value_and_are_never_wrapped(array, target):
    bounds = jnp.iinfo(target)
    fits = all(bounds.min <= int(v) <= bounds.max for v in array.ravel())
    if fits:
        y = numpy_function(lambda: array, [], target)
        assert y.shape == array.shape
        assert [int(v) for v in np.asarray(y).ravel()] == [int(v) for v in array.ravel()]
    else:
        with pytest.raises(OverflowError, match="does not fit"):
            numpy_function(lambda: array, [], target)


# ------------------------------------------------------------ Python scalars

WEAK = {
    "float to float32": (1.5, F, 1.5),
    "float to float16": (1.5, jnp.float16, 1.5),
    "float to bfloat16": (1.5, jnp.bfloat16, 1.5),
    "float to float8": (1.5, jnp.float8_e5m2, 1.5),
    "float to complex": (1.5, jnp.complex64, 1.5),
    "nan": (float("nan"), F, np.nan),
    "-inf": (float("-inf"), F, -np.inf),
    "too large float": (1e300, F, np.inf),
    "int to float32": (3, F, 3.0),
    "large int to float32": (2**100, F, 2.0**100),
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
@both_sides
def test_python_scalars_are_weak(api, value, tout, expected, route):
    y = returning(api, route, value, tout, shapes=())
    assert y.dtype == np.dtype(tout)
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
def test_python_scalars_that_do_not_go(api, value, tout, error, text, route):
    refused(api, route, value, tout, error, text, shapes=())


def test_casting_no_accepts_the_same_dtype_only(route):
    np.testing.assert_array_equal(returning(py_func, route, np.ones(2, np.float32), F, casting="no"), [1, 1])
    refused(py_func, route, np.ones(2), F, TypeError, "float64.*casting='no'", casting="no")


@both_sides
def test_errors_number_the_result(api, route):
    with pytest.raises(TypeError, match=r"func returned, as result 1, float64.*int32"), jaxpyop.reraise():
        route(lambda: api(lambda: [1.0, np.ones(2)], [], [F, jnp.int32], output_shapes=[(), (2,)]))


@every_api
def test_errors_name_the_op(api, route):
    with pytest.raises(TypeError, match=r"^\S+ 'my op': func returned"), jaxpyop.reraise():
        route(lambda: api(lambda: "x", [], F, name="my op", output_shapes=()))


# ------------------------------------------------------------------- 64 bits

WIDE = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


@pytest.mark.parametrize(("wide", "narrow"), WIDE.items(), ids=WIDE)
@pytest.mark.parametrize("form", ["class", "name", "dtype", "struct", "tf"])
@both_sides
def test_wide_tout_without_x64_warns_as_jax_does(api, wide, narrow, form, route):
    cls = getattr(np, wide)
    tf = type("TF", (), {"as_numpy_dtype": cls})()
    tout = {"class": cls, "name": wide, "dtype": np.dtype(wide), "struct": jax.ShapeDtypeStruct((3,), cls), "tf": tf}[
        form
    ]
    with pytest.warns(UserWarning, match=f"requested dtype {wide}.*truncated to dtype {narrow}"):
        y = route(
            lambda x: api(lambda x: np.asarray(x).astype(wide), [x], tout, output_shapes=(3,)),
            jnp.arange(3, dtype=narrow),
        )
    assert y.dtype == narrow
    np.testing.assert_array_equal(y, [0, 1, 2])


def test_the_warning_of_a_wide_tout_is_at_the_users_line():
    with pytest.warns(UserWarning, match="float64 requested in Tout") as caught:
        jaxpyop.py_func(lambda x: x, [1.0], np.float64)
    (warning,) = caught
    assert warning.filename == __file__


@every_api
def test_a_wide_tout_warns_once_in_each_call(api):
    for _ in range(2):
        with pytest.warns(UserWarning, match="float64 requested in Tout") as caught:
            api(lambda x: x, [1.0], np.float64)
        assert len(caught) == 1


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


@pytest.mark.parametrize("form", [np.dtype, lambda s: np.zeros(3, s)], ids=["dtype", "array"])
def test_a_tout_of_another_byte_order(form, route):
    y = route(lambda x: py_func(lambda x: x.astype(">f4"), [x], form(">f4"), output_shapes=(3,)), jnp.arange(3.0))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, [0, 1, 2])


@pytest.mark.parametrize("wide", [np.longdouble, np.float64])
@every_api
def test_extended_precision_is_refused_and_float64_is_not(api, wide, route):
    """On some machines the first is the second."""
    refused = np.dtype(wide).itemsize > 8
    lacks = r"has the dtype float\d+, which JAX does not have.*"
    as_tout = pytest.raises(TypeError, match=f"Tout {lacks}jnp.float32") if refused else pytest.warns(match="float64")
    with as_tout:
        route(lambda: api(lambda: 1.0, [], wide, output_shapes=()))
    with pytest.raises(TypeError, match=f"an input {lacks}astype") if refused else contextlib.nullcontext():
        assert route(lambda: api(lambda x: x, [np.ones(3, wide)], F, output_shapes=(3,))).dtype == F


@pytest.mark.parametrize("tout", [float, int, complex, F, np.int32], ids=str)
def test_narrow_tout_does_not_warn(tout):
    returning(py_func, ROUTES["direct"], np.ones((), bool), tout)  # warnings are errors here


@pytest.mark.parametrize(("wide", "value"), [("int64", 2**31), ("uint64", 2**32), ("int64", -(2**31) - 1)])
@both_sides
def test_values_are_checked_against_the_narrow_dtype(api, wide, value, route):
    refused = pytest.raises(OverflowError, match=r"does not fit u?int32.*jax_enable_x64")
    with pytest.warns(UserWarning, match=wide), refused, jaxpyop.reraise():
        route(lambda: api(lambda: np.array(value), [], wide, output_shapes=()))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("wide", WIDE)
@both_sides
def test_wide_tout_with_x64(api, wide, route):
    value = np.array([1, 2**40 + 1], wide)
    y = route(lambda x: api(lambda x: x, [x], wide), value)
    assert y.dtype == wide
    np.testing.assert_array_equal(y, value)


@pytest.mark.usefixtures("x64")
def test_narrow_tout_with_x64(route):
    y = route(lambda x: py_func(lambda x: x * 2, [x], F), np.ones(3))
    assert y.dtype == np.float32
    refused(py_func, route, np.array([2**40]), jnp.int32, OverflowError, "does not fit int32")
    assert returning(py_func, route, 2**40, jnp.int64, shapes=()) == 2**40
    assert int(returning(py_func, route, 2**63, jnp.uint64, shapes=())) == 2**63
    refused(py_func, route, 2**63, jnp.int64, OverflowError, "does not fit int64", shapes=())


@pytest.mark.usefixtures("x64")
def test_python_types_with_x64(route):
    for python_type, dtype in ((int, "int64"), (float, "float64"), (complex, "complex128")):
        assert returning(py_func, route, python_type(1), python_type, shapes=()).dtype == dtype


def test_overflow_to_inf_is_no_warning(route):
    y = returning(py_func, route, np.array([1e300, -1e300]), F)
    np.testing.assert_array_equal(y, [np.inf, -np.inf])

"""`Tout`: the forms that it may have, the structure of results, `None`, and lists of numbers for an array."""

from __future__ import annotations

import collections
import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.shared.checks import close, run
from tests.shared.functions import SMALL_DTYPES, both_sides, every_api, numpy_function, py_func, py_function

F, N = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct


class TensorFlowDtype:
    """Stands for tf.float32, which has as_numpy_dtype and no shape."""

    as_numpy_dtype = np.float32


FORMS = {
    "np class": np.float32,
    "jnp class": jnp.float32,
    "string": "float32",
    "short string": "f4",
    "another byte order": np.dtype(">f4"),
    "np.dtype": np.dtype("float32"),
    "struct": S((3,), np.float32),
    "jax array": jnp.zeros(3),
    "numpy array": np.zeros(3, np.float32),
    "as_numpy_dtype": TensorFlowDtype(),
    "python float": float,
}


@pytest.mark.parametrize("tout", FORMS.values(), ids=FORMS)
@both_sides
def test_forms_of_one_tout(api, tout):
    op = lambda x: api(lambda x: x * 2, [x], tout)
    for y in (op(jnp.arange(3.0)), jax.jit(op)(jnp.arange(3.0))):
        assert isinstance(y, jax.Array)
        assert y.dtype == np.float32
        assert not y.weak_type
        np.testing.assert_array_equal(y, [0, 2, 4])


def test_every_dtype_by_name_by_class_and_by_dtype():
    for dtype in map(np.dtype, SMALL_DTYPES):
        for tout in (dtype.name, getattr(jnp, dtype.name, None) or dtype.type, dtype):
            assert numpy_function(lambda dtype=dtype: np.ones(2, dtype), [], tout).dtype == dtype


@pytest.mark.parametrize(
    ("python_type", "dtype"), [(bool, "bool"), (int, "int32"), (float, "float32"), (complex, "complex64")]
)
def test_python_types(python_type, dtype):
    assert numpy_function(lambda: python_type(1), [], python_type).dtype == dtype
    with jax.enable_x64(True):
        wide = {"int32": "int64", "float32": "float64", "complex64": "complex128"}.get(dtype, dtype)
        assert numpy_function(lambda: python_type(1), [], python_type).dtype == wide


@pytest.mark.parametrize("scalar", [jnp.float32(0), np.float32(0), jnp.zeros(()), S((), F)], ids=repr)
@every_api
def test_a_scalar_is_an_example_of_itself(api, scalar):
    op = lambda x: api(lambda x: x.mean(), [x], scalar)
    for y in (op(jnp.arange(3.0)), jax.jit(op)(jnp.arange(3.0))):
        assert (y.shape, y.dtype, float(y)) == ((), F, 1.0)
    close(jax.vmap(op)(jnp.ones((4, 3))), np.ones(4))


# ------------------------------------------------------------------- structures

Pair = collections.namedtuple("Pair", "first second")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Both:
    mean: object
    count: object


STRUCTURES = {
    "list": ([F, N], [1.5, 2]),
    "tuple": ((F, N), (1.5, 2)),
    "list of one": ([F], [1.5]),
    "tuple of one": ((F,), (1.5,)),
    "dict": ({"b": F, "a": N}, {"a": 2, "b": 1.5}),
    "nested": ({"a": [F, (N, {"c": F})], "b": F}, {"a": [1.0, (2, {"c": 3.0})], "b": 4.0}),
    "namedtuple": (Pair(F, N), Pair(1.5, 2)),
    "dataclass": (Both(F, N), Both(1.5, 2)),
    "dict of dataclass": ({"x": Both(F, [N])}, {"x": Both(1.5, [2])}),
    "with None": ({"a": F, "b": None}, {"a": 1.5, "b": None}),
    "with empty": ([F, []], [1.5, []]),
    "ordered dict": (collections.OrderedDict(b=F, a=N), collections.OrderedDict(b=1.5, a=2)),
    "default dict": (collections.defaultdict(list, b=F, a=N), collections.defaultdict(list, b=1.5, a=2)),
    "dict for ordered dict": (collections.OrderedDict(b=F, a=F), {"a": 2.0, "b": 1.5}),
}


@pytest.mark.parametrize(("tout", "value"), STRUCTURES.values(), ids=STRUCTURES)
def test_results_have_the_structure_of_tout(tout, value):
    op = lambda: numpy_function(lambda: value, [], tout)
    for y in (op(), jax.jit(op)()):
        assert jax.tree.structure(y) == jax.tree.structure(tout)
        assert type(y) is type(tout)
        wanted = value
        if isinstance(tout, dict):  # its keys may be in another order
            y, wanted = ([tree[key] for key in tout] for tree in (y, value))
        for got, want in zip(jax.tree.leaves(y), jax.tree.leaves(wanted), strict=True):
            assert isinstance(got, jax.Array)
            assert (got, got.dtype, got.shape) == (want, N if isinstance(want, int) else F, ())


LOOSE = {
    "tuple for list": ([F, F], (1.0, 2.0)),
    "list for tuple": ((F, F), [1.0, 2.0]),
    "namedtuple for tuple": ((F, F), Pair(1.0, 2.0)),
    "bare value for list of one": ([F], 1.0),
    "list of one for a bare value": (F, [1.0]),
    "mapping for dict": ({"a": F, "b": F}, collections.OrderedDict(b=2.0, a=1.0)),
    "array for list of one": ([F], np.float32(1)),
}


@pytest.mark.parametrize(("tout", "value"), LOOSE.values(), ids=LOOSE)
@both_sides
def test_like_structures_are_taken(api, tout, value):
    y = api(lambda: value, [], tout)
    assert jax.tree.structure(y) == jax.tree.structure(tout)
    assert [float(v) for v in jax.tree.leaves(y)] == [1.0, 2.0][: len(jax.tree.leaves(y))]


WRONG_STRUCTURES = {
    "too many": ([F, F], [1.0, 2.0, 3.0], r"a list of 3 .*declares 2 results"),
    "too few": ([F, F, F], [1.0, 2.0], r"a list of 2 .*declares 3 results"),
    "too few, tuple": ((F, F), (1.0,), r"a tuple of 1 .*declares 2 results"),
    "none of two": ([F, F], [], r"a list of 0 .*declares 2 results"),
    "two for one": (F, (1.0, 2.0), r"a tuple of 2 .*declares one result"),
    "list for one": (F, [1.0, 2.0], r"a list of 2 .*declares one result; .*or return np.array\(...\)"),
    "one for two": ([F, F], 1.0, r"a float .*declares 2 results"),
    "array for two": ([F, F], np.zeros(2, np.float32), r"an array where"),
    "None for one": (F, None, r"None .*declares one result"),
    "None for two": ([F, F], None, r"None .*declares 2 results"),
    "None among two": ([F, F], [1.0, None], r"None at result\[1\] .*has float32 of shape \(\)"),
    "None in a dict": ({"a": F, "b": F}, {"a": 1.0, "b": None}, r"None at result\['b'\] where"),
    "dict for one": (F, {"a": 1.0}, r"a dict .*declares one result"),
    "missing key": ({"a": F, "b": F}, {"a": 1.0}, r"a dict .*declares 2 results"),
    "extra key": ({"a": F}, {"a": 1.0, "b": 2.0}, r"a dict .*declares one result"),
    "other key": ({"a": F}, {"b": 1.0}, r"a dict with the keys \['b'\] where Tout=\{'a': 'float32'\}"),
    "list for dict": ({"a": F}, [1.0], r"a list of 1 .*declares one result"),
    "dict for list": ([F, F], {"a": 1.0, "b": 2.0}, r"a dict .*declares 2 results"),
    "nested count": ([F, [F, F]], [1.0, [2.0]], r"a list of 1 at result\[1\] .*has a list of 2"),
    "other dataclass": (Both(F, F), Pair(1.0, 2.0), r"a Pair|a tuple of 2|a Pair of 2"),
    "value for nothing": ([], 1.0, r"a float where Tout=\[\] declares no result; pass Tout=None to ignore"),
    "values for nothing": ({}, [1.0], r"a list of 1 where Tout=\{\} declares no result"),
}


@pytest.mark.parametrize(("tout", "value", "text"), WRONG_STRUCTURES.values(), ids=WRONG_STRUCTURES)
@both_sides
def test_another_count_or_structure_is_an_error(api, tout, value, text):
    shapes = jax.tree.map(lambda _: (), tout) if tout else None
    with pytest.raises(ValueError, match=f"func returned .*({text})"):
        api(lambda: value, [], tout, output_shapes=shapes)


def test_another_structure_in_a_compiled_program_is_an_error():
    with pytest.raises(ValueError, match=r"func returned a list of 3 .*declares 2 results"):
        run(jax.jit(lambda: numpy_function(lambda: [1.0, 2.0, 3.0], [], [F, F])))


# ------------------------------------------------------------------- no result

IGNORED = {
    "a number": 1.5,
    "text": "written",
    "an array": np.zeros(3),
    "an object": object(),
    "a list of lists": [[], [1, [2, "x"]]],
    "a NaN": float("nan"),
    "a file": io.StringIO(),
}


@every_api
def test_none_ignores_what_the_function_returns(api):
    returned, log = [], []

    def body(x):
        log.append(float(x))
        return returned[-1]

    f = jax.jit(lambda x: api(body, [x], None))
    for value in IGNORED.values():
        returned.append(value)
        assert run(f, 2.0) is None
        assert api(body, [2.0], None) is None
    assert log == [2.0] * 2 * len(IGNORED)


def test_none_in_a_batch_runs_once_for_each_element():
    log = []
    op = lambda x: py_func(lambda x: log.append(float(x)) or "ignored", [x], None)
    assert run(jax.jit(jax.vmap(op)), jnp.arange(4.0)) is None
    assert sorted(log) == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_none_of_a_whole_batch_runs_once(method):
    log = []
    op = lambda x: py_func(lambda x: log.append(x.tolist()) or 1, [x], None, vmap_method=method)
    assert run(jax.jit(jax.vmap(op)), jnp.arange(4.0)) is None
    assert log == [[0, 1, 2, 3]]


def test_none_in_one_branch_of_a_cond():
    log = []
    write = lambda x: py_func(lambda x: log.append(float(x)), [x], None)
    program = jax.jit(lambda x: lax.cond(x > 0, lambda: write(x), lambda: None))
    assert run(program, 1.0) is None
    assert run(program, -1.0) is None
    assert log == [1.0]


NOTHING = [None, [], (), {}, {"a": []}, [None]]


@pytest.mark.parametrize("tout", NOTHING, ids=str)
def test_an_empty_tout_takes_what_is_empty_and_gives_itself(tout):
    runs = []
    for value in NOTHING:
        for api in (numpy_function, py_function):
            assert api(lambda x: runs.append(float(x)) or value, [F(3)], tout) == tout  # noqa: B023
    assert runs == [3.0] * 2 * len(NOTHING)
    assert run(jax.jit(lambda x: py_func(lambda x: runs.append(float(x)), [x], tout)), 1.0) == tout
    assert runs[-1] == 1.0


def test_an_empty_result_is_not_shared():
    op = jaxpyop.py_func(Tout=[])(lambda: None)
    op().append(1)
    assert op() == []


# -------------------------------------------------------------- lists of numbers

ARRAYS = {
    "beside a number": ([S((), F), S((2,), F)], (1.0, [1.0, 2.0])),
    "a list in a list": ([S((), F), S((2,), F)], [1.0, [1.0, 2.0]]),
    "a tuple": ([S((), F), S((2,), F)], [1.0, (1.0, 2.0)]),
    "alone": (S((2,), F), [1.0, 2.0]),
    "of one": (S((1,), F), [1.0]),
    "of one, in a list": (S((1,), F), [[1.0]]),
    "of one array": (S((1,), F), [np.ones(1, np.float32)]),
    "rows": (S((2, 2), F), [[1.0, 2.0], [3.0, 4.0]]),
    "one row": (S((1, 2), F), [[1.0, 2.0]]),
    "rows of arrays": (S((2, 2), F), [np.ones(2), np.zeros(2)]),
    "empty": (S((0,), F), []),
    "empty rows": (S((0, 3), N), []),
    "integers": (S((3,), N), [1, 2, 3]),
    "numbers of NumPy": (S((2,), F), [np.float32(1), np.float32(2)]),
}


@pytest.mark.parametrize(("tout", "value"), ARRAYS.values(), ids=ARRAYS)
@both_sides
def test_a_list_of_numbers_is_an_array(api, tout, value):
    out = api(lambda: value, [], tout)
    assert jax.tree.structure(out) == jax.tree.structure(tout)
    wanted = value if isinstance(tout, list) else [value]
    for got, want, leaf in zip(jax.tree.leaves(out), wanted, jax.tree.leaves(tout), strict=True):
        np.testing.assert_array_equal(np.ravel(got), np.ravel(np.array(want)))
        assert got.shape == leaf.shape


def test_a_list_of_numbers_in_a_batch_and_where_only_output_shapes_has_its_shape():
    op = lambda x: numpy_function(
        lambda x: {"a": x, "b": [x, 2.0]}, [x], {"a": F, "b": F}, output_shapes={"a": (), "b": (2,)}
    )
    out = jax.jit(jax.vmap(op))(jnp.arange(4.0))
    close(out["a"], np.arange(4))
    close(out["b"], [[k, 2] for k in range(4)])


def test_a_list_of_traced_values_is_differentiable():
    op = lambda x: py_function(lambda x: [x**2, 3.0 * x, 1.0], [x], S((3,), F))
    close(jax.grad(lambda x: (op(x) * jnp.array([1.0, 10.0, 100.0])).sum())(2.0), 34.0)


def a_list_that_holds_itself():
    loop = [1.0]
    loop.append(loop)
    return loop


NO_ARRAYS = {
    "ragged": ([S((), F), S((2,), F)], (1.0, [1.0, [1.0, 2.0]]), r"a list of 2 at result\[1\] .* has float32 of shape"),
    "of text": (S((2,), F), ["a", "b"], "a list of 2 .*declares one result; make the two agree"),
    "too long": (S((2,), F), [1.0, 2.0, 3.0], r"shape \(3,\) where \(2,\) was declared"),
    "None in it": ([S((), F), S((2,), F)], (1.0, [None, 1.0]), r"a list of 2 at result\[1\]"),
    "holds itself": (S((2,), F), a_list_that_holds_itself(), "a list of 2"),
}


@pytest.mark.parametrize(("tout", "value", "text"), NO_ARRAYS.values(), ids=NO_ARRAYS)
@both_sides
def test_a_list_that_is_no_array_is_an_error(api, tout, value, text):
    with pytest.raises((ValueError, TypeError), match=f"func returned .*({text})"):
        api(lambda: value, [], tout)

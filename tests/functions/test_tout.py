"""`Tout`: the forms that it may have, the structure of results, `None`, and lists of numbers for an array."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import run
from tests.shared.functions import every_api, numpy_function, py_func, py_function

F, N = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct

FORMS = {
    "np class": np.float32,
    "string": "float32",
    "another byte order": np.dtype(">f4"),
    "struct": S((3,), np.float32),
    "jax array": jnp.zeros(3),
    "numpy array": np.zeros(3, np.float32),
    "TensorFlow's": type("DType", (), {"as_numpy_dtype": np.float32})(),
    "python float": float,
}


@pytest.mark.parametrize("tout", FORMS.values(), ids=FORMS)
@every_api
def test_forms_of_one_tout(api, tout):
    y = api(lambda x: x * 2, [jnp.arange(3.0)], tout)
    assert isinstance(y, jax.Array)
    assert (y.dtype, y.weak_type) == (np.float32, False)
    np.testing.assert_array_equal(y, [0, 2, 4])


PYTHON_TYPES = {bool: ("bool", "bool"), int: ("int32", "int64"), float: ("float32", "float64")}
PYTHON_TYPES |= {complex: ("complex64", "complex128")}


def test_python_types():
    for python_type, dtypes in PYTHON_TYPES.items():
        for x64, dtype in enumerate(dtypes):
            with jax.enable_x64(bool(x64)):
                assert numpy_function(lambda: python_type(1), [], python_type).dtype == dtype  # noqa: B023


# ------------------------------------------------------------------- structures

Pair = collections.namedtuple("Pair", "first second")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Both:
    mean: object
    count: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    data: object
    kind: str = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Unsorted(dict):
    def tree_flatten(self):
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, keys, values):
        return cls(zip(keys, values))


ORDERED, DEFAULT = collections.OrderedDict, lambda **items: collections.defaultdict(list, items)
STRUCTURES = {
    "dict": ({"b": F, "a": N}, {"a": 2, "b": 1.5}),
    "nested": ({"a": [F, (N, {"c": F})], "b": F}, {"a": [1.0, (2, {"c": 3.0})], "b": 4.0}),
    "namedtuple": (Pair(F, N), Pair(1.5, 2)),
    "dataclass": (Both(F, N), Both(1.5, 2)),
    "with None": ({"a": F, "b": None}, {"a": 1.5, "b": None}),
    "ordered dict": (ORDERED(b=F, a=N), ORDERED(b=1.5, a=2)),
    "default dict": (DEFAULT(b=F, a=N), DEFAULT(b=1.5, a=2)),
    "registered dict": (Unsorted(b=F, a=N), Unsorted(b=1.5, a=2)),
    "dict for ordered dict": (ORDERED(b=F, a=F), {"a": 2.0, "b": 1.5}),
    "mapping for dict": ({"a": F, "b": F}, ORDERED(b=2.0, a=1.0)),
    "tuple for list": ([F, F], (1.0, 2.0)),
    "list for tuple": ((F, F), [1.0, 2.0]),
    "bare value for list of one": ([F], 1.0),
    "list of one for a bare value": (F, [1.0]),
}


@pytest.mark.parametrize(("tout", "value"), STRUCTURES.values(), ids=STRUCTURES)
def test_results_have_the_structure_of_tout(tout, value):
    for api in (numpy_function, py_function):
        op = lambda: api(lambda: value, [], tout)  # noqa: B023
        for y in (op(), jax.jit(op)()):
            assert jax.tree.structure(y) == jax.tree.structure(tout)
            wanted = value
            if isinstance(tout, dict):  # its keys may be in another order
                assert type(y) is type(tout)
                y, wanted = ([tree[key] for key in tout] for tree in (y, value))
            for got, want in zip(jax.tree.leaves(y), jax.tree.leaves(wanted), strict=True):
                assert isinstance(got, jax.Array)
                assert (got, got.dtype, got.shape) == (want, N if isinstance(want, int) else F, ())


WRONG = {
    "too many": ([F, F], [1.0, 2.0, 3.0], r"a list of 3 .*has a list of 2"),
    "list for one": (F, [1.0, 2.0], r"a list of 2 .*has float32; .*or return np.array\(...\)"),
    "one for two": ([F, F], 1.0, r"a float .*has a list of 2"),
    "array for two": ([F, F], np.zeros(2, np.float32), r"an array where"),
    "None among two": ([F, F], [1.0, None], r"None at result\[1\] .*has float32"),
    "None in a dict": ({"a": F, "b": F}, {"a": 1.0, "b": None}, r"None at result\['b'\] where"),
    "other key": ({"a": F}, {"b": 1.0}, r"a dict with the keys \['b'\] where Tout=\{'a': 'float32'\}"),
    "nested count": ([F, [F, F]], [1.0, [2.0]], r"a list of 1 at result\[1\] .*has a list of 2"),
    "other dataclass": (Both(F, F), Pair(1.0, 2.0), r"a Pair|a tuple of 2|a Pair of 2"),
    "value for nothing": ([], 1.0, r"a float where Tout=\[\] declares no result; pass Tout=None to ignore"),
    "ragged": ([S((), F), S((2,), F)], (1.0, [1.0, [1.0, 2.0]]), r"a list of 2 at result\[1\] .* has float32"),
    "list of text": (S((2,), F), ["a", "b"], "a list of 2 .*has float32; make the two agree"),
    "too long a list": (S((2,), F), [1.0, 2.0, 3.0], r"shape \(3,\) where \(2,\) was declared"),
    "other static field": (Batch(F, "train"), Batch(1.0, "test"), r"Batch\[\('test',\)\].*has a Batch, .*\('train',\)"),
    "None in a list": ([S((), F), S((2,), F)], (1.0, [None, 1.0]), r"a list of 2 at result\[1\]"),
}


@pytest.mark.parametrize(("tout", "value", "text"), WRONG.values(), ids=WRONG)
def test_another_count_or_structure_is_an_error(tout, value, text):
    for api in (numpy_function, py_function):
        op = lambda: api(lambda: value, [], tout)  # noqa: B023
        for f in (op, jax.jit(op)) if api is numpy_function else (op,):
            with pytest.raises((ValueError, TypeError), match=f"func returned .*({text})"):
                run(f)


# ------------------------------------------------------------------- no result


@every_api
def test_none_ignores_what_the_function_returns(api):
    ignored = [1.5, "written", np.zeros(3), object(), [[], [1, [2, "x"]]], float("nan"), None]
    log = []
    body = lambda x: log.append(float(x)) or ignored[len(log) % len(ignored)]
    f = jax.jit(lambda x: api(body, [x], None))
    for _ in ignored:
        assert run(f, 2.0) is None
        assert api(body, [2.0], None) is None
    assert run(jax.jit(jax.vmap(f)), jnp.arange(4.0)) is None
    assert log[:-4] == [2.0] * 2 * len(ignored)
    assert sorted(log[-4:]) == [0, 1, 2, 3]


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
    "a tuple": ([S((), F), S((2,), F)], [1.0, (1.0, 2.0)]),
    "alone": (S((2,), F), [1.0, 2.0]),
    "of one array": (S((1,), F), [np.ones(1, np.float32)]),
    "rows": (S((2, 2), F), [[1.0, 2.0], [3.0, 4.0]]),
    "empty": (S((0,), F), []),
    "empty rows": (S((0, 3), N), []),
    "numbers of NumPy": (S((2,), F), [np.float32(1), np.float32(2)]),
}


@pytest.mark.parametrize(("tout", "value"), ARRAYS.values(), ids=ARRAYS)
def test_a_list_of_numbers_is_an_array(tout, value):
    for api in (numpy_function, py_function):
        out = api(lambda: value, [], tout)
        assert jax.tree.structure(out) == jax.tree.structure(tout)
        wanted = value if isinstance(tout, list) else [value]
        for got, want, leaf in zip(jax.tree.leaves(out), wanted, jax.tree.leaves(tout), strict=True):
            np.testing.assert_array_equal(np.ravel(got), np.ravel(np.array(want)))
            assert got.shape == leaf.shape

"""Lists of numbers where an array is promised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import both_sides, close
from tests.shared.ways import every_way

F, N = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct

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
    "without a shape": ({"a": F, "b": F}, {"a": 1.0, "b": [1.0, 2.0]}),
}


@pytest.mark.parametrize(("tout", "value"), ARRAYS.values(), ids=ARRAYS)
@both_sides
def test_a_list_of_numbers_is_an_array(api, tout, value, route):
    shapes = {"a": (), "b": (2,)} if isinstance(tout, dict) else None
    out = route(lambda: api(lambda: value, [], tout, output_shapes=shapes))
    assert jax.tree.structure(out) == jax.tree.structure(tout)
    parts = jax.tree.leaves(out)
    wanted = list(value.values()) if isinstance(value, dict) else value if isinstance(tout, list) else [value]
    for got, want, leaf in zip(parts, wanted, jax.tree.leaves(tout)):
        np.testing.assert_array_equal(np.ravel(got), np.ravel(np.array(want)))
        assert got.shape == getattr(leaf, "shape", np.shape(want))


@every_way
@both_sides
def test_under_transformations(api, way, route):
    op = lambda x: api(lambda x: (x, [x, 2.0]), [x], [S((), F), S((2,), F)])
    x, both = route(lambda xs: way(op, xs), jnp.arange(4.0))
    close(x, np.arange(4))
    close(both, [[k, 2] for k in range(4)])


def test_a_list_of_traced_values_is_differentiable(route):
    op = lambda x: jaxpyop.py_function(lambda x: [x**2, 3.0 * x, 1.0], [x], S((3,), F))
    close(route(jax.grad(lambda x: (op(x) * jnp.array([1.0, 10.0, 100.0])).sum()), 2.0), 34.0)


WRONG = {
    "ragged": (
        [S((), F), S((2,), F)],
        (1.0, [1.0, [1.0, 2.0]]),
        r"a list of 2 at result\[1\] .* has float32 of shape",
    ),
    "of text": (S((2,), F), ["a", "b"], "a list of 2 .*declares one result; make the two agree"),
    "too long": (S((2,), F), [1.0, 2.0, 3.0], r"shape \(3,\) where \(2,\) was declared"),
    "without a shape": (F, [1.0, 2.0], r"declares one result; .*or return np.array\(...\)"),
    "None in it": ([S((), F), S((2,), F)], (1.0, [None, 1.0]), r"a list of 2 at result\[1\]"),
    "in a dict": ({"a": F, "b": F}, {"a": 1.0, "b": None}, r"None at result\['b'\] where"),
}


@pytest.mark.parametrize(("tout", "value", "text"), WRONG.values(), ids=WRONG)
@both_sides
def test_what_is_no_array_is_an_error(api, tout, value, text, route):
    with pytest.raises((ValueError, TypeError), match=text), jaxpyop.reraise():
        route(lambda: api(lambda: value, [], tout))


def test_a_list_that_holds_itself(route):
    loop = [1.0]
    loop.append(loop)
    with pytest.raises(ValueError, match="func returned a list of 2"), jaxpyop.reraise():
        route(lambda: jaxpyop.py_func(lambda: loop, [], S((2,), F)))

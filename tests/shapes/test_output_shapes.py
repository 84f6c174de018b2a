"""The forms of `output_shapes`: shapes in any form, a callable, and dimensions that are not known."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.checks import shape_of
from tests.shared.functions import every_api, numpy_function, py_func, py_function

F, INT = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
X = jnp.array([3.0, 1.0, 3.0])


class TensorShape:
    """Stands for tf.TensorShape."""

    def __init__(self, dims):
        self.dims = dims
        self.rank = None if dims is None else len(dims)

    def as_list(self):
        return list(self.dims)


ONE = [(3,), [3], (np.int64(3),), np.array([3]), (None,), None, S((3,), F)]
ONE += [TensorShape([3]), TensorShape([None]), TensorShape(None), functools.partial(lambda n, x: (n,), 3)]
ONE += [lambda x: x.shape, lambda x: (None,), lambda x: None]


@every_api
def test_forms_of_one_shape(api):
    for shape in ONE:
        op = lambda x: api(lambda x: x * 2, [x], F, output_shapes=shape)  # noqa: B023
        assert op(X).shape == shape_of(op, X) == (3,), shape


@dataclasses.dataclass
class Batch:
    x: object
    y: object


jax.tree_util.register_dataclass(Batch, ["x", "y"], [])

MANY = {
    "list": ([F, INT], [(3,), ()]),
    "with None leaf": ([F, INT], [None, ()]),
    "None dimension": ([F, INT], [(None,), ()]),
    "dict": ({"a": F, "b": INT}, {"b": (), "a": (3,)}),
    "whole branch unknown": ({"a": [F], "b": (INT,)}, {"a": None, "b": ((),)}),
    "dataclass": (Batch(F, INT), Batch((3,), ())),
    "callable": ([F, INT], lambda x: [x.shape, ()]),
    "Tout has one": ([S((3,), F), INT], [None, ()]),
    "said twice": ([S((3,), F), INT], [(3,), ()]),
}


@pytest.mark.parametrize(("tout", "shapes"), MANY.values(), ids=MANY)
def test_forms_of_several_shapes(tout, shapes):
    fill = lambda x: jax.tree.map(lambda t: 7 if np.dtype(getattr(t, "dtype", t)) == np.int32 else x, tout)
    for api in (py_function, numpy_function):
        op = lambda x: api(fill, [x], tout, output_shapes=shapes)  # noqa: B023
        for y in (op(X), jax.eval_shape(op, X)):
            assert jax.tree.structure(y) == jax.tree.structure(tout)
            assert [v.shape for v in jax.tree.leaves(y)] == [(3,), ()]


OTHERS = [([F, F], [()]), ([F], [(), ()]), ({"a": F}, {"b": ()}), ({"a": F}, [()]), ([F], {"a": ()})]


@pytest.mark.parametrize(("tout", "shapes"), OTHERS, ids=["too few", "too many", "keys", "list", "dict"])
def test_shapes_of_another_structure(tout, shapes):
    for given_shapes in (shapes, lambda x: shapes):
        op = lambda x, s=given_shapes: py_func(lambda x: jax.tree.map(lambda _: 0.0, tout), [x], tout, output_shapes=s)
        for call in (op, jax.jit(op)):
            with pytest.raises(ValueError, match="output_shapes must have the structure of Tout"):
                call(X)


def test_the_callable_gets_structs_in_the_structure_of_the_inputs():
    got = []
    shapes = lambda tree, *others: got.append((tree, *others)) or tree["x"].shape[:1]
    inp = lambda x: [{"x": x}, "text", 3, jax.random.key(0)]
    program = jax.jit(lambda x: py_func(lambda tree, *others: tree["x"][:, 0], inp(x), F, output_shapes=shapes))
    assert program(jnp.ones((2, 5))).shape == (2,)
    tree, text, number, key = got[-1]
    assert (tree, text, number, type(key)) == ({"x": S((2, 5), F)}, "text", S((), INT), S)


@pytest.mark.slow
def test_the_callable_under_vmap_gets_one_elements_structs_and_is_asked_once_for_a_program():
    got = []
    shapes = lambda x, y: got.append((x.shape, y.shape)) or x.shape
    f = jax.vmap(lambda x, y: numpy_function(lambda x, y: x, [x, y], F, output_shapes=shapes), in_axes=(1, None))
    compiled = jax.jit(f)
    for _ in range(2):
        assert compiled(jnp.ones((3, 20)), jnp.ones(5)).shape == (20, 3)
    assert len(got) <= 2  # while JAX traces, and at the first element
    assert f(jnp.ones((3, 2)), jnp.ones(5)).shape == (2, 3)
    assert set(got) == {((3,), (5,))}


def test_unknown_dimensions_are_filled_by_the_function_or_by_broadcasting():
    doubled = lambda x: py_function(lambda x: jnp.concatenate([x, x]), [x], F, output_shapes=(None,))
    assert shape_of(doubled, X) == (6,)
    add = lambda x, y: numpy_function(np.add, [x, y], F, output_shapes=(None, 3))
    assert shape_of(add, jnp.ones((2, 1)), jnp.ones(3)) == (2, 3)


UNFILLED = {
    "rank": (lambda x: x, (None, None), r"must be known .*; output_shapes gives \(None, None\) and .* is \(3,\)"),
    "dimension": (lambda x: x, (None, 4), r"must be known .*; output_shapes gives \(None, 4\).*give the whole shape"),
    "the function's own": (lambda x: jnp.outer(x, x), (5, None), r"\(5, None\).*\(3, 3\)"),
}


@pytest.mark.parametrize(("body", "shape", "text"), UNFILLED.values(), ids=UNFILLED)
def test_unknown_dimensions_that_cannot_be_filled(body, shape, text):
    with pytest.raises(ValueError, match=text):
        shape_of(lambda x: py_function(body, [x], F, output_shapes=shape), X)

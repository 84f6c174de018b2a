"""Forms of `output_shapes`, unknown dimensions."""

from __future__ import annotations

import dataclasses
import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from tests.shared.util import Counter, every_api, numpy_function, py_func, py_function

F, INT = jnp.float32, jnp.int32
X = jnp.array([3.0, 1.0, 3.0])


# -------------------------------------------------------- forms of output_shapes


class TensorShape:
    """Stands for tf.TensorShape."""

    def __init__(self, dims):
        self.dims = dims
        self.rank = None if dims is None else len(dims)

    def as_list(self):
        return list(self.dims)


ONE = {
    "tuple": (3,),
    "list": [3],
    "numpy ints": (np.int64(3),),
    "array": np.array([3]),
    "unknown": (None,),
    "None": None,
    "TensorShape": TensorShape([3]),
    "TensorShape with None": TensorShape([None]),
    "TensorShape of unknown rank": TensorShape(None),
    "struct": jax.ShapeDtypeStruct((3,), F),
    "callable": lambda x: x.shape,
    "callable with None": lambda x: (None,),
    "callable of None": lambda x: None,
    "partial": functools.partial(lambda n, x: (n,), 3),
}


@pytest.mark.parametrize("shape", ONE.values(), ids=ONE)
@every_api
def test_forms_of_one_shape(api, shape, route):
    y = route(lambda x: api(lambda x: x * 2, [x], F, output_shapes=shape), X)
    assert y.shape == (3,)


MANY = {
    "list": ([F, INT], [(3,), ()]),
    "tuple for list": ([F, INT], ((3,), ())),
    "list for tuple": ((F, INT), [(3,), ()]),
    "lists as shapes": ([F, INT], [[3], []]),
    "with None leaf": ([F, INT], [None, ()]),
    "None dimension": ([F, INT], [(None,), ()]),
    "dict": ({"a": F, "b": INT}, {"b": (), "a": (3,)}),
    "nested": ({"a": [F], "b": (INT,)}, {"a": [(3,)], "b": ((),)}),
    "whole branch unknown": ({"a": [F], "b": (INT,)}, {"a": None, "b": ((),)}),
    "callable": ([F, INT], lambda x: [x.shape, ()]),
    "structs": ([F, INT], [jax.ShapeDtypeStruct((3,), F), jax.ShapeDtypeStruct((), INT)]),
    "Tout has one": ([jax.ShapeDtypeStruct((3,), F), INT], [None, ()]),
    "Tout has both": ([jax.ShapeDtypeStruct((3,), F), jax.ShapeDtypeStruct((), INT)], None),
    "said twice": ([jax.ShapeDtypeStruct((3,), F), INT], [(3,), ()]),
}


@pytest.mark.parametrize(("tout", "shapes"), MANY.values(), ids=MANY)
@every_api
def test_forms_of_several_shapes(api, tout, shapes, route):
    fill = lambda x: jax.tree.map(
        lambda t: (
            x if t in (F,) or (getattr(t, "dtype", None) == np.float32 and getattr(t, "shape", None) == (3,)) else 7
        ),
        tout,
    )
    y = route(lambda x: api(lambda x: fill(x), [x], tout, output_shapes=shapes), X)
    assert jax.tree.structure(y) == jax.tree.structure(tout)
    assert sorted(v.shape for v in jax.tree.leaves(y)) == [(), (3,)]


@dataclasses.dataclass
class Batch:
    x: object
    y: object


jax.tree_util.register_dataclass(Batch, ["x", "y"], [])


def test_shapes_of_a_registered_dataclass(route):
    y = route(lambda x: py_func(lambda x: Batch(x, x.sum()), [x], Batch(F, F), output_shapes=Batch((3,), ())), X)
    assert (y.x.shape, y.y.shape) == ((3,), ())


BAD_STRUCTURE = {
    "too few": ([F, F], [()]),
    "too many": ([F], [(), ()]),
    "other keys": ({"a": F}, {"b": ()}),
    "list for dict": ({"a": F}, [()]),
    "dict for list": ([F], {"a": ()}),
}


@pytest.mark.parametrize(("tout", "shapes"), BAD_STRUCTURE.values(), ids=BAD_STRUCTURE)
@pytest.mark.parametrize("late", [False, True], ids=["value", "callable"])
@every_api
def test_shapes_of_another_structure(api, tout, shapes, late, route):
    returned = lambda x: jax.tree.map(lambda _: 0.0, tout)
    with pytest.raises(ValueError, match="output_shapes must have the structure of Tout"), jaxpyop.reraise():
        route(lambda x: api(returned, [x], tout, output_shapes=(lambda x: shapes) if late else shapes), X)


def test_the_callable_gets_structs_in_the_structure_of_the_inputs(route):
    got = []

    def shapes(tree, text, number, key):
        got.append((tree, text, number, key))
        return tree["x"].shape[:1]

    def body(tree, text, number, key):
        return tree["x"][:, 0]

    key = jax.random.key(0)
    y = route(lambda x, key: py_func(body, [{"x": x}, "text", 3, key], F, output_shapes=shapes), jnp.ones((2, 5)), key)
    assert y.shape == (2,)
    tree, text, number, key_struct = got[-1]
    assert isinstance(tree["x"], jax.ShapeDtypeStruct)
    assert tree["x"] == jax.ShapeDtypeStruct((2, 5), F)
    assert text == "text"
    assert number == jax.ShapeDtypeStruct((), INT)
    assert isinstance(key_struct, jax.ShapeDtypeStruct)


def test_the_callable_gets_keyword_inputs(route):
    op = jaxpyop.numpy_function(Tout=F, output_shapes=lambda x, n: (n.shape[0],))(lambda x, n: np.zeros(len(n)))
    assert route(lambda x, n: op(x, n=n), X, jnp.ones(4)).shape == (4,)


def test_the_callable_under_vmap_gets_one_elements_structs(transport):
    got = []

    def shapes(x, y):
        got.append((x.shape, y.shape))
        return x.shape

    f = jax.vmap(lambda x, y: numpy_function(lambda x, y: x, [x, y], F, output_shapes=shapes), in_axes=(1, None))
    assert jax.jit(f)(jnp.ones((3, 2)), jnp.ones(5)).shape == (2, 3)
    assert f(jnp.ones((3, 2)), jnp.ones(5)).shape == (2, 3)
    assert set(got) == {((3,), (5,))}


def test_an_error_of_the_callable_comes_out(route):
    def shapes(x):
        raise LookupError("no such shape")

    with pytest.raises(LookupError, match="no such shape"), jaxpyop.reraise():
        route(lambda x: py_func(lambda x: x, [x], F, output_shapes=shapes), X)


# ------------------------------------------------------------- None dimensions


def test_unknown_dimensions_are_filled_by_the_body_or_by_broadcasting(transport):
    body = lambda x: jnp.concatenate([x, x])
    assert jax.jit(lambda x: py_function(body, [x], F, output_shapes=(None,)))(X).shape == (6,)
    f = jax.jit(lambda x, y: numpy_function(np.add, [x, y], F, output_shapes=(None, 3)))
    assert f(jnp.ones((2, 1)), jnp.ones(3)).shape == (2, 3)


UNFILLED = {
    "rank": ((None, None), r"output_shapes gives \(None, None\) and .* is \(3,\)"),
    "dimension": ((None, 4), r"output_shapes gives \(None, 4\)"),
}


@pytest.mark.parametrize(("shape", "text"), UNFILLED.values(), ids=UNFILLED)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_unknown_dimensions_that_cannot_be_filled(api, shape, text, transport):
    with pytest.raises(
        ValueError, match=rf"'lambda': the result's shape must be known .*; {text}.*give the whole shape"
    ):
        jax.jit(lambda x: api(lambda x: x, [x], F, output_shapes=shape)).lower(X)


def test_a_given_part_contradicting_the_body(transport):
    with pytest.raises(ValueError, match=r"\(5, None\).*\(3, 3\)"):
        jax.jit(lambda x: py_function(lambda x: jnp.outer(x, x), [x], F, output_shapes=(5, None)))(X)


# ------------------------------------------------------------------ in the large


def test_scalar_in_images_out_resized_in_the_same_jit(transport):
    """The user's example: a loader that makes a batch of images from a seed."""
    body = Counter(lambda seed: np.full((20, 256, 256, 3), seed, np.float32))

    @jax.jit
    def load(seed):
        images = numpy_function(body, [seed], F, output_shapes=(20, 256, 256, 3))
        return jax.image.resize(images, (20, 64, 64, 3), "linear")

    out = load(jnp.float32(3))
    assert out.shape == (20, 64, 64, 3)
    np.testing.assert_allclose(out, 3, rtol=1e-5)
    assert body.count == 1


@given(
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    transport=st.sampled_from(["auto", "callback"]),
    api=st.sampled_from([py_function, numpy_function]),
)
def test_any_promised_shape_comes_out(shape, transport, api):
    with jaxpyop.config.override(transport=transport):
        y = jax.jit(lambda x: api(lambda x: np.full(shape, x), [x], F, output_shapes=shape))(jnp.float32(2))
    assert y.shape == shape
    assert (np.asarray(y) == 2).all()

"""Where a result's shape comes from: `output_shapes` and inference."""

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
from util import APIS, NUMPY_APIS, Counter, contrib, numpy_function, py_func, py_function

import jaxpyop

F, INT = jnp.float32, jnp.int32
every_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
every_numpy_api = pytest.mark.parametrize("api", NUMPY_APIS.values(), ids=NUMPY_APIS)
X = jnp.array([3.0, 1.0, 3.0])


# ------------------------------------------------------------- outside of jit


@every_api
def test_outside_jit_nothing_needs_a_shape(api):
    assert api(np.unique, [X], F).shape == (2,)
    assert api(lambda: np.zeros((4, 0, 2)), [], F).shape == (4, 0, 2)
    a, b = api(lambda x: [x[:1], x[None]], [X], [F, F])
    assert (a.shape, b.shape) == ((1,), (1, 3))


@every_api
def test_outside_jit_a_given_shape_is_checked(api):
    assert api(np.unique, [X], F, output_shapes=(2,)).shape == (2,)
    assert api(np.unique, [X], F, output_shapes=(None,)).shape == (2,)
    with pytest.raises(
        ValueError, match=r"'unique'.*func returned shape \(2,\) where \(3,\) was promised; write output_shapes=\(2,\)"
    ):
        api(np.unique, [X], F, output_shapes=(3,))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(None, None\) was promised"):
        api(np.unique, [X], F, output_shapes=(None, None))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(\) was promised"):
        api(np.unique, [X], jax.ShapeDtypeStruct((), F))


def test_eager_vmap_needs_no_shape_either():
    """An eager vmap is no jit: the elements' own shape, if they agree on one."""
    rows = jnp.array([[1.0, 1.0, 2.0], [4.0, 5.0, 4.0]])
    np.testing.assert_array_equal(jax.vmap(lambda x: numpy_function(np.unique, [x], F))(rows), [[1, 2], [4, 5]])
    with pytest.raises(ValueError, match=r"the shapes \(3,\) and \(2,\) for elements of one vmap"):
        jax.vmap(lambda x: numpy_function(np.unique, [x], F))(rows.at[0, 1].set(7.0))


# ------------------------------------------------------- inference by the body


def with_if(x):
    return x.sum() if x[0] > 0 else x.mean()


def early_return(x):
    if x[0] > 100:
        return jnp.zeros(())
    return x[:2].sum()


def with_raise(x):
    if x[0] > 0:
        return x[:2]
    raise ValueError("negative")


def with_loop(x):
    total = jnp.zeros((2, 2))
    for i in range(3):
        total = total + x[i]
    return total


ABSTRACT = {
    "reduction": (jnp.sum, ()),
    "matrix": (lambda x: x[:, None] * x[None, :], (3, 3)),
    "concatenated": (lambda x: jnp.concatenate([x, x]), (6,)),
    "if": (with_if, ()),
    "early return": (early_return, ()),
    "raises on one path": (with_raise, (2,)),
    "loop": (with_loop, (2, 2)),
    "jitted": (jax.jit(lambda x: x[:2]), (2,)),
    "scan": (lambda x: jax.lax.scan(lambda c, y: (c + y, c), 0.0, x)[0], ()),
    "vmap": (jax.vmap(lambda y: y * jnp.ones(2)), (3, 2)),
    "nested op": (lambda x: py_function(jnp.sum, [x], F), ()),
    "python number": (lambda x: 3.0, ()),
    "numpy constant": (lambda x: np.zeros((2, 5)), (2, 5)),
}


@pytest.mark.parametrize(("body", "shape"), ABSTRACT.values(), ids=ABSTRACT)
def test_a_stateless_py_function_gives_its_own_shape(body, shape, transport):
    y = jax.jit(lambda x: py_function(body, [x], F))(X)
    assert y.shape == shape
    np.testing.assert_allclose(y, np.broadcast_to(body(X), shape), rtol=1e-6)


@pytest.mark.parametrize(("body", "shape"), ABSTRACT.values(), ids=ABSTRACT)
def test_the_same_under_vmap(body, shape, transport):
    rows = jnp.stack([X, X + 1])
    y = jax.jit(jax.vmap(lambda x: py_function(body, [x], F)))(rows)
    assert y.shape == (2, *shape)


def test_inference_of_several_results_and_of_a_pytree(transport):
    body = lambda x, tree: {"a": x.sum(), "b": [tree["k"] * 2, x[:1]]}
    out = jax.jit(lambda x: py_function(body, [x, {"k": x}], {"a": F, "b": [F, F]}))(X)
    assert [v.shape for v in jax.tree.leaves(out)] == [(), (3,), (1,)]


def test_shapes_of_a_body_that_looks_at_values_are_assumed(transport):
    """float(x) has no abstract path: the inputs' broadcast shape."""
    f = jax.jit(lambda x: py_function(lambda x: x * float(x[0]), [x], F))
    np.testing.assert_array_equal(f(X), X * 3)


def test_what_a_failed_inference_leaves_is_nothing(transport):
    """Errors of the body that only an abstract run meets do not surface."""
    f = jax.jit(lambda x: py_function(lambda x: jnp.asarray(np.asarray(x) * 2), [x], F))
    np.testing.assert_array_equal(f(X), X * 2)


def test_a_body_that_always_raises_raises_at_run_time(transport):
    def body(x):
        raise KeyError("at run time")

    f = jax.jit(lambda x: py_function(body, [x], F))
    compiled = f.lower(X).compile()
    with pytest.raises(KeyError, match="at run time"), jaxpyop.reraise():
        jax.block_until_ready(compiled(X))


@pytest.mark.parametrize(
    ("api", "options", "at_trace"),
    [
        (py_function, {}, True),
        (py_function, {"output_shapes": (3,)}, False),
        (py_function, {"output_shapes": lambda x: x.shape}, False),
        (py_function, {"stateful": True}, False),
        (py_function, {"ordered": True}, False),
        (numpy_function, {}, False),
        (py_func, {}, False),
        (contrib, {}, False),
    ],
    ids=["py_function", "shapes", "callable shapes", "stateful", "ordered", "numpy_function", "py_func", "contrib"],
)
def test_python_runs_at_trace_time_only_to_infer_a_shape(api, options, at_trace, transport):
    runs = []

    def body(x):
        runs.append(isinstance(x, jax.core.Tracer))
        return x * 2

    f = jax.jit(lambda x: api(body, [x], F, **options))
    compiled = f.lower(X).compile()
    assert bool(runs) == at_trace
    del runs[:]
    for _ in range(3):
        jax.block_until_ready(compiled(X))
    assert runs == [False] * 3


def test_a_tout_with_shape_runs_nothing_at_trace_time():
    runs = []

    def body(x):
        runs.append(1)
        return x

    jax.jit(lambda x: py_function(body, [x], jax.ShapeDtypeStruct((3,), F))).lower(X)
    assert not runs


# ---------------------------------------------------- inference by broadcasting

shapes = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3)


@given(shapes=shapes, transport=st.sampled_from(["auto", "callback"]))
def test_the_inputs_broadcast_shape_is_assumed(shapes, transport):
    with jaxpyop.config.override(transport=transport):
        a, b = (np.ones(s, np.float32) for s in shapes.input_shapes)
        y = jax.jit(lambda a, b: numpy_function(np.add, [a, b], F))(a, b)
    assert y.shape == shapes.result_shape
    assert (np.asarray(y) == 2).all()


def test_static_inputs_and_numbers_have_no_part_in_it(transport):
    y = jax.jit(lambda x: numpy_function(lambda x, s, n: x * n, [x, "text", 2.0], F))(X)
    np.testing.assert_array_equal(y, X * 2)


def test_no_inputs_is_a_scalar(transport):
    assert jax.jit(lambda: numpy_function(lambda: 3.0, [], F))().shape == ()


def test_every_result_is_assumed_alike(transport):
    a, b = jax.jit(lambda x: numpy_function(lambda x: (x, -x), [x], [F, F]))(X)
    assert a.shape == b.shape == (3,)


@every_numpy_api
def test_a_wrong_assumption_is_an_error_that_says_what_to_write(api, transport):
    f = jax.jit(lambda x: api(np.sum, [x], F))
    text = r"'sum'.*shape \(\) where \(3,\) was assumed.*broadcast shape.*write output_shapes=\(\)"
    for _ in range(3):
        with pytest.raises(ValueError, match=text), jaxpyop.reraise():
            jax.block_until_ready(f(X))


@every_numpy_api
def test_a_wrong_shape_that_broadcasts_is_an_error_too(api, transport):
    """Never silently broadcast into the promised shape."""
    for body, shape in [(lambda x: x[:1], r"\(1,\)"), (lambda x: x[None], r"\(1, 3\)"), (lambda x: x.sum(), r"\(\)")]:
        with pytest.raises(ValueError, match=rf"shape {shape} where \(3,\)"), jaxpyop.reraise():
            jax.block_until_ready(jax.jit(lambda x, body=body: api(body, [x], F))(X))


@every_api
def test_a_wrong_promise_is_checked_at_every_call(api, transport):
    def body(x):
        return x if x[0] > 0 else x[:2]

    f = jax.jit(lambda x: api(body, [x], F, output_shapes=(3,)))
    text = r"'body': func returned shape \(2,\) where \(3,\) was promised; write output_shapes=\(2,\)"
    np.testing.assert_array_equal(f(X), X)
    for _ in range(2):
        with pytest.raises(ValueError, match=text), jaxpyop.reraise():
            jax.block_until_ready(f(-X))
        np.testing.assert_array_equal(f(X), X)


def test_which_of_several_results(transport):
    f = jax.jit(lambda x: numpy_function(lambda x: [x, x[:2]], [x], [F, F]))
    with pytest.raises(ValueError, match=r"as result 1, shape \(2,\) where \(3,\)"), jaxpyop.reraise():
        jax.block_until_ready(f(X))


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_shape_errors_under_vmap_speak_of_one_element(method, transport):
    f = jax.vmap(lambda x: numpy_function(lambda x: x[..., :2], [x], F, vmap_method=method, output_shapes=(3,)))
    with pytest.raises(ValueError, match=r"write output_shapes=\(2,\)"), jaxpyop.reraise():
        jax.block_until_ready(jax.jit(f)(jnp.stack([X, X])))


def test_inputs_that_do_not_broadcast_need_a_shape(transport):
    f = lambda a, b, **o: jax.jit(lambda a, b: numpy_function(lambda a, b: a, [a, b], F, **o))(a, b)
    with pytest.raises(
        ValueError, match=r"'lambda': under jit the result's shape must be known.*do not broadcast.*output_shapes="
    ):
        f(jnp.ones(2), jnp.ones(3))
    assert f(jnp.ones(2), jnp.ones(3), output_shapes=(2,)).shape == (2,)


def test_the_stateful_py_function_is_assumed_elementwise(transport):
    f = jax.jit(lambda x: py_function(lambda x: x * 2, [x], F, stateful=True))
    np.testing.assert_array_equal(f(X), X * 2)
    f = jax.jit(lambda x: py_function(jnp.sum, [x], F, stateful=True))
    with pytest.raises(ValueError, match=r"shape \(\) where \(3,\) was assumed"), jaxpyop.reraise():
        jax.block_until_ready(f(X))


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
    with pytest.raises(ValueError, match="output_shapes must have the structure of Tout"), jaxpyop.reraise():
        route(lambda x: api(lambda x: tout, [x], tout, output_shapes=(lambda x: shapes) if late else shapes), X)


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
    "rank": ((None, None), r"output_shapes says \(None, None\) and .* is \(3,\)"),
    "dimension": ((None, 4), r"output_shapes says \(None, 4\)"),
}


@pytest.mark.parametrize(("shape", "text"), UNFILLED.values(), ids=UNFILLED)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_unknown_dimensions_that_cannot_be_filled(api, shape, text, transport):
    with pytest.raises(
        ValueError, match=rf"'lambda': under jit the result's shape must be known; {text}.*give the whole shape"
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

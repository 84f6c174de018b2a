"""Where the shapes of results come from, the forms of `output_shapes`, and that a shape is checked at every call."""

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

from tests.shared.checks import Counter, run
from tests.shared.examples import few, many
from tests.shared.functions import contrib, every_api, numpy_function, py_func, py_function

F, INT = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
X = jnp.array([3.0, 1.0, 3.0])


def shape_of(f, *args):
    """The shape that JAX gives the result, without running Python on values."""
    return jax.eval_shape(f, *args).shape


# ----------------------------------------------------------------- outside of jit


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
    text = r"'unique'.*func returned shape \(2,\) where \(3,\) was declared; write output_shapes=\(2,\)"
    with pytest.raises(ValueError, match=text):
        api(np.unique, [X], F, output_shapes=(3,))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(None, None\) was declared"):
        api(np.unique, [X], F, output_shapes=(None, None))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(\) was declared"):
        api(np.unique, [X], S((), F))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(3,\) was declared"):
        api(np.unique, [X], F, output_shapes=lambda x: (3,))


def test_an_eager_vmap_needs_no_shape_either():
    """The elements' own shape, if they agree on one."""
    rows = jnp.array([[1.0, 1.0, 2.0], [4.0, 5.0, 4.0]])
    np.testing.assert_array_equal(jax.vmap(lambda x: numpy_function(np.unique, [x], F))(rows), [[1, 2], [4, 5]])
    with pytest.raises(ValueError, match=r"the shapes \(3,\) and \(2,\) for elements of one vmap"):
        jax.vmap(lambda x: numpy_function(np.unique, [x], F))(rows.at[0, 1].set(7.0))


# ------------------------------------------------------- found by the function itself


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
def test_a_stateless_py_function_gives_its_own_shape(body, shape):
    op = lambda x: py_function(body, [x], F)
    assert shape_of(op, X) == shape
    assert shape_of(jax.vmap(op), jnp.stack([X, X])) == (2, *shape)
    np.testing.assert_allclose(jax.jit(op)(X), np.broadcast_to(body(X), shape), rtol=1e-6)


def test_shapes_of_several_results_and_of_a_pytree():
    body = lambda x, tree: {"a": x.sum(), "b": [tree["k"] * 2, x[:1]]}
    out = jax.jit(lambda x: py_function(body, [x, {"k": x}], {"a": F, "b": [F, F]}))(X)
    assert [v.shape for v in jax.tree.leaves(out)] == [(), (3,), (1,)]


def test_a_function_that_needs_values_has_the_inputs_shape():
    """And errors that only the run without values meets do not come out."""
    for body in (lambda x: x * float(x[0]), lambda x: jnp.asarray(np.asarray(x) * 3)):
        np.testing.assert_array_equal(jax.jit(lambda x: py_function(body, [x], F))(X), X * 3)  # noqa: B023


def test_a_function_that_always_raises_raises_at_run_time():
    def body(x):
        raise KeyError("at run time")

    compiled = jax.jit(lambda x: py_function(body, [x], F)).lower(X).compile()
    with pytest.raises(KeyError, match="at run time"):
        run(compiled, X)


AT_TRACE_TIME = {
    "py_function": (py_function, {}, True),
    "shapes": (py_function, {"output_shapes": (3,)}, False),
    "callable shapes": (py_function, {"output_shapes": lambda x: x.shape}, False),
    "stateful": (py_function, {"stateful": True}, False),
    "ordered": (py_function, {"ordered": True}, False),
    "numpy_function": (numpy_function, {}, False),
    "py_func": (py_func, {}, False),
    "contrib": (contrib, {}, False),
}


@pytest.mark.parametrize(("api", "options", "at_trace"), AT_TRACE_TIME.values(), ids=AT_TRACE_TIME)
def test_python_runs_at_trace_time_only_to_find_a_shape(api, options, at_trace):
    runs = []

    def body(x):
        runs.append(isinstance(x, jax.core.Tracer))
        return x * 2

    compiled = jax.jit(lambda x: api(body, [x], F, **options)).lower(X).compile()
    assert runs == [True] * at_trace
    runs.clear()
    for _ in range(3):
        jax.block_until_ready(compiled(X))
    assert runs == [False] * 3


# ------------------------------------------------------- assumed from the inputs


def the_broadcast_shape_is_assumed(shapes):
    a, b = (np.ones(s, np.float32) for s in shapes.input_shapes)
    assert shape_of(lambda a, b: numpy_function(np.add, [a, b], F), a, b) == shapes.result_shape
    assert numpy_function(np.add, [a, b], F).shape == shapes.result_shape


some_shapes = given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3))
test_the_inputs_broadcast_shape_is_assumed = few(some_shapes, the_broadcast_shape_is_assumed, examples=30)
test_many_broadcast_shapes_are_assumed = many(some_shapes, the_broadcast_shape_is_assumed, examples=300)


def test_the_assumed_shape_of_a_program_is_that_of_its_values():
    y = jax.jit(lambda a, b: numpy_function(np.add, [a, b], F))(np.ones((2, 1), F), np.ones(3, F))
    np.testing.assert_array_equal(y, np.full((2, 3), 2))
    assert shape_of(lambda: numpy_function(lambda: 3.0, [], F)) == ()
    a, b = jax.jit(lambda x: numpy_function(lambda x: (x, -x), [x], [F, F]))(X)
    assert a.shape == b.shape == (3,)


def test_static_inputs_and_numbers_have_no_part_in_it():
    np.testing.assert_array_equal(
        jax.jit(lambda x: numpy_function(lambda x, s, n: x * n, [x, "text", 2.0], F))(X), X * 2
    )


def test_inputs_that_do_not_broadcast_need_a_shape():
    f = lambda a, b, **o: numpy_function(lambda a, b: a, [a, b], F, **o)
    text = r"'lambda': the result's shape must be known.*do not broadcast.*output_shapes="
    with pytest.raises(ValueError, match=text):
        shape_of(f, jnp.ones(2), jnp.ones(3))
    assert shape_of(functools.partial(f, output_shapes=(2,)), jnp.ones(2), jnp.ones(3)) == (2,)


@every_api
def test_a_wrong_assumption_is_an_error_that_says_what_to_write(api):
    """A shape that would broadcast into the assumed one, too."""
    now = []
    options = {"stateful": True} if api is py_function else {}
    f = jax.jit(lambda x: api(lambda x: now[0](x), [x], F, name="mine", **options))
    text = r"'mine': write output_shapes=\(\) \(or Tout=jnp.float32\(0\), .*shape \(\) where \(3,\) was assumed"
    shapes = {r"shape \(1,\) where \(3,\)": lambda x: x[:1], r"shape \(1, 3\) where": lambda x: x[None]}
    for error, body in ({text: lambda x: x.sum()} | shapes).items():
        now[:] = [body]
        for _ in range(2):
            with pytest.raises(ValueError, match=error):
                run(f, X)
    now[:] = [lambda x: x * 2]
    np.testing.assert_array_equal(run(f, X), X * 2)


# ----------------------------------------------------------------------- checks


@every_api
def test_a_declared_shape_is_checked_at_every_call(api):
    f = jax.jit(lambda x: api(lambda x: x if x[0] > 0 else x[:2], [x], F, name="mine", output_shapes=(3,)))
    text = r"'mine': func returned shape \(2,\) where \(3,\) was declared; write output_shapes=\(2,\)"
    np.testing.assert_array_equal(run(f, X), X)
    for _ in range(2):
        with pytest.raises(ValueError, match=text):
            run(f, -X)
        np.testing.assert_array_equal(run(f, X), X)


def test_where_tout_has_the_shape_the_error_says_to_write_it_there():
    op = lambda n: numpy_function(lambda x: x[:2], [X], S((n,), F))
    text = r"where \(3,\) was declared; write that shape in Tout, jax.ShapeDtypeStruct\(\(2,\), jnp.float32\)"
    with pytest.raises(ValueError, match=text):
        op(3)
    assert op(2).shape == (2,)


def test_the_error_says_which_of_several_results():
    f = jax.jit(lambda x: numpy_function(lambda x: [x, x[:2]], [x], [F, F]))
    with pytest.raises(ValueError, match=r"as result 1, shape \(2,\) where \(3,\)"):
        run(f, X)


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_shape_errors_under_vmap_speak_of_one_element(method):
    f = jax.vmap(lambda x: numpy_function(lambda x: x[..., :2], [x], F, vmap_method=method, output_shapes=(3,)))
    with pytest.raises(ValueError, match=r"write output_shapes=\(2,\)"):
        run(jax.jit(f), jnp.stack([X, X]))


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_block_without_the_batchs_axis_says_so(method):
    """Each element's shape was right: to write it as output_shapes= would not help."""
    f = jax.vmap(lambda x: numpy_function(lambda x: np.ones((1, 3)), [x], F, vmap_method=method, output_shapes=(3,)))
    text = r"shape \(1, 3\) where \(2, 3\).*each element, with \(2,\) in front"
    with pytest.raises(ValueError, match=text) as caught:
        f(jnp.ones((2, 3)))
    assert "write output_shapes" not in str(caught.value)


def test_elements_of_a_batch_may_not_differ_in_shape():
    f = jax.vmap(lambda x: numpy_function(lambda x: np.zeros(int(x) % 2 + 1), [x], F, output_shapes=(1,)))
    np.testing.assert_array_equal(f(jnp.array([0.0, 2.0])), np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(1,\) was declared"):
        f(jnp.array([0.0, 1.0]))


# ------------------------------------------------------------ forms of output_shapes


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
    "struct": S((3,), F),
    "callable": lambda x: x.shape,
    "callable with None": lambda x: (None,),
    "callable of None": lambda x: None,
    "partial": functools.partial(lambda n, x: (n,), 3),
}


@pytest.mark.parametrize("shape", ONE.values(), ids=ONE)
@every_api
def test_forms_of_one_shape(api, shape):
    op = lambda x: api(lambda x: x * 2, [x], F, output_shapes=shape)
    assert op(X).shape == shape_of(op, X) == (3,)


@dataclasses.dataclass
class Batch:
    x: object
    y: object


jax.tree_util.register_dataclass(Batch, ["x", "y"], [])

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
    "dataclass": (Batch(F, INT), Batch((3,), ())),
    "callable": ([F, INT], lambda x: [x.shape, ()]),
    "structs": ([F, INT], [S((3,), F), S((), INT)]),
    "Tout has one": ([S((3,), F), INT], [None, ()]),
    "Tout has both": ([S((3,), F), S((), INT)], None),
    "said twice": ([S((3,), F), INT], [(3,), ()]),
}


@pytest.mark.parametrize(("tout", "shapes"), MANY.values(), ids=MANY)
@every_api
def test_forms_of_several_shapes(api, tout, shapes):
    fill = lambda x: jax.tree.map(lambda t: 7 if np.dtype(getattr(t, "dtype", t)) == np.int32 else x, tout)
    op = lambda x: api(fill, [x], tout, output_shapes=shapes)
    for y in (op(X), jax.eval_shape(op, X)):
        assert jax.tree.structure(y) == jax.tree.structure(tout)
        assert [v.shape for v in jax.tree.leaves(y)] == [(3,), ()]


OTHER_STRUCTURES = {
    "too few": ([F, F], [()]),
    "too many": ([F], [(), ()]),
    "other keys": ({"a": F}, {"b": ()}),
    "list for dict": ({"a": F}, [()]),
    "dict for list": ([F], {"a": ()}),
}


@pytest.mark.parametrize(("tout", "shapes"), OTHER_STRUCTURES.values(), ids=OTHER_STRUCTURES)
def test_shapes_of_another_structure(tout, shapes):
    for given_shapes in (shapes, lambda x: shapes):
        op = lambda x, s=given_shapes: py_func(lambda x: jax.tree.map(lambda _: 0.0, tout), [x], tout, output_shapes=s)
        for call in (op, jax.jit(op)):
            with pytest.raises(ValueError, match="output_shapes must have the structure of Tout"):
                call(X)


def test_the_callable_gets_structs_in_the_structure_of_the_inputs():
    got = []

    def shapes(tree, text, number, key):
        got.append((tree, text, number, key))
        return tree["x"].shape[:1]

    body = lambda tree, text, number, key: tree["x"][:, 0]
    program = jax.jit(lambda x, key: py_func(body, [{"x": x}, "text", 3, key], F, output_shapes=shapes))
    assert program(jnp.ones((2, 5)), jax.random.key(0)).shape == (2,)
    tree, text, number, key = got[-1]
    assert (tree, text, number) == ({"x": S((2, 5), F)}, "text", S((), INT))
    assert isinstance(key, S)


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


def test_an_error_of_the_callable_comes_out():
    def shapes(x):
        raise LookupError("no such shape")

    op = lambda x: py_func(lambda x: x, [x], F, output_shapes=shapes)
    for call in (op, jax.jit(op)):
        with pytest.raises(LookupError, match="no such shape"):
            call(X)


# ------------------------------------------------------------- unknown dimensions


def test_unknown_dimensions_are_filled_by_the_function_or_by_broadcasting():
    body = lambda x: jnp.concatenate([x, x])
    assert jax.jit(lambda x: py_function(body, [x], F, output_shapes=(None,)))(X).shape == (6,)
    f = jax.jit(lambda x, y: numpy_function(np.add, [x, y], F, output_shapes=(None, 3)))
    assert f(jnp.ones((2, 1)), jnp.ones(3)).shape == (2, 3)


UNFILLED = {
    "rank": ((None, None), r"output_shapes gives \(None, None\) and .* is \(3,\)"),
    "dimension": ((None, 4), r"output_shapes gives \(None, 4\)"),
}


@pytest.mark.parametrize(("shape", "text"), UNFILLED.values(), ids=UNFILLED)
def test_unknown_dimensions_that_cannot_be_filled(shape, text):
    for api in (py_function, numpy_function):
        op = lambda x: api(lambda x: x, [x], F, output_shapes=shape)  # noqa: B023
        with pytest.raises(ValueError, match=rf"the result's shape must be known .*; {text}.*give the whole shape"):
            shape_of(op, X)


def test_a_given_part_that_contradicts_the_function():
    with pytest.raises(ValueError, match=r"\(5, None\).*\(3, 3\)"):
        shape_of(lambda x: py_function(lambda x: jnp.outer(x, x), [x], F, output_shapes=(5, None)), X)


def test_a_scalar_becomes_images_that_the_same_program_makes_smaller():
    body = Counter(lambda seed: np.full((2, 64, 64, 3), seed, np.float32))

    @jax.jit
    def load(seed):
        images = numpy_function(body, [seed], F, output_shapes=(2, 64, 64, 3))
        return images.reshape(2, 32, 2, 32, 2, 3).mean((2, 4))

    out = load(jnp.float32(3))
    assert out.shape == (2, 32, 32, 3)
    np.testing.assert_allclose(out, 3, rtol=1e-5)
    assert body.count == 1


def any_promised_shape_comes_out(shape, api):
    y = jax.jit(lambda x: api(lambda x: np.full(shape, x), [x], F, output_shapes=shape))(F(2))
    assert y.shape == shape
    assert (np.asarray(y) == 2).all()


some_promises = given(
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    api=st.sampled_from([py_function, numpy_function]),
)
test_a_promised_shape_comes_out = few(some_promises, any_promised_shape_comes_out)
test_many_promised_shapes_come_out = many(some_promises, any_promised_shape_comes_out)

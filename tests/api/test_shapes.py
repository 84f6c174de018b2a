"""Where the shapes of results come from."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from tests.shared.util import contrib, every_api, every_numpy_api, numpy_function, py_func, py_function

F, INT = jnp.float32, jnp.int32
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
        ValueError, match=r"'unique'.*func returned shape \(2,\) where \(3,\) was declared; write output_shapes=\(2,\)"
    ):
        api(np.unique, [X], F, output_shapes=(3,))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(None, None\) was declared"):
        api(np.unique, [X], F, output_shapes=(None, None))
    with pytest.raises(ValueError, match=r"shape \(2,\) where \(\) was declared"):
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
    text = r"'sum': write output_shapes=\(\) \(or Tout=jnp.float32\(0\), .*shape \(\) where \(3,\) was assumed"
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
    text = r"'body': func returned shape \(2,\) where \(3,\) was declared; write output_shapes=\(2,\)"
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
        ValueError, match=r"'lambda': the result's shape must be known.*do not broadcast.*output_shapes="
    ):
        f(jnp.ones(2), jnp.ones(3))
    assert f(jnp.ones(2), jnp.ones(3), output_shapes=(2,)).shape == (2,)


def test_the_stateful_py_function_is_assumed_elementwise(transport):
    f = jax.jit(lambda x: py_function(lambda x: x * 2, [x], F, stateful=True))
    np.testing.assert_array_equal(f(X), X * 2)
    f = jax.jit(lambda x: py_function(jnp.sum, [x], F, stateful=True))
    with pytest.raises(ValueError, match=r"shape \(\) where \(3,\) was assumed"), jaxpyop.reraise():
        jax.block_until_ready(f(X))

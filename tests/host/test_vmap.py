"""The methods of `vmap` mean what they mean in `jax.pure_callback`, in one host call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.shared.util import Body, both_sides, numpy_function, py_func

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


# ------------------------------------------------------------------------- vmap

IN_AXES = {
    "both": ((0, 0), ((3, 2), (3, 2))),
    "first": ((0, None), ((3, 2), (2,))),
    "second": ((None, 0), ((2,), (3, 2))),
    "other axes": ((1, 0), ((2, 3), (3, 2))),
    "last axes": ((-1, -1), ((2, 3), (2, 3))),
}
METHODS = ["sequential", "expand_dims", "broadcast_all"]


def grid(shape, start=0.0):
    return jnp.asarray(np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape))


@pytest.mark.parametrize(("axes", "shapes"), IN_AXES.values(), ids=IN_AXES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("out_axes", [0, -1])
@both_sides
def test_vmap_methods_and_axes(api, method, axes, shapes, out_axes, route, checked):
    x, y = grid(shapes[0]), grid(shapes[1], 10.0)
    f = jax.vmap(lambda x, y: api(lambda x, y: x * y, [x, y], F, vmap_method=method), in_axes=axes, out_axes=out_axes)
    expected = jax.vmap(jnp.multiply, in_axes=axes, out_axes=out_axes)(x, y)
    np.testing.assert_allclose(route(f, x, y), expected)


def shapes_seen(op, vmapped, args):
    """The shapes that a body sees under `vmapped`, by an op(body, x, y)."""
    seen = []

    def body(x, y):
        seen.append((np.shape(x), np.shape(y)))
        return np.asarray(x) * np.asarray(y)

    out = vmapped(lambda x, y: op(body, x, y))(*args)
    return seen, np.asarray(out)


NESTS = {
    "vmap": (lambda f: jax.vmap(f), (4,), (4,)),
    "vmap, y unbatched": (lambda f: jax.vmap(f, (0, None)), (4,), ()),
    "vmap, x unbatched": (lambda f: jax.vmap(f, (None, 0)), (), (4,)),
    "nested": (lambda f: jax.vmap(jax.vmap(f)), (4, 2), (4, 2)),
    "nested, y unbatched outside": (lambda f: jax.vmap(jax.vmap(f), (0, None)), (4, 2), (2,)),
    "nested, y unbatched inside": (lambda f: jax.vmap(jax.vmap(f, (0, None))), (4, 2), (4,)),
    "outer product": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)), (4,), (2,)),
    "y unbatched in both": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (0, None)), (4, 2), ()),
    "three": (lambda f: jax.vmap(jax.vmap(jax.vmap(f, (0, None)), (None, 0)), (0, 0)), (3, 2), (3, 4)),
}


@pytest.mark.parametrize(("vmapped", "x_shape", "y_shape"), NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_methods_mean_what_they_mean_in_pure_callback(method, vmapped, x_shape, y_shape, jit, transport):
    args = grid(x_shape), grid(y_shape, 10.0)
    run = (lambda f: jax.jit(vmapped(f))) if jit else vmapped
    ours, value = shapes_seen(lambda body, x, y: numpy_function(body, [x, y], F, vmap_method=method), run, args)
    struct = jax.ShapeDtypeStruct((), F)
    theirs, wanted = shapes_seen(
        lambda body, x, y: jax.pure_callback(body, struct, x, y, vmap_method=method), run, args
    )
    np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(value, vmapped(jnp.multiply)(*args))
    if method == "sequential":
        assert set(ours) == {((), ())}
        assert len(ours) == value.size
    else:
        assert ours == theirs


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_sequential_runs_in_batch_order(jit, transport):
    seen = []

    def body(x, y):
        seen.append((float(x), float(y)))
        return x

    f = jax.vmap(jax.vmap(lambda x, y: py_func(body, [x, y], F), (None, 0)), (0, None))
    jax.block_until_ready((jax.jit(f) if jit else f)(jnp.arange(3.0), jnp.arange(2.0)))
    assert seen == [(i, j) for i in range(3) for j in range(2)]


@pytest.mark.parametrize(("vmapped", "x_shape", "y_shape"), NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"stateful": True}], ids=["stateless", "stateful"])
def test_one_host_call_for_the_whole_batch(method, vmapped, x_shape, y_shape, options, transport):
    f = jax.jit(vmapped(lambda x, y: numpy_function(np.multiply, [x, y], F, vmap_method=method, **options)))
    text = f.lower(grid(x_shape), grid(y_shape)).as_text()
    assert text.count("stablehlo.custom_call") == 1
    assert "while" not in text


def test_the_count_of_host_calls_counts():
    f = jax.jit(lambda x: numpy_function(np.sin, [x], F) + numpy_function(np.cos, [x], F))
    assert f.lower(X).as_text().count("stablehlo.custom_call") == 2


@pytest.mark.parametrize("shape", [(0,), (0, 3)], ids=str)
@pytest.mark.parametrize("method", METHODS)
@both_sides
def test_vmap_over_nothing(api, method, shape, route):
    out = route(jax.vmap(lambda x: api(lambda x: x * 2, [x], F, vmap_method=method)), jnp.zeros(shape))
    assert out.shape == shape
    assert out.dtype == np.float32


def test_vmap_without_batched_inputs_runs_once(route):
    body = Body()
    out = route(lambda x: jax.vmap(lambda _: numpy_function(body, [2.0], F, output_shapes=()))(x), X)
    np.testing.assert_array_equal(out, [5, 5, 5])
    assert len(body.seen) == 1


@both_sides
def test_vmap_of_several_results_and_pytrees(api, route):
    def body(tree, by):
        return {"sum": tree["a"].sum() * by, "parts": [tree["b"], tree["a"]]}

    tout = {"sum": F, "parts": [jnp.int32, F]}
    shapes = {"sum": (), "parts": [(), (2,)]}
    f = jax.vmap(
        lambda tree, by: api(body, [tree, by], tout, output_shapes=shapes),
        in_axes=({"a": 1, "b": None}, 0),
        out_axes={"sum": 0, "parts": [0, 1]},
    )
    out = route(f, {"a": grid((2, 3)), "b": jnp.int32(7)}, jnp.arange(3.0))
    np.testing.assert_array_equal(out["sum"], [0, 5, 14])
    np.testing.assert_array_equal(out["parts"][0], [7, 7, 7])
    np.testing.assert_array_equal(out["parts"][1], grid((2, 3)))


@both_sides
def test_vmap_with_static_inputs_and_no_result(api, route):
    seen = []
    f = jax.vmap(lambda x: api(lambda s, x: seen.append((s, float(x))), ["s", x], None))
    assert route(f, X) is None
    assert seen == [("s", 0.5), ("s", -1.0), ("s", 2.0)]


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_an_error_in_a_batch_names_the_element(jit, transport):
    def body(x):
        if x < 0:
            raise ValueError("negative")
        return x

    f = jax.vmap(lambda x: numpy_function(body, [x], F))
    with pytest.raises(ValueError, match="negative") as caught, jaxpyop.reraise():
        jax.block_until_ready((jax.jit(f) if jit else f)(X))
    assert any("batch index 1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_an_exception_object_that_is_raised_again_names_the_element_of_this_time(jit, transport):
    error, fails_at = ValueError("mine"), [0.0]

    def body(x):
        if x == fails_at[0]:
            raise error
        return x

    f = jax.vmap(lambda x: numpy_function(body, [x], F))
    for k in (2, 0, 1):
        fails_at[0] = float(X[k])
        with pytest.raises(ValueError, match="mine") as caught, jaxpyop.reraise():
            jax.block_until_ready((jax.jit(f) if jit else f)(X))
        assert [n for n in caught.value.__notes__ if n.startswith("at ")] == [f"at batch index {k}"]


def test_the_elements_of_batches_in_each_other_are_both_named():
    def fail(x):
        raise ValueError("mine")

    inner = jax.vmap(lambda x: numpy_function(fail, [x], F))
    outer = jax.vmap(lambda x: jaxpyop.py_function(lambda x: jnp.sum(inner(x)) if x[0] < 0 else x[0], [x], F))
    with pytest.raises(ValueError, match="mine") as caught, jaxpyop.reraise():
        jax.block_until_ready(outer(jnp.stack([X + 1, X - 1])))
    assert {"at batch index 0", "at batch index 1"} <= set(caught.value.__notes__)


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_block_of_the_wrong_shape_is_an_error(method, route):
    f = jax.vmap(lambda x: numpy_function(lambda x: x.sum(), [x], F, vmap_method=method, output_shapes=()))
    with pytest.raises(ValueError, match=r"shape \(\) where \(3,\)"), jaxpyop.reraise():
        route(f, X)


def test_pmap_and_collectives_inside_vmap(transport):
    f = jax.vmap(lambda x: numpy_function(np.negative, [lax.psum(x, "i")], F), axis_name="i")
    np.testing.assert_allclose(jax.jit(f)(X), [-1.5] * 3)

"""The methods and axes of `vmap`: values, the shapes that the function sees, and one host call per batch."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.batches.programs import BLOCKS, LOOPING, METHODS, VMAPS, F, grid
from tests.shared.checks import Counter
from tests.shared.functions import numpy_function, py_function
from tests.shared.tables import named, rows

fast_first = rows(METHODS, fast=METHODS[:1])
FAST_DIRECT = ["last axis in, first out", "nested, y unbatched outside", "size 0 in size 3"]
NEARLY_THE_SAME = ["x unbatched", "outer product", "three", "size 1 in size 3"]


@pytest.mark.parametrize("method", fast_first)
@pytest.mark.parametrize("name", rows(VMAPS, FAST_DIRECT))
def test_values_of_a_direct_batch(method, name):
    vmapped, x_shape, y_shape = VMAPS[name]
    args = grid(*x_shape), grid(*y_shape, start=10.0)
    value = vmapped(lambda x, y: numpy_function(np.multiply, [x, y], F, vmap_method=method))(*args)
    wanted = vmapped(jnp.multiply)(*args)
    assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize(("vmapped", "x_shape", "y_shape"), named(VMAPS, NEARLY_THE_SAME))
def test_a_compiled_batch_is_one_host_call_with_the_shapes_of_pure_callback(vmapped, x_shape, y_shape):
    """Of each method, in one program."""
    seen = collections.defaultdict(list)

    def noting(key):
        def body(x, y):
            seen[key].append((np.shape(x), np.shape(y)))
            return np.asarray(x) * np.asarray(y)

        return body

    def ours(method):
        return lambda x, y: numpy_function(noting(method), [x, y], F, name=method, vmap_method=method)

    def theirs(method):
        return lambda x, y: jax.pure_callback(noting(("theirs", method)), x + y, x, y, vmap_method=method)

    def program(x, y):
        return [vmapped(ours(m))(x, y) for m in METHODS], [vmapped(theirs(m))(x, y) for m in BLOCKS]

    args = grid(*x_shape), grid(*y_shape, start=10.0)
    with jaxpyop.report() as report:
        values, _ = jax.block_until_ready(jax.jit(program)(*args))
    wanted = vmapped(jnp.multiply)(*args)
    for value in values:
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(value, wanted)
    if not wanted.size:  # XLA need not call for an empty result
        return
    assert {row["op"]: row["calls"] for row in report.rows()} == dict.fromkeys(METHODS, 1)
    for method in BLOCKS:
        assert seen[method] == seen["theirs", method]
    for method in LOOPING:  # each element alone
        assert all(x == y and len(x) <= 2 for x, y in seen[method])
        assert sum(math.prod(x) for x, _ in seen[method]) == wanted.size


@pytest.mark.parametrize(("api", "method"), [(py_function, "sequential"), (numpy_function, "parallel")])
def test_pytrees_static_inputs_and_several_results(api, method):
    def body(tree, label, by):
        assert label == "m"
        return {"sum": tree["a"].sum() * by, "parts": [tree["b"], tree["a"]]}

    tout, shapes = {"sum": F, "parts": [jnp.int32, F]}, {"sum": (), "parts": [(), (2,)]}
    op = lambda tree, by: api(body, [tree, "m", by], tout, output_shapes=shapes, vmap_method=method)
    f = jax.vmap(op, in_axes=({"a": 1, "b": None}, 0), out_axes={"sum": 0, "parts": [0, 1]})
    out = f({"a": grid(2, 3), "b": jnp.int32(7)}, jnp.arange(3.0))
    np.testing.assert_array_equal(out["sum"], [0, 5, 14])
    np.testing.assert_array_equal(out["parts"][0], [7, 7, 7])
    np.testing.assert_array_equal(out["parts"][1], grid(2, 3))


@pytest.mark.parametrize("method", METHODS)
def test_a_call_without_batched_inputs_runs_once(method):
    body = Counter(lambda x: x + 3)
    f = jax.vmap(lambda _: numpy_function(body, [2.0], F, output_shapes=(), vmap_method=method))
    np.testing.assert_array_equal(f(grid(3)), [5, 5, 5])
    assert body.count == 1


# ------------------------------------------------------------------------ loops

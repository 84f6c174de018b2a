"""Inputs are private copies, which the function may change and keep; results are nobody else's memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.arrays.memory import LARGE, SMALL, F, at_offset, both_sizes, direct_and_compiled, every_size, full, range_of
from tests.batches.programs import METHODS
from tests.shared.functions import numpy_function, py_func, py_function


@every_size
@direct_and_compiled
def test_inputs_are_private_writable_and_contiguous(compiled, n):
    keep = np.arange(n, dtype=np.float32)
    x = jnp.asarray(keep.copy())

    def body(x):
        assert type(x) is np.ndarray
        assert x.flags.carray
        x[0] = 100.0
        return x

    y = compiled(lambda x: py_func(body, [x], F))(x)
    np.testing.assert_array_equal(x, keep)
    assert y[0] == 100
    np.testing.assert_array_equal(y[1:], keep[1:])


LAYOUTS = {
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "reversed": np.arange(10, dtype=np.float32)[::-2],
    "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "read-only": np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), np.float32),
}


@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
@direct_and_compiled
def test_any_layout_arrives_contiguous(compiled, x):
    def body(a):
        assert a.flags.carray
        a += 1
        return a

    keep = x.copy()
    np.testing.assert_array_equal(compiled(lambda: py_func(body, [x], F))(), keep + 1)
    np.testing.assert_array_equal(x, keep)


# -------------------------------------------------------------------- what is kept

KEEP = {"a slice": lambda x: x[1:][::2], "memory": lambda x: memoryview(x), "a pointer": lambda x: (x.ctypes, x)[0]}


@pytest.mark.parametrize(("keep", "n"), [*((keep, LARGE) for keep in KEEP), ("memory", SMALL)])
def test_inputs_that_the_function_keeps_stay_valid(n, keep):
    kept = []
    f = jax.jit(lambda x: py_func(lambda x: kept.append(KEEP[keep](x)) or x, [x], F))
    results = [f(full(n, i)) for i in range(6)]
    jax.block_until_ready(results)
    assert [range_of(y) for y in results] == [(i, i) for i in range(6)]
    first = [x._arr[0] if keep == "a pointer" else range_of(x)[0] for x in kept]
    assert first == list(range(6))


@every_size
@direct_and_compiled
def test_inputs_that_a_py_function_keeps_stay_valid(compiled, n):
    kept = []
    body = lambda *xs: kept.append(xs) or xs[0]
    f = compiled(lambda *xs: py_function(body, list(xs), F, stateful=True, output_shapes=(n,)))
    for k in range(4):
        jax.block_until_ready(f(full(n, 10 * k), full(n, 10 * k + 1)))
    assert [range_of(x) for xs in kept for x in xs] == [(10 * k + j,) * 2 for k in range(4) for j in range(2)]


CHANGES = {
    "shape": lambda x: setattr(x, "shape", (1, *x.shape)),
    "resize": lambda x: x.resize((x.size,), refcheck=False),
    "read-only": lambda x: x.setflags(write=False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@both_sizes
@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_an_array_that_a_function_changed_in_place_is_not_used_again(change, n):
    seen = []

    def body(x):
        seen.append((x.shape, x.dtype, x.flags.carray, float(x[0, 0])))
        change(x)

    f = jax.jit(lambda x: py_func(body, [x], None))
    for i in range(3):
        f(full((n, 2), i))
        jax.effects_barrier()
    assert seen == [((n, 2), np.float32, True, float(i)) for i in range(3)]


@pytest.mark.parametrize("offset", [0, 4])
@every_size
@direct_and_compiled
def test_a_result_is_not_the_functions_buffer(compiled, n, offset):
    """Also where the buffer lies so that XLA could take it over."""
    buffer = at_offset(n, offset)

    def body(k):
        buffer[...] = np.asarray(k)
        return buffer

    f = compiled(lambda k: [api(body, [k], F, output_shapes=(n,)) for api in (py_function, numpy_function)])
    results = [y for k in range(3) for y in jax.block_until_ready(f(jnp.float32(k)))]
    batched = compiled(jax.vmap(lambda k: numpy_function(body, [k], F, output_shapes=(n,))))
    results += list(batched(jnp.arange(3.0)))
    buffer[...] = -1
    assert [range_of(y)[0] for y in results] == [0, 0, 1, 1, 2, 2, 0, 1, 2]


@every_size
def test_a_callers_array_may_change_after_a_direct_call(n):
    x, kept = at_offset(n, 0), []
    for k in range(3):
        x[...] = k
        py_function(lambda v: kept.append(v + 0), [x], None)
        x[...] = -1
    assert [range_of(v) for v in kept] == [(k, k) for k in range(3)]


# ------------------------------------------------------------------------- programs


@direct_and_compiled
def test_elements_of_two_axes_have_private_inputs(compiled):
    """An input that has the outer axis alone is shared by the elements of the inner one.

    It has an axis of its own besides, because an array without axes comes as a number, into which nothing is written.
    """

    def body(x, y):
        y += 1
        return x + y

    op = lambda x, y: numpy_function(body, [x, y], F)
    xs, ys = np.zeros((2, 3), np.float32), np.array([[10.0], [20.0]], np.float32)
    found = compiled(jax.vmap(jax.vmap(op, (0, None))))(xs, ys)
    np.testing.assert_array_equal(found[..., 0], [[11] * 3, [21] * 3])


@pytest.mark.parametrize("method", METHODS)
@direct_and_compiled
def test_elements_have_private_inputs(compiled, method):
    """Batched (x) and shared (y): writes reach no other element and no caller."""
    n = 50_000
    x, y = full((4, n), 1), full(n, 2)
    kept = []

    def body(x, y):
        assert x.flags.carray
        assert y.flags.carray
        assert (range_of(x), range_of(y)) == ((1, 1), (2, 2))
        kept.append((x, y))
        x += 4
        y += 5
        return y + 0 * x

    f = compiled(jax.vmap(lambda x, y: numpy_function(body, [x, y], F, vmap_method=method), in_axes=(0, None)))
    for _ in range(3):
        assert range_of(f(x, y)) == (7, 7)
    assert (range_of(x), range_of(y)) == ((1, 1), (2, 2))
    assert all(range_of(a) == (5, 5) and range_of(b) == (7, 7) for a, b in kept)

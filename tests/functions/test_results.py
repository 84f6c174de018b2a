"""Arrays as results: views of the inputs, arrays of all libraries, batches, and what they are in the program."""

from __future__ import annotations

import array
import collections
import ctypes

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared.checks import close, run
from tests.shared.examples import few, many
from tests.shared.functions import both_sides, contrib, numpy_function, py_func, py_function

F = jnp.float32
X = jnp.arange(3.0)

VIEWS = {
    "input itself": lambda x: x,
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1, ::-1],
    "row": lambda x: x[1],
    "element": lambda x: x[0, 0],
    "0-d view": lambda x: x[0, 0, ...],
    "broadcast": lambda x: np.broadcast_to(x[0], (5, 3)),
    "reshaped": lambda x: x.reshape(-1),
    "empty slice": lambda x: x[:0],
    "fortran": np.asfortranarray,
    "float64 strided": lambda x: np.asarray(x, np.float64)[:, ::2],
}


@pytest.mark.parametrize("take", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "lent"])
def test_views_of_the_inputs(take, copy):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    op = lambda x: py_func(lambda x: take(x), [x], F, copy=copy, output_shapes=take(np.zeros((2, 3))).shape)
    np.testing.assert_array_equal(op(x), take(x))
    np.testing.assert_array_equal(jax.jit(op)(x), take(x))


@both_sides
def test_the_same_array_twice(api):
    op = lambda x: api(lambda x: [x, x], [x], [F, F])
    for a, b in (op(X), jax.jit(op)(X)):
        np.testing.assert_array_equal(a, X)
        np.testing.assert_array_equal(b, X)


def test_jax_arrays_from_a_numpy_function_and_numpy_arrays_from_a_py_function():
    for api, body in ((py_func, lambda x: jnp.asarray(x) * 2), (py_function, lambda x: np.asarray(x) * 2)):
        np.testing.assert_array_equal(jax.jit(lambda x: api(body, [x], F, output_shapes=(3,)))(X), [0, 2, 4])  # noqa: B023


# ------------------------------------------------------------------ odd arrays


class Subclass(np.ndarray):
    pass


class HostileSubclass(np.ndarray):
    """Every method that a library might call fails."""

    shape = property(lambda self: (7,))

    def _no(self, *args, **kwargs):
        raise RuntimeError("not to be called")

    __array_function__ = __array_ufunc__ = copy = astype = reshape = __getitem__ = _no


class Arraylike:
    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0, 3.0], dtype or np.float64)


def read_only():
    x = np.array([1, 2, 3], np.float32)
    x.flags.writeable = False
    return x


ODD = {
    "subclass": lambda: np.array([1, 2, 3], np.float32).view(Subclass),
    "hostile subclass": lambda: np.array([1, 2, 3], np.float32).view(HostileSubclass),
    "hostile wide subclass": lambda: np.array([1, 2, 3], np.float64).view(HostileSubclass),
    "array protocol": Arraylike,
    "memoryview": lambda: memoryview(np.array([1, 2, 3], np.float32)),
    "bytearray": lambda: bytearray(b"\1\2\3"),
    "array.array": lambda: array.array("d", [1, 2, 3]),
    "ctypes array": lambda: (ctypes.c_float * 3)(1, 2, 3),
    "range": lambda: range(1, 4),
    "deque": lambda: collections.deque([1.0, 2.0, 3.0]),
    "read-only": read_only,
    "big-endian": lambda: np.array([1, 2, 3], ">f4"),
    "wide big-endian": lambda: np.array([1, 2, 3], ">f8"),
    "big-endian integers": lambda: np.array([1, 2, 3], ">i8"),
    "longdouble": lambda: np.array([1, 2, 3], np.longdouble),
    "column of a Fortran array": lambda: np.asfortranarray([[3.0, 0], [2, 0], [1, 0]])[::-1, 0],
    "negative strides": lambda: np.array([3, 2, 1], np.float32)[::-1],
    "unaligned": lambda: np.frombuffer(b"\0" + np.float32([1, 2, 3]).tobytes(), np.uint8)[1:].view(np.float32),
    "list of one": lambda: [np.array([1, 2, 3], np.float32)],
    "weakly typed": lambda: jnp.asarray([1.0, 2.0, 3.0]) * 1.0,
}


@both_sides
def test_arrays_of_all_kinds_are_arrays(api):
    """One compiled program returns them in turn with its inputs."""
    now = []
    body = lambda x: now[0]() if now else x * 2
    op = lambda x: api(body, [x], F, output_shapes=(3,), vjp=lambda i, o, c: 2 * c[0])
    programs = {"direct": op, "jit": jax.jit(op), "jit of grad": jax.jit(jax.grad(lambda x: op(x).sum()))}
    for make in ODD.values():
        for name, f in programs.items():
            now[:] = [make]
            np.testing.assert_array_equal(run(f, X), [2, 2, 2] if "grad" in name else [1, 2, 3], err_msg=repr(make))
            now.clear()
            np.testing.assert_array_equal(run(f, X), [2, 2, 2] if "grad" in name else [0, 2, 4], err_msg=repr(make))


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_an_array_made_in_a_differentiated_function_is_a_constant(make):
    f = lambda x: py_function(lambda x: make(), [x], F, output_shapes=(3,)).sum()
    value, slope = jax.value_and_grad(f)(X)
    assert value == 6
    np.testing.assert_array_equal(slope, [0, 0, 0])


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@both_sides
def test_a_matrix_is_an_array_of_two_axes(api, dtype):
    f = lambda shape: api(lambda x: np.matrix([[1, 2, 3]], dtype), [X], F, output_shapes=shape)
    np.testing.assert_array_equal(f((1, 3)), [[1, 2, 3]])
    with pytest.raises(ValueError, match=r"shape \(1, 3\) where \(3,\) was declared"):
        f((3,))


def comes_back_as_it_went(array, tree, jit):
    wrap = {"one": lambda a: a, "list": lambda a: [a, a], "dict": lambda a: {"a": a, "b": {"c": a}}}[tree]
    f = lambda x: py_func(lambda x: wrap(x), [x], wrap(jax.ShapeDtypeStruct(array.shape, array.dtype)))
    for leaf in jax.tree.leaves((jax.jit(f) if jit else f)(array)):
        assert leaf.dtype == array.dtype
        np.testing.assert_array_equal(leaf, array)


some_arrays = given(
    array=st.sampled_from(["?", "i4", "u2", "f2", "f4", "c8"]).flatmap(
        lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    ),
    tree=st.sampled_from(["one", "list", "dict"]),
    jit=st.booleans(),
)
test_any_array_comes_back_as_it_went = few(some_arrays, comes_back_as_it_went, examples=10)
test_many_arrays_come_back_as_they_went = many(some_arrays, comes_back_as_it_went)


# -------------------------------------------------------------- in the program


@both_sides
def test_results_are_not_weakly_typed(api):
    op = lambda: api(lambda: jnp.asarray(1.0) if api is py_function else 1.0, [], F, output_shapes=())
    assert not op().weak_type
    assert not jax.jit(op)().weak_type


OPS = {
    "eager": lambda x: py_function(lambda x: jnp.sin(x), [x], F),
    "traced": lambda x: py_function(lambda x: jnp.sin(x), [x], F, mode="traced"),
    "numpy_function": lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c[0]),
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_gradient_of_a_python_number_is_weakly_typed_as_jaxs_is(op):
    """So that `p - 0.1 * grad` of a bfloat16 model does not become float32."""
    got = jax.grad(op)(2.0)
    assert got.weak_type is jax.grad(jnp.sin)(2.0).weak_type is True
    close(got, np.cos(2.0))
    assert not jax.grad(op)(F(2.0)).weak_type


@pytest.mark.usefixtures("checked")
def test_strict_promotion_and_leak_checks_change_nothing():
    op = lambda x: py_function(lambda x: (x * x).sum(), [x], F)
    assert op(X) == jax.jit(op)(X) == 5
    assert numpy_function(lambda x: np.float64(x.sum()), [X], F) == 3
    out = contrib(lambda x: {"a": [x, 1]}, [X], {"a": [F, jnp.int32]}, output_shapes={"a": [(3,), ()]})
    assert out["a"][1] == 1


def test_results_feed_jax_operations_of_the_same_program():
    f = lambda x: jnp.sin(py_func(np.cos, [jnp.exp(x)], F)) * 2
    close(jax.jit(f)(X), jnp.sin(jnp.cos(jnp.exp(X))) * 2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
def test_gradients_of_a_batch_of_narrow_scalars(dtype):
    x = jnp.array([1.0, 0.5, 2.0], dtype)
    op = lambda x: py_function(lambda x: x * x, [x], dtype, output_shapes=())
    got = jax.vmap(jax.grad(op))(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(F), 2 * x.astype(F))


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@pytest.mark.parametrize("vjp", [None, lambda inputs, outputs, cts: cts[0]], ids=["without vjp", "with vjp"])
def test_a_function_of_a_batch_gets_the_batch_while_jax_differentiates(method, vjp):
    """A metric of the batch is the same beside a gradient as without one."""
    centred = lambda x: numpy_function(lambda x: x - x.mean(axis=0), [x], F, vmap_method=method, vjp=vjp)
    loss = lambda x: ((x**2).sum(), jax.vmap(centred)(x))
    x = jnp.arange(6.0).reshape(3, 2)
    (_, metric), slope = jax.value_and_grad(loss, has_aux=True)(x)
    np.testing.assert_array_equal(metric, x - x.mean(axis=0))
    np.testing.assert_array_equal(slope, 2 * x)

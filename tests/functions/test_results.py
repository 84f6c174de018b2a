"""Arrays as results: arrays of all libraries, and what they are in the program."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.checks import close, run
from tests.shared.functions import both_sides, numpy_function, py_function
from tests.shared.tables import named

F = jnp.float32
X = jnp.arange(3.0)


@both_sides
def test_the_same_array_twice(api):
    op = lambda x: api(lambda x: [x, x], [x], [F, F])
    for results in (op(X), jax.jit(op)(X)):
        np.testing.assert_array_equal(results, [X, X])


# ------------------------------------------------------------------ odd arrays


def _no(self, *args, **kwargs):
    raise RuntimeError("not to be called")


HOSTILE = dict.fromkeys(["__array_function__", "__array_ufunc__", "copy", "astype", "reshape", "__getitem__"], _no)
Hostile = type("Hostile", (np.ndarray,), HOSTILE | {"shape": property(lambda self: (7,))})
Arraylike = type("Arraylike", (), {"__array__": lambda self, dtype=None, copy=None: np.array([1.0, 2.0, 3.0], dtype)})
numbers = lambda dtype=np.float32: np.array([1, 2, 3], dtype)
ODD = {
    "subclass": lambda: numbers().view(type("Subclass", (np.ndarray,), {})),
    "hostile subclass": lambda: numbers().view(Hostile),
    "hostile wide subclass": lambda: numbers(np.float64).view(Hostile),
    "array protocol": Arraylike,
    "memoryview": lambda: memoryview(numbers()),
    "range": lambda: range(1, 4),
    "deque": lambda: collections.deque([1.0, 2.0, 3.0]),
    "read-only": lambda: np.broadcast_to(numbers(), (3,)),
    "wide big-endian": lambda: numbers(">f8"),
    "big-endian integers": lambda: numbers(">i8"),
    "longdouble": lambda: numbers(np.longdouble),
    "column of a Fortran array": lambda: np.asfortranarray([[3.0, 0], [2, 0], [1, 0]])[::-1, 0],
    "negative strides": lambda: numbers()[::-1].copy()[::-1],
    "unaligned": lambda: np.frombuffer(b"\0" + numbers().tobytes(), np.uint8)[1:].view(np.float32),
    "list of one": lambda: [numbers()],
    "JAX's": lambda: jnp.asarray([1.0, 2.0, 3.0]) * 1.0,
}


@both_sides
def test_arrays_of_all_kinds_are_arrays(api):
    """Programs return them in turn with their inputs. To a gradient they are constants."""
    now = []
    op = lambda x: api(lambda x: now[0]() if now else x * 2, [x], F, output_shapes=(3,))
    for make in ODD.values():
        if api is py_function:
            now[:] = [make]
            value, slope = jax.value_and_grad(lambda x: op(x).sum())(X)
            assert (value, slope.tolist()) == (6, [0, 0, 0])
            now.clear()
    for f in (op, jax.jit(op)):
        for make in ODD.values():
            now[:] = [make]
            np.testing.assert_array_equal(run(f, X), [1, 2, 3])
            now.clear()
            np.testing.assert_array_equal(run(f, X), [0, 2, 4])


# -------------------------------------------------------------- in the program

OPS = {
    "eager": lambda x: py_function(lambda x: jnp.sin(x), [x], F),
    "traced": lambda x: py_function(lambda x: jnp.sin(x), [x], F, mode="traced"),
    "numpy_function": lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c),
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_results_are_not_weakly_typed_and_gradients_are_as_jaxs_are(op):
    """So that `p - 0.1 * grad` of a bfloat16 model does not become float32."""
    assert not op(2.0).weak_type
    weak = py_function(lambda: jnp.asarray(1.0), [], F)
    assert (weak.dtype, weak.weak_type) == (F, False)
    got = jax.grad(op)(2.0)
    assert got.weak_type is jax.grad(jnp.sin)(2.0).weak_type is True
    close(got, np.cos(2.0))
    assert not jax.grad(op)(F(2.0)).weak_type


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@pytest.mark.parametrize(
    "vjp", named({"without vjp": None, "with vjp": lambda inputs, outputs, cts: cts[0]}, slow=["without vjp"])
)
def test_a_function_of_a_batch_gets_the_batch_while_jax_differentiates(method, vjp):
    """A metric of the batch is the same beside a gradient as without one."""
    centred = lambda x: numpy_function(lambda x: x - x.mean(axis=0), [x], F, vmap_method=method, vjp=vjp)
    x = jnp.arange(6.0).reshape(3, 2)
    (_, metric), slope = jax.value_and_grad(lambda x: ((x**2).sum(), jax.vmap(centred)(x)), has_aux=True)(x)
    np.testing.assert_array_equal(metric, x - x.mean(axis=0))
    np.testing.assert_array_equal(slope, 2 * x)


# ------------------------------------------------------------------ empty results

EMPTY = {
    "lists": ([], []),
    "rows": ([[], []], [[], [], []]),
    "arrays": (np.array([]), np.array([], bool)),
    "arrays of objects": (np.array([], object), np.array([], "U1")),
    "one list": (np.zeros(0, np.int32), []),
}


@pytest.mark.parametrize("boxes", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("tout", [(jnp.int32, F), (jnp.bool_, jnp.uint8)], ids=["int and float", "bool and byte"])
@both_sides
def test_an_empty_result_without_a_shape_is_of_any_dtype(api, boxes, tout):
    """As the detector of a picture returns them in which nothing is."""
    found = api(lambda: boxes, [], tout, stateful=True)
    assert [(x.dtype, x.shape) for x in found] == [(t, np.shape(b)) for t, b in zip(tout, boxes)]


def test_a_list_with_an_array_of_jax_anywhere():
    entries = [0.5] * 100 + [jnp.float32(2)] + [1] * 100
    total = lambda x: jnp.sum(py_function(lambda x: [*entries, x], [x], jax.ShapeDtypeStruct((202,), F)))
    assert jax.jit(jax.value_and_grad(total))(3.0) == (155, 1)


class Sparse:
    """As SciPy's are: NumPy makes an array of one object of it."""

    def toarray(self):
        return np.eye(2, dtype=np.float32)


ODD_RESULTS = {
    "sparse": (Sparse, F, TypeError, r"a Sparse, which is a sparse matrix; return x\.toarray\(\)"),
    "ragged": (lambda: [[1, 2], [3]], F, ValueError, r"rows of different lengths were meant.*jaxpyop\.padded"),
}


@pytest.mark.parametrize(("make", "tout", "error", "text"), ODD_RESULTS.values(), ids=ODD_RESULTS)
@both_sides
def test_an_odd_result_says_what_to_write(api, make, tout, error, text):
    with pytest.raises(error, match=text):
        api(make, [], tout, stateful=True)

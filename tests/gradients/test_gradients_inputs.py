"""Gradients of inputs and outputs of all kinds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import close, py_function, trees_close

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])


# ------------------------------------------------------- inputs and outputs of all kinds


def test_pytrees(route):
    def body(params, batch, scale=1.0):
        y = jnp.tanh(batch["x"] @ params["w"] + params["b"])
        return {"loss": jnp.sum(y**2) * scale, "y": y}

    params = {"w": jnp.ones((3, 2)) * 0.3, "b": jnp.array([0.1, -0.2])}
    batch = {"x": X[None] * jnp.ones((4, 1)), "name": "train"}
    op = lambda p: py_function(body, [p, batch], {"loss": F, "y": F}, output_shapes={"loss": (), "y": (4, 2)})
    loss = lambda f: lambda p: f(p)["loss"] + f(p)["y"].sum()
    trees_close(route(jax.grad(loss(op)), params), jax.grad(loss(lambda p: body(p, batch)))(params))


def test_kwargs_of_a_decorated_function(route):
    @jaxpyop.py_function(Tout=F, output_shapes=())
    def f(x, *, by):
        return jnp.sum(x * by)

    trees_close(route(jax.grad(lambda x, by: f(x, by=by), (0, 1)), X, 2.0), (jnp.full(3, 2.0), X.sum()))


def test_integer_and_boolean_inputs(route):
    body = lambda x, n, flag: x**n * jnp.where(flag, 2.0, 1.0)
    op = lambda x, n, flag: py_function(body, [x, n, flag], F, output_shapes=(3,)).sum()
    got = route(jax.grad(op), X, jnp.int32(3), jnp.array([True, False, True]))
    close(got, 3 * X**2 * jnp.array([2.0, 1.0, 2.0]))
    got = jax.grad(op, (0, 1), allow_int=True)(X, jnp.int32(3), jnp.array(True))
    assert got[1].dtype == jax.dtypes.float0


def test_integer_outputs_have_no_gradient(route):
    body = lambda x: (x**2, jnp.argmax(x), x > 0)
    op = lambda x: py_function(body, [x], [F, jnp.int32, jnp.bool_], output_shapes=[(3,), (), (3,)])

    def loss(x):
        y, n, flag = op(x)
        return jnp.sum(y * flag) + n

    close(route(jax.grad(loss), X), 2 * X * (X > 0))


@pytest.mark.parametrize("used", [(0,), (1,), (0, 2), ()], ids=str)
def test_unused_outputs(used, route):
    body = lambda x: (x**2, jnp.sin(x), jnp.sum(x**3))
    op = lambda x: py_function(body, [x], [F, F, F], output_shapes=[(3,), (3,), ()])
    loss = lambda f: lambda x: sum(jnp.sum(f(x)[k]) for k in used) + x.sum()
    close(route(jax.grad(loss(op)), X), jax.grad(loss(body))(X))


def test_inputs_that_the_body_ignores(route):
    op = lambda x, y: py_function(lambda x, y: x * 2, [x, y], F, output_shapes=(3,)).sum()
    trees_close(route(jax.grad(op, (0, 1)), X, X), (jnp.full(3, 2.0), jnp.zeros(3)))


def test_one_of_several_arguments(route):
    op = lambda x, y: py_function(lambda x, y: x * y**2, [x, y], F, output_shapes=(3,)).sum()
    close(route(jax.grad(op, 1), X, X + 1), 2 * X * (X + 1))


Z = jnp.array([0.5 + 1j, -1.25 - 0.5j, 2.0j], jnp.complex64)
COMPLEX = {
    "holomorphic": (lambda z: z**2 * (1 + 2j), jnp.complex64),
    "conjugate": (lambda z: jnp.conj(z) * z, jnp.complex64),
    "absolute": (lambda z: jnp.abs(z) ** 2, F),
    "real part": (lambda z: jnp.real(z) * jnp.imag(z), F),
}


@pytest.mark.parametrize(("body", "dtype"), COMPLEX.values(), ids=COMPLEX)
def test_complex_numbers_as_jax_vjp(body, dtype, route):
    op = lambda z: py_function(body, [z], dtype, output_shapes=(3,))
    ct = jnp.asarray(np.array([1.0, 2.0, -1.0]), dtype) * (1 if dtype == F else 1 - 1j)
    pull = lambda f: lambda z: jax.vjp(f, z)[1](ct)[0]
    close(route(pull(op), Z), pull(body)(Z))
    loss = lambda f: lambda z: jnp.sum(jnp.abs(f(z)) ** 2)
    close(route(jax.grad(loss(op)), Z), jax.grad(loss(body))(Z))


def test_real_inputs_complex_results(route):
    body = lambda x: jnp.exp(1j * x)
    op = lambda x: py_function(body, [x], jnp.complex64, output_shapes=(3,))
    loss = lambda f: lambda x: jnp.sum(jnp.real(f(x) * (2 + 1j)))
    close(route(jax.grad(loss(op)), X), jax.grad(loss(body))(X))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
def test_narrow_floats(dtype, route):
    op = lambda x: py_function(lambda x: x * x, [x], dtype, output_shapes=(3,))
    got = route(jax.grad(lambda x: op(x).sum()), X.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got, np.float32), 2 * X)


@pytest.mark.usefixtures("x64")
def test_wide_floats(route):
    op = lambda x: py_function(lambda x: jnp.sin(x), [x], jnp.float64, output_shapes=())
    got = route(jax.grad(op), jnp.float64(0.3))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.cos(0.3), rtol=1e-14)
    mixed = lambda x: py_function(lambda x: jnp.sin(x.astype(jnp.float64)), [x], F, output_shapes=())
    assert route(jax.grad(mixed), jnp.float32(0.3)).dtype == np.float32


def test_a_result_cast_to_tout_keeps_its_gradient(route):
    op = lambda x: py_function(lambda x: x.astype(jnp.float16) * 2, [x], F, output_shapes=(3,))
    close(route(jax.grad(lambda x: op(x).sum()), X), [2, 2, 2])


def test_empty_and_scalar_inputs(route):
    op = lambda x: py_function(lambda x: x**2, [x], F, output_shapes=x.shape)
    assert route(jax.grad(lambda x: op(x).sum()), jnp.zeros((0, 3))).shape == (0, 3)
    assert route(jax.grad(op), 3.0) == 6
    assert route(jax.grad(lambda x: op(x)), jnp.float32(3)) == 6


def test_typed_keys_and_static_inputs(route):
    body = lambda x, key, kind: x * jax.random.normal(key, (3,)) if kind == "normal" else x
    op = lambda x, key: py_function(body, [x, key, "normal"], F, output_shapes=(3,)).sum()
    key = jax.random.key(3)
    close(route(jax.grad(op), X, key), jax.random.normal(key, (3,)))


def test_a_body_that_returns_its_input_or_a_constant(route):
    close(route(jax.grad(lambda x: py_function(lambda x: x, [x], F, output_shapes=(3,)).sum()), X), [1, 1, 1])
    close(route(jax.grad(lambda x: py_function(lambda x: jnp.ones(3), [x], F, output_shapes=(3,)).sum()), X), [0, 0, 0])
    close(route(jax.grad(lambda x: py_function(lambda x: 3.0, [x], F, output_shapes=()) * x.sum()), X), [3, 3, 3])
    close(
        route(jax.grad(lambda x: py_function(lambda x: (x, x), [x], [F, F], output_shapes=[(3,), (3,)])[1].sum()), X),
        [1, 1, 1],
    )


def test_a_value_taken_out_as_a_numpy_array_is_a_constant(route):
    op = lambda x: py_function(lambda x: x * np.asarray(x), [x], F, output_shapes=(3,))
    close(route(jax.grad(lambda x: op(x).sum()), X), X)


@pytest.mark.parametrize("derive", [jax.grad, jax.jacfwd], ids=lambda d: d.__name__)
def test_inputs_without_a_tangent_are_plain_arrays_and_not_recorded(derive, transport):
    seen = []

    def body(w, data):
        seen.append((type(w).__name__, type(data).__name__))
        return (w * jnp.sin(data)).sum()

    f = jax.jit(derive(lambda w, data: py_function(body, [w, data], F, output_shapes=())))
    close(f(F(2), X), jnp.sin(X).sum())
    assert seen == [("TapeTracer", "ArrayImpl")]


def mixed(x, y, z):
    return x**3 * jnp.sin(y) * z**2 + jax.scipy.special.gammainc(y, x * z)


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize(("first", "then"), [(0, 1), (0, 2), (2, 0), (0, 0), (2, 1)])
@pytest.mark.parametrize("inner", [jax.grad, jax.jacfwd], ids=lambda d: d.__name__)
@pytest.mark.parametrize("outer", [jax.grad, jax.jacfwd], ids=lambda d: d.__name__)
def test_mixed_derivatives_in_different_inputs(first, then, inner, outer, jit):
    """What moves in one order need not move in the other; gammainc has no second derivative in y."""
    op = lambda *inputs: py_function(mixed, list(inputs), F, output_shapes=())
    inputs = (F(0.7), F(1.3), F(0.9))
    derivative = lambda f: outer(inner(f, first), then)
    for _ in range(3):
        got = (jax.jit if jit else lambda f: f)(derivative(op))(*inputs)
        np.testing.assert_allclose(got, derivative(mixed)(*inputs), rtol=1e-3)

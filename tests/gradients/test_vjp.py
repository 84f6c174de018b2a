"""Gradients of NumPy functions: `vjp=`, and what is said without it."""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.shared.util import APIS, close, contrib, numpy_function, py_func, py_function, trees_close

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])


# -------------------------------------------------------- numpy_function, vjp=

NUMPY_OPS = {name: api for name, api in APIS.items() if name != "py_function"}


def numeric(f, x, step=1e-2):
    """Central differences of a NumPy function of float64."""
    x = np.asarray(x, np.float64)
    out = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        d = np.zeros_like(x)
        d[index] = step
        out[index] = (f(x + d) - f(x - d)) / (2 * step)
    return out


@pytest.mark.parametrize("api", NUMPY_OPS.values(), ids=NUMPY_OPS)
def test_vjp_against_finite_differences(api, route):
    func = lambda x, y: np.sin(x) * y
    vjp = lambda i, o, c: (np.cos(i[0]) * i[1] * c[0], np.sin(i[0]) * c[0])
    op = lambda x, y: api(func, [x, y], F, vjp=vjp)
    gx, gy = route(jax.grad(lambda x, y: (op(x, y) ** 2).sum(), (0, 1)), X, X + 1)
    y = np.asarray(X + 1, np.float64)
    np.testing.assert_allclose(gx, numeric(lambda x: (func(x, y) ** 2).sum(), X), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(
        gy, numeric(lambda y: (func(np.asarray(X, np.float64), y) ** 2).sum(), X + 1), rtol=1e-2, atol=1e-3
    )


def test_what_vjp_is_given(route):
    got = []

    def vjp(inputs, outputs, cotangents):
        got.append((inputs, outputs, cotangents))
        return (cotangents[0] * 2, None)

    op = lambda x, n: numpy_function(lambda x, n, s: [x * 2, x * n], [x, n, "static"], [F, F], vjp=vjp)
    close(route(jax.grad(lambda x: (op(x, jnp.int32(3))[0] * X).sum()), X), 2 * X)
    inputs, outputs, cotangents = got[0]
    assert type(inputs) is type(outputs) is type(cotangents) is tuple
    assert (len(inputs), len(outputs), len(cotangents)) == (2, 2, 2)
    assert all(isinstance(a, np.ndarray) for a in (*inputs, *outputs, *cotangents))
    assert inputs[1].dtype == np.int32
    close(outputs[0], 2 * X)
    close(cotangents[0], X)
    np.testing.assert_array_equal(cotangents[1], 0)  # an unused output


def test_vjp_arrays_may_be_changed_and_kept(route):
    kept = []

    def vjp(i, o, c):
        kept.append(c[0])
        i[0][...] = 0
        c[0][...] *= 3
        return c[0]

    f = (jax.jit if route.jit else lambda f: f)(
        jax.grad(lambda x: numpy_function(lambda x: x * 3, [x], F, vjp=vjp).sum())
    )
    for k in range(5):
        close(f(X + k), [3, 3, 3])
    assert all((c == 3).all() for c in kept)


def test_vjp_in_the_decorator_with_pytrees_and_kwargs(route):
    @jaxpyop.numpy_function(
        Tout={"y": F}, output_shapes={"y": (3,)}, vjp=lambda i, o, c: [c[0] * i[1], (c[0] * i[0]).sum()]
    )
    def f(tree, *, by):
        return {"y": tree["x"] * by}

    got = route(jax.grad(lambda x, by: f({"x": x}, by=by)["y"].sum(), (0, 1)), X, 2.0)
    trees_close(got, (jnp.full(3, 2.0), X.sum()))


def test_contrib_vjp_takes_kwargs_by_sorted_name(route):
    op = lambda a, b, x: contrib(
        lambda x, b, a: x * a + b,
        [x],
        F,
        kwargs={"b": b, "a": a},
        vjp=lambda i, o, c: (c[0] * i[1], (c[0] * i[0]).sum(), c[0].sum()),
    )
    got = route(jax.grad(lambda a, b: op(a, b, X).sum(), (0, 1)), 2.0, 5.0)
    trees_close(got, (X.sum(), jnp.float32(3)))


@pytest.mark.parametrize("zero", [None, "array"], ids=["None", "zeros"])
def test_none_is_zero(zero, route):
    vjp = lambda i, o, c: (c[0], None if zero is None else np.zeros(3, np.float32))
    op = lambda x, y: numpy_function(lambda x, y: x + 0 * y, [x, y], F, vjp=vjp)
    trees_close(route(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)), X, X), (jnp.ones(3), jnp.zeros(3)))


def test_complex_vjp_follows_jax(route):
    """JAX's convention: for holomorphic f the cotangent is ct * f'(z), without a conjugate."""
    op = lambda z: numpy_function(lambda z: z**2, [z], jnp.complex64, vjp=lambda i, o, c: 2 * i[0] * c[0])
    ct = jnp.array([1.0 + 1j, 2.0, -1j], jnp.complex64)
    pull = lambda f: lambda z: jax.vjp(f, z)[1](ct)[0]
    z = jnp.array([0.5 + 1j, -1.25 - 0.5j, 2.0j], jnp.complex64)
    close(route(pull(op), z), pull(lambda z: z**2)(z))


def test_float64_cotangents_are_cast(route):
    op = lambda x: numpy_function(lambda x: x * 2, [x], F, vjp=lambda i, o, c: np.full(3, 2.0))
    got = route(jax.grad(lambda x: op(x).sum()), X)
    assert got.dtype == np.float32


def test_integer_inputs_get_none(route):
    op = lambda x, n: numpy_function(lambda x, n: x * n, [x, n], F, vjp=lambda i, o, c: (c[0] * i[1], None))
    close(route(jax.grad(lambda x: op(x, jnp.int32(3)).sum()), X), [3, 3, 3])


VJP_ERRORS = {
    "too few": (
        lambda i, o, c: (c[0],),
        r"vjp returned 1 cotangents for 2 array inputs; return one cotangent each, None for zero",
    ),
    "too many": (lambda i, o, c: (c[0], c[0], c[0]), r"vjp returned 3 cotangents for 2"),
    "no tuple": (lambda i, o, c: c[0], r"vjp returned a single value for 2 array inputs"),
    "nothing": (lambda i, o, c: None, r"vjp returned .*for 2 array inputs"),
    "shape": (
        lambda i, o, c: (c[0].sum(), None),
        r"vjp returned, for input 0, shape \(\); a cotangent has its input's shape, \(3,\)",
    ),
    "complex": (lambda i, o, c: (c[0] * 1j, None), r"vjp returned, for input 0, complex64"),
    "text": (lambda i, o, c: ("x", None), r"vjp returned, for input 0"),
}


@pytest.mark.parametrize(("vjp", "text"), VJP_ERRORS.values(), ids=VJP_ERRORS)
def test_wrong_results_of_vjp(vjp, text, route):
    op = lambda x, y: numpy_function(lambda x, y: x + y, [x, y], F, name="mine", vjp=vjp)
    with pytest.raises((ValueError, TypeError), match=f"'mine'.*({text})"), jaxpyop.reraise():
        route(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)), X, X)


def test_exceptions_of_vjp_come_out(route):
    error = KeyError("mine")

    def vjp(i, o, c):
        raise error

    with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise():
        route(jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=vjp)), 1.0)
    assert caught.value is error


BACKWARD = {
    "grad": lambda f: jax.grad(f)(1.0),
    "jit of grad": lambda f: jax.jit(jax.grad(f))(1.0),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(1.0),
    "vjp": lambda f: jax.vjp(f, 1.0)[1](1.0),
    "jacrev": lambda f: jax.jacrev(f)(1.0),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())(X),
    "grad of scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])(1.0),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f))(1.0),
}


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD)
@pytest.mark.parametrize(
    "api", [numpy_function, functools.partial(py_func, stateful=False)], ids=["numpy_function", "py_func"]
)
def test_a_backward_pass_without_vjp_names_the_op_and_both_ways_out(api, backward, transport):
    with pytest.raises(ValueError, match=r"'mine': a backward pass.*vjp=.*jax.lax.stop_gradient"):
        backward(lambda x: api(np.sin, [x], F, name="mine"))


FINE = {
    "forward of vjp": lambda f: jax.vjp(f, X)[0],
    "stopped": lambda f: jax.grad(lambda x: (f(lax.stop_gradient(x)) * x).sum())(X),
    "stopped result": lambda f: jax.grad(lambda x: (lax.stop_gradient(f(x)) * x).sum())(X),
    "auxiliary": lambda f: jax.grad(lambda x: (x.sum(), f(x)), has_aux=True)(X),
    "unused": lambda f: jax.grad(lambda x: (f(x), x.sum())[1])(X),
    "of integers": lambda f: jax.grad(lambda x: (f(jnp.arange(3)) * x).sum())(X),
    "of constants": lambda f: jax.grad(lambda x: (f(X) * x).sum())(X),
    "compared": lambda f: jax.grad(lambda x: jnp.where(f(x) > 0, x, 2 * x).sum())(X),
}


@pytest.mark.parametrize("program", FINE.values(), ids=FINE)
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_without_a_backward_pass_all_is_fine(program, jit, transport):
    op = lambda x: numpy_function(np.sin, [x], F)
    run = (lambda f: jax.jit(lambda: program(f))()) if jit else program
    trees_close(run(op), program(jnp.sin))


def test_second_derivatives_of_a_numpy_function_say_what_to_do(transport):
    f = jax.grad(lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c[0]))
    with pytest.raises(Exception, match=r"'sin'.*second derivative.*py_function"):
        jax.grad(f)(1.0)


def test_errors_of_a_py_function_body_under_grad(route):
    def body(x):
        if float(x) < 0:
            raise KeyError("mine")
        return x**2

    f = jax.grad(lambda x: py_function(body, [x], F, output_shapes=()))
    with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
        route(f, -1.0)
    assert route(f, 3.0) == 6


def test_a_tracer_kept_by_the_body_is_refused_or_still_has_its_value(route):
    """A body may put what it saw into a list: later it is a value or a clear error."""
    kept = []

    def body(x):
        kept.append(x)
        return x * 2

    route(jax.grad(lambda x: py_function(body, [x], F, output_shapes=())), 3.0)
    with contextlib.suppress(jax.errors.UnexpectedTracerError):
        assert float(kept[0]) == 3.0
    assert py_function(body, [4.0], F) == 8

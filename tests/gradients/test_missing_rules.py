"""Derivatives that no rule gives: fine where nobody uses them, and else an error that comes early."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.shared.util import numpy_function, py_func, py_function, trees_close

F = jnp.float32
X = jnp.array([0.5, -1.25, 2.0])


def sin(x):
    return numpy_function(np.sin, [x], F, name="mine")


def unused(x):
    sin(x)
    return x**3


def index(x):
    """An integer result has no tangent."""
    return numpy_function(lambda x: np.int32(abs(x.sum())), [x], jnp.int32, output_shapes=()) * x


def logged(x):
    py_func(lambda x: None, [x], None)
    return x**3


def larger(x):
    return jnp.where(sin(x) > 0, x, 2 * x)


def of_jax(x):
    return py_function(lambda x: jnp.argmax(x).astype(jnp.int32), [x], jnp.int32, output_shapes=()) * x


FINE = {
    "unused": (unused, lambda x: x**3),
    "integer result": (index, lambda x: jnp.abs(x.sum()).astype(jnp.int32) * x),
    "no result": (logged, lambda x: x**3),
    "compared": (larger, lambda x: jnp.where(jnp.sin(x) > 0, x, 2 * x)),
    "py_function": (of_jax, lambda x: jnp.argmax(x) * x),
    "in cond": (lambda x: lax.cond(x.sum() > 0, unused, lambda x: x, x), lambda x: x**3),
    "in scan": (lambda x: lax.scan(lambda c, _: (unused(c), None), x, None, length=2)[0], lambda x: x**9),
    "in while_loop": (
        lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, unused(c[1])), (0, x))[1],
        lambda x: x**9,
    ),
    "in jit": (jax.jit(unused), lambda x: x**3),
    "in checkpoint": (jax.checkpoint(unused), lambda x: x**3),
}
FORWARD = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (jnp.ones_like(x),)),
    "jvp of jvp": lambda f, x: jax.jvp(lambda x: jax.jvp(f, (x,), (x,)), (x,), (x,)),
    "jacfwd": lambda f, x: jax.jacfwd(f)(x),
    "linearize": lambda f, x: jax.linearize(f, x)[1](x),
    "vmap of jvp": lambda f, x: jax.vmap(lambda t: jax.jvp(f, (x,), (t,)), out_axes=(None, 0))(jnp.eye(3)),
    "jacfwd of jacrev": lambda f, x: jax.jacfwd(jax.jacrev(f))(x),
}


@pytest.mark.parametrize(("f", "plain"), FINE.values(), ids=FINE)
@pytest.mark.parametrize("take", FORWARD.values(), ids=FORWARD)
def test_forward_mode_where_no_tangent_is_used(f, plain, take, route):
    if f is FINE["in while_loop"][0] and take in (FORWARD["linearize"], FORWARD["jacfwd of jacrev"]):
        plain = f = lambda x: x  # JAX has no reverse mode of it
    if f is logged and take is not FORWARD["jvp"]:
        f = lambda x: (numpy_function(lambda x: 1, [x], jnp.int32), x**3)[1]  # a batch or a linearization of effects
    trees_close(route(lambda x: take(f, x), X), take(plain, X))


def test_a_print_inside_a_function_whose_hessian_is_taken(capfd):
    assert jax.hessian(lambda x: (py_func(print, [x], None), x**3)[1])(3.0) == 18
    assert jax.hessian(lambda x: (sin(x), x**3)[1])(3.0) == 18
    assert "3.0" in capfd.readouterr().out


def test_an_auxiliary_result(route):
    slope, aux = route(jax.jacfwd(lambda x: (x**2, sin(x)), has_aux=True), 3.0)
    np.testing.assert_allclose([slope, aux], [6.0, np.sin(3.0)], rtol=1e-6)


USED = {
    "returned": lambda x: sin(x),
    "added": lambda x: sin(x) + x,
    "summed": lambda x: jnp.sum(sin(x)),
    "jitted": lambda x: jax.jit(lambda y: (y, y * 2))(sin(x))[0],
    "compared and used": lambda x: (sin(x) > 0) * sin(x),
    "in scan": lambda x: lax.scan(lambda c, _: (sin(c), None), x, None, length=2)[0],
    "in cond": lambda x: lax.cond(x.sum() > 0, sin, lambda x: x, x),
    "in fori_loop": lambda x: lax.fori_loop(0, 2, lambda _, c: sin(c), x),
    "in jit": jax.jit(sin),
    "in checkpoint": jax.checkpoint(sin),
}
TEXT = r"'mine': forward-mode differentiation"


@pytest.mark.parametrize("f", USED.values(), ids=USED)
def test_a_used_tangent_is_an_error_of_one_class_directly_and_when_lowered(f, transport):
    with pytest.raises(NotImplementedError, match=TEXT):
        jax.block_until_ready(jax.jvp(f, (X,), (X,)))
    with pytest.raises(NotImplementedError, match=TEXT):
        jax.jit(lambda x: jax.jvp(f, (x,), (x,))).lower(X)
    with pytest.raises(NotImplementedError, match=TEXT):
        jax.jacfwd(f)(X)


TOUCHES = {
    "print": print,
    "repr": repr,
    "f-string": lambda t: f"{t}",
    "numpy": np.asarray,
    "float": float,
    "bool": bool,
    "int": int,
    "item": lambda t: t.item(),
    "block": jax.block_until_ready,
    "get": jax.device_get,
    "add": lambda t: t + 1,
    "numpy add": lambda t: np.float32(1) + t,
    "jnp": jnp.sum,
    "index": lambda t: t[None],
    "jit": lambda t: jax.jit(lambda t: t)(t),
    "vmap": lambda t: jax.vmap(lambda x: x * t)(X),
    "grad": lambda t: jax.grad(lambda x: x * t)(1.0),
    "closed over": lambda t: jax.jit(lambda x: x * t)(1.0),
    "another op": lambda t: numpy_function(np.sin, [t], F),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_whatever_touches_the_missing_tangent_says_why(touch):
    value, tangent = jax.jvp(sin, (1.0,), (1.0,))
    assert value == np.sin(np.float32(1))
    assert (tangent.shape, tangent.dtype) == ((), np.float32)
    with pytest.raises(NotImplementedError, match=TEXT):
        touch(tangent)


def test_a_second_derivative_is_refused_when_traced_or_lowered(transport):
    f = lambda x: numpy_function(np.sin, [x], F, name="mine", vjp=lambda i, o, c: np.cos(i[0]) * c[0])
    for program in (jax.grad(jax.grad(f)), jax.jacfwd(jax.grad(f)), lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1]):
        with pytest.raises(NotImplementedError, match=r"'mine': (second derivatives|forward-mode)"):
            jax.block_until_ready(program(1.0))
        with pytest.raises(NotImplementedError, match=r"'mine': (second derivatives|forward-mode)"):
            jax.jit(program).lower(1.0)


def test_a_missing_vjp_is_refused_when_traced(transport):
    with pytest.raises(ValueError, match="'mine': a backward pass"):
        jax.jit(jax.grad(sin)).lower(1.0)

"""Bodies that fail in the backward pass, and bodies that use JAX, the op itself and their surroundings."""

from __future__ import annotations

import contextvars
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import both_sides, numpy_function, py_function, run

F = jnp.float32


# ----------------------------------------------------------------- backward pass

ODD_COTANGENTS = {
    "raises": (lambda i, o, c: 1 / 0, ZeroDivisionError, "division"),
    "None": (lambda i, o, c: None, None, ""),
    "string": (lambda i, o, c: "text", TypeError, "vjp returned, for input 0,.*numbers"),
    "too many": (lambda i, o, c: (c[0], c[0]), ValueError, "vjp returned 2 cotangents for 1"),
    "wrong shape": (lambda i, o, c: np.ones(7), ValueError, r"vjp returned, for input 0, shape \(7,\)"),
    "complex": (lambda i, o, c: c[0] * 1j, TypeError, "vjp returned, for input 0, complex"),
    "exit": (lambda i, o, c: exit(3), SystemExit, "3"),
    "keeps and changes": (lambda i, o, c: (i[0].fill(9), o[0].fill(9), c[0].fill(2), c[0])[-1], None, ""),
}


@pytest.mark.parametrize(("vjp", "error", "text"), ODD_COTANGENTS.values(), ids=ODD_COTANGENTS)
def test_odd_gradients_of_a_numpy_function(vjp, error, text, route):
    hostile = [True]
    chosen = lambda i, o, c: vjp(i, o, c) if hostile[0] else 2 * c[0]
    x = jnp.arange(3.0)
    f = jax.grad(lambda x: numpy_function(lambda x: x * 2, [x], F, vjp=chosen).sum())
    f = jax.jit(f) if route.jit else f
    for hostile[0] in (True, False, True, False):  # the gradient reads it
        if hostile[0] and error is not None:
            with pytest.raises(error, match=text):
                run(f, x)
        else:
            wanted = 0 if hostile[0] and text == "" and vjp is ODD_COTANGENTS["None"][0] else 2
            np.testing.assert_array_equal(run(f, x), np.full(3, wanted))
    np.testing.assert_array_equal(x, np.arange(3.0))


def test_a_backward_rule_that_raises(route):
    fails = [True]

    @jax.custom_vjp
    def inner(x):
        return x * 2

    def backward(_, ct):
        if fails[0]:
            raise LookupError("in the rule")
        return (ct * 2,)

    inner.defvjp(lambda x: (x * 2, None), backward)
    f = lambda x: py_function(lambda x: inner(x) if float(x) > 0 else x, [x], F, output_shapes=())
    with pytest.raises(LookupError, match="in the rule"), jaxpyop.reraise():
        route(jax.grad(f), F(1))
    assert route(f, F(1)) == 2
    fails[0] = False
    assert route(jax.grad(f), F(1)) == 2


@pytest.mark.filterwarnings("ignore:.*records of forward passes were pushed out")
def test_a_replay_that_fails_when_the_record_is_gone(transport):
    fails = [False]

    def body(x):
        if fails[0]:
            raise LookupError("the second time")
        return x**2

    f = jax.jit(lambda x: jax.vjp(lambda x: py_function(body, [x], F, output_shapes=()), x))
    with jaxpyop.config.override(max_records=1):
        pulls = [run(f, F(x))[1] for x in (3, 4)]
        fails[0] = True
        with pytest.raises(LookupError, match="the second time"):
            run(pulls[0], F(1))
        assert run(pulls[1], F(1))[0] == 8
        fails[0] = False
        assert run(pulls[0], F(1))[0] == 6


# ------------------------------------------------------------------ surroundings

variable = contextvars.ContextVar("variable", default=0.0)
local = threading.local()


@both_sides
def test_context_variables_and_thread_locals(api, route):
    def body(x):
        calls = local.__dict__.setdefault("calls", [])
        calls.append(float(x))
        variable.set(variable.get() + 1)  # of the body's own context, or of the caller's
        return x + variable.get()

    f = lambda x: api(body, [x], F, output_shapes=())
    f = jax.jit(f) if route.jit else f
    for value in (10.0, 20.0):
        token = variable.set(value)
        assert run(f, F(1)) == value + 2
        variable.reset(token)
    assert variable.get() == 0.0


INSIDE = {
    "jit": lambda x: jax.jit(lambda x: x**3)(x),
    "grad": lambda x: jax.grad(lambda y: y**3)(x),
    "jit of grad": lambda x: jax.jit(jax.grad(jnp.sin))(x),
    "value_and_grad": lambda x: sum(jax.value_and_grad(jnp.sin)(x)),
    "vmap": lambda x: jax.vmap(jnp.sin)(jnp.stack([x, x])).sum(),
    "hessian": lambda x: jax.hessian(lambda y: y**4)(x),
    "scan": lambda x: jax.lax.scan(lambda c, _: (c * x, None), x, None, length=3)[0],
    "while_loop": lambda x: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1],
    "jvp": lambda x: jax.jvp(jnp.sin, (x,), (x,))[1],
    "the op": lambda x: py_function(lambda x: jnp.sin(x) * x, [x], F),
    "the op's gradient": lambda x: jax.grad(lambda y: py_function(jnp.sin, [y], F))(x),
    "a compiled op": lambda x: jax.jit(lambda x: py_function(jnp.sin, [x], F))(x),
    "a fresh lambda each time": lambda x: jax.jit(lambda y: y * 2)(x),
}
OUTSIDE = {
    "value": lambda f: f,
    "grad": jax.grad,
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x]))[0],
}


# JAX differentiates no while_loop in reverse.
NESTED = [(i, o) for i in INSIDE for o in OUTSIDE if i != "while_loop" or o == "value"]


@pytest.mark.parametrize(("inside", "outside"), NESTED, ids=[f"{i} in {o}" for i, o in NESTED])
def test_transformations_inside_a_body(inside, outside, route):
    inside, outside = INSIDE[inside], OUTSIDE[outside]
    f = outside(lambda x: py_function(inside, [x], F, output_shapes=()))
    np.testing.assert_allclose(route(f, F(0.7)), outside(inside)(F(0.7)), rtol=1e-5)


def factorial(call):
    return lambda x: x * call(x - 1) if x > 1 else x


def test_an_op_that_calls_itself(route):
    op = lambda x: py_function(factorial(op), [x], F, output_shapes=())
    assert route(op, F(6)) == 720
    np.testing.assert_allclose(route(jax.grad(op), F(3)), 11)
    plain = lambda x: numpy_function(factorial(lambda x: np.asarray(plain(x))), [x], F, output_shapes=())
    assert route(plain, F(6)) == 720


def test_a_compiled_program_that_calls_itself(transport):
    """JAX refuses it while the program is being compiled, and runs it afterwards."""
    f = jax.jit(lambda x: py_function(factorial(lambda x: f(x)), [x], F, output_shapes=()))
    with pytest.raises(RecursionError, match="Recursively calling jit"):
        run(f, F(6))
    assert run(f, F(1)) == 1
    assert run(f, F(6)) == 720
    assert run(jax.jit(jax.vmap(f)), jnp.array([1.0]))[0] == 1


@pytest.mark.parametrize("kind", ["py_function", "numpy_function"])
def test_an_op_that_calls_itself_without_end(kind):
    api = {"py_function": py_function, "numpy_function": numpy_function}[kind]

    def body(x):
        return api(body, [x], F, output_shapes=())

    with pytest.raises(RecursionError, match="recursion"):
        body(F(1))
    assert api(lambda x: x + 1, [F(1)], F) == 2

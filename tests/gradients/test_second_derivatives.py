"""Second derivatives of NumPy functions: by rules that are ops with rules."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.shared.util import Counter, trees_close

F = jnp.float32
MIX = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]], np.float32)
ROUTES = {"direct": lambda f: f, "jit": jax.jit, "cut": jaxpyop.jit}
routes = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)


class Sine:
    """Elementwise."""

    x = jnp.array([0.5, -1.25, 2.0])
    plain = staticmethod(jnp.sin)
    # In a block, inputs that elements share have axes of size 1, and cotangents have the whole batch.
    shapes = ((3,), lambda i, o, c: c[0].shape)
    func = staticmethod(np.sin)
    vjp = staticmethod(lambda i, o, c: c[0] * np.cos(i[0]))
    push = staticmethod(lambda i, o, t: t[0] * np.cos(i[0]))
    rule_vjp = staticmethod(lambda i, o, c: (-i[2] * np.sin(i[0]) * c[0], 0.0, np.cos(i[0]) * c[0]))

    @staticmethod
    def rule_jvp(i, o, t):
        return (0 if t[2] is None else t[2] * np.cos(i[0])) - (0 if t[0] is None else i[2] * np.sin(i[0]) * t[0])


class LogDet:
    """A matrix to a scalar."""

    x = jnp.array([[4.0, 2.0], [1.0, 3.0]])
    plain = staticmethod(lambda a: jnp.linalg.slogdet(a)[1])
    shapes = ((), lambda i, o, c: i[0].shape)
    func = staticmethod(lambda a: np.linalg.slogdet(a)[1])
    vjp = staticmethod(lambda i, o, c: c[0] * np.linalg.inv(i[0]).T)
    push = staticmethod(lambda i, o, t: np.sum(np.linalg.inv(i[0]).T * t[0]))

    @staticmethod
    def rule_vjp(i, o, c):
        inverse = np.linalg.inv(i[0])
        return -i[2] * (inverse @ c[0] @ inverse).T, 0.0, np.sum(inverse.T * c[0])

    @staticmethod
    def rule_jvp(i, o, t):
        inverse = np.linalg.inv(i[0])
        of_input = 0 if t[0] is None else -i[2] * (inverse @ t[0] @ inverse).T
        return of_input + (0 if t[2] is None else t[2] * inverse.T)


class Respond:
    """A vector to a shorter vector; the rule reads the results."""

    x = jnp.array([0.1, 0.5, -0.3])
    plain = staticmethod(lambda x: jnp.tanh(MIX @ x))
    shapes = ((2,), lambda i, o, c: i[0].shape)
    func = staticmethod(lambda x: np.tanh(MIX @ x))
    vjp = staticmethod(lambda i, o, c: MIX.T @ (c[0] * (1 - o[0] ** 2)))
    push = staticmethod(lambda i, o, t: MIX @ t[0] * (1 - o[0] ** 2))

    @staticmethod
    def rule_vjp(i, o, c):
        along = MIX @ c[0]
        return 0.0, -2 * i[1] * i[2] * along, (1 - i[1] ** 2) * along

    @staticmethod
    def rule_jvp(i, o, t):
        found = 0 if t[1] is None else -2 * i[1] * t[1] * i[2]
        return MIX.T @ (found + (0 if t[2] is None else t[2] * (1 - i[1] ** 2)))


def push_of_jax(case):
    """The rule for forward mode as an op whose derivatives are automatic."""

    @py_function(Tout=F)
    def push(inputs, outputs, tangents):
        if tangents[0] is None:
            return jnp.zeros_like(outputs[0])
        return jax.jvp(case.plain, (jnp.broadcast_to(inputs[0], tangents[0].shape),), (tangents[0],))[1]

    return push


CASES = {"sine": Sine, "logdet": LogDet, "respond": Respond}


def rules_of(case, kind, method="sequential"):
    """Rules that are ops: a NumPy function with rules of its own for reverse mode, JAX operations for forward mode."""
    of_rule = {"vjp": "numerical"} if kind == "differences" else {"vjp": case.rule_vjp, "jvp": case.rule_jvp}
    rule = {"output_shapes": case.shapes[1], "vmap_method": method, **of_rule}
    as_op = numpy_function(Tout=F, name="rule", **rule)
    return {"vjp": as_op(lambda i, o, c: case.vjp(i, o, c)), "jvp": push_of_jax(case)}


PROGRAMS = {
    "hessian": lambda f, x: jax.hessian(f)(x),
    "jacfwd of jacrev": lambda f, x: jax.jacfwd(jax.jacrev(f))(x),
    "jacrev of jacrev": lambda f, x: jax.jacrev(jax.jacrev(f))(x),
    "jacfwd of jacfwd": lambda f, x: jax.jacfwd(jax.jacfwd(f))(x),
    "jvp of grad": lambda f, x: jax.jvp(jax.grad(lambda x: jnp.sum(f(x))), (x,), (x + 1,))[1],
    "grad of grad": lambda f, x: jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(f(x)))(x) ** 2))(x),
    "composed": lambda f, x: jax.hessian(lambda x: jnp.sum(jnp.exp(f(x * 0.5))) * x.sum())(x),
    "a cotangent of another magnitude": lambda f, x: jax.hessian(lambda x: jnp.sum((f(x) - 1e3) ** 2))(x),
    "in the cotangent alone": lambda f, x: jax.grad(lambda t: jnp.sum(jax.grad(lambda x: jnp.sum(t * f(x)))(x) ** 2))(
        2.0
    ),
    "vmap outside": lambda f, x: jax.vmap(jax.hessian(f))(jnp.stack([x, x * 0.5])),
    "vmap inside": lambda f, x: jax.hessian(lambda x: jnp.sum(jax.vmap(f)(jnp.stack([x, x * 0.5]))))(x),
    "scan": lambda f, x: jax.hessian(
        lambda x: jnp.sum(jax.lax.scan(lambda total, s: (total + jnp.sum(f(x * s)), None), 0.0, X)[0])
    )(x),
}
X = jnp.array([1.0, 0.5])


KINDS = ("functions", "differences")


def close_to(got, wanted, kind):
    tolerance = 2e-3 if kind == "differences" else 2e-5
    scale = max(1.0, float(jnp.max(jnp.abs(wanted))))
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * scale)


@routes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_equal_to_jax(program, case, kind, route):
    rules = rules_of(case, kind)
    f = lambda x: numpy_function(case.func, [x], F, output_shapes=case.shapes[0], **rules)
    run = lambda x: program(f, x)
    close_to(route(run)(case.x), program(case.plain, case.x), kind)


@routes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["parallel", "expand_dims", "broadcast_all"])
@pytest.mark.parametrize("program", ["vmap outside", "vmap inside", "hessian", "jacrev of jacrev"])
def test_vmap_methods(program, method, kind, route):
    rules = rules_of(Sine, kind, method)
    f = lambda x: numpy_function(np.sin, [x], F, output_shapes=(3,), vmap_method=method, **rules)
    run = lambda x: PROGRAMS[program](f, x)
    close_to(route(run)(Sine.x), PROGRAMS[program](jnp.sin, Sine.x), kind)


@routes
def test_a_rule_of_jax_operations_to_any_order(route):
    @py_function(Tout=F, output_shapes=())
    def slope(inputs, outputs, cotangents):
        return cotangents[0] * jnp.cos(inputs[0])

    f = lambda x: numpy_function(np.sin, [x], F(0), vjp=slope)
    third = jax.grad(jax.grad(jax.grad(f)))
    trees_close(route(third)(0.7), -jnp.cos(jnp.float32(0.7)))


@routes
def test_rules_of_numpy_to_the_third_order(route):
    def third(inputs, outputs, cotangents):
        (x, _, ct, _, c), (c0, _, c2) = inputs, cotangents
        of_x = -ct * np.cos(x) * c * c0 - np.sin(x) * c * c2
        return of_x, 0.0, -np.sin(x) * c * c0, 0.0, -ct * np.sin(x) * c0 + np.cos(x) * c2

    @numpy_function(Tout=(F(0), F(0), F(0)), vjp=third)
    def bend(inputs, outputs, cotangents):
        x, _, ct = inputs
        return -ct * np.sin(x) * cotangents[0], np.float32(0), np.cos(x) * cotangents[0]

    @numpy_function(Tout=F(0), vjp=bend)
    def slope(inputs, outputs, cotangents):
        return cotangents[0] * np.cos(inputs[0])

    f = lambda x: numpy_function(np.sin, [x], F(0), vjp=slope)
    trees_close(route(jax.grad(jax.grad(jax.grad(f))))(0.7), -jnp.cos(jnp.float32(0.7)))


@pytest.mark.parametrize("program", ["gradient in the weight", "reverse over reverse", "forward over reverse"])
@routes
def test_a_rule_that_is_not_linear(program, route):
    programs = {
        "gradient in the weight": lambda f: jax.grad(lambda t: jax.grad(lambda x: t * f(x))(0.3)),
        "reverse over reverse": lambda f: jax.grad(jax.grad(lambda x: 2 * f(x) ** 2)),
        "forward over reverse": lambda f: jax.jacfwd(jax.grad(lambda x: 2 * f(x) ** 2)),
    }
    rule = py_function(Tout=F, output_shapes=())(lambda i, o, c: jnp.clip(c[0], -1, 1))
    f = lambda x: numpy_function(lambda x: x, [x], F(0), vjp=rule, jvp=lambda i, o, t: t[0])
    by_jax = jax.custom_vjp(lambda x: x)
    by_jax.defvjp(lambda x: (by_jax(x), None), lambda _, c: (jnp.clip(c, -1, 1),))
    run = route(programs[program](f))
    for t in (0.2, 3.0):
        # jax.custom_vjp has no forward mode.
        wanted = programs[program](by_jax)(t) if program != "forward over reverse" else 4.0 * (t < 1)
        np.testing.assert_allclose(run(t), wanted, rtol=1e-3, atol=1e-3)


COMPLEX = {
    "real to complex": (lambda x: np.exp(1j * x), lambda x: jnp.exp(1j * x), 0.7),
    "complex to real": (lambda x: np.abs(x) ** 2, lambda x: jnp.abs(x) ** 2, 0.7 + 0.3j),
    "complex": (lambda x: x**3, lambda x: x**3, 0.7 + 0.3j),
}


@routes
@pytest.mark.parametrize(("func", "plain", "x"), COMPLEX.values(), ids=COMPLEX)
def test_complex_numbers(func, plain, x, route):
    def loss(f):
        return lambda x: jnp.sum(jnp.abs(f(x) - 0.2) ** 2)

    def product(f):
        return lambda x: jax.grad(lambda x: jnp.real(jax.grad(loss(f))(x) * (1 - 2j)))(x)

    of_jax = lambda i, o, c: jax.vjp(plain, i[0])[1](c[0].astype(o[0].dtype))[0]
    rule = py_function(Tout=jax.eval_shape(lambda: jnp.asarray(x)), output_shapes=())(of_jax)
    tout = jax.eval_shape(plain, x)
    close = lambda got, tol: np.testing.assert_allclose(got, product(plain)(x), rtol=tol, atol=tol)
    close(route(product(lambda x: numpy_function(func, [x], tout, vjp=rule)))(x), 1e-4)


@routes
def test_the_rule_runs_on_a_tape(route):
    @py_function(Tout=F)
    def slope(inputs, outputs, cotangents):
        return cotangents[0] * jnp.cos(inputs[0]) if float(inputs[0][0]) < 9 else cotangents[0]

    f = lambda x: numpy_function(np.sin, [x], F, vjp=slope)
    derivative = lambda f: jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(f(x)))(x) ** 2))
    for _ in range(3):
        trees_close(route(derivative(f))(Sine.x), derivative(jnp.sin)(Sine.x))


@routes
def test_a_stateful_function_runs_once(route):
    func = Counter(np.sin)
    rule = py_function(Tout=F, output_shapes=())(lambda i, o, c: c[0] * jnp.cos(i[0]))
    f = lambda x: numpy_function(func, [x], F(0), vjp=rule, stateful=True)
    trees_close(route(jax.grad(jax.grad(f)))(0.5), -jnp.sin(jnp.float32(0.5)))
    assert func.count == 1


@routes
def test_several_inputs_and_results_of_which_some_are_integers(route):
    @py_function(Tout=(F, jnp.int32, F), output_shapes=((), (), ()))
    def slope(inputs, outputs, cotangents):
        x, n, y = inputs
        assert cotangents[1] is None
        return cotangents[0] * n * y * x ** (n - 1), 0, cotangents[0] * x**n

    def func(x, n, y):
        return x**n * y, n + 1

    both = lambda x, y: numpy_function(func, [x, 3, y], (F(0), jnp.int32(0)), vjp=slope)[0]
    hessian = jax.jacrev(jax.jacrev(both, (0, 1)), (0, 1))
    x, y = 1.5, 2.0
    wanted = ((6 * x * y, 3 * x**2), (3 * x**2, 0.0))
    np.testing.assert_allclose(route(hessian)(x, y), wanted, rtol=1e-5)


def forward(f):
    return lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1]


with_vjp = jaxpyop.numpy_function(Tout=F(0), vjp=Sine.rule_vjp, name="slope")(lambda i, o, c: np.cos(i[0]) * c[0])
around = functools.wraps(with_vjp)(lambda i, o, c: np.asarray(with_vjp(i, o, c)))
without_rules = jaxpyop.numpy_function(Tout=F, name="slope")(lambda i, o, c: np.cos(i[0]) * c[0])
of_wrong_shape = jaxpyop.py_function(Tout=F, output_shapes=(2,))(lambda i, o, c: jnp.ones(2))
REFUSED = {
    "no rule of the rule": (
        {"vjp": without_rules, "jvp": Sine.push},
        lambda f: jax.grad(jax.grad(f)),
        NotImplementedError,
        "make the rule an op with rules",
    ),
    "no forward mode of the rule": (
        {"vjp": with_vjp, "jvp": Sine.push},
        forward,
        NotImplementedError,
        "'slope': forward-mode differentiation",
    ),
    "no forward mode of the function": (
        {"vjp": with_vjp},
        forward,
        NotImplementedError,
        "'sin': forward-mode differentiation",
    ),
    "a function around an op": (
        {"vjp": around, "jvp": Sine.push},
        forward,
        NotImplementedError,
        "make the rule an op with rules",
    ),
    "a pair with an op": (
        {"vjp": (lambda x: (np.sin(x), x), lambda x, c: with_vjp((x,), (x,), c)), "jvp": Sine.push},
        forward,
        NotImplementedError,
        "make the rule an op with rules",
    ),
    "failures that are filled": (
        {"vjp": with_vjp, "jvp": Sine.push, "on_error": "nan"},
        forward,
        NotImplementedError,
        "make the rule an op with rules",
    ),
    "numerical, where failures are filled": (
        {"vjp": "numerical", "jvp": "numerical", "on_error": "nan"},
        forward,
        NotImplementedError,
        "second derivatives need",
    ),
    "a plain rule": (
        {"vjp": Sine.vjp, "jvp": Sine.push},
        forward,
        NotImplementedError,
        "make the rule an op with rules",
    ),
    "a plain rule, in its cotangent": (
        {"vjp": Sine.vjp, "jvp": Sine.push},
        lambda f: jax.grad(lambda t: jax.grad(lambda x: t * f(x))(0.3)),
        NotImplementedError,
        "make the rule an op with rules",
    ),
    "reverse over forward": (
        {"vjp": Sine.vjp, "jvp": Sine.push},
        lambda f: jax.grad(jax.jacfwd(f)),
        NotImplementedError,
        "make the rule an op with rules",
    ),
    "numerical": ({"vjp": "numerical"}, forward, NotImplementedError, "second derivatives need"),
    "wrong shape": ({"vjp": of_wrong_shape}, lambda f: jax.grad(jax.grad(f)), ValueError, "a cotangent has its input"),
}


@routes
@pytest.mark.parametrize(("rules", "program", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(rules, program, error, text, route):
    derivative = program(lambda x: numpy_function(np.sin, [x], F(0), **rules))
    with pytest.raises(error, match=text):
        jax.block_until_ready(route(derivative)(1.0))


def test_forward_mode_comes_with_numerical_reverse_mode():
    f = lambda x: numpy_function(np.sin, [x], F(0), vjp="numerical")
    np.testing.assert_allclose(jax.jvp(f, (0.7,), (2.0,))[1], 2 * np.cos(0.7), rtol=1e-3)

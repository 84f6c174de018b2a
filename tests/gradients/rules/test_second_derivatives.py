"""Second derivatives of NumPy functions: by rules that are ops with rules."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.shared.checks import Counter

F = jnp.float32
MIX = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]], np.float32)
TRANSFORMS = {"direct": lambda f: f, "jit": jax.jit, "cut": jaxpyop.jit}


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


CASES = {"sine": Sine, "respond": Respond}


def op_of(case, kind, method="sequential"):
    """An op with rules that are ops: a NumPy function for reverse mode, JAX operations for forward mode."""
    of_rule = {"vjp": "numerical"} if kind == "differences" else {"vjp": case.rule_vjp, "jvp": case.rule_jvp}
    rule = {"output_shapes": case.shapes[1], "vmap_method": method, **of_rule}
    vjp = numpy_function(Tout=F, name="rule", **rule)(lambda i, o, c: case.vjp(i, o, c))
    rules = {"vjp": vjp, "jvp": push_of_jax(case), "vmap_method": method}
    return lambda x: numpy_function(case.func, [x], F, output_shapes=case.shapes[0], **rules)


X = jnp.array([1.0, 0.5])
PROGRAMS = {
    "hessian": lambda f, x: jax.hessian(f)(x),
    "jacrev of jacrev": lambda f, x: jax.jacrev(jax.jacrev(f))(x),
    "jvp of grad": lambda f, x: jax.jvp(jax.grad(lambda x: jnp.sum(f(x))), (x,), (x + 1,))[1],
    "grad of grad": lambda f, x: jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(f(x)))(x) ** 2))(x),
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
FAST = {
    ("jvp of grad", "respond", "rules"),
    ("grad of grad", "respond", "rules"),
    ("grad of grad", "sine", "differences"),
}
ROWS = [(program, case, kind) for program in PROGRAMS for case in CASES for kind in ("rules", "differences")]


def close_to(got, wanted, kind):
    tolerance = 2e-3 if kind == "differences" else 2e-5
    scale = max(1.0, float(jnp.max(jnp.abs(wanted))))
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("program", "case", "kind"), [pytest.param(*row, marks=[] if row in FAST else pytest.mark.slow) for row in ROWS]
)
def test_equal_to_jax(program, case, kind):
    program, case = PROGRAMS[program], CASES[case]
    f = op_of(case, kind)
    close_to(program(f, case.x), jax.jit(lambda: program(case.plain, case.x))(), kind)


COMPILED = [(*row, transform) for row in ROWS for transform in ("jit", "cut")]
FAST_COMPILED = [("grad of grad", "respond", "rules", "jit"), ("jvp of grad", "sine", "rules", "cut")]


@pytest.mark.parametrize(
    ("program", "case", "kind", "transform"),
    [pytest.param(*row, marks=[] if row in FAST_COMPILED else pytest.mark.slow) for row in COMPILED],
)
def test_compiled(program, case, kind, transform):
    program, case = PROGRAMS[program], CASES[case]
    run = lambda x: program(op_of(case, kind), x)
    close_to(TRANSFORMS[transform](run)(case.x), jax.jit(lambda: program(case.plain, case.x))(), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rules", "differences"])
@pytest.mark.parametrize("method", ["parallel", "expand_dims", "broadcast_all"])
@pytest.mark.parametrize("program", ["vmap outside", "vmap inside", "hessian", "jacrev of jacrev"])
def test_vmap_methods(program, method, kind):
    run = lambda x: PROGRAMS[program](op_of(Sine, kind, method), x)
    wanted = PROGRAMS[program](jnp.sin, Sine.x)
    for transform in TRANSFORMS.values():
        close_to(transform(run)(Sine.x), wanted, kind)


def test_a_rule_of_jax_operations_to_any_order():
    @py_function(Tout=F, output_shapes=())
    def slope(inputs, outputs, cotangents):
        return cotangents[0] * 3 * inputs[0] ** 2 if float(inputs[0]) < 9 else cotangents[0]

    f = lambda x: numpy_function(lambda x: x**3, [x], F(0), vjp=slope)
    np.testing.assert_allclose(jax.grad(jax.grad(jax.grad(f)))(0.7), 6.0, rtol=1e-6)


NOT_LINEAR = {
    "reverse over reverse": lambda f: jax.grad(jax.grad(lambda x: 2 * f(x) ** 2)),
    "forward over reverse": lambda f: jax.jacfwd(jax.grad(lambda x: 2 * f(x) ** 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("program", NOT_LINEAR)
def test_a_rule_that_is_not_linear(program):
    rule = py_function(Tout=F, output_shapes=())(lambda i, o, c: jnp.clip(c[0], -1, 1))
    f = lambda x: numpy_function(lambda x: x, [x], F(0), vjp=rule, jvp=lambda i, o, t: t[0])
    by_jax = jax.custom_vjp(lambda x: x)
    by_jax.defvjp(lambda x: (by_jax(x), None), lambda _, c: (jnp.clip(c, -1, 1),))
    run = NOT_LINEAR[program](f)
    for t in (0.2, 3.0):
        # jax.custom_vjp has no forward mode.
        wanted = NOT_LINEAR[program](by_jax)(t) if program != "forward over reverse" else 4.0 * (t < 1)
        np.testing.assert_allclose(run(t), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_stateful_function_runs_once(transform):
    func = Counter(lambda x: x**3)
    rule = py_function(Tout=F, output_shapes=())(lambda i, o, c: c[0] * 3 * i[0] ** 2)
    f = lambda x: numpy_function(func, [x], F(0), vjp=rule, stateful=True)
    assert transform(jax.grad(jax.grad(f)))(0.5) == 3.0
    assert func.count == 1


def forward(f):
    return lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1]


with_vjp = numpy_function(Tout=F(0), vjp=Sine.rule_vjp, name="slope")(lambda i, o, c: np.cos(i[0]) * c[0])
around = functools.wraps(with_vjp)(lambda i, o, c: np.asarray(with_vjp(i, o, c)))
without_rules = numpy_function(Tout=F, name="slope")(lambda i, o, c: np.cos(i[0]) * c[0])
of_wrong_shape = py_function(Tout=F, output_shapes=(2,))(lambda i, o, c: jnp.ones(2))
pair = (lambda x: (np.sin(x), x), lambda x, c: with_vjp((x,), (x,), c))
MAKE_IT_AN_OP = "make the rule an op with rules"
twice = lambda f: jax.grad(jax.grad(f))
in_the_weight = lambda f: jax.grad(lambda t: jax.grad(lambda x: t * f(x))(0.3))
REFUSED = {
    "no rule of the rule": ({"vjp": without_rules, "jvp": Sine.push}, twice, MAKE_IT_AN_OP),
    "no forward mode of the rule": ({"vjp": with_vjp, "jvp": Sine.push}, forward, "'slope': forward-mode"),
    "no forward mode of the function": ({"vjp": with_vjp}, forward, "'sin': forward-mode differentiation"),
    "a function around an op": ({"vjp": around, "jvp": Sine.push}, forward, MAKE_IT_AN_OP),
    "a pair with an op": ({"vjp": pair, "jvp": Sine.push}, forward, MAKE_IT_AN_OP),
    "failures that are filled": ({"vjp": with_vjp, "jvp": Sine.push, "on_error": "nan"}, forward, MAKE_IT_AN_OP),
    "a plain rule": ({"vjp": Sine.vjp, "jvp": Sine.push}, forward, MAKE_IT_AN_OP),
    "a plain rule, twice": ({"vjp": Sine.vjp}, twice, r"second derivative.*py_function"),
    "a plain rule, in its cotangent": ({"vjp": Sine.vjp, "jvp": Sine.push}, in_the_weight, MAKE_IT_AN_OP),
    "numerical": ({"vjp": "numerical"}, forward, "second derivatives need"),
    "wrong shape": ({"vjp": of_wrong_shape}, twice, "a cotangent has its input"),
}


@pytest.mark.parametrize(("rules", "program", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(rules, program, text):
    """Directly and when a program is traced, before anything runs."""
    derivative = program(lambda x: numpy_function(np.sin, [x], F(0), **rules))
    error = ValueError if rules["vjp"] is of_wrong_shape else NotImplementedError
    with pytest.raises(error, match=text):
        jax.block_until_ready(derivative(1.0))
    with pytest.raises(error, match=text):
        jax.jit(derivative).lower(1.0)

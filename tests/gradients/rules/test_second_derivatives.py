"""Second derivatives of NumPy functions: by rules that are ops with rules."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import numerical, numpy_function, py_function
from tests.gradients.bodies import TRANSFORMS, X3, F
from tests.gradients.rules.cases import close_to
from tests.shared.checks import Counter
from tests.shared.tables import in_turn, rows

X = jnp.asarray(X3)


def curve(x):
    return x * jnp.exp(x)


def rule_vjp(inputs, outputs, cotangents):
    """Of the rule, which reads the input and the result of the function."""
    ((x,), y, ct), c = inputs, cotangents
    return (ct * np.exp(x) * c,), ct * c, (y + np.exp(x)) * c


def rule_jvp(inputs, outputs, tangents):
    (x,), *rest = rule_vjp(inputs, outputs, 1)
    (t,), *others = tangents
    return sum(slope * t for slope, t in zip([x, *rest], [t, *others]) if t is not None)


def op_of(kind, method="sequential"):
    """An op with rules that are ops: a NumPy function for reverse mode, JAX operations for forward mode."""
    of_rule = {"vjp": numerical()} if kind == "differences" else {"vjp": rule_vjp, "jvp": rule_jvp}
    # In a block, inputs that elements share have axes of size 1, and cotangents have the whole batch.
    rule = numpy_function(Tout=F, name="rule", output_shapes=lambda i, o, c: c.shape, vmap_method=method, **of_rule)

    @py_function(Tout=F)
    def push(inputs, outputs, tangents):
        if tangents[0] is None:
            return jnp.zeros_like(outputs)
        return jax.jvp(curve, (jnp.broadcast_to(inputs[0], tangents[0].shape),), (tangents[0],))[1]

    rules = {"vjp": rule(lambda i, o, c: c * (o + np.exp(i[0]))), "jvp": push, "vmap_method": method}
    return lambda x: numpy_function(lambda x: x * np.exp(x), [x], F, output_shapes=(3,), **rules)


def in_the_cotangent(f, x):
    return jax.grad(lambda t: jnp.sum(jax.grad(lambda x: jnp.sum(t * f(x)))(x) ** 2))(2.0)


def in_a_scan(f, x):
    return jax.lax.scan(lambda total, s: (total + jnp.sum(f(x * s)), None), 0.0, jnp.array([1.0, 0.5]))[0]


PROGRAMS = {
    "hessian": lambda f, x: jax.hessian(f)(x),
    "jacrev of jacrev": lambda f, x: jax.jacrev(jax.jacrev(f))(x),
    "jvp of grad": lambda f, x: jax.jvp(jax.grad(lambda x: jnp.sum(f(x))), (x,), (x + 1,))[1],
    "grad of grad": lambda f, x: jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(f(x)))(x) ** 2))(x),
    "a cotangent of another magnitude": lambda f, x: jax.hessian(lambda x: jnp.sum((f(x) - 1e3) ** 2))(x),
    "in the cotangent alone": in_the_cotangent,
    "vmap outside": lambda f, x: jax.vmap(jax.hessian(f))(jnp.stack([x, x * 0.5])),
    "vmap inside": lambda f, x: jax.hessian(lambda x: jnp.sum(jax.vmap(f)(jnp.stack([x, x * 0.5]))))(x),
    "scan": lambda f, x: jax.hessian(lambda x: in_a_scan(f, x))(x),
}
KINDS, METHODS = ("rules", "differences"), ("parallel", "expand_dims", "broadcast_all")
FAST = [("jvp of grad", "rules", "sequential", "direct"), ("grad of grad", "differences", "sequential", "direct")]
FAST += [("grad of grad", "rules", "sequential", "jit"), ("jvp of grad", "rules", "sequential", "cut")]
ROWS = in_turn(itertools.product(PROGRAMS, KINDS, ["sequential"]), TRANSFORMS, and_also=FAST)
ROWS += [(p, k, m, "jit") for p in ("vmap outside", "vmap inside") for k in KINDS for m in METHODS]


@pytest.mark.parametrize(("program", "kind", "method", "transform"), rows(ROWS, FAST))
def test_equal_to_jax(program, kind, method, transform):
    program = PROGRAMS[program]
    found = TRANSFORMS[transform](lambda x: program(op_of(kind, method), x))(X)
    close_to(found, jax.jit(lambda: program(curve, X))(), 3e-3 if kind == "differences" else 2e-5)


@pytest.mark.slow
def test_a_rule_of_jax_operations_to_any_order():
    @py_function(Tout=F, output_shapes=())
    def slope(inputs, outputs, cotangents):
        return cotangents * 3 * inputs[0] ** 2 if float(inputs[0]) < 9 else cotangents

    f = lambda x: numpy_function(lambda x: x**3, [x], F(0), vjp=slope)
    np.testing.assert_allclose(jax.grad(jax.grad(jax.grad(f)))(0.7), 6.0, rtol=1e-6)


@pytest.mark.slow
def test_a_rule_that_is_not_linear():
    """Reverse mode over reverse mode clips the outer cotangent of 4 too, as the same rule of `jax.custom_vjp` does."""
    rule = py_function(Tout=F, output_shapes=())(lambda i, o, c: jnp.clip(c, -1, 1))
    f = lambda x: 2 * numpy_function(lambda x: x, [x], F(0), vjp=rule, jvp=lambda i, o, t: t[0]) ** 2
    for take, inside in ((jax.grad, 1), (jax.jacfwd, 4)):
        np.testing.assert_allclose([take(jax.grad(f))(t) for t in (0.2, 3.0)], [inside, 0], atol=1e-3)


def test_a_rule_that_is_not_linear_is_not_its_own_derivative():
    """Also where it is differentiated in its cotangent alone, as is any rule that is linear."""
    rule = py_function(Tout=F, output_shapes=())(lambda i, o, c: jnp.clip(c, -1, 1))
    slope = lambda t: jax.grad(lambda x: t * numpy_function(lambda x: x, [x], F(0), vjp=rule))(0.3)
    np.testing.assert_array_equal([jax.jvp(slope, (t,), (4.0,))[1] for t in (0.2, 3.0)], [4, 0])


@pytest.mark.parametrize("transform", rows(TRANSFORMS, ["direct"]))
def test_a_stateful_function_runs_once(transform):
    func = Counter(lambda x: x**3)
    rule = py_function(Tout=F, output_shapes=())(lambda i, o, c: c * 3 * i[0] ** 2)
    f = lambda x: numpy_function(func, [x], F(0), vjp=rule, stateful=True)
    assert TRANSFORMS[transform](jax.grad(jax.grad(f)))(0.5) == 3.0
    assert func.count == 1


def forward(f):
    return lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1]


plain_rule = lambda i, o, c: c * np.cos(i[0])
push_of_sine = lambda i, o, t: t[0] * np.cos(i[0])
rule_of_rule = lambda i, o, c: ((0.0,), 0.0, np.cos(i[0][0]) * c)
with_vjp = numpy_function(Tout=F(0), vjp=rule_of_rule, name="slope")(lambda i, o, c: np.cos(i[0]) * c)
around = functools.wraps(with_vjp)(lambda i, o, c: np.asarray(with_vjp(i, o, c)))
without_rules = numpy_function(Tout=F, name="slope")(lambda i, o, c: np.cos(i[0]) * c)
of_wrong_shape = py_function(Tout=F, output_shapes=(2,))(lambda i, o, c: jnp.ones(2))
MAKE_IT_AN_OP = "make the rule an op with rules"
twice = lambda f: jax.grad(jax.grad(f))
in_the_weight = lambda f: jax.grad(lambda t: jax.grad(lambda x: t * f(x))(0.3))
REFUSED = {
    "no rule of the rule": ({"vjp": without_rules, "jvp": push_of_sine}, twice, MAKE_IT_AN_OP),
    "no forward mode of the function": ({"vjp": with_vjp}, forward, "'sin': forward-mode differentiation"),
    "a function around an op": ({"vjp": around, "jvp": push_of_sine}, forward, MAKE_IT_AN_OP),
    "failures that are filled": ({"vjp": with_vjp, "jvp": push_of_sine, "on_error": "nan"}, forward, MAKE_IT_AN_OP),
    "a plain rule, twice": ({"vjp": plain_rule}, twice, r"gives first derivatives. For second ones.*py_function"),
    "a plain rule, in its cotangent": ({"vjp": plain_rule, "jvp": push_of_sine}, in_the_weight, MAKE_IT_AN_OP),
    "wrong shape": ({"vjp": of_wrong_shape}, twice, "a cotangent has its argument"),
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

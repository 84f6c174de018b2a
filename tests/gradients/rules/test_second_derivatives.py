"""Second derivatives of NumPy functions: by jax.custom_jvp around ops, and what a rule of theirs is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import numerical, numpy_function, py_function
from tests.gradients.bodies import TRANSFORMS, X3, F
from tests.gradients.rules.cases import close_to
from tests.shared.tables import in_turn, rows

X = jnp.asarray(X3)


def curve(x):
    return x * jnp.exp(x)


def op_of(kind, method="sequential"):
    """An op in a function with a rule of JAX's, whose slope is an op with rules of its own."""
    bend = lambda i, o, t: t * (o + np.exp(i[0]))
    rules = {"vjp": bend, "jvp": lambda i, o, t: bend(i, o, t[0])} if kind == "rules" else {}
    if kind == "differences":
        rules = {"vjp": numerical(), "jvp": numerical()}
    slope = numpy_function(Tout=F, vmap_method=method, **rules)(lambda x: (1 + x) * np.exp(x))

    @jax.custom_jvp
    def f(x):
        return numpy_function(lambda x: x * np.exp(x), [x], F, output_shapes=(3,), vmap_method=method)

    @f.defjvp
    def rule(primals, tangents):
        return f(*primals), slope(*primals) * tangents[0]

    return f


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


def forward(f):
    return lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1]


plain_rule = lambda i, o, c: c * np.cos(i[0])
push_of_sine = lambda i, o, t: t[0] * np.cos(i[0])
rule_of_rule = lambda i, o, c: ((0.0,), 0.0, np.cos(i[0][0]) * c)
with_vjp = numpy_function(Tout=F(0), vjp=rule_of_rule, name="slope")(lambda i, o, c: np.cos(i[0]) * c)
without_rules = numpy_function(Tout=F, name="slope")(lambda i, o, c: np.cos(i[0]) * c)
of_jax = py_function(Tout=F, output_shapes=())(lambda i, o, c: c * jnp.cos(i[0]))
INSTEAD = "as a rule of jax.custom_jvp around the op"
twice = lambda f: jax.grad(jax.grad(f))
in_the_weight = lambda f: jax.grad(lambda t: jax.grad(lambda x: t * f(x))(0.3))
REFUSED = {
    "a rule that is an op": ({"vjp": without_rules, "jvp": push_of_sine}, twice, INSTEAD),
    "a rule that is an op with rules": ({"vjp": with_vjp, "jvp": push_of_sine}, twice, INSTEAD),
    "a rule of JAX operations": ({"vjp": of_jax, "jvp": push_of_sine}, twice, INSTEAD),
    "failures that are filled": ({"vjp": plain_rule, "jvp": push_of_sine, "on_error": "nan"}, forward, INSTEAD),
    "a plain rule, twice": ({"vjp": plain_rule}, twice, r"gives first derivatives. For second ones.*py_function"),
    "a plain rule, in its cotangent": ({"vjp": plain_rule, "jvp": push_of_sine}, in_the_weight, INSTEAD),
}


@pytest.mark.parametrize(("rules", "program", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(rules, program, text):
    """Directly and when a program is traced, before anything runs."""
    derivative = program(lambda x: numpy_function(np.sin, [x], F(0), **rules))
    with pytest.raises(NotImplementedError, match=text):
        jax.block_until_ready(derivative(1.0))
    with pytest.raises(NotImplementedError, match=text):
        jax.jit(derivative).lower(1.0)

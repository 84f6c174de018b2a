"""Derivatives that no rule gives: fine where nobody uses them, and else an error that comes early."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop import numpy_function, py_func
from tests.gradients.bodies import X3, F
from tests.shared.checks import trees_close
from tests.shared.tables import rows

X = jnp.asarray(X3)


def op(x):
    return numpy_function(lambda x: 2 * x, [x], F, name="mine")


# ----------------------------------------------------------- reverse mode

BACKWARD = {
    "grad": lambda f: jax.grad(f)(1.0),
    "jit of grad": lambda f: jax.jit(jax.grad(f)).lower(1.0),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(1.0),
    "jacrev": lambda f: jax.jacrev(f)(1.0),
    "grad of scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])(1.0),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f))(1.0),
}


@pytest.mark.parametrize("backward", rows(BACKWARD, ["grad", "jit of grad", "grad of jit", "grad of checkpoint"]))
def test_a_backward_pass_without_a_rule_is_refused(backward):
    for api in (numpy_function, functools.partial(py_func, stateful=False)):
        with pytest.raises(ValueError, match=r"'mine': a backward pass.*vjp=.*jax.lax.stop_gradient"):
            BACKWARD[backward](lambda x, api=api: api(np.sin, [x], F, name="mine"))


def test_a_rule_for_the_other_mode_is_not_enough():
    only_jvp = lambda x: numpy_function(np.sin, [x], F, jvp=lambda i, o, t: np.cos(i[0]) * t[0])
    with pytest.raises(ValueError, match=r"a backward pass needs.*that has jvp= alone.*vjp=f"):
        jax.grad(only_jvp)(1.0)


FINE_BACKWARD = {
    "stopped": lambda f: jax.grad(lambda x: (f(lax.stop_gradient(x)) * x).sum())(X),
    "stopped result": lambda f: jax.grad(lambda x: (lax.stop_gradient(f(x)) * x).sum())(X),
    "auxiliary": lambda f: jax.grad(lambda x: (x.sum(), f(x)), has_aux=True)(X),
    "unused": lambda f: jax.grad(lambda x: (f(x), x.sum())[1])(X),
    "of integers": lambda f: jax.grad(lambda x: (f(jnp.arange(3)) * x).sum())(X),
    "compared": lambda f: jax.grad(lambda x: jnp.where(f(x) > 0, x, 2 * x).sum())(X),
}


@pytest.mark.parametrize("program", FINE_BACKWARD.values(), ids=FINE_BACKWARD)
def test_where_nothing_is_pulled_back_all_is_fine(program):
    trees_close(program(op), jax.jit(lambda: program(lambda x: 2.0 * x))())


# ----------------------------------------------------------- forward mode


unused = lambda x: (op(x), x**3)[1]
FINE = {
    "unused": (unused, lambda x: x**3),
    "no result": (lambda x: (py_func(lambda x: None, [x], None), x**3)[1], lambda x: x**3),
    "compared": (lambda x: jnp.where(op(x) > 0, x, 2 * x), lambda x: jnp.where(2 * x > 0, x, 2 * x)),
    "in scan": (lambda x: lax.scan(lambda c, _: (unused(c), None), x, None, length=2)[0], lambda x: x**9),
}
FORWARD = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (jnp.ones_like(x),)),
    "jvp of jvp": lambda f, x: jax.jvp(lambda x: jax.jvp(f, (x,), (x,)), (x,), (x,)),
    "jacfwd": lambda f, x: jax.jacfwd(f)(x),
    "linearize": lambda f, x: jax.linearize(f, x)[1](x),
    "vmap of jvp": lambda f, x: jax.vmap(lambda t: jax.jvp(f, (x,), (t,)), out_axes=(None, 0))(jnp.eye(3)),
    "jacfwd of jacrev": lambda f, x: jax.jacfwd(jax.jacrev(f))(x),
}
NOT_IN_JAX = [("no result", take) for take in FORWARD if take != "jvp"]  # a batch or a linearization of effects
ROWS = [(name, take) for name in FINE for take in FORWARD if (name, take) not in NOT_IN_JAX]
FAST = [("no result", "jvp"), ("unused", "linearize")]


@pytest.mark.parametrize(("name", "take"), rows(ROWS, FAST))
def test_where_no_tangent_is_used_all_is_fine(name, take):
    (f, plain), take = FINE[name], FORWARD[take]
    wanted = jax.jit(lambda x: take(plain, x))(X)
    trees_close(take(f, X), wanted)
    trees_close(jax.jit(lambda x: take(f, x))(X), wanted)


USED = {
    "returned": op,
    "compared and used": lambda x: (op(x) > 0) * op(x),
    "in scan": lambda x: lax.scan(lambda c, _: (op(c), None), x, None, length=2)[0],
    "in cond": lambda x: lax.cond(x.sum() > 0, op, lambda x: x, x),
    "in checkpoint": jax.checkpoint(op),
}
TEXT = r"'mine': forward-mode differentiation"


@pytest.mark.parametrize("f", USED.values(), ids=USED)
def test_a_used_tangent_is_an_error_of_one_class_directly_and_when_lowered(f):
    along = lambda x: jax.jvp(f, (x,), (x,))
    for program in (lambda x: jax.block_until_ready(along(x)), jax.jit(along).lower, jax.jacfwd(f)):
        with pytest.raises(NotImplementedError, match=TEXT):
            program(X)


def test_a_missing_tangent_can_be_printed():
    """In a debugger, say, or among other values."""
    _, tangent = jax.jvp(op, (1.0,), (1.0,))
    for text in (repr(tangent), str(tangent), f"{ {'t': tangent} }", str([tangent])):
        assert "unusable" in text
        assert "'mine': forward-mode differentiation" in text


TOUCHES = {
    "f-string": lambda t: f"{t}",
    "numpy": np.asarray,
    "float": float,
    "add": lambda t: t + 1,
    "grad": lambda t: jax.grad(lambda x: x * t)(1.0),
    "another op": lambda t: numpy_function(np.sin, [t], F),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_whatever_touches_the_missing_tangent_says_why(touch):
    value, tangent = jax.jvp(op, (1.0,), (1.0,))
    assert value == 2
    assert (tangent.shape, tangent.dtype) == ((), np.float32)
    with pytest.raises(NotImplementedError, match=TEXT):
        touch(tangent)

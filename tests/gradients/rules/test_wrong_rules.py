"""Rules that are wrong: the error names the op, the rule, what came and what was expected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numerical, numpy_function, py_func, py_function
from tests.gradients.bodies import F
from tests.gradients.rules.cases import X

# Rules of a function of two inputs, and what the error says after "vjp returned".
OF_TWO = {
    "too few": (
        lambda i, o, c: (c,),
        "a tuple of 1, and has to return one entry for each argument .* are x and y",
    ),
    "no tuple": (lambda i, o, c: c, "an array, and has to return one entry for each argument"),
    "shape": (lambda i, o, c: (c.sum(), None), r"for x, shape \(\); .* a cotangent has its argument's"),
    "shape of the other": (lambda i, o, c: (None, c[:1]), r"for y, shape \(1,\)"),
    "complex": (lambda i, o, c: (c * 1j, None), "for x, complex64"),
    "text": (lambda i, o, c: ("x", None), "for x"),
}
# Rules of a function of one input: the keyword, the rule, and what the error says.
OF_ONE = {
    "jvp count": (
        "jvp",
        lambda i, o, t: (1.0, 2.0),
        r"jvp returned, for the result, shape \(2,\); a tangent has",
    ),
    "jvp shape": ("jvp", lambda i, o, t: np.ones(2), r"jvp returned, for the result, shape \(2,\); a tangent has"),
    "jvp array without axes": ("jvp", lambda i, o, t: np.float32(1), r"jvp returned, for the result, shape \(\)"),
    "jvp dtype": ("jvp", lambda i, o, t: t[0] * 1j, "jvp returned, for the result, complex"),
    "bwd count": ("vjp", (lambda x: (x, 0), lambda r, c: (c, c)), "bwd of vjp returned a tuple of 2, and has"),
    "bwd shape": ("vjp", (lambda x: (x, 0), lambda r, c: c[0]), "bwd of vjp returned, for x, shape"),
    "bwd dtype": ("vjp", (lambda x: (x, 0), lambda r, c: c * 1j), "bwd of vjp returned, for x, complex"),
    "fwd no pair": ("vjp", (lambda x: x, lambda r, c: c), "fwd of vjp: fwd returned a ndarray; return a pair"),
    "fwd outputs": ("vjp", (lambda x: ([x, x], 0), lambda r, c: c), "fwd of vjp: func returned a list of 2 where"),
    "transpose count": ("transpose", lambda c: (c, c), "transpose returned a tuple of 2, and has"),
    "transpose shape": ("transpose", lambda c: c[:2], r"transpose returned, for x, shape \(2,\)"),
}


@pytest.mark.parametrize(("vjp", "text"), OF_TWO.values(), ids=OF_TWO)
def test_wrong_cotangents(vjp, text):
    op = lambda x, y: numpy_function(lambda x, y: x + y, [x, y], F, name="mine", vjp=vjp)
    with pytest.raises((ValueError, TypeError), match=f"'mine'.*vjp returned,? {text}"):
        jax.grad(lambda x, y: op(x, y).sum(), (0, 1))(X, X)


def derivative_of(rules):
    op = lambda x: numpy_function(lambda x: x, [x], F, name="mine", **rules)
    return (lambda x: jax.jvp(op, (x,), (x,))[1]) if "jvp" in rules else jax.grad(lambda x: op(x).sum())


@pytest.mark.parametrize(("keyword", "rule", "text"), OF_ONE.values(), ids=OF_ONE)
def test_wrong_rules(keyword, rule, text):
    derivative = derivative_of({keyword: rule})
    for program in (derivative, jax.jit(derivative)):
        with pytest.raises((ValueError, TypeError), match=f"(?s)'mine'.*{text}"), jaxpyop.reraise():
            jax.block_until_ready(program(X))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["direct", "jit"])
@pytest.mark.parametrize("which", ["vjp", "fwd", "bwd", "jvp", "transpose"])
def test_exceptions_of_rules_come_out(which, transform):
    error = KeyError("mine")

    def fail(*args):
        raise error

    rules = {"fwd": {"vjp": (fail, fail)}, "bwd": {"vjp": (lambda x: (x, x), fail)}}.get(which, {which: fail})
    with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise():
        jax.block_until_ready(transform(derivative_of(rules))(X))
    assert caught.value is error


sine = lambda x=1.0, **options: numpy_function(np.sin, [x], F(0), **options)
stepped = lambda x: sine(x, vjp=numerical(step=[None, None]))
REFUSED = {
    "no function": (lambda: sine(vjp=3), r"vjp must be a function f\(inputs, outputs, cotangents\), a pair"),
    "three": (lambda: sine(vjp=(np.sin, np.sin, np.sin)), r"a pair of functions \(fwd, bwd\), .*, got \(<"),
    "other text": (lambda: sine(jvp="numeric"), r"jvp must be a function .* or jaxpyop.numerical\(\), got 'numeric'"),
    "numerical transpose": (lambda: sine(transpose=numerical()), r"transpose must be a function f\(cotangents\)"),
    "a step of 0": (lambda: numerical(step=[None, 0]), r"step is \[None, 0\]; expected a number above 0"),
    "no pair": (lambda: numerical(step=(1, -2, 3)), r"step is \(1, -2, 3\); .* a pair \(absolute, relative"),
    "a step of True": (lambda: numerical(step=True), "step is True; expected a number"),
    "the text": (lambda: sine(vjp="numerical"), r"or jaxpyop.numerical\(\), got 'numerical'"),
    "the class": (lambda: sine(vjp=numerical), r"write vjp=jaxpyop.numerical\(\)"),
    "another count of steps": (
        lambda: jax.grad(stepped)(1.0),
        r"'sin': numerical\(step=\[...\]\) has 2 entries, and func has",
    ),
    "a small step": (lambda: jax.grad(lambda x: sine(x, vjp=numerical(step=1e-9)))(1.0), "the step of .* is so small"),
    "transpose and vjp": (lambda: sine(transpose=np.sin, vjp=np.sin), "remove vjp= and jvp="),
    "stateful": (lambda: py_func(np.sin, [1.0], F, vjp=numerical()), "call func again, .* pass stateful=False"),
    "stateful jvp": (lambda: py_func(np.sin, [1.0], F, jvp=numerical()), "call func again, .* pass stateful=False"),
    "traced": (lambda: py_function(jnp.sin, [1.0], F, mode="traced", vjp=np.sin), "mode='traced' runs nothing"),
}


@pytest.mark.parametrize(("make", "text"), REFUSED.values(), ids=REFUSED)
def test_rules_that_cannot_be_are_refused_at_once(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()


def test_a_rule_that_closes_over_a_traced_value_is_refused():
    def program(x):
        return numpy_function(np.sin, [x], F, vjp=(lambda y: (y, 0), lambda r, c: c * x))

    with pytest.raises(ValueError, match="bwd of vjp uses 'x' from the code around it"):
        jax.jit(program)(1.0)

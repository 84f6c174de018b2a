"""The tape against `jax.vjp` and `jax.jvp` of the same body.

Where JAX refuses a body (`float(x)` of a differentiated value), the reference
is the same path written without looking at values.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import _tape
from tests.shared.tape_bodies import (
    BOTH_MODES,
    CASES,
    FORWARD_ONLY,
    X3,
    F,
    arrays,
    check,
    custom_sin,
    custom_square,
    directions,
    float0,
    listed,
    reference,
    scan_body,
    tape_grad,
)

pytestmark = pytest.mark.usefixtures("strict_promotion")


@pytest.mark.parametrize("name", CASES)
def test_pullback(name):
    body, _, inputs = CASES[name]
    outputs, cotangents, expected = reference(name)
    for _ in range(3):  # plain, compiled, cached
        actual, record = _tape.record(listed(body), arrays(inputs))
        check(actual, outputs)
        check(record.pullback(cotangents), expected)


@pytest.mark.parametrize("name", [*BOTH_MODES, *FORWARD_ONLY])
def test_pushforward(name):
    body, plain, inputs = CASES[name] if name in CASES else (*FORWARD_ONLY[name][:1] * 2, FORWARD_ONLY[name][1])
    inputs = arrays(inputs)
    tangents = directions(inputs, 1)

    @jax.jit
    def both(*inputs):
        body = listed(lambda *a: jax.tree.map(jnp.asarray, plain(*a)))
        outputs, found = jax.jvp(body, inputs, tuple(map(float0, inputs, tangents)))
        return outputs, [None if f.dtype == jax.dtypes.float0 else f for f in found]

    outputs, expected = both(*inputs)
    for _ in range(3 if name in ("mlp", "scan", "custom_jvp", "while_loop") else 1):
        actual, pushed = _tape.jvp(listed(body), inputs, tangents)
        check(actual, outputs)
        check(pushed, expected)


def test_pullback_with_missing_cotangents():
    def body(x):
        u, s, v = jnp.linalg.svd(x)
        return [s, x * 2.0, jnp.sum(u) + jnp.sum(v)]

    equal = jnp.eye(3) * 2.0  # equal singular values: U and V have no derivative
    for cotangents in ([jnp.ones(3), None, None], [None, jnp.ones((3, 3)), None]):
        given = [k for k, c in enumerate(cotangents) if c is not None]
        _, pull = jax.vjp(lambda x, given=given: [body(x)[k] for k in given], equal)
        expected = pull([cotangents[k] for k in given])
        for _ in range(3):
            check(_tape.vjp(body, [equal], cotangents), expected)
    assert _tape.vjp(body, [equal], [None] * 3) == [None]


def test_pushforward_with_missing_tangents():
    _, tangents = _tape.jvp(lambda x, y: [x * 2.0, y * y, x * y], arrays([X3, X3]), [None, jnp.ones(3)])
    assert tangents[0] is None
    check(tangents[1:], [2 * X3, X3])


# --- the checker itself ------------------------------------------------------


@pytest.mark.parametrize("name", ["square", "mlp", "complex", "every_way_to_look"])
def test_checker_fails_on_a_gradient_that_is_off(name):
    body, _, inputs = CASES[name]
    _, cotangents, expected = reference(name)
    actual = _tape.vjp(listed(body), arrays(inputs), cotangents)
    check(actual, expected)
    for wrong in (
        [a * np.asarray(1.001, a.dtype) for a in actual],
        [a.T[None] for a in actual],
        [None for a in actual],
    ):
        with pytest.raises(AssertionError):
            check(wrong, expected)


# --- higher orders -------------------------------------------------------------

SCALAR = {
    "trigonometric": lambda x: jnp.sum(jnp.sin(x) * jnp.exp(x)),
    "jit_and_scan": lambda x: jax.jit(lambda y: jnp.sum(scan_body(y)[0] * y))(x),
    "relu": lambda x: jnp.sum(jax.nn.relu(x) * x),
    "cond": lambda x: jnp.sum(jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x) * x),
}


def tape_hessian(body, x):
    grad = tape_grad(body)
    rows = [_tape.vjp(lambda y: [grad(y)], [x], [row])[0] for row in jnp.eye(x.size)]
    return jnp.stack([jnp.zeros_like(x) if r is None else r for r in rows])


@pytest.mark.parametrize("name", SCALAR)
def test_second_order(name):
    body, x = SCALAR[name], jnp.asarray(X3)
    expected = jax.jit(jax.hessian(body))(x)
    check([tape_hessian(body, x)], [expected], rtol=2e-4)


def test_second_order_looking_at_values():
    body = lambda x: jnp.sum(x**3) if float(x[0]) > 0 else jnp.sum(x)
    check([tape_hessian(body, jnp.asarray(X3))], [np.diag(6 * X3)])


def test_third_order():
    third = tape_grad(tape_grad(tape_grad(lambda x: x**4 + jnp.sin(x))))
    for _ in range(3):
        check([third(F(0.5))], [24 * 0.5 - np.cos(F(0.5))])


def test_second_order_of_custom_rules():
    for body in (lambda x: custom_sin(x, x), lambda x: custom_square(x, F(2))):
        expected = jax.grad(jax.grad(body))(F(0.7))
        for _ in range(2):
            check([tape_grad(tape_grad(body))(F(0.7))], [expected])


def test_forward_over_reverse():
    x, t = jnp.asarray(X3), jnp.ones(3)
    _, tangents = _tape.jvp(lambda y: [tape_grad(SCALAR["trigonometric"])(y)], [x], [t])
    check(tangents, [jax.jit(jax.hessian(SCALAR["trigonometric"]))(x) @ t])


def test_pullback_under_transformations():
    x = jnp.asarray(X3)
    expected = jax.jacobian(lambda y: jnp.sin(y) * y[0])(x)
    _, record = _tape.record(lambda y: [jnp.sin(y) * y[0]], [x])
    for _ in range(2):
        check([jax.vmap(lambda c: record.pullback([c])[0])(jnp.eye(3))], [expected])
        check([jax.jit(lambda c: record.pullback([c])[0])(jnp.eye(3)[0])], [expected[0]])
        check([jax.vmap(lambda t: record.pushforward([t])[0])(jnp.eye(3))], [expected.T])
        linear = jax.jacobian(lambda c: record.pullback([c])[0])(jnp.ones(3))
        check([linear], [expected.T])


def test_record_inside_transformations():
    x = jnp.asarray(X3)
    expected = np.cos(X3)
    grad = tape_grad(jnp.sin)
    check([jax.vmap(grad)(x), jax.jit(jax.vmap(grad))(x)], [expected] * 2)
    check([jax.vmap(jax.grad(grad))(x)], [-np.sin(X3)])


def _wide(x):
    with jax.enable_x64(True):
        return (jnp.sin(x.astype(jnp.float64)) ** 2).astype(jnp.float32)


DERIVATIVES = {
    "grad": jax.grad,
    "jacfwd": jax.jacfwd,
    "second": lambda f: jax.grad(jax.grad(f)),
    "batch": lambda f: lambda x: jax.vmap(jax.grad(f))(x[None])[0],
}


@pytest.mark.parametrize("over", [lambda f: f, jax.jit], ids=["direct", "jit"])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_block_of_64_bits_in_a_function(name, over):
    f = over(DERIVATIVES[name](lambda x: jaxpyop.py_function(_wide, [x], jnp.float32)))
    for _ in range(3):
        found = f(jnp.float32(0.7))
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, 2 * np.cos(1.4) if name == "second" else np.sin(1.4), rtol=1e-5)

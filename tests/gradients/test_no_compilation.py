"""After a few steps nothing is compiled and nothing is traced any more, also of bodies that JAX compiles anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from jaxpyop import _tape

A = jnp.eye(3) * 3 + 0.1
B = jnp.arange(3.0)


def gamma(x):
    return jnp.sum(jax.random.gamma(jax.random.key(3), x * jnp.ones(2)))


def linear_solve(x):
    def solve(a, b):
        by_lu = lambda _, b: jnp.linalg.solve(lax.stop_gradient(a), b)
        return lax.custom_linear_solve(lambda v: a @ v, b, by_lu, symmetric=True)

    return jnp.sum(solve(A * x, B))


def conjugate_gradients(x):
    return jnp.sum(jax.scipy.sparse.linalg.cg(lambda v: A * x @ v, B)[0])


def linear_call(x):
    return jax.custom_derivatives.linear_call(lambda r, v: r * v, lambda r, ct: r * ct, 2.0, x) * x


@jax.jit
def printing(x):
    jax.debug.print("{x}", x=x)
    return x * 2


def debug_print(x):
    return printing(x) * x


@jax.custom_vjp
def squared(x):
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))


def jitted_custom_vjp(x):
    return jit_of_custom(x) * x


jit_of_custom = jax.jit(lambda x: jnp.sin(squared(x)) + x)


def powers(x):
    return x**2 + x**3 * x**-1 + 2.0 * x**1 - x**0


BODIES = [gamma, linear_solve, conjugate_gradients, linear_call, debug_print, jitted_custom_vjp, powers]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_steps_compile_nothing(body, capfd):
    step = jax.jit(jax.grad(lambda x: jaxpyop.py_function(body, [x], jnp.float32, output_shapes=())))
    slopes = [step(1.5) for _ in range(5)]
    found = []
    listen = lambda name, *_, **__: found.append(name)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        slopes += [jax.block_until_ready(step(1.5)) for _ in range(3)]
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    compiled = [name for name in found if "compile" in name]
    assert compiled == []
    if body is not linear_call:  # a call of its own each time, which is linearised as in jax.grad
        assert [name for name in found if "trace" in name] == []
    np.testing.assert_allclose(slopes, float(jax.grad(body)(1.5)), rtol=1e-4)
    jax.effects_barrier()
    capfd.readouterr()


@pytest.mark.parametrize("exponent", [-2, -1, 0, 1, 2, 3, 2.0, True, np.int32(2)], ids=repr)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.complex64])
def test_powers_as_in_jnp(exponent, dtype):
    x = jnp.asarray([1.5, -0.5], dtype)
    ((out,), record) = _tape.record(lambda x: [x**exponent], [x])
    want, pull = jax.vjp(lambda x: x**exponent, x)
    assert out.dtype == want.dtype
    np.testing.assert_array_equal(out, want)
    np.testing.assert_allclose(record.pullback([jnp.ones_like(x)])[0], pull(jnp.ones_like(x))[0], rtol=2e-3)


def test_values_without_a_tangent_are_those_of_eager_calls():
    y = jnp.asarray([0.1, -2.0, 3.0])
    calls = [jnp.abs, jnp.exp, jnp.log1p, lambda y: y + 1, lambda y: y[1], lambda y: jnp.where(y > 0, y, 0), jnp.argmax]
    seen = []

    def body(x):
        seen[:] = [f(y) for f in calls]
        return [x * 2]

    for _ in range(3):
        _tape.record(body, [jnp.float32(1)])
        for got, f in zip(seen, calls):
            want = f(y)
            assert type(got) is type(want)
            assert got.aval == want.aval
            np.testing.assert_array_equal(got, want)

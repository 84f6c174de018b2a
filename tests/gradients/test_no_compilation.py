"""After a few steps nothing is traced and nothing is compiled any more, as in a step of plain JAX."""

import contextlib
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jaxpyop import py_function
from tests.gradients.bodies import BODIES, F, arrays, directions
from tests.shared.tables import rows

A = jnp.eye(3) * 3 + 0.1
B = jnp.arange(3.0)


@contextlib.contextmanager
def events():
    """What JAX traces and compiles in a block, as a list that grows."""
    found = []
    listen = lambda name, *_, **__: found.append(name) if "compile" in name or "trace" in name else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


# What a rule of the user's or of JAX's compiles when it is called, as in plain JAX; and constants deep in a loop.
COMPILES = ["custom_root", "odeint, a custom_vjp", "jit over an array, in scan", "jit over an array, in checkpoint"]


@pytest.mark.parametrize("name", rows([name for name in BODIES if name not in COMPILES], ["scan"]))
def test_no_function_is_compiled_for_ever(name):
    body, inputs = BODIES[name][0], arrays(BODIES[name][1])
    out = jax.eval_shape(body, *inputs)
    cotangents = directions(out)
    op = lambda *inputs: py_function(body, list(inputs), out)

    @jax.jit
    def step(*inputs):
        _, pull = jax.vjp(op, *inputs)
        return [c for c in pull(cotangents) if c.dtype != jax.dtypes.float0]

    for _ in range(6):
        jax.block_until_ready(step(*inputs))
    with events() as found:
        jax.block_until_ready(step(*inputs))
    assert found == []


def test_constants_are_not_compiled_in():
    """Other numbers in each step, of the function's own and from outside, are found by the same program."""
    rate = [0.0]
    body = lambda x: x * rate[0] * x + jnp.float32(rate[0])
    step = jax.jit(jax.grad(lambda x: py_function(body, [x], F, output_shapes=())))
    for rate[0] in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        np.testing.assert_allclose(step(2.0), 4 * rate[0], rtol=1e-6)
    with events() as found:
        for rate[0] in (0.7, 0.8, -0.0, 3):
            np.testing.assert_allclose(step(2.0), 4 * rate[0], rtol=1e-6)
    assert found == []


@pytest.mark.slow
def test_types_are_told_apart():
    """The pullback of a sum has a shape in it that its cotangent does not tell."""
    for x in (F(2), jnp.arange(3.0), jnp.arange(2.0)):
        for _ in range(6):
            _, pull = jax.vjp(lambda x: py_function(lambda x: jnp.sum(x * x + x), [x], x.dtype), x)
            got = pull(jnp.ones((), x.dtype))[0]
            assert (got.shape, got.dtype) == (x.shape, x.dtype)
            np.testing.assert_allclose(got, 2 * x + 1)


def test_another_path_in_each_step_compiles_nothing_new():
    """Lengths of a loop that were not seen before use operations that were."""

    def chain(x, n):
        for _ in range(int(n)):
            x = x * 0.5 + x
        return x

    step = jax.jit(jax.grad(lambda x, n: py_function(chain, [x, n], F, output_shapes=())))
    for n in range(1, 8):
        step(1.0, n)
    with events() as found:
        slopes = [float(step(1.0, n)) for n in range(8, 20)]
    assert found == []
    np.testing.assert_allclose(slopes, [1.5**n for n in range(8, 20)], rtol=1e-5)


@pytest.mark.slow
def test_a_new_length_compiles_what_eager_jax_compiles():
    """A backward pass becomes one program only when the same operations came back often, as those before it do here."""
    kept = lambda x, n: jnp.sort(x)[: int(n)].mean()
    ours = jax.jit(jax.grad(lambda x, n: py_function(kept, [x, n], F, output_shapes=())))
    eager = lambda x, n: jax.grad(lambda x: kept(x, n))(x)
    x = jnp.arange(60.0)
    for n in range(50, 56):
        ours(x, n), eager(x, n)
    compiled = []
    for step, n in ((ours, 10), (eager, 20)):
        with events() as found:
            step(x, n), step(x, n)
        compiled.append(sum("backend_compile" in name for name in found))
    assert 0 < compiled[0] <= compiled[1]


@pytest.mark.slow
def test_steps_leave_no_entries_in_the_cache_of_a_jitted_function():
    """Each of our traces would be another one to JAX, if it were not told that they are alike; in threads as well."""
    helper = jax.jit(lambda y: y * 2)
    body = lambda w: jnp.sum((w * B - helper(B)) * w)
    step = jax.grad(lambda w: py_function(body, [w], F, output_shapes=()))
    for _ in range(3):
        step(1.0)
    entries = helper._cache_size()
    for _ in range(3):
        step(1.0)
        thread = threading.Thread(target=step, args=(1.0,))
        thread.start()
        thread.join()
    assert helper._cache_size() == entries


factor = [2.0]


def scaled_by(function, rule):
    scaled = jax.custom_jvp(function)
    scaled.defjvp(lambda primals, tangents: (function(primals[0]), rule(tangents[0])))
    return scaled


def scaled_alone(function):
    scaled = jax.custom_jvp(function)
    scaled.defjvps(lambda tangent, result, x: factor[0] * tangent)
    return scaled


def scaled_as_jax(function):
    scaled = jax.custom_jvp(function)
    scaled.defjvp(functools.wraps(function)(lambda p, t: (function(p[0]), factor[0] * t[0])))
    return scaled


class Scaled:
    """Makes the function in each call, with a method as the rule."""

    factor = property(lambda self: factor[0])

    def __call__(self, x):
        scaled = jax.custom_jvp(jax.lax.sin)
        scaled.defjvp(self.rule)
        return scaled(x)

    def rule(self, primals, tangents):
        return jax.lax.sin(primals[0]), self.factor * tangents[0]


def scaled_primitive():
    """A primitive of the user's own, which JAX differentiates by a rule of the user's."""
    scaled = Primitive("scaled")
    scaled.def_impl(jnp.sin)
    scaled.def_abstract_eval(lambda x: x)
    mlir.register_lowering(scaled, mlir.lower_fun(jnp.sin, multiple_results=False))
    ad.primitive_jvps[scaled] = lambda primals, tangents: (scaled.bind(*primals), factor[0] * tangents[0])
    return scaled.bind


def scaled_by_a_partial(function):
    scaled = jax.custom_jvp(function)
    scaled.defjvp(jax.tree_util.Partial(lambda p, t: (function(p[0]), factor[0] * t[0])))
    return scaled


SCALED = {
    "a primitive": scaled_primitive(),
    "a primitive in a jitted function": jax.jit(scaled_primitive()),
    "a partial of JAX's": scaled_by_a_partial(jnp.sign),
    "a function of the user": scaled_by(lambda x: x, lambda t: factor[0] * t),
    "a function of JAX's": scaled_by(jax.nn.relu, lambda t: factor[0] * t),
    "rules by argument": scaled_alone(jnp.sign),
    "a rule with the name of JAX's": scaled_as_jax(jnp.sign),
    "a method": Scaled(),
}


@pytest.mark.parametrize("scaled", SCALED.values(), ids=SCALED)
def test_a_rule_of_the_user_that_reads_a_variable_is_called_each_time(scaled):
    f = lambda x: py_function(lambda x: scaled(x) * 1 if x > 0 else x, [x], F)
    for factor[0] in (2.0, 5.0, 2.0, 7.0):
        for _ in range(3):
            assert jax.grad(f)(1.0) == jax.jvp(f, (1.0,), (1.0,))[1] == factor[0]

"""Following bodies path by path: against the bodies run eagerly on values."""

from __future__ import annotations

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop._paths import infer_shapes, trace_paths
from tests.shared.path_bodies import (
    BODIES,
    POINTS,
    by_body,
    by_differentiable_body,
    close,
    custom_jvp_branches,
    custom_vjp_rule,
    eager_gradients,
    eager_values,
    elif_chain_of,
    grad_inside,
    jaxpr_of,
    jit_inside,
    log_huber,
    points,
    primitives,
    scan_inside,
    sequential,
    traced,
)

pytestmark = pytest.mark.filterwarnings("error")


@by_body
def test_direct(body):
    op = traced(body)
    x, m = points(body)[1]
    close(op(jnp.asarray(x), jnp.asarray(m)), body(jnp.asarray(x), jnp.asarray(m)))


@by_body
def test_jit(body):
    op = jax.jit(traced(body))
    for (x, m), wanted in zip(points(body), eager_values(body), strict=True):
        got = op(x, m)
        close(got, wanted)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)


@by_differentiable_body
def test_grad(body):
    gradient = jax.jit(jax.grad(traced(body), (0, 1)))
    for (x, m), wanted in zip(points(body), eager_gradients(body), strict=True):
        got = gradient(x, m)
        close(got[0], wanted[0])
        close(got[1], wanted[1])


@by_body
def test_vmap(body):
    xs, ms = map(np.stack, zip(*points(body), strict=True))
    close(jax.jit(jax.vmap(traced(body)))(xs, ms), eager_values(body))


@by_differentiable_body
def test_vmap_of_grad(body):
    xs, ms = map(np.stack, zip(*points(body), strict=True))
    got = jax.jit(jax.vmap(jax.grad(traced(body))))(xs, ms)
    close(got, [gx for gx, _ in eager_gradients(body)])


@by_body
def test_scan(body):
    op = traced(body)
    xs, ms = map(np.stack, zip(*points(body), strict=True))
    _, got = jax.jit(lambda *ops: lax.scan(lambda c, p: (c, op(*p)), 0, ops))(xs, ms)
    close(got, eager_values(body))


# Tracer-leak checking collects garbage after every trace, so not for all bodies.
LEAKING = [
    log_huber,
    jit_inside,
    scan_inside,
    grad_inside,
    custom_jvp_branches,
    custom_vjp_rule,
]


@pytest.mark.parametrize("body", LEAKING, ids=lambda f: f.__name__)
def test_no_tracer_leaks(body):
    def op(x, m):
        infer_shapes(lambda *xs: [body(*xs)], [x, m])
        return traced(body)(x, m)

    with jax.checking_leaks():
        jax.jit(op).trace(*POINTS[0])


# The program that is made


def test_log_huber_is_one_cond():
    x, m = POINTS[1]
    count = primitives(jaxpr_of(log_huber, x, m))
    assert (count["cond"], count["log"]) == (1, 2)


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_no_callback(body):
    assert not [name for name in primitives(jaxpr_of(body, *POINTS[1])) if "callback" in name]


@pytest.mark.parametrize("n", [1, 3, 6, 7])
def test_sequential_ifs_grow_linearly(n):
    count = primitives(jaxpr_of(sequential(n), 1.0))
    assert (count["cond"], count["sin"], count["gt"]) == (n, n, n)


@jax.custom_jvp
def tripled(x):
    return x


@jax.custom_vjp
def scaled_gradient(x, factor):
    return x


tripled.defjvps(lambda t, out, x: 3.0 * t)
scaled_gradient.defvjp(lambda x, k: (x, None), lambda _, ct: (2.0 * ct, None))


def test_common_suffix_with_custom_rules_is_shared():
    def body(x):
        y = x
        for k in range(3):
            y = y * 2.0 if y > k else y - x
            y = tripled(scaled_gradient(y, 2.0))
        return y

    count = primitives(jaxpr_of(body, 1.0))
    assert count["cond"] == count["custom_jvp_call"] == 3
    assert sum(n for name, n in count.items() if "custom_vjp" in name) == 3
    close(jax.grad(traced(body))(0.75), jax.grad(body)(0.75))


def test_rules_that_differ_are_not_shared():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def scaled(x, factor):
        return x

    scaled.defvjp(lambda x, k: (x, None), lambda k, _, ct: (k * ct,))

    def body(x):
        return scaled(x, 2.0 if x > 0 else 5.0)

    gradient = jax.grad(traced(body))
    assert (gradient(1.0), gradient(-1.0)) == (2.0, 5.0)


def test_fresh_lambdas_under_jit_are_shared():
    def body(x):
        y = x * 2.0 if x > 0 else x - 1.0
        return jax.jit(lambda v: v * v)(y) + lax.scan(lambda c, _: (c * 2.0, None), y, None, length=3)[0]

    assert primitives(jaxpr_of(body, 1.0))["scan"] == 1


def test_several_results_and_numbers():
    def body(x):
        return [x, 1, 2.5, np.ones(2, np.float32)] if x > 0 else [-x, 2, 0.5, np.zeros(2, np.float32)]

    out = trace_paths(body, [jnp.float32(-3.0)])
    for got, wanted in zip(out, body(-3.0), strict=True):
        close(got, wanted)


def both(x, y):
    return jnp.sin(x) if x > 0 and y > 0 else jnp.cos(x)


def either(x, y):
    return jnp.sin(x) if x > 0 or not y > 0 else jnp.cos(x)


def mixed(x, y):
    return jnp.sin(x) if (x > 0 and y > 0) or (x < -1 and y < -1) else jnp.cos(x)


def with_own_work(x, y):
    """The second test uses a value that a side uses too: it stays inside."""
    if x > 0:
        return jnp.sin(x)
    z = x * y
    return jnp.sin(z) if z > 1 else jnp.cos(z)


@pytest.mark.parametrize(
    ("body", "conds", "sines"),
    [
        pytest.param(both, 1, 1, id="and"),
        pytest.param(either, 1, 1, id="or-not"),
        pytest.param(mixed, 2, 3, id="mixed"),
        pytest.param(lambda x, y: elif_chain_of(20)(x), 1, 0, id="elif"),
        pytest.param(with_own_work, 2, 2, id="value-used-twice"),
    ],
)
def test_conditions_become_one_switch(body, conds, sines):
    count = primitives(jaxpr_of(body, 1.0, 1.0))
    assert count["cond"] == conds
    assert count["sin"] + count["cos"] <= sines + 2
    op = jax.jit(jax.value_and_grad(traced(body)))
    for x in (-2.0, -0.5, 0.5, 7.5, 30.0):
        for y in (-2.0, -0.5, 2.5):
            close(op(x, y), jax.value_and_grad(body)(x, y))


STEPS = [
    lambda a, b: a + b,
    lambda a, b: a * b * 0.5,
    lambda a, b: jnp.sin(a) - b,
    lambda a, b: tripled(a) - b,
    lambda a, b: scaled_gradient(a, 2.0) + b,
    lambda a, b: jax.jit(lambda v: v * 0.5 + a)(b),
    lambda a, b: jnp.maximum(a, b),
]


def random_program(draw, depth):
    """Statements: `if`s, early returns, assignments of numbers and results."""
    program = []
    for _ in range(draw.randint(1, 4)):
        kind, i, j, k = draw.random(), *(draw.randrange(3) for _ in range(3))
        if kind < 0.4 and depth:
            sides = [random_program(draw, depth - 1) for _ in range(2)]
            program.append(("if", i, draw.choice([0.0, 0.5]), *sides))
        elif kind < 0.5 and depth < 2:
            program.append(("return", i))
        elif kind < 0.6:
            program.append(("number", i, draw.choice([1.0, -1.0])))
        else:
            program.append(("step", i, j, k, draw.choice(STEPS)))
    return program


def interpret(program, values):
    for kind, i, *rest in program:
        if kind == "if":
            bound, yes, no = rest
            result = interpret(yes if values[i] > bound else no, values)
            if result is not None:
                return result
        elif kind == "return":
            return values[i] * 1.0
        elif kind == "number":
            values[i] = rest[0]
        else:
            j, k, step = rest
            values[i] = step(values[j], values[k])
    return None


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    draw = random.Random(seed)
    program = random_program(draw, 2) + random_program(draw, 2)

    def body(*xs):
        values = list(xs)
        result = interpret(program, values)
        return jnp.asarray(sum(values) if result is None else result)

    op = jax.jit(jax.value_and_grad(traced(body), (0, 1, 2)))
    for _ in range(4):
        xs = [jnp.float32(draw.uniform(-2, 2)) for _ in range(3)]
        wanted = jax.value_and_grad(body, (0, 1, 2))(*xs)
        close(jax.tree.leaves(op(*xs)), jax.tree.leaves(wanted), rtol=1e-4, atol=1e-5)


def test_no_results():
    assert trace_paths(lambda x: [] if x > 0 else [], [1.0]) == []  # noqa: RUF034


def test_closing_over_tracers():
    def outer(x, y):
        (out,) = trace_paths(lambda v: [v * y if v > y else v + y], [x])
        return out

    for x, y in [(1.0, 2.0), (3.0, 2.0)]:
        wanted = jax.grad(lambda x, y: x * y if x > y else x + y, (0, 1))(x, y)
        close(jax.jit(jax.grad(outer, (0, 1)))(x, y), wanted)


def test_nested():
    def inner(x):
        return x * 3.0 if x > 1 else x

    def outer(x, y):
        return traced(inner)(x) + y if y > 0 else traced(inner)(y) * x

    for x, y in [(2.0, 1.0), (0.5, 1.0), (2.0, -1.0)]:
        wanted = jax.grad(lambda x, y: inner(x) + y if y > 0 else inner(y) * x)(x, y)
        close(jax.jit(jax.grad(traced(outer)))(x, y), wanted)


@pytest.mark.parametrize("transform", [jax.hessian, jax.jacfwd], ids=["hessian", "jacfwd"])
@pytest.mark.parametrize("x", [0.5, 3.0], ids=["inside", "outside"])
def test_higher_orders(transform, x):
    def body(x, m):
        return x * x if abs(x) <= m else m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))

    close(jax.jit(transform(traced(body)))(x, 1.0), transform(body)(x, 1.0))


def test_numpy_arrays_may_be_written_to_between_operations():
    """Each operation gets what was in the array then; of jax.jit, what is in it at the end."""

    def body(x):
        scratch, y = np.zeros(3, np.float32), jnp.zeros(())
        for k in (1.0, 2.0, 4.0):
            scratch[:] = k
            y = y + (jax.nn.relu(x * scratch) if x[0] > 0 else x * scratch).sum()
        return y

    for x in (np.array([0.5, 1, 2], np.float32), np.array([-0.5, 1, 2], np.float32)):
        got, slope = jax.jit(jax.value_and_grad(traced(body)))(x)
        close(got, body(jnp.asarray(x)))
        close(slope, [7, 7, 7])


def test_typed_keys_as_inputs_and_results():
    def body(key, x):
        return jax.random.split(key)[0] if x > 0 else key

    key = jax.random.key(3)
    for x in (1.0, -1.0):
        got = jax.jit(traced(body))(key, x)
        assert (jax.random.key_data(got) == jax.random.key_data(body(key, x))).all()


def test_effects_stay_in_their_branch(capfd):
    def body(x):
        jax.debug.print("start")
        if x > 0:
            jax.debug.print("positive")
        else:
            jax.debug.print("negative")
        jax.debug.print("end")
        return x

    jax.jit(traced(body))(-1.0)
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.split()) == ["end", "negative", "start"]


def test_no_effects_without_a_value(capfd):
    def body(x):
        jax.debug.print("seen")
        return [x]

    infer_shapes(body, [1.0])
    jax.jit(lambda x: infer_shapes(body, [x]) and x)(1.0)
    jax.effects_barrier()
    assert capfd.readouterr().out == ""

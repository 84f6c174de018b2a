"""Bodies with branches on values, the points where they are looked at, and their values there."""

from __future__ import annotations

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop._paths import trace_paths


def traced(body):
    """The op under test: one result, as a caller would use it."""

    @functools.wraps(body)
    def op(*args):
        (out,) = trace_paths(lambda *xs: [body(*xs)], args)
        return out

    return op


@jax.custom_jvp
def clipped(x):
    return jnp.minimum(x, 1.0)


@clipped.defjvp
def _clipped_jvp(primals, tangents):
    return clipped(*primals), 3.0 * tangents[0]  # a rule that shows


@jax.custom_vjp
def reversed_gradient(x):
    return 2.0 * x


reversed_gradient.defvjp(lambda x: (2.0 * x, None), lambda _, ct: (-ct,))


@jax.custom_jvp
def branching_rule(x):
    return x if x > 0 else -x


@branching_rule.defjvp
def _branching_rule_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return branching_rule(x), (5.0 * t if x > 0 else 7.0 * t)


# Bodies of one float vector x of 3 and a float scalar m, with a scalar result
# that is differentiable at the points below.


def log_huber(x, m):
    x = x[0]
    return x * x if abs(x) <= m else m * m * (1 - 2 * jnp.log(m) + jnp.log(x * x))


def early_return(x, m):
    if m > 1:
        return x[0] * m
    return x[1] - m


def elif_chain(x, m):
    if m > 2:
        y = x[0] * m
    elif m > 1:
        y = jnp.sin(x[1])
    elif m > 0:
        y = x[2] ** 2
    else:
        y = m * x.sum()
    return y + 1.0


def and_or_not(x, m):
    if (x[0] > 0 and m > 1) or not x[1] > 0:
        return x[0] * 2.0
    return x[1] * m


def kept_condition(x, m):
    inside = x[0] > 0 and m > 1
    y = x[0] if inside else x[1]
    return y * 2.0 if inside else y


def conditional_expression(x, m):
    return (x[0] if x[0] > x[1] else x[1]) * (m if m > 0 else -m)


def min_max(x, m):
    return min(x[0], m) + max(x[1], x[2], m)


def sorting(x, m):
    low, _, high = sorted([x[0], x[1], x[2]])
    return low * m - high


def static_loop(x, m):
    y = m
    for i in range(3):
        if x[i] > y:
            y = y + x[i]
        else:
            y = y * 0.5
    return y


def loop_with_break(x, m):
    y = m
    for i in range(3):
        if y > 2:
            break
        y = y + jnp.cos(x[i])
    return y


def iteration(x, m):
    y = m
    for value in x:
        y = y + value if value > 0 else y
    return y


def nested_ifs(x, m):
    if m > 1:
        if x[0] > 0:
            return x[0] * x[1]
        return x[0] + m
    if x[1] > 0:
        return x[1] * m
    return x[2] * m


def truth_of_a_float(x, m):
    return x[0] * 2.0 if jnp.floor(m) else x[1]


def size_one(x, m):
    return x[0] if x[:1] > 0 else m * x[1]


def rejoining(x, m):
    if x[0] > 0:
        a, b = x[0], m
    else:
        a, b = m, x[1]
    c = a * b + jnp.sin(a)
    if c > 1:
        c = c + b
    return c * a


def swapped(x, m):
    a, b = x[0], x[1]
    if m > 1:
        a, b = b, a
    return a - 2.0 * b


def one_value_two_roles(x, m):
    """The common part uses x[0] twice on one side, two values on the other."""
    if m > 1:
        a, b = x[0], x[0]
    else:
        a, b = x[1], x[2]
    return jnp.sin(a) * jnp.cos(b) + a


def python_state(x, m):
    """What Python remembers of the first decision shows after the second."""
    factor = 2 if x[0] > 0 else 3
    return x[1] if m > 1 else x[1] * factor


def unused_result(x, m):
    if m > 1:
        jnp.sin(x)
    return x[0] * m


def same_on_both_sides(x, m):
    return x[0] * m if m > 1 else x[0] * m  # noqa: RUF034


def constant_results(x, m):
    return (1.0 if m > 1 else 0.0) * x[0]


def closed_over_table(x, m):
    table = np.asarray([1.0, -2.0, 3.0], np.float32)
    return (x * table).sum() if m > 1 else (x * table[::-1]).sum()


def jit_inside(x, m):
    square = jax.jit(lambda y: y * y + m)
    return square(x).sum() if m > 1 else square(-x[0])


def scan_inside(x, m):
    def step(carry, value):
        return carry * m + value, None

    return lax.scan(step, m, x)[0] if m > 1 else lax.scan(step, x[0], x)[0]


def cond_inside(x, m):
    y = lax.cond(x[0] > 0, lambda: x[1] * m, lambda: x[2])
    return y if m > 1 else y * y


def while_inside(x, m):
    y = lax.fori_loop(0, 3, lambda i, c: c * m + x[i], x[0])
    return y if m > 1 else -y


def vmap_inside(x, m):
    y = jax.vmap(lambda v: v * m if m > 1 else v - m)(x)
    return y.sum()


def grad_inside(x, m):
    return jax.grad(lambda v: v**3 if v > 0 else v**2)(x[0]) * m


def relu_at_zero(x, m):
    return jax.nn.relu(x[0] - x[0]) + x[1] if m > 1 else jax.nn.relu(x).sum() * m


def custom_jvp_rule(x, m):
    return clipped(x[0]) if m > 1 else clipped(x[1] * m) + x[2]


def custom_jvp_closure(x, m):
    scale = x[1] * 2.0

    @jax.custom_jvp
    def scaled(v):
        return v * lax.stop_gradient(scale)

    scaled.defjvps(lambda t, out, v: 5.0 * t)
    return scaled(x[0]) if m > 1 else scaled(m)


def custom_jvp_branches(x, m):
    return branching_rule(x[0]) if m > 1 else branching_rule(x[1] * m)


def custom_vjp_rule(x, m):
    return reversed_gradient(x[0]) if m > 1 else reversed_gradient(x[1] * m) + x[2]


def checkpoint_inside(x, m):
    f = jax.checkpoint(lambda v: jnp.sin(v) * m)
    return f(x).sum() if m > 1 else f(x[0])


def prng_key_inside(x, m):
    key = jax.random.key(7)
    noise = jax.random.uniform(key, (3,)) if m > 1 else jax.random.uniform(key)
    return (x * noise).sum()


def several_ifs(x, m):
    y = m
    for k in range(6):
        if y > 0.3 * k:
            y = y * 0.75 + jnp.sin(x[k % 3])
        else:
            y = y - 0.1 * x[0]
    return y


BODIES = [
    log_huber, early_return, elif_chain, and_or_not, kept_condition,
    conditional_expression, min_max, sorting, static_loop, loop_with_break,
    iteration, nested_ifs, truth_of_a_float, size_one, rejoining, swapped,
    one_value_two_roles, python_state, unused_result, same_on_both_sides,
    constant_results, closed_over_table, jit_inside, scan_inside, cond_inside,
    while_inside, vmap_inside, grad_inside, relu_at_zero, custom_jvp_rule,
    custom_jvp_closure, custom_jvp_branches, custom_vjp_rule, checkpoint_inside,
    prng_key_inside, several_ifs,
]  # fmt: skip
# JAX has no derivative of a custom_jvp function that closes over tracers.
NO_GRADIENT = {custom_jvp_closure}
XS = np.array(
    [[0.5, -1.5, 2.0], [-2.5, 1.25, 0.75], [3.0, 1.75, -0.5], [-0.25, -0.5, 4.0]],
    np.float32,
)
MS = np.array([0.75, 1.5, 2.5, -1.25], np.float32)
POINTS = [(XS[i], MS[k]) for i in range(4) for k in range(4) if (i + k) % 2]
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def points(body):
    # A logarithm of a negative bound is no number on either side.
    return [p for p in POINTS if body is not log_huber or p[1] > 0]


@functools.cache
def eager_values(body):
    return [body(jnp.asarray(x), jnp.asarray(m)) for x, m in points(body)]


@functools.cache
def eager_gradients(body):
    """Of the body on concrete values, so that its `if`s see numbers."""
    return [jax.grad(body, (0, 1))(jnp.asarray(x), jnp.asarray(m)) for x, m in points(body)]


by_body = pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
by_differentiable_body = pytest.mark.parametrize(
    "body", [f for f in BODIES if f not in NO_GRADIENT], ids=lambda f: f.__name__
)


def primitives(jaxpr):
    """How often each primitive occurs, in branches and calls too."""
    count = collections.Counter()
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    for eqn in inner.eqns:
        count[eqn.primitive.name] += 1
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple) else (value,):
                if hasattr(part, "eqns"):
                    count += primitives(part)
    return count


def jaxpr_of(body, *args):
    return jax.make_jaxpr(traced(body))(*args)


def sequential(n):
    def body(x):
        y = x
        for k in range(n):
            if y > 0.3 * k:
                y = y * 0.75 + jnp.sin(x)
            else:
                y = y - 0.1 * x
        return y

    return body


def elif_chain_of(n):
    def body(x):
        for k in range(n):
            if x < k:
                return x * k
        return x

    return body

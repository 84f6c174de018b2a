"""Following bodies path by path: against the bodies run eagerly on values."""

from __future__ import annotations

import collections
import functools
import random
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop import _pathmerge, _paths
from jaxpyop._paths import MAX_PATHS, PathError, infer_shapes, trace_paths

pytestmark = pytest.mark.filterwarnings("error")

THIS_FILE = re.escape(__file__)


def line_of(text):
    """The number of the only line of this file that ends with a comment."""
    with open(__file__) as lines:
        found = [n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}")]
    assert len(found) == 1, (text, found)
    return found[0]


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
    relu_at_zero,
    custom_jvp_closure,
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


def jaxpr_of(body, *args):
    return jax.make_jaxpr(traced(body))(*args)


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


# Results whose types differ between paths


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        pytest.param(lambda x: x if x > 0 else 0.0, "float32", id="weak"),
        pytest.param(lambda x: 1.0 if x > 0 else 0.0, "float32", id="both-weak"),
        pytest.param(lambda x: x if x > 0 else 2, "float32", id="weak-int"),
        pytest.param(lambda x: x > 1 if x > 0 else False, "bool", id="bool"),
        pytest.param(lambda x: x if x > 0 else x.astype(jnp.int32), "float32", id="int"),
        pytest.param(lambda x: x if x > 0 else x.astype(jnp.bfloat16), "float32", id="half"),
        pytest.param(lambda x: x if x > 0 else x + 1j, "complex64", id="complex"),
    ],
)
def test_dtypes_are_promoted(body, wanted):
    for x in (1.5, -1.5):
        x = jnp.float32(x)
        got = jax.jit(traced(body))(x)
        assert got.dtype == wanted
        close(got, body(x), rtol=1e-2)


def two_shapes(x):
    if x > 0:
        return jnp.ones(2)  # shape 2
    return jnp.ones(3)  # shape 3


def two_lengths(x):
    if x > 0:
        return [x]  # one result
    return [x, x]  # two results


def key_or_number(x):
    if x > 0:
        return jax.random.key(1)  # a key
    return x  # a number


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        pytest.param(lambda x: [two_shapes(x)], ("shape 2", "shape 3"), id="shape"),
        pytest.param(two_lengths, ("one result", "two results"), id="length"),
        pytest.param(lambda x: [key_or_number(x)], ("a key", "a number"), id="key"),
    ],
)
def test_different_results_name_both_lines(body, lines):
    first, second = map(line_of, lines)
    if body is not two_lengths:  # the outermost function of the user's
        first = second = body.__code__.co_firstlineno
    match = rf"different results.*{THIS_FILE}:{first} and {THIS_FILE}:{second}.*eager"
    with pytest.raises(PathError, match=match):
        trace_paths(body, [1.0])


# What cannot be followed


def uses_float(x):
    return [x * float(x)]  # float


def uses_int(x):
    return [x * int(x)]  # int


def uses_range(x):
    return [sum(range(x.astype(int)))]  # index


def uses_numpy(x):
    return [np.sin(x)]  # numpy


def uses_mean(x):
    return [np.median(x)]  # median


def uses_item(x):
    return [x.item()]  # item


def uses_tolist(x):
    return [x.tolist()]  # tolist


def raises(x):
    if x < 0:
        raise ValueError("negative")  # raise
    return [x]


def asserts(x):
    assert x > 0  # assert
    return [x]


def truth_of_a_vector(x):
    return [1.0 if jnp.ones(2) * x > 0 else 2.0]  # vector


def loops(x):
    while x > 1:  # while
        x = x / 2
    return [x]


def loops_forever(x):
    while True:
        if x > 1:  # forever
            x = x / 2


def wrong_result(x):
    return ["text"]


def swallows_float(x):
    try:
        return [x * float(x)]  # swallowed float
    except BaseException:
        return [x]


def swallows_the_bound(x):
    y = x
    try:
        while y > 1:  # swallowed bound
            y = y / 2
    except:  # noqa: E722
        pass
    return [x]


def bare_jit(x):
    return [jax.jit(lambda v: v if v > 0 else -v)(x)]  # inner jit


@pytest.mark.parametrize(
    ("body", "line", "match"),
    [
        pytest.param(uses_float, "float", r"float\(x\) asks for the value", id="float"),
        pytest.param(uses_int, "int", r"int\(x\) asks", id="int"),
        pytest.param(uses_range, "index", r"operator\.index\(x\) asks", id="index"),
        pytest.param(uses_numpy, "numpy", r"np\.asarray\(x\) asks", id="numpy"),
        pytest.param(uses_mean, "median", r"asks|raises", id="numpy-python"),
        pytest.param(uses_item, "item", r"x\.item\(\) asks", id="item"),
        pytest.param(uses_tolist, "tolist", r"x\.tolist\(\) asks", id="tolist"),
        pytest.param(raises, "raise", "a path raises ValueError: negative", id="raise"),
        pytest.param(asserts, "assert", "a path raises AssertionError", id="assert"),
        pytest.param(truth_of_a_vector, "vector", "a path raises ValueError", id="vector"),
        pytest.param(loops, "while", "loop whose end depends", id="while"),
        pytest.param(loops_forever, "forever", "loop whose end depends", id="forever"),
        pytest.param(swallows_float, "swallowed float", "asks", id="swallow-float"),
        pytest.param(swallows_the_bound, "swallowed bound", "loop", id="swallow-bound"),
        pytest.param(bare_jit, "inner jit", "TracerBoolConversion", id="inner-jit"),
    ],
)
def test_refused_with_the_users_line(body, line, match):
    full = rf"^{THIS_FILE}:{line_of(line)}: .*{match}.*mode=\"eager\""
    for transform in (lambda f: f, jax.jit, jax.grad):
        with pytest.raises(PathError, match=full) as caught:
            transform(lambda x: trace_paths(body, [x])[0])(jnp.float32(1.0))
        assert caught.value.filename == __file__
        assert caught.value.lineno == line_of(line)


def test_wrong_type_of_result():
    with pytest.raises(PathError, match=r"a path raises TypeError.*eager"):
        trace_paths(wrong_result, [1.0])


def elif_chain_of(n):
    def body(x):
        for k in range(n):
            if x < k:
                return x * k
        return x

    return body


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(sequential(8), id="sequential"),
        pytest.param(elif_chain_of(MAX_PATHS), id="elif"),
    ],
)
def test_the_bound_is_named_in_time(body):
    start = time.thread_time()
    with pytest.raises(PathError, match=f"more than {MAX_PATHS} paths"):
        jaxpr_of(body, 1.0)
    assert time.thread_time() - start < 2


def test_six_sequential_ifs_compile_in_time():
    start = time.thread_time()
    jax.jit(traced(sequential(6))).lower(1.0).compile()
    assert time.thread_time() - start < 2


@pytest.mark.parametrize("n", [1, 3, 5])
def test_exactly_the_bound_is_allowed(n):
    run = functools.partial(trace_paths, lambda x: [sequential(n)(x)], [1.0])
    close(run(max_paths=2**n), [sequential(n)(1.0)])
    with pytest.raises(PathError, match=f"more than {2**n - 1} paths"):
        run(max_paths=2**n - 1)


def test_outside_state_is_refused():
    calls = []

    def body(x):
        calls.append(0)
        return [jnp.sin(x) if x * len(calls) > 0 else x]

    with pytest.raises(PathError, match="two runs of the body differ"):
        trace_paths(body, [1.0])


def test_kept_tracers_are_errors():
    kept = []
    trace_paths(lambda x: [kept.append(x) or x], [1.0])
    with pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer"):
        kept[0] + 1


def test_nesting_too_deep_is_refused(monkeypatch):
    def evaluate(block, env):
        raise RecursionError

    monkeypatch.setattr(_paths._pathblock, "evaluate", evaluate)
    with pytest.raises(PathError, match="nested too deeply"):
        trace_paths(lambda x: [x], [1.0])


def test_keyboard_interrupt_passes():
    def body(x):
        raise KeyboardInterrupt

    for follow in (trace_paths, infer_shapes):
        with pytest.raises(KeyboardInterrupt):
            follow(body, [1.0])


# Shapes


@by_body
def test_shapes(body):
    x, m = points(body)[0]
    args = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), m.dtype)]
    (got,) = infer_shapes(lambda *xs: [body(*xs)], args)
    wanted = eager_values(body)[0]
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)


def some_paths_fail(x):
    if x > 0:
        return [jnp.ones(int(x))]
    if x > -1:
        raise ValueError("no")
    return [jnp.ones((2, 3), jnp.int32)]


def newton(x):
    y = x
    while abs(y * y - x) > 1e-3:
        y = 0.5 * (y + x / y)
    return [y, len("abc"), 0.5]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        pytest.param(some_paths_fail, [((2, 3), "int32", False)], id="backtracks"),
        pytest.param(
            newton,
            [((), "float32", False), ((), "int32", True), ((), "float32", True)],
            id="while",
        ),
        pytest.param(lambda x: [x] * 2, [((), "float32", False)] * 2, id="two"),
        pytest.param(lambda x: [], [], id="none"),
    ],
)
def test_shapes_along_one_path(body, wanted):
    got = infer_shapes(body, [jax.ShapeDtypeStruct((), jnp.float32)])
    assert [(s.shape, s.dtype, s.weak_type) for s in got] == wanted


@pytest.mark.parametrize(
    ("body", "line"),
    [
        pytest.param(uses_float, "float", id="float"),
        pytest.param(uses_numpy, "numpy", id="numpy"),
        pytest.param(uses_item, "item", id="item"),
        pytest.param(swallows_float, "swallowed float", id="swallowed"),
    ],
)
def test_shapes_that_need_a_value(body, line):
    match = rf"^{THIS_FILE}:{line_of(line)}: .*asks for the value.*output_shapes="
    with pytest.raises(PathError, match=match):
        infer_shapes(body, [1.0])


def test_shapes_of_an_endless_body_take_bounded_time(monkeypatch):
    monkeypatch.setattr(_paths, "_SHAPE_SECONDS", 0.3)

    def body(x):
        while True:
            x = x + 1.0  # endless

    start = time.perf_counter()
    with pytest.raises(PathError, match=f":{line_of('endless')}: .*too long"):
        infer_shapes(body, [1.0])
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap, jax.jacfwd], ids=lambda f: f.__name__)
def test_shapes_under_transformations_add_nothing(transform):
    seen = []

    def f(x):
        seen.append(infer_shapes(lambda v: [v * x if v > x else 2.0 * v], [x])[0].shape)
        return x * 2.0

    arg = jnp.ones(3) if transform is jax.vmap else jnp.float32(1.0)
    jaxpr = jax.make_jaxpr(transform(f))(arg)
    wanted = jax.make_jaxpr(transform(lambda x: x * 2.0))(arg)
    assert set(seen) == {()}
    assert primitives(jaxpr) == primitives(wanted)


# The comparisons that decide what is shared


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        pytest.param((1, [2.0]), (1, [2.0]), True, id="nested"),
        pytest.param((1, 2), (1, 2, 3), False, id="length"),
        pytest.param({"a": 1}, {"b": 1}, False, id="keys"),
        pytest.param(1, 1.0, False, id="type"),
        pytest.param(np.ones(2), np.ones(2), False, id="in-doubt"),
        pytest.param(lambda: 0, lambda: 0, False, id="callables"),
    ],
)
def test_same_parameter(a, b, same):
    assert _pathmerge.same_parameter(a, b) is same


@pytest.mark.parametrize(
    ("f", "g", "same"),
    [
        pytest.param(lambda x: x + 1, lambda y: y + 1, True, id="names"),
        pytest.param(lambda x: x + 1, lambda x: x + 2, False, id="literal"),
        pytest.param(lambda x: x * (x + 1), lambda x: (x + 1) * x, False, id="order"),
        pytest.param(lambda x: x + 1, lambda x: x - 1, False, id="primitive"),
        pytest.param(lambda x: (x, x + 1), lambda x: (x + 1, x), False, id="results"),
        pytest.param(lambda x: x + np.arange(3.0), lambda x: x + np.arange(3.0)[::-1], False, id="consts"),
        pytest.param(jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 1), True, id="jit"),
        pytest.param(jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 2), False, id="jit-not"),
    ],
)
def test_same_jaxpr(f, g, same):
    pair = [jax.make_jaxpr(h)(1.0) for h in (f, g)]
    assert _pathmerge.same_parameter(*pair) is same

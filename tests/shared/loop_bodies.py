"""Bodies with loops on values: of one float vector x of 3 and a float scalar m, with a scalar result."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxpyop._paths import trace_body
from tests.shared import path_bodies

MAX_STEPS = 64


def traced(body, max_steps=MAX_STEPS):
    """The op under test: one result, as a caller would use it."""

    @functools.wraps(body)
    def op(*args):
        (out,) = trace_body(body, lambda f, *xs: [f(*xs)], args, max_steps)
        return out

    return op


def newton(x, m):
    a = abs(x[0]) + 1.0
    y = a
    while abs(y * y - a) > 1e-3 * a:
        y = 0.5 * (y + a / y)
    return y * m


def bisection(x, m):
    low, high = 0.0, 4.0
    while high - low > 1e-2:
        middle = (low + high) / 2
        if middle * middle > abs(x[0]):
            high = middle
        else:
            low = middle
    return low * m + x[1]


def collatz(x, m):
    n, turns = abs(m * 8).astype(int) + 1, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        turns += 1
    return turns * x[0]


def euclid(x, m):
    a, b = jnp.int32(abs(x[0]) * 24), jnp.int32(abs(m) * 36)
    while b:
        a, b = b, a % b
    return a * x[1]


def log_huber_in_a_loop(x, m):
    bound = abs(m) + 0.5
    y = abs(x[0]) + 3.0
    while y > 1:
        if y <= bound:
            y = y**2 / (2 * bound)
        else:
            y = bound * 0.5 * (1 + jnp.log(y / bound))
        y = y * 0.7
    return y


def power_iteration(x, m):
    matrix = jnp.diag(jnp.asarray([3.0, 1.0, 0.5])) + 0.1 * m
    v, old, new = x, 0.0, 1.0
    while abs(new - old) > 1e-2 * abs(new):
        v = matrix @ v
        v = v / jnp.sqrt(v @ v)
        old, new = new, v @ matrix @ v
    return new


def beam(x, m):
    best, score = x[0], 0.0
    for _ in range(40):
        candidate = best * 0.9 + 0.1 * x[1]
        score = score + candidate * candidate
        if score > 4 + abs(m):
            break
        if candidate < best:
            best = candidate
        else:
            best = best * 1.1
    return score + best


def for_of_a_value(x, m):
    y = x[0]
    for i in range(jnp.int32(abs(m) * 4)):
        y = y * 0.5 + x[1] * i
    return y


def for_with_start_and_step(x, m):
    n, y = jnp.int32(abs(m) * 8), m
    for i in range(2, n, 3):
        y = y + jnp.sin(x[0] * i)
    for i in range(n, 0, -2):
        y = y - jnp.cos(x[1] * i)
    return y


def nested_loops(x, m):
    total = 0.0
    for i in range(jnp.int32(abs(m) * 3)):
        y = x[0] + i
        while y > 1:
            y = y * 0.5
        for j in range(i):
            total = total + y * j
    return total + x[1]


def two_conditions(x, m):
    y, k = abs(x[0]) + 2.0, 0
    while y > 1 and k < 6:
        y, k = y * 0.8 - 0.01 * m, k + 1
    return y * k


def other_conditions(x, m):
    y, k = abs(x[0]) + 2.0, 0
    while not (y < 1 or k >= 6) and 0 <= k < 5:
        y, k = y * 0.8, k + 1
    return y + m


def _halved(y, least):
    while y > least:
        y = y / 2
    return y


def _summed(n, y):
    total = 0.0
    for _ in range(n):
        total += y
        y = y * 0.5
    return total


def two_functions_that_loop(x, m):
    return _halved(abs(x[0]) + 3, 1.0) + _summed(jnp.int32(abs(m) * 3), x[1])


# Its objects have no hash.
@dataclasses.dataclass
class Solver:
    rate: float

    def step(self, y, x):
        return y - self.rate * (y - x) if y > x else y * 0.5

    def __call__(self, y, x):
        k = 0
        while abs(y - x) > 0.1 and k < 12:
            y = self.step(y, x)
            k += 1
        return y


def methods(x, m):
    return Solver(0.5)(abs(x[0]) + 2.0, 0.25) * m


_solver = Solver(0.4)


def method_of_an_object_outside(x, m):
    return _solver(abs(m) + 1.0, 0.3) + x[0]


def _closing_over(rate):
    def closure(x, m):
        y = abs(x[0]) + 3.0
        while y > 1:
            y = y * rate
        return y + m

    return closure


closure = _closing_over(0.6)


def closure_inside(x, m):
    y = abs(x[0])

    def shrink(v):
        while v > y * 0.5:
            v = v * 0.75
        return v

    return shrink(y + 1.0) * m


def _doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2.0 * function(*args)

    return wrapper


@_doubled
def decorated(x, m):
    y = abs(x[0]) + 1.0
    while y > 1:
        y = y * 0.7
    return y * m


def return_in_a_while(x, m):
    y = abs(x[0]) + 4.0
    while y > 0.5:
        if y < abs(m):
            return y * m
        y = y * 0.8
    return y


def return_in_two_loops(x, m):
    y = abs(x[0]) + 0.5
    for i in range(jnp.int32(abs(m) * 4)):
        for j in range(3):
            if y * i > 2:
                return y + j
            y = y * 1.25
    return y - m


def continues(x, m):
    total, y = 0.0, abs(x[0]) + 4.0
    while y > 0.5:
        y = y * 0.8
        if y > 3:
            continue
        if y < 1:
            total = total + 2.0 * y
            continue
        total = total + y * m
    return total


def while_true(x, m):
    y = abs(x[0]) + 4.0
    while True:
        y = y * 0.75
        if y < 1:
            break
    return y * m


def for_over_an_array_with_break(x, m):
    total = 0.0
    for value in jnp.concatenate([x] * 8):
        total = total + value * value
        if total > 9 + m:
            break
    return total


def for_over_a_list_with_break(x, m):
    total = m
    for weight, name in [(0.5, "a"), (1.5, "b"), (2.5, "c")]:
        if total > 2:
            break
        total = total + weight * len(name) * jnp.cos(x[0])
    return total


def python_loop(x, m):
    y = m
    for k in range(3):
        y = y + x[k] if y > k else y - x[k]
    return y


def array_state(x, m):
    history = jnp.zeros(16)
    y, k = abs(x[0]) + 3.0, 0
    while y > 1:
        history = history.at[k].set(y)
        y, k = y * 0.75, k + 1
    return history.sum() * m


def tuple_and_dict_state(x, m):
    pair, table = (x[0], 0), {"y": abs(x[1]) + 3.0}
    while table["y"] > 1:
        pair = (pair[0] * 0.9, pair[1] + 1)
        table = {"y": table["y"] * 0.75}
    return pair[0] * pair[1] + table["y"] * m


def attributes(x, m):
    solver = Solver(abs(m))
    while solver.rate < 3:
        solver.rate = solver.rate * 1.5 + 0.1
    return solver.rate * x[0]


def weak_types(x, m):
    count, total, flag = 0, 0, False
    while count < abs(m) * 3:
        count += 1
        total += x[0]
        flag = total > 1
    return total * 2 if flag else total + count


def no_turn(x, m):
    y = x[0]
    while y > 100:
        y = y * m
    return y


def if_in_inner_jit(x, m):
    f = jax.jit(lambda v: v * m if v > 0 else v - m)
    return f(x[0]) + f(x[1])


def if_in_inner_vmap(x, m):
    return jax.vmap(lambda v: v * m if v > 0 else v - m)(x).sum()


def loop_in_inner_vmap(x, m):
    return jax.vmap(lambda v: _halved(abs(v) + 3, 1.0))(x).sum() * m


def if_in_inner_scan(x, m):
    def step(carry, v):
        if v > carry:
            return carry + v, v
        return carry * 0.5, v * m

    last, ys = jax.lax.scan(step, m, x)
    return last + ys.sum()


def if_in_inner_grad(x, m):
    return jax.grad(lambda v: v**3 if v > 0 else _halved(v * v + 2.0, 1.0))(x[0]) * m


def min_max_abs(x, m):
    y = abs(x[0]) + 3
    while max(y, 1.0) > min(1.5, 2.0):
        y = y * 0.7
    return y + m


def unmergeable_if(x, m):
    f = jnp.sin if x[0] > 0 else jnp.cos
    y = abs(x[1]) + 2.0
    while y > 1:
        y = y * 0.75
    return f(y) * m


def appends_on_a_path(x, m):
    parts = [x[0]]
    if m > 1:
        parts.append(x[1])
    y = parts[-1]
    while abs(y) > 1:
        y = y * 0.5
    return y * len(parts)


def comprehension(x, m):
    y = abs(m) + 2.0
    while y > 1:
        y = y * sum([0.2 * k for k in range(3)])
    return y + sum([v for v in x if v > 0])


def python_numbers(x, m):
    y = abs(x[0]) + 4.0
    while float(y) > 1:
        y = y / 2
    for _ in range(int((abs(m) * 3).astype(int))):
        y = y * 0.9
    return y


def conditional_chain(x, m):
    y = abs(x[0]) + 4.0
    while y > 1:
        y = y * 0.5 if y > 4 else (y * 0.7 if y > 2 else y * 0.9)
    return y * (1.0 if m > 0 else -1.0)


BODIES = [
    newton, bisection, collatz, euclid, log_huber_in_a_loop, power_iteration, beam, for_of_a_value,
    for_with_start_and_step, nested_loops, two_conditions, other_conditions, two_functions_that_loop, methods,
    method_of_an_object_outside, closure, closure_inside, decorated, return_in_a_while, return_in_two_loops,
    continues, while_true, for_over_an_array_with_break, for_over_a_list_with_break, python_loop, array_state,
    tuple_and_dict_state, attributes, weak_types, no_turn, if_in_inner_jit, if_in_inner_vmap, loop_in_inner_vmap,
    if_in_inner_scan, if_in_inner_grad, min_max_abs, unmergeable_if, appends_on_a_path, comprehension,
    conditional_chain, python_numbers,
]  # fmt: skip

# JAX refuses these when they run eagerly, so the body that they are compared with is written with jnp.where.
PLAIN = {
    if_in_inner_jit: lambda x, m: jnp.where(x[:2] > 0, x[:2] * m, x[:2] - m).sum(),
    if_in_inner_vmap: lambda x, m: jnp.where(x > 0, x * m, x - m).sum(),
    loop_in_inner_vmap: lambda x, m: sum(_halved(abs(v) + 3, 1.0) for v in x) * m,
}


def _scan_by_hand(x, m):
    carry, total = m, 0.0
    for v in x:
        carry, y = (carry + v, v) if v > carry else (carry * 0.5, v * m)
        total = total + y
    return carry + total


def _python_numbers(x, m):
    y = abs(x[0]) + 4.0
    while y > 1:
        y = y / 2
    return y * 0.9 ** int(jax.lax.stop_gradient(abs(m) * 3))


PLAIN[python_numbers] = _python_numbers
PLAIN[if_in_inner_scan] = _scan_by_hand
points = path_bodies.POINTS


@functools.cache
def eager_values(body):
    plain = PLAIN.get(body, body)
    return [plain(jnp.asarray(x), jnp.asarray(m)) for x, m in points]


@functools.cache
def eager_gradients(body):
    plain = PLAIN.get(body, body)
    return [jax.grad(plain, (0, 1))(jnp.asarray(x), jnp.asarray(m)) for x, m in points]

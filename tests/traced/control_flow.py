"""Functions with ifs, loops, early returns and helpers, as users write them."""

# What users write is not always good style.

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.traced.rows import Table

TABLE = Table()
ARRAYS = [np.sin(np.arange(100.0, dtype=np.float32) * k) for k in (1.0, 0.02, -1.0)]
PAIRS = [(0.5, 0.75), (-2.5, 1.5), (3.0, 2.5), (1.25, -1.25)]

# -------------------------------------------------------------------------- ifs


@TABLE.equal(points=[(0.5, 1.5), (-2.5, 1.5), (3.0, 0.75)])
def log_huber(x, m):
    if abs(x) <= m:
        return x**2
    return m**2 * (1 - 2 * jnp.log(m) + jnp.log(x**2))


@TABLE.equal(points=PAIRS)
def a_condition_in_a_variable(x, m):
    inside = (x > 0 and m > 1) or not m > 0
    y = x if inside else m
    if not inside:
        y = y * y
    return y * 2.0 if inside else y


TABLE.equal_all(
    {
        "sides of an expression": lambda x: (x if x > 1 else 2.0) * (3.0 if x < 1 else x),
        "zeros of two signs": lambda x: jnp.copysign(x, 0.0 if x > 1 else -0.0),
        "a chain of comparisons": lambda x: x * 2 if 1 < x < 5 else x,
        "an index from the end": lambda x: x * (1.0, 2.0, 3.0)[-1 if x > 1 else -2],
    }
)
TABLE.equal_all({"min, max and abs": lambda x: min(x, 1.5) * max(x, 0.5 * x, 0.3) * abs(x)}, slow=True)
TABLE.equal_all(
    {
        "whether a float is zero": lambda x: x * 2.0 if jnp.floor(x) else x,
        "an array of one entry": lambda x: x * 2.0 if jnp.reshape(x, (1,)) > 1 else x,
        "and, or, not": lambda x: x * 2 if (x > 1 and x < 5) or not x > 0.7 else x,
        "an or of values": lambda x: (x - 2) or x * 3,
        "an and of values": lambda x: (x - 2) and x * 3,
        "a key of JAX": lambda x: x + jax.random.normal(jax.random.key(0)) if x > 1 else x,
    },
    slow=True,
)


@TABLE.equal
def a_named_scope_and_a_deletion(x):
    with jax.named_scope("twice"):
        y = 2 * x
    if y > 1:
        y = -y
    z = y
    del y
    return z


# ------------------------------------------------------------------------ loops


@TABLE.equal(points=[(0.5, 0.75), (3.0, 2.5)])
def newton(x, m):
    y = x
    while abs(y * y - x) > 1e-3 * x:
        y = 0.5 * (y + x / y)
    return y * m


@TABLE.equal
def euler(x):
    t, y = 0.0, x
    while t < 1.0 and y < 1000:
        y = y + 0.1 * y
        t += 0.1
    return y


@TABLE.equal(points=[(0.5, 0.75), (-2.5, 1.5), (3.0, 0.1)])
def range_of_a_value(x, m):
    n, y = jnp.int32(abs(m) * 8), m
    for i in range(2, n, 3):
        y = y + jnp.sin(x * i)
    for i in range(n, 0, -2):
        y = y - jnp.cos(x * i)
    for i in range(n):
        y = y * 0.5 + x * i
    return y


@TABLE.equal(slow=True)
def return_and_continue(x):
    total, y = 0.0, x + 4.0
    while y > 0.5:
        y = y * 0.8
        if y > 3:
            continue
        if total > 4:
            return y * x
        total = total + y
    return total


@TABLE.equal
def for_else(x):
    for a in (1.0, 2.0):
        for b in (0.5, 0.25):
            if x > 3:
                x = x * b
                break
            if x > 2.9:
                continue
        else:
            x = x + a
            continue
        x = x - 1
    return x


@TABLE.equal(points=[(20.0, 2.0), (0.0, 2.0)], slow=True)
def loops_of_logs(x, w):
    """The slope of a turn that is not taken is infinite."""
    while x > 1:
        x = jnp.log(x * w) / w
    return x


@TABLE.equal(points=[2.0, 7.0, 0.0])
def a_loop_that_would_not_end_after_the_outer_one(x):
    total = x
    while x > 0:
        y = x
        while y < 10:
            y = y * 2
        x, total = x - 1, total + y
    return total


@TABLE.equal
def endless_second_operand(x):
    def doublings(v):
        n = 0
        while v < 10:
            v, n = v * 2, n + 1
        return n

    return x * 2 if x - 0.5 > 0 and doublings(x - 0.5) > 2 else x


# --------------------------------- loops over arrays, whose later turns are a loop of the program


@TABLE.equal(points=ARRAYS)
def an_if_for_each_item(xs):
    total, last = 0.0, 0
    for k, (a, b) in enumerate(zip(xs, xs[::-1]), 5):
        if a > b:
            total, last = total + a * b * k, k
    return total + last


@TABLE.equal(points=ARRAYS, slow=True)
def the_first_row_with_a_property(xs):
    for row in xs.reshape(-1, 2):
        if row[0] > row[1] + 0.3:
            return row[0] * 2
    else:
        return xs[0]


@TABLE.equal(points=ARRAYS, slow=True)
def a_range_downwards_beside_an_array(xs):
    y = 0.0
    for k, a in zip(range(300, 1, -3), xs):
        if a < 0:
            continue
        y = y + a / k
    return y


@TABLE.equal(points=ARRAYS, slow=True)
def whether_one_of_many_items_passes(xs):
    return xs[1] * any(a > 0.99 for a in xs)


# ----------------------------------------------------- helpers, closures, methods


def halved(y, least):
    while y > least:
        y = y / 2
    return y


def clip(a, b=2.0):
    if a > b:
        return b
    return a


@TABLE.equal
def functions_that_loop_and_return(x):
    return halved(x + 3, 1.0) + clip(x) * clip(x, b=1.0)


# ------------------------- variables that a branch or loop changes, and that are read later


@TABLE.either
def read_by_a_lambda_after_a_loop(x):
    k, y = 1.0, x
    scale = lambda v: v * k
    while y > 1:
        k = k + 1.0
        y = y / 2
    return scale(x)


@TABLE.either
def nonlocal_in_an_if_and_a_loop(x):
    n, y = 1.0, x

    def grow(by):
        nonlocal n
        n = n * by

    if x > 3:
        grow(x)
    while y > 1:
        y = y / 2
        grow(0.5)
    return x * n


# ---------------------------------------------------------------- other statements


@TABLE.either
def a_walrus(x):
    if (y := x * 2) > 3:
        y += (y := 1.0)
    while (z := y / 2) > 1:
        y = z
    return y


@TABLE.either
def an_exit_from_a_loop_over_the_items_of_a_long_list(x):
    items = [0.5 * k for k in range(20)]
    for k in range(20):
        if x < items[k]:
            break
        x = x - 0.25
    return x

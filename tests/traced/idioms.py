"""Idioms of Python that the other tables do not need: methods, builtins, statements and functions of JAX, once each."""

# What users write is not always good style.

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax

from tests.traced.rows import Table

TABLE = Table()
NUMBERS = tuple(0.25 * k for k in range(80))


@dataclasses.dataclass
class Pair:
    first: float
    second: float = 2.0

    @staticmethod
    def of(x):
        return Pair(x * 2)

    @classmethod
    def zero(cls):
        return cls(0.0)


# ------------------------------------------------------- lists, dicts, tuples and texts


@TABLE.equal(slow=True)
def a_dict_that_is_copied_and_updated(x):
    d = dict([("a", x), ("b", 2.0)], c=x if x > 1 else 3.0)
    e = d.copy()
    e.update({"b": 5.0}, d=x)
    e.update([("e", 7.0)])
    if x > 1:
        e["a"] = 0.5
    total = 0.0
    for key in e:
        total = total * 2 + e[key]
    return total + d["a"]


@TABLE.equal(slow=True)
def lists_backwards(x):
    xs = [x, 2.0, 3.0]
    ys = xs.copy()
    if x > 1:
        ys[0] = x * 5
    total = 0.0
    for v in reversed(ys):
        total = total * 2 + v
    for v in (*reversed((x, 1.0)), *reversed(jnp.stack([x, 2 * x]))):
        total = total * 2 + v
    return total + xs[0]


@TABLE.equal(slow=True)
def parts_of_a_list(x):
    first, *middle, last = [x, 2.0, x + 1, 4.0]
    both = (first, *middle) + (last,) * 2
    return sum(v * k for k, v in enumerate(both)) if both and "a" in "abc" else x


# -------------------------------------------------------------------- what a variable is


@TABLE.equal(slow=True)
def none_or_a_number(x):
    v = None if x > 3 else 1 if x > 1 else x
    if v is None:
        return x
    return v + 1.0


@TABLE.equal(slow=True)
def none_or_an_array(x):
    v = None
    if x > 1:
        v = x * 2
    return x if v is None else v


TABLE.equal_all(
    {
        "classes and what is in them": lambda x: (
            (Pair.of(x).first + Pair.zero().second + dataclasses.replace(Pair(x), second=x).second)
            * (Pair(x).__class__ is Pair)
            * hasattr(x, "shape")
        ),
        "the types of values": lambda x: x * (isinstance(x, jax.Array) + isinstance([x], list) + isinstance(1.0, int)),
        "constants": lambda x: x * round(2.567, 1) * int("11", 2) * (max((), default=2) if x is None else 1),
        "a comprehension of a dict": lambda x: sum({k: v * x for k, v in (("a", 1.0), ("b", 2.0))}.values()),
        "whether a number is none": lambda x: x * (1 if math.isnan(float(x)) else 2),
    },
    slow=True,
)

# ------------------------------------------------------------------------------ statements


@TABLE.equal(slow=True)
def annotations_and_decorators(x):
    def twice(f):
        return lambda v: f(f(v))

    @twice
    def grow(v):
        return v * 2 if v > 1 else v + 1

    y: float = x * 2
    z: float
    z = y
    return grow(y) + z


@TABLE.equal(slow=True)
def loops_that_only_an_exit_ends(x):
    n = 0
    while True:
        n += 1
        if n > 3:
            break
    y = x + 0.5
    while True:
        y = y * 2
        if y > 40:
            return y + n


@TABLE.equal(slow=True)
def a_long_loop_whose_counter_has_to_be_known(x):
    for k in range(80):
        x = x + NUMBERS[k] if x < 60 else x - 0.125
    return x


# ------------------------------------------------------------------------ functions of JAX


@TABLE.equal(slow=True)
def branches_and_loops_of_jax(x):
    number = x.astype(int)
    if x > 0:
        x = lax.switch(number, [jnp.sin, lambda v: v * 2, jnp.cos], x)
    x = lax.cond(True, lambda v: v + 1, lambda v: v, x)
    return lax.fori_loop(0, 3, lambda i, v: v * 2 + i, x)


@TABLE.equal(slow=True)
def indices_of_an_array(x):
    table, k = jnp.arange(12.0).reshape(3, 4), 0
    while k < 9 and x > k:
        k += 2
    rows, columns = jnp.split(table, 2, axis=1)
    return table[int(x > 1), 1:][k] + table[0, k] + rows[0, 0] * columns[0, 1] + x

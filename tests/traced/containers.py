"""Functions with lists, dicts, objects and arrays that they make, change in place, share, or compare."""

# What users write is not always good style.

from __future__ import annotations

import collections
import dataclasses
import functools

import numpy as np

from tests.traced.rows import Table

TABLE = Table()
NAN = float("nan")


@dataclasses.dataclass
class Box:
    value: float = 1.0


class Pair(collections.namedtuple("Pair", ["first", "second"])):
    __slots__ = ()


# -------------------------------------------------------------- made by the function


@TABLE.equal
def an_entry_in_a_branch(x):
    d = {"p": x, "q": 2.0}
    if x > 1:
        d["p"] = 3.0
        d["q"] += 1.0
    return sum(d.values()) * d["p"]


@TABLE.equal(slow=True)
def a_tuple_and_a_dict_in_a_loop(x):
    pair, table = (x, 0), {"z": 0.0, "y": x + 3.0}
    while table["y"] > 1:
        pair = (pair[0] * 0.9, pair[1] + 1)
        table = {"z": table["z"] + 1, "y": table["y"] * 0.75}
    return pair[0] * pair[1] + table["z"]


@TABLE.equal
def an_attribute_in_a_loop(x):
    box = Box(x)
    while box.value < 3:
        box.value = box.value * 1.5 + 0.1
    return box.value


@TABLE.either
def a_named_tuple(x):
    p = Pair(x, 2.0)
    if x > 1:
        p = Pair(p.second, p.first)
    return p.first - p.second


# ---------------------------------------------------------------- changed in place


@TABLE.either
def a_bound_method(x):
    xs = [1.0]
    app, later = xs.append, functools.partial(xs.append, 5.0)
    if x > 3:
        app(5.0)
        later()
    return x * sum(xs)


@TABLE.equal
def slices_of_a_list_whose_length_depends_on_values(x):
    xs = [x, x * 2]
    if x > 1:
        xs.append(x * 3)
    tail, copy = xs[1:], xs[:]
    copy.append(1.0)
    return sum(tail) + len(copy)


# XLA takes minutes to compile these two if each turn makes the tags of all items anew.
@TABLE.equal(points=[np.sin(np.arange(14.0, dtype=np.float32) * k) for k in (1, 2)])
def items_whose_kinds_depend_on_values(xs):
    out = []
    for a in xs:
        if a > 0:
            out.append(1.0)
        else:
            out.append(a)
    return out[3] + out[12]


@TABLE.equal(points=[np.linspace(-0.1, -5.0, 8, dtype=np.float32), np.arange(8.0, dtype=np.float32)], slow=True)
def a_list_whose_length_and_kinds_depend_on_values(xs):
    out = []
    for k in range(8):
        if xs[k] > 0:
            out.append(xs[k])
        elif k % 2:
            out.append(1.5)
    total = 0.0
    for item in out[:3]:
        total = total + item
    return total


# ---------------------------------------------------------------- shared and the same


def built(v):
    if v > 3:
        return [v, v]
    out = [v * 2]
    out.append(1.0)
    same = out
    if v > 1:
        return out
    same[0] = 7.0
    return out


@TABLE.equal
def a_list_that_has_a_name_on_one_path_alone(x):
    items = built(x)
    items[0] = items[0] + 10
    return items[0] + 3 * items[1]


@TABLE.equal
def two_lists_that_change_places(x):
    first, second = [x, x * 2], [x + 1, x * 3]
    y = x
    while y > 1:
        first, second, y = second, first, y / 2
    return first[0] + 10 * second[1]


@TABLE.either
def aliases(x):
    xs = [1.0]
    ys = xs
    if x > 3:
        ys.append(2.0)
        ys += [3.0]
    return x * sum(xs)


@TABLE.either
def a_list_that_a_loop_replaces(x):
    a = b = [1.0]
    y = x
    while y > 1:
        a, y = [a[0] + 1], y / 2
    a[0] = x
    return a[0] + 10 * b[0]


@TABLE.either(points=[NAN, 3.0, 0.5])
def nan_after_a_loop(x):
    y = x
    while y > 1:
        y = y / 2
    return (1.0 if y in [x] else 2.0) + (10 if (y, 1) == (x, 1) else 20) + [x, 0.0].count(y)

"""What Python does that is easily missed: comparisons of objects, laziness, names of private attributes, NaN."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from tests.traced.rows import Table

TABLE = Table()


@dataclasses.dataclass
class Point:
    x: float


@dataclasses.dataclass
class Doubled:
    x: float

    def __init__(self, x):
        self.x = 2 * x


class Outer:
    def put(self, x):
        self.__held = x

    def get(self):
        return self.__held


class Inner(Outer):
    def __init__(self, x):
        self.put(x)
        self.__held = 10.0


class FromOne(tuple):
    def __getitem__(self, k):
        return super().__getitem__(k - 1)


FROM_ONE = FromOne((10.0, 20.0))


def slope(k):
    k = k * 2
    return jax.grad(lambda v: k * v * v)


def compiled_here(x):
    k = 1.0
    f = jax.jit(lambda v: v * k)
    if x > 1:
        k = 2.0
        return f(x)
    return f(x)


@jax.jit
def scaled(s):
    return s * 3e8 - 1e8


TABLE.equal_all(
    {
        "a dataclass with its own init": lambda x: Doubled(x).x,
        "a key that is NaN": lambda x: x * {math.nan: 5.0}.get(math.nan, 0.0),
        "a quotient and a remainder": lambda x: (
            divmod(x, 3)[0] * 2 + divmod(int(x.astype(int)), -2)[1] + sum(divmod(x, -0.7))
        ),
        "an array of a number that may be weak": lambda x: jnp.asarray(x if x > 1 else 0.5) * jnp.float16(1.001) * 1000,
        "a condition in a generator, and a start": lambda x: sum((v for v in (x, 1.0, 2.0) if v > 1), 10.0),
        "a sum of constants": lambda x: x * (sum([0.1] * 10) == 1.0),
        "a walrus in a default": lambda x: (lambda y: (lambda: (lambda a=(y := 3.0): a)() + y)() * x + y)(1.0),
    }
)
TABLE.either_all(
    {
        "the sign of a zero": lambda x: 1.0 if jnp.signbit(-0.0 - x * 0) else 0.0,
        "an iterator for one of two functions": lambda x: (sum if x > 1 else max)(v * 2 for v in [x, x + 1]),
        "a generator beside a change": lambda x: (lambda a: sum((v for v in a), a.append(5.0) or 0.0))([x, x]),
        "two objects of one float": lambda x: (lambda a: 1.0 if (a if x > 1 else a * 1.0) is a else 0.0)(1.5),
        "equal dataclasses": lambda x: (
            x * (Point(1) == Point(1)) + 2 * (Point(1) != Point(1)) + 4 * (Point(1) != Point(2))
        ),
        "a private name of two classes": lambda x: Inner(x).get(),
        "a number in a compiled function": lambda x: scaled(float(x) / 3),
        "an array of two kinds": lambda x: jnp.array([x if x > 1 else 0.0, [x, 2][0]]).sum(),
        "an array of two kinds with a dtype": lambda x: jnp.asarray([x if x > 1 else 3, 2], jnp.int32).sum(),
        "an array whose dtype depends on values": lambda x: jnp.array([x if x > 1 else 7, 2]).sum() / 3,
        "products that are taken one by one": lambda x: x + next(p := itertools.product((1, 2), (3,)))[0] + next(p)[0],
        "a sum of many floats": lambda x: sum([1e16, float(x), -1e16]),
        "a sum of an int or a float": lambda x: x * (sum([0 if x > 1 else 0.5, 0.1, 0.2, 0.3]) <= 0.6),
        "an iterator in a partial": lambda x: (lambda p: (p() if x > 1 else 0.0) + p())(
            functools.partial(sum, map(float, [1, 2]))
        ),
        "an iterator in a default": lambda x: (lambda m=map(float, [1]): (sum(m) if x > 1 else x) + sum(m))(),  # noqa: B008
        "a tuple that counts from one": lambda x: x * FROM_ONE[1],
        "a compiled function of a variable": lambda x: compiled_here(x),
        "a gradient that is made on a path": lambda x: (slope(5.0) if x > 1 else slope(1.0))(x),
    }
)


@TABLE.equal
def a_generator_that_reads_what_the_loop_changes(x):
    total = 0.0
    for y in (x + total for _ in range(3)):
        total = total + y
    return total


@TABLE.equal
def a_chain_that_grows(x):
    box, total = [1.0], 0.0
    for y in itertools.chain([x], box):
        if len(box) < 3:
            box.append(y)
        total = total + y
    return total


@TABLE.equal
def any_asks_for_no_item_after_the_first_true_one(x):
    calls = [0]

    def positive(k):
        calls[0] += 1
        return k > 0

    any(map(positive, (1, 2, 3)))
    return x + calls[0]


@TABLE.either
def a_generator_with_a_condition_that_the_loop_changes(x):
    least = x
    for y in (y for y in [1.0, 2.0, 3.0] if y > least):
        least = least + y
    return least


@TABLE.equal
def a_test_that_changes_what_it_compared(x):
    k, y = x.astype(int) % 10, 50
    k = int(k)
    if k < y and (y := 3) and x > 0:
        return 1.0 if k < 3 else 2.0
    return 3.0


@TABLE.equal(points=[0.5, np.nan])
def a_bound_that_is_nan(x):
    n, y = int(jnp.int32(2)), abs(float(x)) + 5.0
    return 0.0 if n < y else 1.0 if n < 5 else 2.0


@TABLE.equal(points=[0.5, np.nan, -2.0])
def no_comparison_holds_for_nan(x):
    return (1.0 if abs(x) >= 0 else 0.0) + (2.0 if x * x >= 0 else 0.0) + (4.0 if abs(float(x)) >= 0 else 0.0)


# ------------------------------------------------------------- found by adversaries of the language


@TABLE.equal(points=[0.5, 2.0, -1.0])
def keys_that_depend_on_a_branch(x):
    d = {"least": 1.0}
    if x > 0:
        d["gain"] = 2.0
    else:
        d["loss"] = 3.0
    return x * d.get("gain", 1.0) - d.get("loss", 0.0) + len(d)


@TABLE.equal(points=[0.5, 3.0])
def a_list_extended_by_what_it_is(x):
    out = [x, x]
    out.extend(out[-1] + out[-2] for _ in range(4))
    return out[-1]


@TABLE.either
def a_list_of_unknown_length_grows_in_its_loop(x):
    items, total = [1.0], 0.0
    if x > 1:
        items.append(2.0)
    for v in items:
        total = total + v
        if v == 1.0:
            items.append(10.0)
    return total + x


@TABLE.equal(points=[0.5, 2.0])
def both_bounds_of_an_index(x):
    n = int(x.astype(int))
    return [1.0, 2.0, 4.0][n] * [3.0, 5.0][n % 2] if 0 <= n < 3 else x


@TABLE.equal(points=[1.0, 2.0])
def a_test_that_calls_a_property(x):
    n, total = 0, jnp.int32(0)

    def bump():
        nonlocal n
        n = n + 2
        return 1

    box = Asked(bump)
    while n < 2 and box.asked + x > 0:
        total = total + (1 if n < 2 else 1000) + 1
        n = 0 if total < 100 else 9
    return total


class Asked:
    def __init__(self, f):
        self.f = f

    @property
    def asked(self):
        return self.f()


def halved(v):
    n = 0
    while v != 1:
        v, n = v // 2, jnp.int32(n) + 1
    return n


INIT = jnp.array(-1.0)
STATIC = jax.jit(lambda x, n: x * (n * n % 7), static_argnums=1)

TABLE.equal_all(
    {
        "an integer of a dtype": lambda x: x * (jnp.int8(int(x)) + jnp.uint32(int(x) + 2)),
        "a keyword f": lambda x: jax.lax.scan(f=lambda c, v: (c + v, c), init=x, xs=jnp.ones(2))[0],
        "keywords of math": lambda x: x * math.isclose(1.0, 1.1, rel_tol=0.2) + math.prod([2, 3], start=5),
        "a set as a text": lambda x: x * len(str({1, 2})),
        "a dtype and its name": lambda x: (
            x * {x.dtype: 3.0}.get(x.dtype.name, 2.0) + (x.dtype.name in {x.dtype}) * 7 + (x.dtype.name in [x.dtype])
        ),
        "a quotient of a quotient": lambda x: 1.0 if float(x) / 3.0 / 7.0 == float(x) * 1.0 / 3.0 / 7.0 else 0.0,
        "nan by way of min": lambda x: jnp.isnan(float(min(abs(float(x)), 10.0))) * 1.0,
    }
)


@TABLE.equal(points=[np.int32(1)])
def a_product_of_floats_of_an_int(n):
    x = 0.1 * float(n)
    return 1.0 if x * x - 0.010000000000000002 == 0 else 2.0


@TABLE.equal
def defaults_in_order(x):
    it = [3.0, 2.0, 1.0]

    def f(a=it.pop(), *, b=it.pop()):  # noqa: B008
        return x * a + b

    return f()


TABLE.either_all(
    {
        "a number that a tree hands on": lambda x: (
            lambda p: x * isinstance(jax.tree.map(lambda v: p / 3, [x])[0], float)
        )(float(x)),
        "a number beside a gradient": lambda x: (
            lambda p: x * isinstance(jax.grad(lambda v: (v, p / 3), has_aux=True)(x)[1], float)
        )(float(x)),
        "a number of NumPy beside one of Python": lambda x: x + 1 if ~(np.float64(2) * float(x) > 1) else x + 2,
        "a static argument": lambda x: STATIC(x, 100000),
        "a constant array that is asked for": lambda x: 1.0 if (INIT if x > 1 else INIT) is INIT else 0.0,  # noqa: RUF034
        "an index with a start": lambda x: x * [1, 2, 1, 3].index(1, 1),
        "a cast by way of another dtype": lambda x: jnp.int32(float(x.astype(int)) + 16777217.0) - 16777216,
        "a loop of an item that nobody asks for": lambda x: (
            any(halved(v) > 1 for v in (jnp.int32(8), 0) if v < 100) * x
        ),
    }
)


@TABLE.equal
def a_list_sorted_in_reverse(x):
    items = [3.0, 1.0, 2.0]
    items.sort(reverse=True)
    return x * items[0]


@TABLE.either
def an_array_that_numpy_fills_on_one_path(x):
    a = np.zeros(2)
    if x > 1:
        np.exp(a, out=a)
    return x + a[0]


@TABLE.equal
def a_message_that_is_not_needed(x):
    found = [x]
    assert x > -5, found.append(5.0)
    return sum(found)

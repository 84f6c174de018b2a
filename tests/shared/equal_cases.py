"""Functions that Python runs in one way only: each is what a way of tracing them could get wrong without a word.

A case is a function that makes the function under test, so that what it closes over is new each time. Where it makes
two, the second one tells the state that the first one changes.
"""

# These functions are what users write, good style or not.
# ruff: noqa

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import decimal
import functools
import itertools
import math
import random
import types

import jax
import jax.numpy as jnp
import numpy as np

F = jnp.float32
FLOATS = (0.5, 7.0, 2.0)
CASES = {}
EQUAL = set()  # Those that were right before, and must stay accepted.


def case(group, *, points=FLOATS, dtype=F, equal=False, argnums=(0,)):
    """Adds a case to the table. `points` are scalars of `dtype`, or tuples of arguments."""

    def add(make):
        name = f"{group}-{make.__name__.replace('_', ' ')}"
        assert name not in CASES, name
        rows = [p if isinstance(p, tuple) else (p,) for p in points]
        values = [tuple(jnp.asarray(v, None if hasattr(v, "dtype") else dtype) for v in row) for row in rows]
        CASES[name] = (make, values, argnums if values[0][0].dtype.kind == "f" else ())
        if equal:
            EQUAL.add(name)
        return make

    return add


# ------------------------------------------------------------------ 2. nonlocal and global


@case("nonlocal")
def in_an_if():
    def f(x):
        n = 1.0

        def grow():
            nonlocal n
            n = n + 3.0

        if x > 3:
            grow()
        return x * n

    return f


@case("nonlocal")
def in_both_ways():
    def f(x):
        n = 1.0

        def grow(by):
            nonlocal n
            n += by

        if x > 3:
            grow(2.0)
        else:
            grow(x)
        return x * n

    return f


@case("nonlocal")
def in_a_loop():
    def f(x):
        n, y = 0.0, x

        def grow():
            nonlocal n
            n += 1.0

        while y > 1:
            y = y / 2
            grow()
        return y + n

    return f


@case("nonlocal")
def two_levels_down():
    def f(x):
        n = 1.0

        def outer():
            def inner():
                nonlocal n
                n = n * x

            inner()

        if x > 3:
            outer()
        return n

    return f


@case("nonlocal")
def of_the_function_around():
    calls = 0.0

    def f(x):
        nonlocal calls
        if x > 3:
            calls += 1.0
        return x + calls

    return f, lambda: calls


@case("nonlocal")
def counted_outside():
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return x * calls

    return f, lambda: calls


_COUNT = 0


@case("global")
def in_a_branch():
    global _COUNT
    _COUNT = 0

    def f(x):
        global _COUNT
        if x > 3:
            _COUNT = _COUNT + 2
        return x + _COUNT

    return f, lambda: float(_COUNT)


def _bump():
    global _COUNT
    _COUNT += 1
    return 1.0


@case("global")
def by_a_helper():
    global _COUNT
    _COUNT = 0

    def f(x):
        return x + (_bump() if x > 3 else 0.0) + _COUNT

    return f, lambda: float(_COUNT)


@case("global")
def by_a_helper_in_a_loop():
    global _COUNT
    _COUNT = 0

    def f(x):
        while x > 1:
            x = x / 2 + 0.0 * _bump()
        return x + _COUNT

    return f, lambda: float(_COUNT)


@case("nonlocal", equal=True)
def that_only_reads():
    def f(x):
        n = 2.0

        def scaled(v):
            return v * n

        if x > 3:
            n = 3.0
        return scaled(x)

    return f


# ------------------------------------------------------------------ 3. what is read after the `if`


@case("read later")
def by_a_lambda():
    def f(x):
        k = 1.0
        scale = lambda v: v * k
        if x > 1:
            k = 2.0
        return scale(x)

    return f


@case("read later")
def by_a_lambda_of_a_loop():
    def f(x):
        k = 1.0
        scale = lambda v: v * k
        y = x
        while y > 1:
            k = k + 1.0
            y = y / 2
        return scale(x)

    return f


@case("read later")
def by_a_lambda_in_a_list():
    def f(x):
        k = 1.0
        every = [lambda v: v * k, lambda v: v + k]
        if x > 1:
            k = x
        return sum(g(x) for g in every)

    return f


@case("read later")
def by_a_lambda_in_a_partial():
    def f(x):
        k = 1.0
        g = functools.partial(lambda a, v: a * v * k, 2.0)
        if x > 1:
            k = 3.0
        return g(x)

    return f


@case("read later")
def by_a_generator():
    def f(x):
        k = 1.0
        later = (v * k for v in (x, x + 1))
        if x > 1:
            k = 2.0
        return sum(later)

    return f


@case("read later")
def by_a_comprehension():
    def f(x):
        k = 1.0
        if x > 1:
            k = 2.0
        return sum([v * k for v in (x, x + 1)])

    return f


@case("read later")
def by_a_comprehension_in_a_comprehension():
    def f(x):
        k, m = 1.0, 2.0
        if x > 1:
            k, m = 2.0, x
        return sum([a * k + sum([b * m for b in (a, x)]) for a in (x, 1.0)])

    return f


@case("read later")
def by_a_comprehension_with_a_test():
    def f(x):
        k = 1.0
        if x > 1:
            k = 2.0
        return sum([v for v in (x, x + 1) if v > k]) + 0.0 * x

    return f


@case("read later")
def by_a_class_body():
    def f(x):
        k = 1.0
        if x > 1:
            k = 2.0

        class Scale:
            factor = k

        return x * Scale.factor

    return f


@case("read later")
def by_a_method_of_a_class_inside():
    def f(x):
        k = 1.0

        class Scale:
            def of(self, v):
                return v * k

        if x > 1:
            k = 2.0
        return Scale().of(x)

    return f


@case("read later")
def by_a_default():
    def f(x):
        k = 1.0
        if x > 1:
            k = 2.0

        def g(v, by=k):
            return v * by

        return g(x) + (lambda v, by=k: v + by)(x)

    return f


@case("read later")
def by_a_default_of_a_lambda_before():
    def f(x):
        k = 1.0
        g = lambda v, by=k: v * by
        if x > 1:
            k = 2.0
        return g(x) + k

    return f


@case("read later")
def by_a_keyword_default():
    def f(x):
        k = 1.0
        if x > 1:
            k = 2.0

        def g(v, *, by=k):
            return v * by

        return g(x)

    return f


@case("read later")
def by_a_decorator():
    def f(x):
        k = 1.0
        if x > 1:
            k = 2.0

        def times(g):
            return lambda v: g(v) * k

        @times
        def same(v):
            return v

        return same(x)

    return f


@case("read later")
def by_a_lambda_made_in_the_branch():
    def f(x):
        k = 1.0
        g = lambda v: v
        if x > 1:
            g = lambda v: v * k
        k = 5.0
        return g(x)

    return f


@case("read later")
def after_try_and_finally():
    def f(x):
        k = 1.0
        try:
            if x > 1:
                k = 2.0
        finally:
            x = x * k
        return x

    return f


@case("read later")
def by_a_delete():
    def f(x):
        k, m = 1.0, 2.0
        if x > 1:
            k = m
            del m
        return x * k

    return f


@case("read later")
def by_an_fstring():
    def f(x):
        k = 1
        if x > 1:
            k = 10
        return x * len(f"{k}")

    return f


# ------------------------------------------------------------------ 4. bools that Python counts


@case("bools")
def two_negations():
    return lambda x: ((not x > 5) + (not x > 6)) * x


@case("bools")
def bool_of_values():
    return lambda x: (bool(x > 1) + bool(x > 0)) * x


@case("bools")
def bool_of_a_number():
    return lambda x: x * (bool(x) + bool(x))


@case("bools")
def items():
    return lambda x: x * ((x > 0).item() + (x > 1).item())


@case("bools")
def variables():
    def f(x):
        a, b = False, False
        if x > 1:
            a = True
        if x > 0:
            b = True
        return x * (a + b)

    return f


@case("bools")
def a_variable_with_a_constant():
    def f(x):
        a = False
        if x > 1:
            a = True
        return x * (a + True) - (True + a) * x * x

    return f


@case("bools")
def helpers():
    def positive(v):
        if v > 0:
            return True
        return False

    return lambda x: x * (positive(x) + positive(x - 1) + positive(x - 5))


@case("bools")
def a_sum_of_helpers():
    def positive(v):
        return True if v > 0 else False  # noqa: SIM210

    return lambda x: x * sum([positive(x), positive(x - 1)])


@case("bools")
def inverted():
    return lambda x: x * (~(not x > 1))


@case("bools")
def negated():
    return lambda x: x * (-(not x > 1))


@case("bools")
def in_a_loop():
    def f(x):
        k, y = False, x
        while y > 1:
            y = y / 2
            k = k + True
        return y + k

    return f


@case("bools")
def a_flag_counted_in_a_loop():
    def f(x):
        done, y, count = False, x, 0
        while not done:
            y = y / 2
            count = count + done + 1
            done = y < 1
        return y + count + done

    return f


@case("bools")
def two_flags_added():
    def f(x):
        a, b, y = False, False, x
        while y > 1:
            y = y / 2
            a = y < 4
            b = y < 2
        return y + (a + b)

    return f


@case("bools")
def multiplied():
    return lambda x: x * ((not x > 5) * (not x > 6) * 3)


@case("bools")
def powers_and_shifts():
    return lambda x: x * (((not x > 5) << 2) + (not x > 1) ** 2 + (not x > 1) // 1 + (not x > 1) % 2)


@case("bools")
def subtracted():
    return lambda x: x * ((not x > 5) - (not x > 1))


@case("bools")
def divided():
    return lambda x: x * ((not x > 5) / 4 + abs(not x > 1))


@case("bools")
def ands_and_ors():
    return lambda x: x * (((not x > 5) & (not x > 1)) + ((not x > 5) | (not x > 1)) + ((not x > 5) ^ (not x > 1)))


@case("bools")
def with_an_array():
    return lambda x: x * (((not x > 5) + (x > 1)) * 2)


@case("bools")
def of_a_bool_and_an_array():
    def f(x):
        c = (x > 1) if x > 3 else True
        return x * (c + c)

    return f


@case("bools")
def bools_of_and():
    return lambda x: x * ((x > 1 and x > 3) + (x > 0 and x > 1))


@case("bools")
def not_of_and():
    return lambda x: x * ((not (x > 1 and x > 3)) + (not (x > 0 or x > 1)))


@case("bools")
def comparisons_of_numbers():
    return lambda x: x * ((int(x) > 1) + (int(x) > 3) + (float(x) > 0.0))


@case("bools")
def comparisons_of_bools():
    return lambda x: x * (((not x > 5) == (not x > 1)) + ((not x > 5) > (not x > 1)))


@case("bools")
def chained_comparisons():
    return lambda x: x * ((0 < x < 3) + (1 < x < 10) * 1.0)


@case("bools")
def any_and_all():
    return lambda x: x * (any([x > 1, x > 3]) + all([x > 0, x > 1]))


@case("bools")
def is_true():
    return lambda x: x * 2 if (not x > 1) is True else x


@case("bools")
def is_false_of_a_variable():
    def f(x):
        done = False
        if x > 1:
            done = True
        return x * 3 if done is False else x

    return f


@case("bools")
def returned():
    def f(x):
        c = not x > 1
        return c + (x * 0) + c

    return f


@case("bools")
def as_an_index():
    return lambda x: (10.0, 20.0)[not x > 1] + x


@case("bools")
def as_a_key():
    return lambda x: {True: 10.0, False: 20.0}[not x > 1] + x


@case("bools")
def in_jax_functions():
    return lambda x: x * jnp.sum(jnp.asarray([not x > 5, not x > 6])) + jnp.add(not x > 5, not x > 6)


@case("bools", equal=True)
def as_conditions():
    def f(x):
        found, y = False, x
        while not found and y > 0.1:
            y = y * 0.7
            found = y < 1
        return y if found else -y

    return f


@case("bools", equal=True)
def times_a_number():
    return lambda x: x * (not x > 5) + 2.0 * bool(x > 1)


# ------------------------------------------------------------------ 5. changes in place


@case("in place")
def a_numpy_array():
    def f(x):
        b = np.ones(2, np.float32)
        if x > 3:
            b += 5
        return x * float(b.sum())

    return f


@case("in place")
def a_numpy_array_filled():
    def f(x):
        b = np.ones(2, np.float32)
        if x > 3:
            b.fill(4)
        return x * b.sum()

    return f


@case("in place")
def a_numpy_array_by_out():
    def f(x):
        b = np.ones(2, np.float32)
        if x > 3:
            np.add(b, 2, out=b)
        return x * b.sum()

    return f


@case("in place")
def a_numpy_array_in_a_loop():
    def f(x):
        b, y = np.ones(2, np.float32), x
        while y > 1:
            y = y / 2
            b *= 2
        return y * b.sum()

    return f


@case("in place")
def an_entry_of_a_numpy_array():
    def f(x):
        b = np.ones(2, np.float32)
        if x > 3:
            b[0] = 9
        return x * b.sum()

    return f


@case("in place")
def a_numpy_array_by_a_helper():
    def grow(b):
        b += 5

    def f(x):
        b = np.ones(2, np.float32)
        if x > 3:
            grow(b)
        return x * b.sum()

    return f


@case("in place")
def a_view_of_a_numpy_array():
    def f(x):
        b = np.ones(4, np.float32)
        part = b[1:]
        if x > 3:
            part += 5
        return x * b.sum()

    return f


@case("in place")
def a_numpy_array_sorted():
    def f(x):
        b = np.asarray([3.0, 1.0], np.float32)
        if x > 3:
            b.sort()
        return x * b[0]

    return f


@case("in place")
def an_outside_numpy_array():
    b = np.ones(2, np.float32)

    def f(x):
        if x > 3:
            b[:] = b + 1
        return x * b.sum()

    return f, lambda: b.tolist()


@case("in place")
def a_deque():
    def f(x):
        q = collections.deque([1.0])
        if x > 3:
            q.append(4.0)
        return x * sum(q)

    return f


@case("in place")
def a_deque_in_a_loop():
    def f(x):
        q = collections.deque([1.0])
        while x > 1:
            x = x / 2
            q.append(1.0)
        return x * len(q)

    return f


@case("in place")
def a_bytearray():
    def f(x):
        b = bytearray(b"ab")
        if x > 3:
            b[0] = 1
        return x * b[0]

    return f


@case("in place")
def an_array_array():
    def f(x):
        b = array.array("d", [1.0])
        if x > 3:
            b[0] = 5.0
        return x * b[0]

    return f


@case("in place")
def a_counter_and_a_defaultdict():
    def f(x):
        c, d = collections.Counter(), collections.defaultdict(float)
        if x > 3:
            c["a"] += 2
            d["b"] += 3.0
        return x * (c["a"] + d["b"])

    return f


@dataclasses.dataclass(slots=True)
class Slotted:
    value: float = 1.0

    def grow(self):
        self.value = self.value + 4.0


@case("in place")
def a_slotted_object():
    def f(x):
        s = Slotted()
        if x > 3:
            s.grow()
        return x * s.value

    return f


@case("in place")
def a_slotted_object_in_a_loop():
    def f(x):
        s = Slotted()
        while x > 1:
            x = x / 2
            s.grow()
        return x * s.value

    return f


@case("in place")
def an_outside_slotted_object():
    s = Slotted()

    def f(x):
        if x > 3:
            s.value += 1.0
        return x * s.value

    return f, lambda: s.value


@case("in place")
def an_iterator():
    def f(x):
        it = iter([1.0, 2.0, 3.0])
        if x > 3:
            next(it)
        return x * next(it)

    return f


@case("in place")
def an_iterator_outside():
    it = iter([1.0, 2.0, 3.0, 4.0] * 5)

    def f(x):
        return x * next(it)

    return f, it.__length_hint__


@case("in place")
def a_count():
    def f(x):
        it = itertools.count()
        y = x
        while y > 1:
            y = y / 2
            next(it)
        return y + next(it)

    return f


@case("in place")
def a_python_generator():
    def f(x):
        it = (v for v in (1.0, 2.0, 3.0))
        if x > 3:
            next(it)
        return x * next(it)

    return f


@case("in place")
def a_python_generator_outside():
    it = (float(k) for k in range(99))

    def f(x):
        if x > 3:
            x = x + next(it)
        return x + next(it)

    return f


@case("in place")
def a_for_over_an_iterator():
    def f(x):
        it = iter([1.0, 2.0, 3.0])
        for v in it:
            if x > v:
                break
        return x + sum(it)

    return f


@case("in place")
def a_zip():
    def f(x):
        pairs = zip([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], strict=True)
        if x > 3:
            next(pairs)
        a, b = next(pairs)
        return x * a + b

    return f


@case("in place")
def a_numpy_generator():
    def f(x):
        rng = np.random.default_rng(0)
        if x > 3:
            rng.normal()
        return x * rng.normal()

    return f


@case("in place")
def a_python_random():
    def f(x):
        rng = random.Random(0)
        if x > 3:
            rng.random()
        return x * rng.random()

    return f


class Tally:
    total = 0
    parts = ()

    @classmethod
    def grow(cls):
        cls.total += 1

    @staticmethod
    def reset():
        Tally.total = 0


@case("in place")
def a_class_attribute():
    Tally.reset()

    def f(x):
        if x > 3:
            Tally.grow()
        return x * Tally.total

    return f, lambda: Tally.total


@case("in place")
def a_class_attribute_in_a_loop():
    Tally.reset()

    def f(x):
        while x > 1:
            x = x / 2
            Tally.total += 1
        return x * Tally.total

    return f, lambda: Tally.total


@case("in place")
def a_class_attribute_by_type():
    Tally.reset()

    def f(x):
        t = Tally()
        if x > 3:
            type(t).total = 5
        return x * Tally.total

    return f, lambda: Tally.total


@case("in place")
def a_function_attribute():
    def note(v):
        note.calls += 1
        return v

    note.calls = 0

    def f(x):
        if x > 3:
            x = note(x)
        return x * note.calls

    return f, lambda: note.calls


@case("in place")
def a_bound_method_in_a_variable():
    def f(x):
        xs = [1.0]
        app = xs.append
        if x > 3:
            app(5.0)
        return x * sum(xs)

    return f


@case("in place")
def a_bound_method_in_a_loop():
    def f(x):
        xs = [1.0]
        app = xs.append
        while x > 1:
            x = x / 2
            app(1.0)
        return x * len(xs)

    return f


@case("in place")
def a_bound_method_in_a_partial():
    def f(x):
        xs = [1.0]
        app = functools.partial(xs.append, 5.0)
        if x > 3:
            app()
        return x * sum(xs)

    return f


@case("in place")
def a_setitem_in_a_variable():
    def f(x):
        d = {"a": 1.0}
        put = d.__setitem__
        if x > 3:
            put("a", 5.0)
        return x * d["a"]

    return f


@case("in place")
def a_list_in_a_closure():
    def make():
        kept = [1.0]

        def put(v):
            kept.append(v)
            return sum(kept)

        return put

    def f(x):
        put = make()
        if x > 3:
            put(2.0)
        return x * put(0.0)

    return f


@case("in place")
def a_list_in_a_closure_outside():
    kept = [1.0]

    def put(v):
        kept.append(v)
        return v

    def f(x):
        if x > 3:
            put(2.0)
        return x * sum(kept)

    return f, lambda: list(kept)


@case("in place")
def a_deep_structure():
    def f(x):
        deep = {"a": [{"b": [[{"c": [1.0]}]]}]}
        if x > 3:
            deep["a"][0]["b"][0][0]["c"].append(4.0)
        return x * sum(deep["a"][0]["b"][0][0]["c"])

    return f


@case("in place")
def a_deep_structure_of_objects():
    def f(x):
        inner = types.SimpleNamespace(value=1.0)
        s = types.SimpleNamespace(a=types.SimpleNamespace(b=types.SimpleNamespace(c=types.SimpleNamespace(d=(inner,)))))
        if x > 3:
            s.a.b.c.d[0].value = 5.0
        return x * inner.value

    return f


@case("in place")
def by_an_alias():
    def f(x):
        xs = [1.0]
        ys = xs
        if x > 3:
            ys.append(2.0)
        return x * sum(xs)

    return f


@case("in place")
def by_an_augmented_list():
    def f(x):
        xs = [1.0]
        ys = xs
        if x > 3:
            ys += [2.0]
        return x * sum(xs)

    return f


@case("in place")
def there_and_back():
    kept = [1.0]

    def f(x):
        kept.append(3.0)
        if x > 3:
            kept.pop()
        y = x * sum(kept)
        while len(kept) > 1:
            kept.pop()
        return y

    return f, lambda: list(kept)


class Property:
    def __init__(self):
        self.reads = 0

    @property
    def value(self):
        self.reads += 1
        return self.reads

    def __add__(self, other):
        self.reads += 1
        return other + self.reads

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        self.__dict__["reads"] += 1
        return 1.0

    def __enter__(self):
        self.reads += 10
        return self

    def __exit__(self, *_):
        self.reads += 100


@case("in place")
def by_a_property():
    def f(x):
        p = Property()
        if x > 3:
            x = x + p.value
        return x * (p.reads + 1)

    return f


@case("in place")
def by_an_operator():
    def f(x):
        p = Property()
        while x > 1:
            x = (p + x) / 9
        return x * (p.reads + 1)

    return f


@case("in place")
def by_getattr():
    def f(x):
        p = Property()
        if x > 3:
            x = x * p.anything
        return x * (p.reads + 1)

    return f


@case("in place")
def by_a_with():
    def f(x):
        p = Property()
        if x > 3:
            with p:
                x = x * 2
        return x * (p.reads + 1)

    return f


@case("in place")
def by_setattr():
    def f(x):
        s = types.SimpleNamespace(value=1.0)
        if x > 3:
            setattr(s, "value", 5.0)  # noqa: B010
        return x * s.value

    return f


@case("in place")
def by_vars():
    def f(x):
        s = types.SimpleNamespace(value=1.0)
        if x > 3:
            vars(s)["value"] = 5.0
        return x * s.value

    return f


@case("in place")
def of_what_a_list_holds():
    def f(x):
        boxes = [types.SimpleNamespace(value=1.0), types.SimpleNamespace(value=2.0)]
        for box in boxes:
            if x > 3:
                box.value *= 2
        return x * sum(box.value for box in boxes)

    return f


@case("in place")
def of_an_object_outside():
    box = types.SimpleNamespace(value=1.0)

    def f(x):
        if x > 3:
            box.value = box.value + 1.0
        return x * box.value

    return f, lambda: box.value


@case("in place")
def of_an_object_outside_without_an_if():
    box = types.SimpleNamespace(value=1.0)

    def f(x):
        box.value = box.value + 1.0
        return x * box.value

    return f, lambda: box.value


@case("in place")
def of_an_object_outside_by_its_method():
    class Mean:
        def __init__(self):
            self.total, self.count = 0.0, 0

        def __call__(self, v):
            self.count += 1
            return v / self.count

    mean = Mean()
    return lambda x: mean(x), lambda: mean.count


@case("in place")
def a_method_of_an_object_outside():
    class Mean:
        def __init__(self):
            self.count = 0

        def of(self, x):
            if x > 3:
                self.count += 1
            return x + self.count

    mean = Mean()
    return mean.of, lambda: mean.count


@case("in place")
def a_set():
    def f(x):
        seen = {1}
        if x > 3:
            seen.add(2)
        return x * len(seen)

    return f


@case("in place")
def a_memory():
    known = {}

    def f(x):
        if "k" not in known:
            known["k"] = 2.0
        return x * known["k"]

    return f, lambda: dict(known)


@case("in place")
def a_path_that_changes_what_is_outside():
    kept = []

    def f(x):
        g = jnp.sin if x > 3 else jnp.cos
        if x > 3:
            kept.append(1.0)
        return g(x) + len(kept)

    return f, lambda: list(kept)


@case("in place")
def without_source():
    space = {"kept": []}
    exec("def f(x):\n    if x > 3:\n        kept.append(1.0)\n    return x + len(kept)", space)
    return space["f"], lambda: list(space["kept"])


@case("in place", equal=True)
def lists_of_its_own():
    def f(x):
        xs = []
        for k in range(3):
            xs.append(x * k)
        return sum(xs) if x > 3 else xs[1]

    return f


@case("in place", equal=True)
def a_list_in_a_branch_of_its_own():
    def f(x):
        if x > 3:
            xs = [x]
            xs.append(2 * x)
            y = sum(xs)
        else:
            y = x
        return y

    return f


@case("in place", equal=True)
def an_object_of_its_own():
    def f(x):
        s = types.SimpleNamespace(value=x)
        if x > 3:
            s.value = s.value * 2
        return s.value

    return f


@case("in place", equal=True)
def an_object_that_is_read():
    box = types.SimpleNamespace(value=2.0, log=print, table={"a": [1.0]})

    def f(x):
        if x > 3:
            x = x * box.value
        while x > 1:
            x = x / box.value - 0.1 * box.table["a"][0]
        return x

    return f


@case("in place", equal=True)
def a_table_that_is_read():
    table = np.asarray([1.0, 2.0, 4.0], np.float32)

    def f(x):
        y = x
        for k in range(3):
            if y > 2:
                y = y / table[k]
        while y > 1:
            y = y - table.sum() * 0.1
        return y

    return f


# ------------------------------------------------------------------ 6. ranges of small integers


def _ranged(make_range, dtype, points, step=lambda x, i: x + i):
    def make():
        def f(x, n):
            for i in make_range(n):
                x = step(x, i)
            return x

        return f

    return case("range", points=[(0.5, jnp.asarray(n, dtype)) for n in points])(make)


def _range_cases():
    ranges = {
        "up": (lambda n: range(n), (0, 1, 3)),
        "from one": (lambda n: range(1, n), (0, 1, 5)),
        "in twos": (lambda n: range(0, n, 2), (0, 5, 4)),
        "down": (lambda n: range(n - 1, -1, -1), (1, 4, 2)),
        "down to one": (lambda n: range(n, 0, -1), (0, 4, 2)),
        "a little more": (lambda n: range(n, n + 3), (0, 3)),
    }
    for dtype in ("uint8", "int8", "uint16", "uint32", "int32"):
        for name, (of, points) in ranges.items():
            make = lambda of=of: lambda x, n: functools.reduce(lambda a, b: a, [x]) + _summed(of, n)
            make.__name__ = f"{dtype} {name}"
            case("range", points=[(0.5, jnp.asarray(n, dtype)) for n in points])(make)


def _summed(of, n):
    total = 0.0
    for i in of(n):
        total = total + i * 0.5 + (i - 1) * 0.25
    return total


_range_cases()


def _of_uint8(n):
    return jnp.asarray(n, jnp.uint8)


@case("range", points=[(0.5, _of_uint8(255))])
def that_reaches_the_last_number():
    def f(x, n):
        for _ in range(0, n, 2):
            x = x + 1
        return x

    return f


@case("range", points=[(0.5, jnp.int8(3))])
def times_a_hundred():
    def f(x, n):
        for i in range(n):
            x = x + i * 100
        return x

    return f


@case("range", points=[(jnp.int8(1), jnp.int8(3))])
def times_a_hundred_in_int8():
    def f(x, n):
        for i in range(n):
            x += i * 100
        return x * 1.0

    return f


@case("range", points=[(jnp.uint32(5), jnp.uint32(3))])
def minus_one_in_uint32():
    def f(x, n):
        for i in range(n):
            x += i - 1
        return x * 1.0

    return f


@case("range", points=[(0.5, jnp.uint32(2)), (0.5, jnp.uint32(3))])
def the_counter_afterwards():
    def f(x, n):
        i = -1
        for i in range(n):
            x = x + i
        return x + (i - 3) * 0.5

    return f


# ------------------------------------------------------------------ 7. numbers of uint32


@case("numbers", points=[3_000_000_000, 7], dtype=jnp.uint32)
def int_of_uint32():
    return lambda n: int(n) * 1.0


@case("numbers", points=[3_000_000_000, 7], dtype=jnp.uint32)
def item_of_uint32():
    return lambda n: n.item() * 1e-3


@case("numbers", points=[200, 7], dtype=jnp.uint8)
def int_of_uint8():
    return lambda n: (int(n) + 100) * 1.0


@case("numbers", points=[120, 7], dtype=jnp.int8)
def item_of_int8():
    return lambda n: n.item() * 3.0 + (n.item() + 100)


@case("numbers", points=[60000.0, 3.0], dtype=jnp.float16)
def float_of_half():
    return lambda h: float(h) * 100.0


@case("numbers", points=[3.5, -2.5])
def powers_of_ints():
    return lambda x: 2 ** int(x) + x


@case("numbers", points=[200, 7], dtype=jnp.uint8)
def choice_of_a_number_or_uint8():
    def f(n):
        label = n if n > 100 else -1
        return label * 1.0

    return f


@case("numbers", points=[200, 7], dtype=jnp.uint8)
def sum_of_a_number_or_uint8():
    def f(n):
        label = 100 if n > 100 else n
        return (label + 200) * 1.0

    return f


@case("numbers", points=[200, 7], dtype=jnp.uint8)
def two_dtypes():
    def f(n):
        label = n if n > 100 else n.astype(jnp.int32)
        return (label + 100) * 1.0

    return f


@case("numbers", points=[200, 7], dtype=jnp.uint8)
def two_dtypes_in_a_loop():
    def f(n):
        y, k = n, 0
        while k < 2:
            k = k + (y > 300) + 1
            y = y + n
        return (y + 200) * 1.0

    return f


@case("numbers", points=[200, 7], dtype=jnp.uint8)
def a_number_before_a_loop():
    def f(n):
        y, m = 0, n
        while m > 1:
            m = m // 2
            y = m
        return (y - 1) * 1.0

    return f


@case("numbers", points=[4, 9])
def a_whole_number_that_grows():
    def f(x):
        k = 1
        while x > 1:
            x = x / 2
            k = k * 3
        return x * k

    return f


# ------------------------------------------------------------------ 9. gradients of what is done


@case("gradients", points=[0.5, 20.0, 3.0])
def of_logs():
    def f(x):
        while x > 1:
            x = jnp.log(x)
        return x

    return f


@case("gradients", points=[(0.5, 2.0), (20.0, 2.0), (0.0, 2.0)], argnums=(0,))
def of_logs_with_a_shared_parameter():
    def f(x, w):
        while x > 1:
            x = jnp.log(x * w) / w
        return x

    return f


@case("gradients", points=[0.0, 9.0, 1.0])
def of_roots():
    def f(x):
        while x > 2:
            x = jnp.sqrt(x - 1)
        return x

    return f


@case("gradients", points=[0.0, 9.0, 5.0])
def of_loops_in_loops():
    def f(x):
        while x > 2:
            y = x
            while y > 3:
                y = jnp.log(y - 2) + 1
            x = jnp.sqrt(y - 1) * 0.9
        return x

    return f


@case("gradients", points=[0.0, 9.0, 5.0])
def of_a_for():
    def f(x):
        for _ in range(x.astype(int)):
            x = jnp.sqrt(x)
        return x

    return f


@case("gradients", points=[0.0, 9.0, 5.0])
def of_a_break():
    def f(x):
        for _ in range(20):
            if x < 2:
                break
            x = jnp.sqrt(x - 1)
        return x

    return f


# ------------------------------------------------------------------ 10. types that decide


@case("types")
def is_an_int():
    return lambda x: x * 2 if isinstance(int(x), int) else x


@case("types")
def is_a_float():
    return lambda x: x * 2 if isinstance(float(x), float) else x


@case("types")
def is_a_bool():
    return lambda x: x * 2 if isinstance(not x > 1, bool) else x


@case("types")
def type_of_a_float():
    return lambda x: x * 2 if type(float(x)) is float else x


@case("types")
def is_a_number_after_a_loop():
    def f(x):
        k = 0
        while x > 1:
            x, k = x / 2, k + 1
        return x + 10 if isinstance(k, int) else x

    return f


@case("types")
def is_a_number_or_an_array():
    def f(x):
        y = 1.0
        if x > 3:
            y = x
        return y * 2 if isinstance(y, float) else y

    return f


@case("types", points=(5.0, 77.0, 123.0))
def length_of_a_text():
    return lambda x: x * len(str(int(x)))


@case("types")
def length_of_a_text_of_an_array():
    return lambda x: x * len(str(x))


@case("types")
def length_of_a_repr():
    return lambda x: x * len(repr(x)) + len(f"{x}") + len("%s" % x) + len("{}".format(x))  # noqa: UP031, UP032


@case("types")
def has_a_dtype():
    return lambda x: x * 2 if hasattr(float(x), "dtype") else x


@case("types")
def getattr_of_a_number():
    return lambda x: x * getattr(int(x), "ndim", 5)


@case("types")
def matching_a_number():
    def f(x):
        match int(x):
            case int():
                return x * 2
            case _:
                return x

    return f


@case("types", equal=True)
def is_an_array():
    return lambda x: x * 2 if isinstance(x, jax.Array) and x > 0 else x


# ------------------------------------------------------------------ 11. what draws numbers


_RNG = np.random.default_rng(0)


@case("random")
def a_generator():
    rng = np.random.default_rng(0)
    return lambda x: x + rng.normal(), lambda: rng.bit_generator.state["state"]["state"]


@case("random")
def a_generator_of_an_object():
    class Noise:
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def __call__(self, x):
            return x + self.rng.normal()

    noise = Noise()
    return noise, lambda: noise.rng.bit_generator.state["state"]["state"]


@case("random")
def numpys_own():
    np.random.seed(0)
    return lambda x: x + np.random.normal(), lambda: np.random.get_state()[2]


@case("random")
def pythons_own():
    random.seed(0)
    return lambda x: x * random.random(), lambda: hash(random.getstate())


@case("random")
def a_random_state_by_a_helper():
    rng = np.random.RandomState(0)

    def drawn():
        return rng.normal()

    return lambda x: x + drawn() if x > 0 else x, lambda: rng.get_state()[2]


@case("random", equal=True)
def keys_of_jax():
    return lambda x: x + jax.random.normal(jax.random.key(0)) if x > 1 else x


# ------------------------------------------------------------------ 12. loops with else, and `while True`


@case("loops")
def for_else():
    def f(x):
        for k in range(4):
            if x > 5 + k:
                x = x - 1
                break
            x = x + 0.5
        else:
            x = x * 3
        return x

    return f


@case("loops")
def while_else():
    def f(x):
        y = x
        while y > 1:
            y = y / 2
            if y < 0.7:
                break
        else:
            y = y * 3
        return y

    return f


@case("loops")
def for_else_in_a_loop():
    def f(x):
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

    return f


@case("loops")
def while_true():
    def f(x):
        while True:
            x = x / 2
            if x < 1:
                return x

    return f


@case("loops")
def while_true_with_two_returns():
    def f(x):
        k = 0
        while True:
            x = x * 0.75
            k = k + 1
            if x < 1:
                return x
            if k > 4:
                return -x

    return f


class Private:
    def __init__(self):
        self.__rate = 0.5

    def __shrunk(self, x):
        return x * self.__rate

    def run(self, x):
        while x > 1:
            x = self.__shrunk(x) * self.__rate
        return x


@case("loops")
def private_names():
    return Private().run


@case("loops")
def numbers_beside_a_for_else():
    def f(x):
        for k in range(3):
            if k > 5:
                break
        else:
            x = x + 1
        return x * int(x)

    return f


# ------------------------------------------------------------------ others


@case("others")
def swallowed_errors():
    def f(x):
        try:
            if x > 3:
                raise ValueError
            y = x
        except ValueError:
            y = x * 2
        return y

    return f


@case("others")
def a_value_that_is_kept_outside():
    kept = []

    def f(x):
        kept.append(x)
        return x * 2

    return f, lambda: [float(v) for v in kept]


@case("others")
def a_walrus():
    def f(x):
        if (y := x * 2) > 3:
            y = y + 1
        return y

    return f


@case("others")
def an_order_of_operands():
    def f(x):
        log = []

        def noted(name, value):
            log.append(name)
            return value

        y = noted(1.0, x) > 3 and noted(2.0, x) > 5
        return (x if y else -x) * len(log)

    return f


@case("others")
def a_second_operand_that_must_not_run():
    def f(x):
        xs = [1.0]
        c = x > 3 or xs.append(2.0) is None
        return x * sum(xs) if c else x

    return f


@case("others")
def a_conditional_expression_with_effects():
    def f(x):
        xs = [1.0, 2.0, 3.0]
        y = xs.pop() if x > 3 else 0.0
        return x * y + sum(xs)

    return f


@case("others")
def a_cache():
    @functools.cache
    def table(k):
        return 2.0**k

    return lambda x: x * table(2) if x > 1 else x * table(1)


@case("others")
def a_recursion_of_numbers():
    def power(x, k):
        return 1.0 if k == 0 else x * power(x, k - 1)

    return lambda x: power(x, 3) if x > 1 else x


@case("others")
def unpacked_and_starred():
    def f(x):
        first, *rest = (x, 2.0, 3.0)
        if x > 3:
            first, *rest = (1.0, x, 5.0)
        return first * sum(rest)

    return f


@case("others")
def math_of_python_numbers():
    def f(x):
        k = 2.0
        if x > 3:
            x = x * math.sqrt(k)
        return x

    return f


@case(
    "others", points=[(2.6, 1.7, jnp.uint16(0)), (2.6, 0.7, jnp.uint16(4)), (2.6, 1.7, jnp.uint16(4))], argnums=(0, 1)
)
def two_ways_with_several_paths():
    def f(x, y, n):
        if y > 1.0:
            x = x + (n if n < 3 else -1) * 0.5
        else:
            x = x * y - (n if n > 1 else -1) * 0.5
        return x

    return f


# ------------------------------------------------------------------ whole numbers, which Python counts without an end


@case("whole", points=(4e6, 1.0))
def powers_in_a_loop():
    def f(x):
        n, y = 1, x
        while y > 1:
            y, n = y / 2, n * 7
        return x * (n % 10)

    return f


@case("whole", points=(100000.0, 3.0))
def the_sum_of_a_counter():
    def f(x):
        total = 0
        for i in range(x.astype(int)):
            total += i
        return total / 1e9

    return f


@case("whole", points=(60.0, 3.0))
def two_numbers_in_turn():
    def f(x):
        a, b = 0, 1
        while x > 1:
            a, b, x = b, a + b, x - 1
        return a * 1e-6

    return f


@case("whole", points=(30000.0, 3.0))
def large_steps():
    def f(x):
        n = 0
        while x > 1:
            n, x = n + 100000, x - 1
        return n * 1e-6

    return f


@case("whole", points=(70000.0, 3.0))
def squares_of_a_counter():
    def f(x):
        k, y = 1, 0.0
        while k < x:
            y, k = y + 1.0 / (k * k), k + 1
        return y

    return f


@case("whole", points=(5.0, 0.5))
def a_float_beyond_them():
    def f(x):
        return int(x * 1e9) / 7.0

    return f


@case("whole", points=(5.0, 0.5))
def a_float_beyond_them_and_an_array():
    weight = jnp.float32(2.0)

    def f(x):
        return weight * int(x * 1e9)

    return f


@case("whole", points=(5.0, 0.5))
def a_float_beyond_them_as_an_argument():
    def f(x):
        return jnp.float32(int(x * 1e9))

    return f


@case("whole", points=(5.0, 0.5))
def a_float_beyond_them_as_the_result():
    def f(x):
        return int(x * 1e9)

    return f


@case("whole", points=(100000, 3), dtype=jnp.int32)
def the_square_of_an_input():
    def f(n):
        k = int(n)
        return k * k * 1e-6

    return f


@case("whole", points=(1.0, 5.0))
def a_number_or_an_array():
    def f(x):
        n = 100000 if x > 3 else x.astype(int)
        return n * n * 1e-6

    return f


@case("whole", points=(1.0, 5.0))
def a_number_or_an_array_after_an_addition():
    def f(x):
        y = (0.0 if x > 3 else x) + 1.0
        return x * (2.0 if isinstance(y, float) else 3.0)

    return f


@case("whole", equal=True)
def a_streak():
    def f(x):
        n, y = 0, x
        while y > 1:
            y = y - 1.0
            if y > 3:
                n = n + 1
            else:
                n = 0
        return y + n

    return f


@case("whole", points=(13, 8, 1), dtype=jnp.int16, equal=True)
def halves():
    def f(n):
        k, steps = int(n), 0
        while k > 1:
            k = k // 2 if k % 2 == 0 else k - 1
            steps += 1
        return steps * 1.0

    return f


@case("whole", equal=True)
def an_index():
    table = jnp.arange(9.0)

    def f(x):
        return table[int(x.astype(int))] * x if int(x.astype(int)) > 1 else x

    return f


@case("whole", equal=True)
def products_of_small_numbers():
    def f(x):
        return x * (int(x.astype(jnp.int8)) * int(x.astype(jnp.int16)) * 2)

    return f


@case("whole", equal=True)
def a_sum_of_known_length():
    def f(x):
        n = 0
        for k in range(100):
            if x < k:
                break
            n += k
        return n * x

    return f


@case("whole", equal=True)
def the_best_index():
    def f(x):
        best = 0
        for i in range(x.astype(int)):
            if jnp.sin(i * 1.0) > 0.9:
                best = max(best, i)
        return best * x

    return f


@case("whole", equal=True)
def bools_that_are_counted():
    def f(x):
        n = 0
        while x > 1:
            n += not x > 2
            n += (x > 1.5) * 2
            x = x - 1
        return n * 10.0

    return f


@case("whole", points=(100.0, 2.0))
def steps_of_an_inner_loop_of_known_length():
    def f(x):
        n = 0
        while x > 1:
            for k in range(100):
                if k > x:
                    break
                n += 1000000
            x = x - 1
        return n * 1e-6

    return f


@case("whole", points=(2**31 - 1, 3), dtype=jnp.int32)
def the_greatest_input():
    def f(n):
        return (int(n) + 1) * 1e-6

    return f


@case("whole", points=(2**31 - 1, 3), dtype=jnp.int32)
def the_greatest_input_in_a_loop():
    def f(n):
        k, steps = int(n), n % 8
        while steps > 0:
            k, steps = k + 1, steps - 1
        return k * 1e-6

    return f


@case("whole", points=(4, 2), dtype=jnp.int8)
def a_divisor_that_may_be_zero():
    def f(n):
        return (7 % int(n) + 7 // int(n)) * 1.0

    return f


# ------------------------------------------------------------------ zeros with a sign, and the integers of NumPy


@case("merged")
def zeros_of_either_sign():
    def f(x):
        return jnp.copysign(x, 0.0 if x > 3 else -0.0)

    return f


@case("merged", equal=True)
def integers_of_numpy():
    def f(x):
        n = np.int64(100000) if x > 3 else np.int64(5)
        return n * n * 1e-6 * x

    return f


@case("merged", equal=True)
def an_array_of_integers_of_numpy():
    def f(x):
        n = np.array([100000, 2]) if x > 3 else np.array([5, 2])
        return (n * n * 1e-6).sum() * x

    return f


@case("merged")
def an_integer_of_numpy_in_a_loop():
    def f(x):
        n = np.int64(1)
        while x > 1:
            n = n + 2000000000
            x = x - 1
        return n * 1e-6

    return f


@case("merged", equal=True)
def an_integer_of_numpy_that_stays():
    def f(x):
        n = np.int64(3)
        while x > n:
            x = x - n
        return x * n

    return f


# ------------------------------------------------------------------ whole numbers that are larger than the program's


@case("larger", points=(3e9, 1.0))
def whole_or_not():
    def f(x):
        return x * 2 if int(x) == x else x

    return f


@case("larger", points=(3e9, 1.0))
def than_another():
    def f(x):
        return x * 2 if int(x) < int(x * 2) else x

    return f


@case("larger", points=(3e9, 1.0))
def than_the_greatest():
    def f(x):
        return x * 2 if int(x) == 2147483647 else x

    return f


@case("larger", points=(3e9, -3e9, 1.0))
def than_a_small_one():
    def f(x):
        return x * 2 if -5 < int(x) <= 3 or int(x) > 7.5 else x

    return f


@case("larger", points=(9e4, 3.5), argnums=())
def rounded():
    def f(x):
        k = round(float(x))
        return k * k * 1.0

    return f


@case("larger", points=(3e9, 3.5), argnums=())
def rounded_and_returned():
    def f(x):
        return round(float(x))

    return f


@case("larger", points=(100000, 3), dtype=jnp.int32)
def real_part():
    def f(n):
        k = int(n).real
        return k * k * 1e-6

    return f


@case("larger", points=(100000, 3), dtype=jnp.int32)
def conjugate():
    def f(n):
        k = int(n).conjugate()
        return k * k * 1e-6

    return f


# ------------------------------------------------------------------ numbers of another type on another path


@case("types", points=(100, 3), dtype=jnp.int8)
def an_int_or_a_float_and_a_small_array():
    def f(n):
        k = 2 if n > 5 else 1.5
        return (n * k) * 1.0

    return f


@case("types", points=(100, 3), dtype=jnp.int8)
def an_int_or_a_float_and_a_small_array_that_is_closed_over():
    small = jnp.int8(100)

    def f(n):
        k = 2 if n > 5 else 1.5
        return (small * k) * 1.0

    return f


@case("types", points=(100, 3), dtype=jnp.int8)
def a_number_or_an_array_and_a_small_array():
    def f(n):
        k = 2 if n > 5 else jnp.int32(5)
        return (n * k) * 1.0

    return f


@case("types", points=(100, 3), dtype=jnp.int8)
def an_early_return_of_another_number():
    def chosen(n):
        if n > 5:
            return 2
        return 1.5

    def f(n):
        return (n * chosen(n)) * 1.0

    return f


@case("types", points=(1.0, 5.0), argnums=(0,))
def a_half_and_a_number_or_an_array():
    def f(x):
        k = 0.1 if x > 3 else jnp.float32(0.3)
        return (x.astype(jnp.float16) * k).astype(jnp.float32)

    return f


@case("types", points=((1.0, jnp.int8(100)), (0.0, jnp.int8(100))))
def a_loop_of_no_iteration():
    def f(x, n):
        k = 2
        while x > 0:
            k, x = k * 0.5, x - 1
        return (n * k) * 1.0

    return f


@case("types", equal=True)
def an_int_or_a_float_and_a_float_array():
    def f(x):
        k = 2 if x > 5 else 1.5
        return (x * k + k * k) / (k + 1)

    return f


@case("types", equal=True)
def zero_or_the_input():
    def f(x):
        y = 0 if x > 5 else x
        total = 0
        while x > 1:
            total = total + x * y
            x = x - 1
        return y * y + total

    return f


# ------------------------------------------------------------------ identity of arrays


@case("identity", equal=True)
def after_an_if():
    def f(x):
        y = x
        if x > 1:
            y = x * 2
        return x * 10 if y is x else x

    return f


@case("identity", equal=True)
def of_one_of_two():
    def f(x):
        a, b = x * 2, x * 3
        y = a if x > 1 else b
        return x * 10 if y is not a else x

    return f


@case("identity", equal=True)
def of_an_or():
    def f(x):
        a, b = x - 2, x * 3
        return x * 10 if (a or b) is a else x

    return f


@case("identity", equal=True)
def by_its_number():
    def f(x):
        a, b = x * 2, x * 3
        y = b if x > 1 else a
        return x * 10 if id(y) in {id(a): 1} else x

    return f


@case("identity")
def after_a_loop():
    def f(x):
        y = x
        while y > 8:
            y = y / 2
        return x * 10 if y is x else x

    return f


@case("identity")
def of_small_numbers():
    two = 2
    return lambda x: x * 10 if int(x) is two else x


@case("identity", equal=True)
def of_what_is_no_value():
    unset = object()

    def f(x, y=unset):
        if y is unset:
            y = 3.0
        while x > 1 and y is not unset and y is not None:
            x = x / 2
        return x * y if x is x else y

    return f


# ------------------------------------------------------------------ lists and dicts that are made anew


@case("made anew", equal=True)
def a_dict_whose_keys_have_an_order():
    def f(x):
        d = {"z": x, "a": 2.0} if x > 1 else {"z": 3.0, "a": x}
        return next(iter(d.values()))

    return f


@case("made anew")
def a_dict_whose_keys_have_two_orders():
    def f(x):
        d = {"z": x, "a": 2.0}
        while d["a"] < x:
            d = {"a": d["a"] + 1.0, "z": d["z"]}
        return next(iter(d.values()))

    return f


@case("made anew", equal=True)
def a_dict_of_a_loop():
    def f(x):
        d = {"z": 0.0, "a": x}
        while d["a"] > 1:
            d = {"z": d["z"] + 1, "a": d["a"] / 2}
        return next(iter(d.values()))

    return f


@case("made anew", equal=True)
def a_key_of_one_branch():
    def f(x):
        d = {}
        if x > 1:
            d["a"] = x
        return x * len(d)

    return f


@case("made anew", equal=True)
def an_attribute_of_one_branch():
    def f(x):
        o = types.SimpleNamespace()
        if x > 1:
            o.a = x
        return x * (2 if hasattr(o, "a") else 3)

    return f


@case("made anew", equal=True)
def an_entry_of_a_defaultdict():
    def f(x):
        d = collections.defaultdict(float)
        if x > 1:
            d["a"] += x
        return x + len(d)

    return f


@case("made anew")
def an_entry_of_a_defaultdict_in_a_loop():
    def f(x):
        d, y = collections.defaultdict(float), x
        while y > 1:
            d["a"] += y
            y = y / 2
        return x + len(d)

    return f


@case("made anew", equal=True)
def one_of_two_lists():
    def f(x):
        a, b = [1.0], [2.0]
        c = a if x > 1 else b
        c[0] = x
        return a[0] + 10 * b[0]

    return f


@case("made anew", equal=True)
def a_list_in_a_tuple():
    def f(x):
        a = [1.0]
        t = (a, 2.0) if x > 1 else (a, 3.0)
        a[0] = x
        return t[0][0] * t[1]

    return f


@case("made anew", equal=True)
def a_list_in_two_variables():
    def f(x):
        if x > 1:
            a = b = [x]
        else:
            a = b = [3.0]
        a.append(x)
        return sum(b)

    return f


@case("made anew")
def a_list_that_a_loop_replaces():
    def f(x):
        a = b = [1.0]
        y = x
        while y > 1:
            a, y = [a[0] + 1], y / 2
        a[0] = x
        return a[0] + 10 * b[0]

    return f


@case("made anew", equal=True)
def whether_two_lists_are_one():
    def f(x):
        a, b = [x], [x]
        if x > 1:
            b = a
        return x * (1 if a is b else 2)

    return f


@case("made anew")
def whether_two_tuples_are_one():
    def f(x):
        a = b = (x,)
        while b[0] > 1:
            b = (b[0] / 2,)
        return x * (1 if a is b else 2)

    return f


@case("made anew", equal=True)
def one_of_two_arrays_of_numpy():
    def f(x):
        a = np.zeros(2, np.float32)
        b = a if x > 1 else np.ones(2, np.float32)
        b += 1
        return x * a.sum()

    return f


# ------------------------------------------------------------------ what Python asks once


@case("once", equal=True)
def the_middle_of_a_chain():
    def f(x):
        stack = [2.0, x + 1]
        return x + len(stack) if 0 < stack.pop() < x * x else x - len(stack)

    return f


@case("once", points=[0.0, 0.5, 7.0], equal=True)
def an_operand_without_a_derivative():
    return lambda x: (x > 0 and jnp.sqrt(x)) or x * 2


@case("once", points=[-1.0, 0.5, 7.0])
def an_operand_with_a_loop_without_an_end():
    def doublings(x):
        n = 0
        while x < 10:
            x, n = x * 2, n + 1
        return n

    return lambda x: x * 2 if x > 0 and doublings(x) > 2 else x


@case("once")
def the_first_operand_of_a_chain_that_assigns():
    def f(x):
        y = 10.0
        found = 0 < (y := x * 2) < 5
        return y + 1.0 if found else y

    return f


@case("merged", points=[-0.0, -6.0, 7.5], equal=True)
def zeros_of_either_sign_by_division():
    def f(x):
        quotient, rest = divmod(float(x), 3.0)
        return jnp.copysign(1.0, quotient) + 10 * jnp.copysign(1.0, rest) + 100 * jnp.copysign(1.0, float(x) % -3.0)

    return f


# ------------------------------------------------------------------ numbers that have methods, and numbers of NumPy's


class Thousands(float):
    def __mul__(self, other):
        return float(self) * 1000 * other


class Weekday(int):
    def __add__(self, other):
        return Weekday((int(self) + other) % 7)


@case("classes")
def a_float_with_a_product_of_its_own():
    def f(x):
        k = Thousands(1.0)
        if x > 1:
            k = Thousands(2.0)
        return k * x

    return f


@case("classes")
def an_int_with_a_sum_of_its_own_in_a_loop():
    def f(x):
        day = Weekday(5)
        while x > 1:
            x, day = x / 2, day + 4
        return x * day

    return f


@case("classes")
def the_class_of_an_array_of_numpy():
    def f(x):
        v = np.ones(2, np.float32) if x > 1 else np.zeros(2, np.float32)
        return x * (2.0 if isinstance(v, np.ndarray) else 3.0)

    return f


@case("classes")
def the_class_of_an_array_of_numpy_in_a_loop():
    def f(x):
        v, y = np.ones(2, np.float32), x
        while y > 1:
            v, y = v * 2, y / 2
        return x * (2.0 if isinstance(v, np.ndarray) else 3.0)

    return f


@case("classes")
def numbers_of_numpy_in_64_bits():
    def f(x):
        k = np.float64(1e8) if x > 1 else np.float64(2e8)
        return x * ((k + 1.0) - k)

    return f


@jax.tree_util.register_pytree_node_class
class Labelled:
    def __init__(self, value):
        self.value, self.label = value, 0

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@case("classes")
def a_pytree_with_an_attribute_that_it_forgets():
    def f(x):
        a, b = Labelled(x), Labelled(2 * x)
        a.label = b.label = 5
        c = a if x > 1 else b
        return c.value + c.label

    return f


@case("classes")
def an_ordered_dict():
    def f(x):
        d = collections.OrderedDict(b=x, a=1.0)
        if x > 1:
            d.move_to_end("b")
        return next(iter(d.values())) + 2 * x

    return f


class Noted(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setitem__("n", self.get("n", 0) + 1)


@case("classes")
def a_dict_that_counts_what_is_set():
    def f(x):
        d = Noted()
        d["a"] = x
        if x > 1:
            d["a"] = x * 2
        return d["a"] + d["n"]

    return f


@case("in place")
def an_exit_stack():
    def f(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, 3.0)
            if x > 1:
                stack.callback(log.append, 4.0)
        return x * sum(log)

    return f


@case("in place")
def a_context_of_decimal():
    def f(x):
        old = decimal.getcontext().prec
        if x > 1:
            decimal.getcontext().prec = 3
        digits, decimal.getcontext().prec = decimal.getcontext().prec, old
        return x * digits

    return f


@case("loops")
def a_break_that_skips_an_else():
    def f(x):
        for k in range(4):
            try:
                if x > 5:
                    break
            except ValueError:
                pass
            else:
                x = x * 3
        return x

    return f


# ------------------------------------------------------------------ questions that a traced value answers otherwise


@case("asked")
def the_devices():
    def f(x):
        try:
            return x * len(x.devices())
        except Exception:
            return x * 5

    return f


@case("asked")
def whether_there_is_a_sharding():
    return lambda x: x * 2 if hasattr(x, "sharding") else x * 3


@case("asked")
def the_code_of_a_function():
    def f(x):
        def g(v):
            one = 1.0
            return v + one

        return x * g.__code__.co_nlocals if x > 1 else g(x)

    return f


@case("asked")
def the_names():
    def f(x):
        y = 2.0
        return x * (len(vars()) + len(dir())) if x > 1 else x * y

    return f


@case("asked")
def the_dtype_of_a_number():
    def f(x):
        k = jnp.asarray(1 if x > 1 else 2.0)
        return x * (2.0 if k.dtype.kind == "i" else 3.0)

    return f


@case("asked")
def whether_two_ranges_are_equal():
    return lambda x: x * (2.0 if range(x.astype(int)) == range(2) else 3.0)


@case("asked")
def whether_it_is_a_range():
    return lambda x: x * (2.0 if isinstance(range(x.astype(int)), range) else 3.0) if x > 1 else x


@case("range", points=(0.0, 1.0))
def of_no_step():
    def f(x):
        try:
            for k in range(4, 0, x.astype(int)):
                x = x + k
        except ValueError:
            x = x + 50
        return x

    return f


@case("larger", points=(2**24 + 1, 3), dtype=jnp.int32)
def than_a_float():
    return lambda n: (int(n) == float(2**24)) * 1.0 + (int(n) > 2.0**24) * 2.0


# ------------------------------------------------------------------ NaN is in a list that holds it


@case("identity", points=(float("nan"), 3.0, 0.5), argnums=())
def of_nan_in_a_list():
    def f(x):
        y = x
        if x > 1:
            y = x * 2
        return x * 0 + 1 if y in [x] else 2.0

    return f


@case("identity", points=(float("nan"), 3.0, 0.5), argnums=())
def of_nan_after_a_loop():
    def f(x):
        y = x
        while y > 1:
            y = y / 2
        return (1.0 if y in [x] else 2.0) + (10 if (y, 1) == (x, 1) else 20) + [x, 0.0].count(y)

    return f


@case("identity", points=(float("nan"), 3.0, 0.5), argnums=())
def of_nan_in_equal_tuples():
    def f(x):
        y = x
        while y > 1:
            y = y / 2
        return 10.0 if (y, 1) == (x, 1) else 20.0

    return f


@case("identity", points=(float("nan"), 3.0, 0.5), argnums=())
def of_nan_that_is_counted():
    def f(x):
        y = x
        while y > 1:
            y = y / 2
        return [x, 0.0].count(y) * 1.0

    return f


# ------------------------------------------------------------------ an int on one path and a float on the other, in JAX


def _number_in_jax(name, use):
    make = lambda: lambda n: use(n, 2 if n > 5 else 1.5) * 1.0
    make.__name__ = name
    case("types", points=(100, 3), dtype=jnp.int8)(make)


for _name, _use in {
    "a number in full": lambda n, k: (n * jnp.full((2,), k)).sum(),
    "a number in stack": lambda n, k: (n * jnp.stack([k, k])).sum(),
    "a number in array": lambda n, k: n * jnp.array(k),
    "a number in where": lambda n, k: n * jnp.where(n > 0, k, 1),
    "a number beside an array in where": lambda n, k: jnp.where(n > 0, n, k) * 100,
    "a number in maximum": lambda n, k: jnp.maximum(n, k) * 2,
    "a number in cond": lambda n, k: jax.lax.cond(n > 0, lambda: n * k * 1.0, lambda: 0.0),
    "a number in scan": lambda n, k: jax.lax.scan(lambda c, v: (c, v * k), 0, jnp.stack([n, n]))[1].sum(),
    "a number in square": lambda n, k: n * jnp.square(k),
}.items():
    _number_in_jax(_name, _use)


@case("types", points=(9.0, 3.0), equal=True)
def a_number_or_an_array_in_functions_of_jax():
    def f(x):
        y, i = 0, 0
        if x > 5:
            y, i = x, x.astype(int) % 3
        v = jnp.arange(3, dtype=jnp.int8)
        return jnp.sqrt(y) + jnp.maximum(y, 1.0) + jnp.stack([y, x]).sum() + v[i] + v.at[i].set(3).sum() * x

    return f

"""Random Python functions as source text: state, loops, branches, helpers, closures, small integers and bools.

A program is a module with a function ``f(x, y, v, n)`` of two float scalars, a float vector of three and an integer
scalar. Each program draws a few features, so that some programs can be traced and others have to be refused. Loops
end after a few turns, and values stay small.
"""

from __future__ import annotations

import random

HEADER = '''\
import collections
import functools
import itertools
import math
import random

import jax
import jax.numpy as jnp
import numpy as np

from tests.shared.python_helpers import clip, halve, positive


class Box:
    """An object with state, methods and an operator."""

    kind = 0

    def __init__(self, value):
        self.value = value
        self.count = 0

    def add(self, change):
        self.value = self.value + change
        self.count += 1
        return self.value

    def scaled(self, a):
        return self.value * a if a > 0 else a

    def __call__(self, a):
        return a + self.value

    @classmethod
    def bump(cls):
        cls.kind += 1
        return cls.kind


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def reset():
    global COUNT, LOG, TABLE, BOX, SLOT, BUFFER, QUEUE, RNG, TICKS, NESTED
    COUNT, LOG, TABLE, BOX, SLOT = 0, [], {"k": 1.0}, Box(0.5), Slotted(0.5)
    BUFFER, QUEUE = np.zeros(3, np.float32), collections.deque([1.0])
    RNG, TICKS = np.random.default_rng(0), itertools.count()
    NESTED = {"a": [{"b": [0.0]}]}
    Box.kind = 0
    random.seed(0)


def state():
    found = [COUNT, *LOG, *TABLE.values(), BOX.value, BOX.count, SLOT.value, *BUFFER, *QUEUE, Box.kind]
    found += [*NESTED["a"][0]["b"], hash(repr(RNG.bit_generator.state)), repr(TICKS), hash(random.getstate())]
    return [x if isinstance(x, str) else float(x) for x in found]


def keep(value):
    global COUNT
    COUNT += 1
    return value


'''

# Each feature adds statements and expressions. A program that has none of the stateful ones can mostly be traced.
PLAIN = [
    "while", "for", "range", "bools", "helpers", "lambdas", "numbers", "lists", "returns", "small", "swaps", "dicts"
]  # fmt: skip
STATEFUL = [
    "nonlocal", "global", "arrays", "queues", "iterators", "objects", "outside", "classes", "random", "bound", "nested"
]  # fmt: skip


class Writer:
    """Writes one program, line by line, from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lines: list[str] = []
        self.floats = ["x", "y"]
        self.ints: list[str] = []
        self.flags: list[str] = []
        self.lists: list[str] = []
        self.depth = 1
        self.loops = 0
        self.names = 0
        self.budget = self.draw.randint(4, 11)
        count = self.draw.randint(2, 6)
        self.features = set(self.draw.sample(PLAIN, count))
        if self.draw.random() < 0.45:
            self.features |= set(self.draw.sample(STATEFUL, self.draw.choice([1, 1, 2])))

    # ---- words

    def pick(self, *options):
        return self.draw.choice([o for o in options if o is not None])

    def has(self, feature: str) -> bool:
        return feature in self.features

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def number(self) -> str:
        return self.pick("0.5", "0.25", "1.5", "-0.75", "1.0", "2.0", "-1.25")

    # ---- expressions

    def float_(self, depth: int = 2) -> str:
        draw = self.draw.random()
        if depth == 0 or draw < 0.3:
            return self.pick(*self.floats, *self.floats, self.number())
        a, b = self.float_(depth - 1), self.float_(depth - 1)
        options = [
            f"({a} + {b})", f"({a} - {b})", f"({a} * 0.5 + {b})", f"jnp.tanh({a} * {b})", f"jnp.sin({a})",
            f"({a} if {self.test(1)} else {b})", f"v[{self.draw.randint(0, 2)}]", f"(v * {a}).sum() * 0.25",
        ]  # fmt: skip
        if self.has("bools"):
            c, d = self.bool_(1), self.bool_(1)
            options += [f"({c} + {d}) * {a}", f"{a} * {c}", f"({a} + sum([{c}, {d}]))", f"({a} + (-{c}))"]
            options += [f"({a} + (~{c}) * 0.25)"]
        if self.has("helpers"):
            options += [f"clip({a}, {b})", f"clip({a})", f"halve({a})", f"({a} + positive({b}) + positive({a}))"]
            options += [f"min({a}, {b})", f"max({a}, {b}, 0.5)", f"abs({a})"]
        if self.has("numbers"):
            options += [f"({a} + float({b}))", f"({a} + int(jnp.int32({b})))", f"({a} * ({self.int_(1)}))"]
            options += [f"({a} + (v[0] > 0).item() + (v[1] > 0).item())", f"({a} + round(0.4 + {self.int_(1)}))"]
        if self.has("small"):
            options += [
                f"({a} + n * 0.125)",
                f"({a} + (n + 100) * 0.01)",
                f"({a} + (n if {self.test()} else -1) * 0.5)",
            ]
        if self.has("lambdas"):
            z = self.name("z")
            options += [f"(lambda {z}: {z} * {a})({b})", f"sum([{z} * 0.25 for {z} in (x, y, {a})])"]
            options += [f"functools.reduce(lambda p, q: p + 0.5 * q, [x, {a}, {b}])"]
        if self.lists:
            xs = self.pick(*self.lists)
            options += [f"{xs}[-1]", f"sum({xs})", f"len({xs}) * 0.5"]
        return self.pick(*options)

    def int_(self, depth: int = 1) -> str:
        options = ["1", "2", "3", *self.ints, *self.ints]
        if depth:
            a, b = self.int_(depth - 1), self.int_(depth - 1)
            options += [f"({a} + {b})", f"({a} * 2)", f"({a} - 1)", f"({a} // 2)", f"({a} % 3)"]
            if self.has("bools"):
                options += [f"({a} + {self.bool_(0)})", f"({self.bool_(0)} + {self.bool_(0)})"]
        return self.pick(*options)

    def bool_(self, depth: int = 1) -> str:
        """A bool that is Python's, or made by a helper."""
        options = [f"(not {self.test(depth - 1 if depth else 0)})", f"bool({self.pick(*self.floats)})", *self.flags]
        return self.pick(*options, f"positive({self.pick(*self.floats)})" if self.has("helpers") else None)

    def test(self, depth: int = 1) -> str:
        a = self.pick(*self.floats)
        options = [f"{a} > {self.number()}", f"{a} < {self.float_(0)}", f"{self.number()} < {a} < 2.0"]
        options += [f"{i} > 1" for i in self.ints] + self.flags
        if self.has("small"):
            options += ["n > 1", "n < 3"]
        if depth:
            b, c = self.test(depth - 1), self.test(depth - 1)
            options += [f"not ({b})", f"({b} and {c})", f"({b} or {c})"]
        return self.pick(*options)

    # ---- statements

    def block(self, count: int | None = None) -> None:
        """Statements in an indented block. The names that it binds are not used after it."""
        known = self.floats[:], self.ints[:], self.flags[:], self.lists[:]
        self.depth += 1
        for _ in range(count or self.draw.randint(1, 3)):
            self.statement()
        self.depth -= 1
        if self.draw.random() < 0.97:
            self.floats, self.ints, self.flags, self.lists = known

    def statement(self) -> None:
        self.budget -= 1
        kinds = [self.assign] * 4 + [self.update] * 3
        if self.depth < 4 and self.budget > 0:
            kinds += [self.if_] * 5
            kinds += [self.while_] * 4 * self.has("while") + [self.for_] * 4 * self.has("for")
            kinds += [self.range_] * 4 * self.has("range")
        kinds += [self.flag] * 2 * self.has("bools") + [self.swap] * self.has("swaps")
        kinds += [self.return_] * (self.has("returns") and self.depth > 1)
        kinds += [self.list_] * 2 * self.has("lists") + [self.dict_] * 2 * self.has("dicts")
        kinds += [self.later] * 2 * self.has("lambdas") + [self.int_update] * 2 * self.has("numbers")
        if self.loops and self.depth > 2:
            kinds += [self.leave] * 3
        for feature in sorted(self.features.intersection(STATEFUL)):
            kinds += [lambda feature=feature: self.stateful(feature)] * 3
        self.pick(*kinds)()

    def assign(self) -> None:
        value, new = self.float_(), self.draw.random() < 0.4
        name = self.name("a") if new else self.pick(*self.floats)
        self.line(f"{name} = {value}")
        if new:
            self.floats.append(name)

    def update(self) -> None:
        self.line(f"{self.pick(*self.floats)} {self.pick('+=', '-=', '*=')} {self.pick(self.number(), self.float_(1))}")

    def int_update(self) -> None:
        if self.ints and self.draw.random() < 0.6:
            self.line(f"{self.pick(*self.ints)} += {self.int_(1)}")
            return
        name = self.name("k")
        self.line(f"{name} = {self.int_(1)}")
        self.ints.append(name)

    def flag(self) -> None:
        name = self.pick(*self.flags, self.name("c"))
        self.line(f"{name} = {self.pick('True', 'False', self.test(1), self.bool_(1))}")
        if name not in self.flags:
            self.flags.append(name)

    def swap(self) -> None:
        a, b = self.draw.sample(self.floats, 2)
        self.line(f"{a}, {b} = {b}, {self.float_(1)}")

    def return_(self) -> None:
        self.line(f"if {self.test()}:")
        self.line(f"    return {self.result()}")

    def leave(self) -> None:
        self.line(f"if {self.test()}:")
        self.line(f"    {self.pick('break', 'continue')}")

    def if_(self) -> None:
        self.line(f"if {self.test()}:")
        self.block()
        if self.draw.random() < 0.3:
            self.line(f"elif {self.test()}:")
            self.block()
        if self.draw.random() < 0.5:
            self.line("else:")
            self.block()

    def turns(self) -> None:
        self.loops += 1
        self.block()
        self.loops -= 1
        if self.draw.random() < 0.2:
            self.line("else:")
            self.block(1)

    def while_(self) -> None:
        name = self.name("w")
        self.line(f"{name} = 0")
        self.line(f"while {name} < {self.draw.randint(2, 4)} and {self.test()}:")
        self.line(f"    {name} += 1")
        self.turns()

    def for_(self) -> None:
        name = self.name("e")
        items = self.pick("v", "(x, y)", "[0.5, -1.0, 2.0]", "(v * 2)[:2]", *self.lists)
        self.line(f"for {name} in {f'list({items})' if items in self.lists else items}:")
        self.floats.append(name)
        self.turns()
        self.floats.remove(name)

    def range_(self) -> None:
        name = self.name("i")
        limits = ["n", "n", "1, n", "0, n, 2", "n, 0, -1", "int(n) - 1, -1, -1", "3", "n % 3"]
        limits.append("int(jnp.int32(abs(x))) % 4")
        self.line(f"for {name} in range({self.pick(*limits)}):")
        self.ints.append(name)
        self.turns()
        self.ints.remove(name)

    def list_(self) -> None:
        if not self.lists or self.draw.random() < 0.3:
            name = self.name("xs")
            self.line(f"{name} = [{self.float_(1)}, {self.float_(0)}]")
            self.lists.append(name)
            return
        xs, a = self.pick(*self.lists), self.float_(1)
        self.line(self.pick(f"{xs}.append({a})", f"{xs}[0] = {a}", f"{xs}[0] += {a}", f"{xs} += [{a}]", f"{xs}.sort()"))

    def dict_(self) -> None:
        name = self.name("d")
        self.line(f"{name} = {{'p': {self.float_(1)}, 'q': {self.float_(0)}}}")
        self.line(f"if {self.test()}:")
        self.line(self.pick(f"    {name}['p'] = {self.float_(1)}", f"    {name}['p'] += 1.0", f"    {name}['r'] = x"))
        self.line(f"{self.pick(*self.floats)} = sum({name}.values()) * 0.5")

    def later(self) -> None:
        """A variable that something made before an `if` reads after it."""
        name, function = self.name("s"), self.name("g")
        self.line(f"{name} = {self.number()}")
        made = self.pick(
            f"{function} = lambda q: q * {name}", f"{function} = lambda q, r={name}: q * r + {name}",
            f"{function} = lambda q: sum([{name} * q for _ in range(2)])", f"def {function}(q): return q + {name}",
        )  # fmt: skip
        self.line(made)
        self.line(f"if {self.test()}:")
        self.line(f"    {name} = {self.float_(1)}")
        if self.draw.random() < 0.5:
            self.line(f"{name}{self.pick('+=', '*=')} 0.5" if self.draw.random() < 0.5 else "pass")
        self.line(f"{self.pick(*self.floats)} = {function}({self.float_(1)})")

    # ---- state

    def stateful(self, feature: str) -> None:
        a, b = self.float_(1), self.pick(*self.floats)
        name, other = self.name("t"), self.name("h")
        simple = {
            "global": ["keep(0)", f"{b} = {b} + 0.25 * keep(1)", "LOG.append(1.0)", "LOG.append(2.0)"],
            "outside": ["TABLE['k'] = 2.0", "TABLE['k'] += 1.0", f"{b} = {b} * TABLE['k']", "BOX.count += 1"]
            + [f"{b} = BOX.scaled({a})", f"{b} = BOX({a})", "SLOT.value += 0.5", f"{b} = {b} * SLOT.value"],
            "classes": ["Box.bump()", f"{b} = {b} + Box.kind", "keep.calls = getattr(keep, 'calls', 0) + 1"],
            "random": [f"{b} = {b} + RNG.normal()", f"{b} = {b} + random.random()", "RNG.random()"],
            "nested": ["NESTED['a'][0]['b'][0] = 1.0", f"{b} = {b} + NESTED['a'][0]['b'][0]"],
        }
        if feature in simple:
            self.line(self.pick(*simple[feature]))
            return
        changes, read = {
            "nonlocal": ([f"{other}()"], name),
            "arrays": ([f"{name} += 1", f"{name}[0] = 2.0", f"{name}.fill(3)", f"np.add({name}, 1, out={name})"], None),
            "queues": ([f"{name}.append(2.0)", f"{name}.popleft()", f"{name}.extend([1.0, 2.0])"], None),
            "iterators": ([f"{b} = {b} + next({name})", f"next({name})"], None),
            "objects": ([f"{name}.add(1.0)", f"{name}.value = {a}", f"{name}.value += 1", f"{name}.count += 1"], None),
            "bound": ([f"{other}(1.0)", f"{other}({a})"], f"sum({name})"),
        }[feature]
        first = {
            "nonlocal": "1.0", "arrays": self.pick("np.zeros(2, np.float32)", "BUFFER"),
            "queues": self.pick("collections.deque([0.5, 1.0])", "QUEUE"), "iterators":
            self.pick("iter([0.5, 1.0, 2.0] * 9)", "itertools.count(1)", "TICKS", "(t * 0.5 for t in range(99))"),
            "objects": self.pick("Box(1.0)", "Box(x)", "BOX"), "bound": "[0.5]",
        }[feature]  # fmt: skip
        read = read or {
            "arrays": f"float({name}.sum())", "queues": f"sum({name})", "iterators": f"next({name})",
            "objects": f"({name}.value + {name}.count)",
        }[feature]  # fmt: skip
        self.line(f"{name} = {first}")
        if feature == "bound":
            self.line(f"{other} = {name}.append")
        if feature == "nonlocal":
            self.line(f"def {other}():")
            self.line(f"    nonlocal {name}")
            self.line(f"    {name} = {name} + 0.5")
        if self.draw.random() < 0.7:
            loop = self.draw.random() < 0.3
            turns = self.name("w")
            if loop:
                self.line(f"{turns} = 0")
            self.line(f"while {turns} < 3 and {self.test()}:" if loop else f"if {self.test()}:")
            if loop:
                self.line(f"    {turns} += 1")
            self.line("    " + self.pick(*changes))
        else:
            self.line(self.pick(*changes))
        self.line(f"{b} = {b} + {read}")

    def result(self) -> str:
        parts = [self.float_(1)] + [f"{flag} * 0.5" for flag in self.flags[:2]] + [f"{i} * 0.25" for i in self.ints[:2]]
        return " + ".join(parts)

    def program(self) -> str:
        while self.budget > 0:
            self.statement()
        self.line(f"return {self.result()}")
        return HEADER + "def f(x, y, v, n):\n" + "\n".join(self.lines) + "\n"


def program(seed: int) -> str:
    return Writer(seed).program()

"""Random Python functions: traced mode gives what Python gives, or refuses. It never differs.

    python -m tests.traced.random_functions COUNT [SEED]

prints how many functions are equal, refused and different, and the text of those that are different. A function is
`f(x, y, v, n)` of two float scalars, a float vector of three and an integer. Each draws a few of the features below.
Its loops end after a few turns, and its values stay small.
"""

from __future__ import annotations

import collections
import linecache
import random
import re
import sys
import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from tests.traced.rows import is_refusal, op

HEADER = """\
import collections, functools, itertools, random
import jax, jax.numpy as jnp, numpy as np

class Box:
    kind = 0

    def __init__(self, value):
        self.value, self.count = value, 0

    def add(self, change):
        self.value = self.value + change
        self.count += 1
        return self.value

    def __call__(self, a):
        return a + self.value if a > 0 else a

    @classmethod
    def bump(cls):
        cls.kind += 1
        return cls.kind

def positive(a):
    if a > 0:
        return True
    return False

def clip(a, b=2.0):
    if a > b:
        return b
    return -b if a < -b else a

def halve(a):
    turns = 0
    while abs(a) > 0.5 and turns < 5:
        a, turns = a / 2, turns + 1
    return a

def keep(value):
    global COUNT
    COUNT += 1
    return value

def reset():
    global COUNT, LOG, TABLE, BOX, BUFFER, RNG, TICKS
    COUNT, LOG, TABLE, BOX, BUFFER = 0, [], {"k": 1.0}, Box(0.5), np.zeros(3, np.float32)
    RNG, TICKS, Box.kind = np.random.default_rng(0), itertools.count(), 0
    random.seed(0)

def state():
    numbers = [COUNT, *LOG, TABLE["k"], BOX.value, BOX.count, *BUFFER, Box.kind]
    return [float(x) for x in numbers] + [repr(TICKS), str(RNG.bit_generator.state), hash(random.getstate())]

"""

# In a text, <f>, <i>, <b> and <t> are an expression of a float, of an int, of a bool, and a test; <c> a constant;
# <x> a float variable, the same one throughout; and <p>, <q> new names.
FLOATS = {
    "": ["(<f> + <f>)", "(<f> - <f>)", "(<f> * 0.5 + <f>)", "jnp.tanh(<f> * <f>)", "jnp.sin(<f>)"]
    + ["(<f> if <t> else <f>)", "v[0]", "v[2]", "(v * <f>).sum() * 0.25"],
    "bools": ["(<b> + <b>) * <f>", "<f> * <b>", "(<f> + sum([<b>, <b>]))", "(<f> + (-<b>))", "(<f> + (~<b>) * 0.25)"],
    "helpers": [
        "clip(<f>, <f>)",
        "halve(<f>)",
        "(<f> + positive(<f>) + positive(<f>))",
        "max(<f>, <f>, 0.5)",
        "abs(<f>)",
    ],
    "numbers": ["(<f> + float(<f>))", "(<f> + int(jnp.int32(<f>)))", "(<f> * (<i>))", "(<f> + round(0.4 + <i>))"]
    + ["(<f> + (v[0] > 0).item() + (v[1] > 0).item())"],
    "small": ["(<f> + n * 0.125)", "(<f> + (n + 100) * 0.01)", "(<f> + (n if <t> else -1) * 0.5)"],
    "lambdas": ["(lambda <p>: <p> * <f>)(<f>)", "sum([<p> * 0.25 for <p> in (x, y, <f>)])"]
    + ["functools.reduce(lambda p, q: p + 0.5 * q, [x, <f>, <f>])"],
}
INTS = ["1", "2", "3", "(<i> + <i>)", "(<i> * 2)", "(<i> - 1)", "(<i> // 2)", "(<i> % 3)", "(<i> + (not <t>))"]
TESTS = ["<x> > <c>", "<x> < <c>", "<c> < <x> < 2.0", "not (<t>)", "(<t> and <t>)", "(<t> or <t>)"]
# Statements; an indented line `...` is a block. What starts with `+` binds the name for what follows.
STATEMENTS = {
    "": ["<x> = <f>", "<x> = <f>", "+f <p> = <f>", "<x> += <f>", "<x> -= <c>", "<x> *= <c>"],
    "ifs": ["if <t>:\n ...", "if <t>:\n ...\nelse:\n ...", "if <t>:\n ...\nelif <t>:\n ...\nelse:\n ..."] * 2,
    "while": ["<p> = 0\nwhile <p> < 3 and <t>:\n <p> += 1\n ..."] * 3
    + ["<p> = 0\nwhile <p> < 4 and <t>:\n <p> += 1\n if <t>:\n  break\n ...\nelse:\n ..."]
    + ["<p> = 0\nwhile <p> < 4 and <t>:\n <p> += 1\n if <t>:\n  continue\n ..."],
    "for": ["for <p> in v:\n <x> = <x> * 0.5 + <p>\n ...", "for <p> in [0.5, -1.0, x]:\n if <p> < <x>:\n  break\n ..."],
    "range": [f"for <p> in range({limits}):\n <x> = <x> + <p> * 0.25\n ..." for limits in ("n", "1, n", "0, n, 2")]
    + [f"for <p> in range({limits}):\n <x> = <x> - <p> * 0.25\n ..."
    for limits in ("n, 0, -1", "n % 3", "int(n) - 1, -1, -1")],
    "bools": ["+b <p> = <b>", "+b <p> = False\nif <t>:\n <p> = True"],
    "numbers": ["+i <p> = <i>", "+i <p> = 0\nif <t>:\n <p> += <i>"],
    "swaps": ["x, y = y, <f>"],
    "returns": ["if <t>:\n return <f>"],
    "lists": ["<p> = [<f>, <c>]\nif <t>:\n <p>.append(<f>)\n<x> = sum(<p>) * 0.5"]
    + ["<p> = [<f>, <c>]\n<p>[0] += <f>\n<x> = <p>[0]"]
    + ["<p> = [<f>]\nif <t>:\n <p> = [<f>]\n<x> = <p>[-1] * len(<p>)"],
    "dicts": ["<p> = {'p': <f>, 'q': <c>}\nif <t>:\n <p>['p'] = <f>\n<x> = sum(<p>.values()) * 0.5"]
    + ["<p> = {'p': <f>}\nif <t>:\n <p>['r'] = x\n<x> = sum(<p>.values()) * 0.5"],
    "lambdas": ["<p> = <c>\n<q> = lambda z: z * <p>\nif <t>:\n <p> = <f>\n<x> = <q>(<f>)"]
    + ["<p> = <c>\ndef <q>(z): return z + <p>\nif <t>:\n <p> += 0.5\n<x> = <q>(<f>)"],
    "global": ["<x> = <x> + 0.25 * keep(1)", "if <t>:\n LOG.append(1.0)", "if <t>:\n keep(0)"],
    "outside": ["if <t>:\n TABLE['k'] += 1.0\n<x> = <x> * TABLE['k']", "BOX.count += 1", "<x> = BOX(<f>)"],
    "classes": ["if <t>:\n Box.bump()\n<x> = <x> + Box.kind", "keep.calls = getattr(keep, 'calls', 0) + 1"],
    "random": ["<x> = <x> + RNG.normal()", "<x> = <x> + random.random()", "if <t>:\n RNG.random()"],
    "nonlocal": ["<p> = 1.0\ndef <q>():\n nonlocal <p>\n <p> = <p> + 0.5\nif <t>:\n <q>()\n<x> = <x> + <p>"],
    "arrays": [f"<p> = {array}\nif <t>:\n {change}\n<x> = <x> + float(<p>.sum())"
    for array in ("np.zeros(2, np.float32)", "BUFFER")
    for change in ("<p> += 1", "<p>[0] = 2.0", "np.add(<p>, 1, out=<p>)")],
    "queues": ["<p> = collections.deque([0.5])\nif <t>:\n <p>.append(2.0)\n<x> = <x> + sum(<p>)"],
    "iterators": [f"<p> = {made}\nif <t>:\n next(<p>)\n<x> = <x> + next(<p>)"
    for made in ("iter([0.5, 1.0, 2.0] * 9)", "TICKS", "(t * 0.5 for t in range(99))")],
    "objects": [f"<p> = {made}\nif <t>:\n {change}\n<x> = <x> + <p>.value + <p>.count"
    for made in ("Box(1.0)", "Box(x)", "BOX") for change in ("<p>.add(1.0)", "<p>.value = <f>", "<p>.count += 1")],
    "bound": ["<p> = [0.5]\n<q> = <p>.append\nif <t>:\n <q>(<f>)\n<x> = <x> + sum(<p>)"],
}  # fmt: skip
STATEFUL = ["global", "outside", "classes", "random", "nonlocal", "arrays", "queues", "iterators", "objects", "bound"]
ORDINARY = [name for name in {**STATEMENTS, **FLOATS} if name not in STATEFUL and name not in ("", "ifs")]


class Writer:
    """Writes one function, line by line."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.lines, self.names, self.left = draw, [], 0, draw.randint(3, 8)
        self.known = {"f": ["x", "y"], "i": [], "b": []}
        self.features = {"", "ifs", *draw.sample(ORDINARY, draw.randint(2, 5))}
        if draw.random() < 0.35:
            self.features.add(draw.choice(STATEFUL))

    def options(self, table: dict[str, list[str]]) -> list[str]:
        return [text for feature in table if feature in self.features for text in table[feature]]

    def fill(self, text: str, depth: int) -> str:
        """Writes expressions and names in place of what is in angle brackets."""
        names = {"x": self.draw.choice(self.known["f"])}
        for key in "pq":
            if f"<{key}>" in text:
                self.names += 1
                names[key] = f"{key}{self.names}"
        return re.sub("<(.)>", lambda m: names.get(m[1]) or self.word(m[1], depth), text)

    def word(self, kind: str, depth: int) -> str:
        leaves = self.known.get(kind, [])
        if kind == "c":
            return self.draw.choice(["0.5", "1.5", "-0.75", "1.0", "2.0", "-1.25"])
        if depth == 0 or self.draw.random() < 0.3:
            plain = {"f": [], "i": ["1", "2"], "b": ["bool(x > 0)", "(not y > 0)"], "t": TESTS[:3]}
            return self.fill(self.draw.choice([*plain[kind], *leaves]), 0)
        bools = ["(not <t>)", "bool(<x>)", *leaves] + ["positive(<x>)"] * ("helpers" in self.features)
        small = ["n > 1", "n < 3"] * ("small" in self.features)
        table = {"f": self.options(FLOATS), "i": [*INTS, *leaves], "b": bools, "t": [*TESTS, *small, *self.known["b"]]}
        return self.fill(self.draw.choice(table[kind]), depth - 1)

    def statement(self, indent: int) -> None:
        self.left -= 1
        text = self.draw.choice(self.options(STATEMENTS))
        while "..." in text and (indent > 3 or self.left < 0):
            text = self.draw.choice(STATEMENTS[""])
        bound, text = (text[1], text[3:]) if text[0] == "+" else ("", text)
        for line in self.fill(text, 2).split("\n"):
            inner = len(line) - len(line.lstrip())
            if line.strip() == "...":
                self.block(indent + inner)
            else:
                self.lines.append("    " * (indent + inner) + line.strip())
        if bound:
            self.known[bound].append(f"p{self.names}" if f"p{self.names}" in text else self.lines[-1].split()[0])

    def block(self, indent: int) -> None:
        """The names that a block binds are not used after it."""
        known = {kind: list(names) for kind, names in self.known.items()}
        for _ in range(self.draw.randint(1, 2)):
            self.statement(indent)
        self.known = known

    def function(self) -> str:
        while self.left > 0:
            self.statement(1)
        numbers = [f" + {name} * 0.25" for kind in "ib" for name in self.known[kind][:2]]
        return "\n".join(["def f(x, y, v, n):", *self.lines, f"    return {self.fill('<f>', 1)}{''.join(numbers)}", ""])


def random_function(seed: int) -> str:
    return Writer(random.Random(seed)).function()


POINTS = [(0.7, -1.3, (0.3, -0.6, 1.1)), (-0.4, 0.6, (-0.2, 0.9, -1.4)), (2.6, 1.7, (1.9, 0.1, 0.8))]


def module_of(text: str, seed: int) -> Any:
    """A module of this text, whose source can be found."""
    name, made = f"<random function {seed}>.py", types.ModuleType("random_function")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), made.__dict__)
    return made


def results(made: Any, seed: int, mode: str, points: int) -> list[Any]:
    """Value, gradient and the module's state at each point."""
    made.reset()
    run = jax.value_and_grad(op(made.f, mode, **({} if mode == "eager" else {"max_steps": 64})), (0, 1, 2))
    run, found = run if mode == "eager" else jax.jit(run), []
    kind = [np.uint8, np.int8, np.uint32, np.int32, np.uint16][seed % 5]
    for x, y, v in POINTS[:points]:
        out = run(jnp.float32(x), jnp.float32(y), jnp.asarray(v, jnp.float32), jnp.asarray(seed // 5 % 5, kind))
        found.append((jax.tree.map(np.asarray, out), made.state()))
    return found


def outcome(seed: int, mode: str = "traced", points: int = 3) -> str:
    """Says "equal", "refused", or what differs; "raises" where Python itself does."""
    text = HEADER + random_function(seed)
    made = module_of(text, seed)
    try:
        wanted = results(made, seed, "eager", points)
    except Exception:
        return "raises"
    made = module_of(text, seed)
    try:
        got = results(made, seed, mode, points)
    except Exception as error:
        return "refused" if is_refusal(error) else f"{type(error).__name__}: {error}"
    for (ours, state), (python, python_state) in zip(got, wanted, strict=True):
        if state != python_state:
            return f"state {state}, wanted {python_state}"
        leaves, wanted_leaves = jax.tree.leaves(ours), jax.tree.leaves(python)
        # Whether the slope of what overflows is infinite or no number depends on the order of the operations, and in a
        # loop the slopes of all that it carries depend on it.
        if not all(np.isfinite(b).all() for b in wanted_leaves[1:]):
            leaves, wanted_leaves = leaves[:1], wanted_leaves[:1]
        for a, b in zip(leaves, wanted_leaves, strict=True):
            if np.isfinite(b).all() and not np.allclose(a, b, 2e-4, 2e-5):
                return f"{ours}, wanted {python}"
    return "equal"


def main(count: int, first: int = 0) -> None:
    counts = collections.Counter()
    for seed in range(first, first + count):
        found = outcome(seed)
        kind = found if found in ("equal", "refused", "raises") else "different"
        counts[kind] += 1
        if kind == "different":
            print(f"seed {seed}: {found}\n\n{random_function(seed)}", flush=True)
    print(", ".join(f"{n} {kind}" for kind, n in counts.most_common()))


if __name__ == "__main__":
    jaxpyop.config.constants = "allow"
    warnings.simplefilter("ignore")
    main(*map(int, sys.argv[1:]))

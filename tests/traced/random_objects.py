"""Random functions of five kinds that adversaries found wrong: traced mode gives what Python gives, or refuses.

    python -m tests.traced.random_objects COUNT [SEED]

The kinds are objects of the host that reach the function in some way and answer Python with code of their own, JAX's
loops on paths that are not taken, the identity of values, the scopes of names, and Python's numbers.
"""

# ruff: noqa: E501

from __future__ import annotations

import collections
import random
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.traced.random_functions import module_of
from tests.traced.rows import is_refusal, op

HEADER = "import abc, dataclasses, enum, functools\nimport jax, jax.numpy as jnp, numpy as np\nfrom jax import lax\n\n"

METHODS = [
    *("def __bool__(self): return False", "def __len__(self): return 0", "def __eq__(self, other): return True"),
    *("def __hash__(self): return hash(1)", "def __getattr__(self, name): return 2.0", "def __call__(self, v): return v * 2"),
    *("def __getitem__(self, key): return 3.0", "def __missing__(self, key): return 4.0", "def __iter__(self): return iter([1.0])"),
    *("def __contains__(self, v): return True", "def __add__(self, v): return v + 5.0", "def __radd__(self, v): return v + 6.0"),
    *("def __mul__(self, v): return v * 7.0", "def __rmul__(self, v): return v * 8.0", "def __float__(self): return 9.0"),
    *("def __index__(self): return 1", "def __lt__(self, v): return True", "def __abs__(self): return 10.0"),
    *("def __format__(self, spec): return 'a'", "def __neg__(self): return 11.0", "def __get__(self, o, t=None): return 12.0"),
    *("@property\n    def p(self): return 13.0", "@staticmethod\n    def p(): return 14.0", "@property\n    def __class__(self): return int"),
    *("p = 15.0", "@functools.cached_property\n    def p(self): return 16.0", "def __getattribute__(self, name): return 17.0"),
    *("__slots__ = ()", "def __init__(self, *args): pass", "@classmethod\n    def p(cls): return 18.0", "__name__ = 'name'"),
]  # fmt: skip
BASES = [
    "",
    "",
    "",
    "list",
    "dict",
    "int",
    "float",
    "str",
    "tuple",
    "abc.ABC",
    "metaclass=Meta",
    "enum.Enum",
    "Exception",
]
METAS = ["def __len__(cls): return 0", "def __bool__(cls): return False", "def __iter__(cls): return iter([2.0])",
    "p = property(lambda cls: 19.0)", "def __contains__(cls, v): return True", "def __eq__(cls, o): return True\n    __hash__ = type.__hash__",
    "def __instancecheck__(cls, v): return True", "def __call__(cls, *args): return 20"]  # fmt: skip
# How an object comes into the function.
WAYS = ["O", "O", "Made", "BOX['k']", "LIST[0]", "(*LIST,)[0]", "HOLD.o", "Hold.o", "default()", "list(BOX.values())[0]",
    "dict(BOX)['k']", "{**BOX}['k']", "[*LIST][0]", "LIST.copy()[0]", "(lambda o: o)(**{'o': O})", "BOX.get('k')",
    "[v for v in LIST][0]", "PARTIAL()", "closed()", "(O if x > 0 else O)", "list(KEYS)[0]", "[k for k in KEYS][0]",
    "max(LIST, LIST[:1])[0]", "(LIST + [x])[0]", "TUPLE[0]", "next_of(*LIST)", "METHOD()"]  # fmt: skip
USES = ["x * 2 if <o> else x", "x * len(<o>)", "x * (<o> == 3)", "x * (<o> in [1, 2])", "x * (1 in <o>)", "x * <o>[0]",
    "x * <o>['k']", "x + <o>", "<o> + 1 + x", "x * <o>.p", "x * <o>.p()", "<o>(x)", "x * sum(v for v in <o>)", "x * float(<o>)",
    "x * isinstance(<o>, int)", "x * bool(<o>)", "x * (<o> is O)", "x * max(<o>, 1)", "x * abs(<o>)", "x * (not <o>)",
    "x * {<o>: 2.0}.get(<o>, 1.0)", "x * {1: 3.0}.get(<o>, 1.0)", "x * (f'{<o>}' == 'a')", "x * (<o> < 2)", "x * [1.0, 2.0][<o>]",
    "x * any([<o>])", "x * (<o> != None)", "x * -<o>", "x * (<o> and 2.0)", "x * len([*<o>])", "x * <o>.value", "x * (1 in {<o>})"]  # fmt: skip


def objects(draw: random.Random) -> str:
    base, methods = draw.choice(BASES), draw.sample(METHODS, draw.randint(0, 3))
    members = ["ONE = 1"] if base == "enum.Enum" else []
    body = "".join(f"    {line}\n" for line in [*methods, *members] or ["pass"])
    made = "Made.ONE" if base == "enum.Enum" else "Made()"
    use = draw.choice(USES).replace("<o>", draw.choice(WAYS))
    return f"""\
class Meta(type):
    {draw.choice(METAS)}

class Made({base}):
{body}
O = {made}
BOX, LIST, TUPLE, KEYS, PARTIAL = {{"k": O}}, [O], (O,), {{1: 0.0}}, functools.partial(lambda o: o, O)
try:
    KEYS = {{O: 1.0}}
except Exception:
    pass

class Hold:
    o = O

    def __init__(self):
        self.o = O

    def method(self):
        return self.o

HOLD = Hold()
METHOD = HOLD.method

def default(o=O):
    return o

def next_of(o):
    return o

def make(o):
    return lambda: o

closed = make(O)

def f(x):
    return {use}
"""


LOOPS = [
    "lax.while_loop(lambda s: s[0] != 1, lambda s: (s[0] - 1, s[1] + 0.5), (n, x))[1]",
    "lax.while_loop(lambda s: s[0] != 1, lambda s: (jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1.0), (n, x))[1]",
    "lax.fori_loop(0, n, lambda i, s: s + i, x)",
    "lax.fori_loop(0, 3, lambda i, s: s * 0.5 + lax.while_loop(lambda k: k != 0, lambda k: k - 1, n), x)",
    "lax.cond(n > 2, lambda v: lax.while_loop(lambda k: k != 2, lambda k: k - 1, n) + v, lambda v: v, x)",
    "lax.switch(n, [lambda v: v, lambda v: v * 2, lambda v: v + lax.while_loop(lambda k: k != 1, lambda k: k - 1, n)], x)",
    "lax.scan(lambda s, v: (s + v + lax.while_loop(lambda k: k != 1, lambda k: k - 1, n), None), x, jnp.arange(2.0))[0]",
]
GUARDS = [
    "if n < 1:\n    return x\nreturn <l>",
    "return x * 2 if n < 1 else <l>",
    "return (n >= 1 and <l>) * 1.0",
    "for k in range(3):\n    if n < 1:\n        break\n    x = <l>\nreturn x",
    "while n >= 1 and x < 9:\n    x, n = <l> + 1, n - 1\nreturn x",
    "y = x\nif n >= 1:\n    y = <l>\n    if n >= 2:\n        y = y + <m>\nreturn y",
    "def inner():\n    if n < 1:\n        return 0.0\n    return <l>\nreturn inner() + x",
    "assert n >= -9\nif n >= 1 and <l> > 0:\n    return <m>\nreturn x",
]


def loops(draw: random.Random) -> str:
    text = draw.choice(GUARDS).replace("<l>", draw.choice(LOOPS)).replace("<m>", draw.choice(LOOPS))
    return "def f(x):\n    n = jnp.int32(x * 2)\n    " + text.replace("\n", "\n    ") + "\n"


VALUES = ["x", "+x", "x * 1", "jnp.squeeze(x)", "x.astype(x.dtype)", "None", "a", "b", "[x]", "()", "(1,)", "T", "True",
    "O", "jnp.float32", "int", "1.5", "1", "'a'", "x.reshape(())", "x.T", "jnp.asarray(x)", "abs", "T[0]", "lax.stop_gradient(x)"]  # fmt: skip
ALIASES = ["b = a if x > 0 else [x]", "b = a", "b = a[:]", "b = list(a)", "a, b = b, a", "b.append(0.5)", "a += [x]",
    "a = a + [1.0]", "if x > 0:\n        b = a", "if x > 1:\n        a.append(2.0)", "T2 = (a, b)\n    T2[0].append(3.0)",
    "c = {'k': a}\n    c['k'].append(x)", "for v in (a, b):\n        v.append(0.25)", "x = x + (a is b)", "x = x * (a == b)"]  # fmt: skip


def identity(draw: random.Random) -> str:
    lines = [draw.choice(ALIASES) for _ in range(draw.randint(1, 4))]
    last = f"{draw.choice(VALUES)} {draw.choice(['is', 'is not', 'in', 'not in'])} {draw.choice([*VALUES, '[x, None, 1]'])}"
    lines += draw.choice([[], [f"x = x * 2 + ({last})"]])
    body = "".join(f"    {line}\n" for line in lines)
    return f"O, T = object(), (1, 2)\n\ndef f(x):\n    a, b = [x], [1.0]\n{body}    return x + sum(a) + 2 * sum(b)\n"


SCOPES = ["y = 2.0", "for y in (1.0, 3.0):\n        pass", "z = [y for y in (1.0, x)][-1]", "z = (y := x + 1) * 2",
    "def g():\n        nonlocal y\n        y = y + 1\n    g()", "def g(y=y):\n        return y * 2\n    z = g()",
    "g = lambda: y * 3", "z = g()", "del z", "if x > 0:\n        z = 4.0", "if False:\n        global G\n    z = G",
    "def g():\n        return G\n    z = g()", "try:\n        z = 5.0\n    finally:\n        y = 6.0",
    "match y:\n        case 2.0:\n            z = 7.0\n        case _:\n            z = 8.0", "match 1:\n        case y:\n            pass",
    "try:\n        pass\n    except ValueError as y:\n        pass", "sum = lambda v: 9.0\n    z = sum([x])", "z = [w := x, w + 1][1]",
    "def g(a: E.append(1) or int = 0):\n        return a\n    z = len(E) * 1.0", "z = (lambda y: y + G)(x)", "x, y = y, x",
    "z = {y: x for y in (1, 2)}[2]", "def g():\n        z = 1.0\n        def h():\n            nonlocal z\n            z += x\n        h()\n        return z\n    y = g()",
    "while y > 1:\n        y = y - 1\n        z = y", "fs = [lambda: v for v in (1.0, 2.0)]\n    z = fs[0]()", "z = [q for q in range(2)]\n    z = q",
    "for q in range(0):\n        pass\n    z = q", "z = G = 3.0", "__y = x\n    z = __y", "z = print and x", "assert y, E.append(2)"]  # fmt: skip


def scopes(draw: random.Random) -> str:
    body = "".join(f"    {draw.choice(SCOPES)}\n" for _ in range(draw.randint(2, 5)))
    return (
        f"G, E = 10.0, []\n\ndef f(x):\n    y, z, g = x * 0.5, 0.25, lambda: 0.5\n{body}    return x + 2 * y + 4 * z\n"
    )


# Python's numbers, of which XLA knows more than the interpreter, or less. JAX itself does not always give the same for an
# array and a bool.
ATOMS = [*["y"] * 6, "k", "b", "Z", "float(x > 1)", "int(b)", "k * 0", "0.0", "-0.0", "1.0", "3", "True", "math.inf", "1e16",
    "0.1", "float(ONE)", "(k - k)", "x.item()", "bool(k)"]  # fmt: skip
FORMS = ["(<a> + <b>)", "(<a> - <b>)", "(<a> * <b>)", "(<a> / <b>)", "min(<a>, <b>)", "max(<a>, <b>)", "abs(<a>)", "(-<a>)",
    "(<a> < <b>)", "(<a> >= <b>)", "(<a> == <b>)", "(<a> if <b> > <c> else <c>)", "sum([<a>, <b>])", "(not <a>)", "(+<a>)",
    "(abs(<a>) >= <b>)", "(<a> > 0) * <b>", "<a> * (y > 0)", "(y == y) * <a>", "(1.0 if abs(y) >= <a> else 0.0)", "float(<a>)", "twice(<a>)", "(<a> and <b>)", "(<a> or <b>)"]  # fmt: skip


def numbers(draw: random.Random) -> str:
    def expression(depth: int) -> str:
        text = draw.choice(FORMS)
        for part in "abc":
            deeper = depth > 1 and draw.random() < 0.4
            text = text.replace(f"<{part}>", expression(depth - 1) if deeper else draw.choice(ATOMS))
        return text

    terms = " + ".join(f"{3**k} * told({expression(2)})" for k in range(6))
    return (
        "import math\nONE, ZERO = jnp.ones(()), jnp.zeros(())\n\ndef twice(v):\n    return v + v if v > 0 else v * 2\n\n"
        "def told(v):\n    return min(max(v, -50.0), 50.0) if v == v else 77.0\n\n"
        "def f(x):\n    y, k, Z = float(x), int(x > 0.5), float(ZERO)\n    b = y > 0\n"
        f"    return {terms}\n"
    )


KINDS = {"objects": objects, "loops": loops, "identity": identity, "scopes": scopes, "numbers": numbers}
POINTS = [0.75, -1.0, 1.5]
OF_NUMBERS = [*POINTS, np.nan, -0.0, -np.inf]


def results(made: Any, mode: str, kind: str) -> list[float]:
    points = OF_NUMBERS if kind == "numbers" else POINTS
    if mode == "batch":
        return [float(y) for y in jax.jit(jax.vmap(op(made.f, "traced")))(jnp.asarray(points))]
    run = op(made.f, mode) if mode == "eager" else jax.jit(op(made.f, mode))
    return [float(run(jnp.float32(x))) for x in points]


def outcome(kind: str, seed: int, modes: tuple[str, ...] = ("traced", "batch")) -> str:
    """Says "equal", "refused", or what differs."""
    try:
        made = module_of(text := HEADER + KINDS[kind](random.Random(seed)), seed)
    except Exception:
        return "raises"
    try:
        wanted: Any = results(made, "eager", kind)
    except Exception as error:
        wanted = error
    said = "raises" if isinstance(wanted, Exception) else "equal"
    for mode in modes:
        try:
            got = results(module_of(text, seed), mode, kind)
        except Exception as error:
            if said == "equal":
                if not is_refusal(error) or mode == "auto":
                    return f"{mode} {type(error).__name__}: {error}"
                said = "refused"
            continue
        if said == "raises":
            return f"{mode}: {got}, where Python raises {wanted!r}"
        if said == "equal" and not np.allclose(got, wanted, 1e-5, 1e-5, equal_nan=True):
            return f"{mode}: {got}, wanted {wanted}"
    return said


def text_of(kind: str, seed: int) -> str:
    return KINDS[kind](random.Random(seed))


def main(count: int, first: int = 0) -> None:
    for kind in KINDS:
        counts = collections.Counter()
        for seed in range(first, first + count):
            found = outcome(kind, seed, ("traced", "batch", "auto"))
            counts[found if found in ("equal", "refused", "raises") else "different"] += 1
            if found not in ("equal", "refused", "raises"):
                print(f"{kind} {seed}: {found[:500]}\n\n{text_of(kind, seed)}", flush=True)
        print(kind, ", ".join(f"{n} {k}" for k, n in counts.most_common()), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*map(int, sys.argv[1:]))

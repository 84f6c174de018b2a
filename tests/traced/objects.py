"""Objects from outside that answer Python with code of their own, classes, identity, scopes, and JAX's own loops."""

import abc
import copy
import dataclasses
import enum
import functools
import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np

from tests.traced.rows import Table

TABLE = Table()


class Never(list):
    def __bool__(self):
        return False


class Missing(dict):
    def __missing__(self, key):
        return 7.0


class AttrDict(dict):
    def __getattr__(self, key):
        return self[key]


class EqualToAll:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash(1)


class Number(int):
    def __add__(self, other):
        return 100


class Meta(type):
    def __len__(cls):
        return 0


class Made(metaclass=Meta):
    held = Never()


class Deleted:
    def __delete__(self, instance):
        pass


class Answered(Deleted):
    def __get__(self, instance, owner=None):
        return 7.0


class Holder:
    got, answered = Deleted(), Answered()

    def __init__(self):
        self.__dict__.update(got=5.0, answered=5.0)


class Base:
    def __init__(self, value):
        self.value = value

    def twice(self):
        return 2 * self.value


class Child(Base):
    def __init__(self, value):
        super().__init__(value + 1)

    def twice(self):
        return super().twice() * self.value


class Sized(abc.ABC):
    @property
    def size(self):
        return 5.0

    @abc.abstractmethod
    def twice(self): ...


class Half(Sized):
    def __init__(self, value):
        self.value = value

    @property
    def size(self):
        return super().size / 2 * self.value

    def twice(self):
        return self.value * 2


class Compared(Base):
    def __eq__(self, other):
        return self.value == other.value

    def __hash__(self):
        return 1


COPIED = Compared(3.0)
copy.copy(COPIED)  # leaves a name in its class


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Pair:
    first: float
    second: float = 2.0
    third: float = dataclasses.field(init=False, default=3.0)


class Changed(Pair):
    def __init__(self, first):
        self.first, self.second = first, 5.0


@dataclasses.dataclass
class Grown(Pair):
    more: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.more.append(self.first)


class CountingError(Exception):
    count = 0

    def __init__(self, *args):
        CountingError.count += 1


# No global variable, because doctest asks each one for `__wrapped__`.
def of_attributes(attributes):
    return lambda x: x * attributes.a


def with_class_changed(x):
    base = Base(x)
    base.__class__ = Child
    return base.twice()


NEVER, HOLDER = Never([1]), Holder()
TABLES, LIST, KEYS = {"a": NEVER}, [NEVER], {EqualToAll(): 5.0}
CONSTANTS = [1.0, 2.0]

TABLE.either_all(
    {
        "a list of its own truth": lambda x: x * 2 if NEVER else x,
        "one in a dict": lambda x: x * 2 if TABLES["a"] else x,
        "one among the values": lambda x: sum([x * 2 if v else x for v in TABLES.values()]),
        "one that get gives": lambda x: x * 2 if TABLES.get("a") else x,
        "one in a copy of a list": lambda x: x * 2 if LIST.copy()[0] else x,
        "one in a copy of a dict": lambda x: x * 2 if {**TABLES}["a"] else x,
        "one as a keyword": lambda x: (lambda a: x * 2 if a else x)(**TABLES),
        "one as a default": lambda x, v=NEVER: x * 2 if v else x,
        "one in a partial": functools.partial(lambda v, x: x * 2 if v else x, NEVER),
        "one of a class": lambda x: x * 2 if Made.held else x,
        "a class of a metaclass": lambda x: x * 2 if Made else x,
        "a dict with a default": lambda x: x * Missing(a=1.0)["b"],
        "a dict of attributes": of_attributes(AttrDict(a=2.0)),
        "a key that equals all": lambda x: x * KEYS[1],
        "such a key in a copy": lambda x: x * dict(KEYS).get(1, 1.0),
        "an int with an operator": lambda x: x + (Number(3) + 1),
        "a descriptor": lambda x: x * Holder().got,
        "a descriptor from outside": lambda x: x * HOLDER.got + HOLDER.answered,
        "another class": with_class_changed,
        "the type of an array": lambda x: x * isinstance(x, type(jnp.zeros(()))),
        "an array that is another": lambda x: x * (jnp.squeeze(x) is x) + (+x is x),
        "an error that counts": lambda x: x * CountingError.count if x < 100 else CountingError("no"),
    }
    # Before, Python itself warns that it will answer.
    | ({"a value in an enum": lambda x: x * (1 in Color)} if sys.version_info >= (3, 12) else {}),
    slow=True,
)
TABLE.equal_all(
    {
        "super": lambda x: Child(x).twice(),
        "a property of super": lambda x: Half(x).size,
        "a class with an abstract method": lambda x: Half(x).twice(),
        "an object that was copied": lambda x: COPIED.twice() * x if x > 1 else x,
        "an object beside none": lambda x: x if (COPIED if x > 1 else None) is None else x * 3,
        "a dataclass with the init of a child": lambda x: x * Changed(x).second * Changed(x).third,
        "a dataclass that has grown": lambda x: x * Grown(x).more[0],
        "a key on one path": lambda x: jax.random.normal(jax.random.split(jax.random.key(0))[0] if x > 1 else KEY) * x,
        "items that a mask sets": lambda x: ARRAY.at[ARRAY * x > 2].set(x).sum(),
        "a pullback": lambda x: jax.vjp(lambda v: v**3 if v > 1 else v, x)[1](x)[0],
        "a linearized function": lambda x: jax.linearize(jnp.sin, x)[1](x) if x > 1 else x,
        "an array of two kinds": lambda x: jnp.array([0.0, x if x > 1 else 0]).sum() * 2,
    }
)
TABLE.equal_all(
    {
        "a zero of NumPy": lambda x: (x.astype(jnp.float16) + np.float32(0)).dtype.itemsize + x,
        "a complex zero of NumPy": lambda x: x * (x + np.complex64(0)).dtype.itemsize,
        "a set of constants": lambda x: x * (x.ndim in {0, 1}) * len({*CONSTANTS, 1}),
        "constants and a value": lambda x: sum(CONSTANTS + [x]) + sum([x, x] + CONSTANTS),
        "a default of a dict": lambda x: (lambda d: (d.setdefault("a", []).append(x), d.setdefault("a", 1)[0])[1])({}),
        "a list of constants": lambda x: (lambda a: (a.sort(), a.remove(1), a.index(3))[2] * x)([3, 1, 2]),
        "a product": lambda x: sum([a * b * x for a, b in itertools.product([1, 2], [3.0, 4.0]) if x > a]),
        "constants by a key": lambda x: functools.reduce(lambda a, b: b - a, sorted([3, 1, 2], key=lambda v: -v), x),
        "functions of math": lambda x: math.atan(x) + math.log10(abs(x)),
        "powers": lambda x: pow(x, 2) + round(x) + (-1) ** abs(int(x)) * x,
        "a density": lambda x: jax.scipy.stats.norm.logpdf(x, 0.0, 2.0),
    },
    slow=True,
)
KEY, ARRAY = jax.random.key(1), jnp.arange(4.0)


# Under vmap, JAX runs what is not taken, too. There these loops would not end.


def countdown(n):
    return jax.lax.while_loop(lambda n: n != 0, lambda n: n - 1, n)


@TABLE.equal(points=[3.0, -1.0, 0.0])
def a_loop_of_jax_after_a_return(x):
    if x < 0:
        return x
    return x + countdown(jnp.int32(x))


TABLE.equal_all(
    {
        "a loop of jax beside and": lambda x: (x >= 0 and 2.0 + countdown(jnp.int32(x))) * x,
        "a loop of jax in a branch of jax": lambda x: jax.lax.cond(
            x >= 0, lambda n: countdown(n), lambda n: n, jnp.int32(x)
        ),
        "a counted loop of jax": lambda x: (
            x if x < 0 else jax.lax.fori_loop(0, jnp.int32(x), lambda i, s: s + i, 0) * x
        ),
    },
    points=[3.0, -1.0, 0.0],
    slow=True,
)

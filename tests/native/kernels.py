"""Functions that Numba compiles, with inputs and what they declare."""

import collections
import contextvars
import functools
import typing

import numba
import numpy as np

F, INT = np.float32, np.int32
V = np.array([0.5, -1.25, 2.0], F)
M = np.arange(6, dtype=F).reshape(2, 3)
N = np.array([3, -7, 11], INT)
Z = np.array([1 + 2j, -0.5j, 3], np.complex64)
B = np.array([True, False, True])
njit = numba.njit


@njit
def branches(x):
    if x[0] > 0:
        return x * 2
    return -x


@njit
def loop(x):
    total = 0.0
    for i in range(x.size):
        if x[i] > 0:
            total += x[i] ** 2
    return total


@njit
def collatz(n):
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count


@njit
def writes(x):
    x[0] = 7
    x *= 2
    return x


@njit
def sorts(x):
    x.sort()
    return x


@njit
def several(x, n):
    return x * n[0], n.sum(), x.max()


@njit
def nested(x, pair):
    return x + pair[0] * pair[1]


@njit
def by_keyword(x, scale=2.0, shift=1):
    return x * scale + shift


@njit
def of_a_default_that_changes(x, scale=2.0):
    return x * scale


of_a_default_that_changes.py_func.__defaults__ = (10.0,)


@njit
def raises_below_zero(x):
    if x[0] < 0:
        raise ValueError("below zero")
    return np.sqrt(x)


@njit
def divides(x):
    return 1 / int(x[0])


@njit
def another_shape(x):
    return x[x > 0]


@njit
def wide(n):
    return n * np.int64(2) ** 30


@numba.vectorize
def element_wise(x, y):
    return x * y if x > y else x - y


class Typed(typing.NamedTuple):
    """A function that is compiled for given types, once it is needed: that takes a while."""

    decorate: typing.Any
    types: typing.Any
    func: typing.Any


def compiled(func):
    return func.decorate(func.types)(func.func) if isinstance(func, Typed) else func


@njit(error_model="numpy", fastmath=True)
def quick(x):
    return x / x[0]


@njit(inline="always", fastmath=True)
def quick_and_inlined(x):
    total = F(0)
    for i in range(x.size):
        total += x[i] * F(1.1)
    return total


@njit
def raises_with_values(x):
    if x[0] > 0:
        raise ValueError("above zero", x[0], x.size)
    return x


def refuse(x):
    raise KeyError("in Python")


@njit
def raises_in_python(x):
    with numba.objmode(y="float32[:]"):
        y = refuse(x) if x[0] > 0 else x * 2
    return y  # noqa: RET504  # Numba wants the name.


@njit
def nothing_above_zero(x):
    return None if x[0] > 0 else x


Pair = collections.namedtuple("Pair", "a b")


@njit
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


@njit
def of_any_number(x, *others):
    return x + len(others) + others[0] * others[1]


@njit
def by_literal(x, n):
    return x * numba.literally(n)


@njit
def of_keywords_alone(x=1.0, *, scale=2.0):
    return x * scale * 1


@njit
def yields(x):
    yield x[0]


@njit(boundscheck=True)
def out_of_bounds(x):
    return x[x.size + 2]


@njit(parallel=True)
def parallel(x):
    total = 0.0
    for i in numba.prange(x.size):
        total += x[i]
    return total


@numba.guvectorize(["(f4[:], f4[:], f4[:])"], "(n),(m)->(n)")
def times_sum(x, factors, out):
    for i in range(x.size):
        out[i] = x[i] * factors.sum()


# Ray puts another function in the place of Python's.
print_of_python = print


@njit
def prints(x):
    print_of_python(x.size)
    return x * 2


WIDTH = contextvars.ContextVar("WIDTH", default=1.0)


@njit
def by_a_context_variable(x):
    with numba.objmode(width="float64"):
        width = WIDTH.get()
    return x * width


@njit
def calls_what_enters_python(x):
    return by_a_context_variable(x) + 1


@numba.vectorize
def raises_above_one(x):
    if x > 1:
        raise ValueError("above one")
    return x


@njit
def inner(x):
    return x * 3


@njit
def outer(x):
    return inner(x) + inner(x[::-1])


@njit
def draw(x):
    return x + np.random.random()


@njit
def closing(x):
    return x * SCALE[0] + TABLE.sum()


SCALE, TABLE = (2.5,), np.arange(4.0)


@njit
def over_inputs(x):
    return x.sum(), x.mean(axis=0) if False else x[0]


# Each with its inputs and `Tout`.
KERNELS = {
    "branches": (branches, [V], F),
    "a number of a loop": (loop, [V], F(0)),
    "an integer": (collatz, [INT(6)], INT(0)),
    "an integer that is counted in 64 bits": (njit(lambda n: n.sum()), [N], INT(0)),
    "writes": (writes, [V], F),
    "sorts": (sorts, [V], F),
    "several": (several, [V, N], (F, INT(0), F(0))),
    "one in a list": (branches, [V], [F]),
    "nested": (nested, [V, (V, F(2))], F),
    "keywords": (functools.partial(by_keyword, shift=3), [V], F),
    "a partial": (functools.partial(by_keyword, scale=0.5), [V], F),
    "element-wise": (element_wise, [V, V[::-1].copy()], F),
    "element-wise, raises": (raises_above_one, [V], F),
    "element-wise, out of range": (
        numba.vectorize(lambda x: np.uint8(x)),
        [np.linspace(-300, 300, 64, dtype=F)],
        np.uint8,
    ),
    "generalized": (times_sum, [V, V], F),
    "a print": (prints, [V], F),
    "Python inside of Python": (calls_what_enters_python, [V], F),
    "of one type": (Typed(njit, "float32[:](float32[:])", lambda x: x + F(1)), [V], F),
    "of an integer, gets NaN": (Typed(njit, "i4(i4)", lambda x: x * 3), [F(np.nan)], INT(0)),
    "of a double": (Typed(njit, "f8(f8)", lambda x: x / 3), [F(0.1)], F(0)),
    "of several types": (Typed(njit, ["f4(f4)", "f8(f8)", "i8(i8)"], lambda x: x / 3), [B[0]], F(0)),
    "inlined": (quick_and_inlined, [np.linspace(-1, 2, 1001, dtype=F) ** 3], F(0)),
    "raises with values": (raises_with_values, [V], F),
    "raises in Python": (raises_in_python, [V], F),
    "an optional": (nothing_above_zero, [V], F),
    "a named tuple": (njit(lambda x: Pair(x, x + 1)), [V], (F, F)),
    "no named tuple": (njit(lambda x: (x, x + 1)), [V], Pair(F, F)),
    "recursion": (factorial, [INT(10)], INT(0)),
    "recursion that does not fit": (factorial, [INT(20)], INT(0)),
    "a default that changes": (of_a_default_that_changes, [V], F),
    "an integer of 64 bits": (functools.partial(by_keyword, shift=-(2**63)), [V], F),
    "any number of arguments": (of_any_number, [V, V, F(3)], F),
    "literally": (functools.partial(by_literal, n=3), [V], F),
    "keywords alone": (of_keywords_alone, [V], F),
    "yields": (yields, [V], F),
    "out of bounds": (out_of_bounds, [V], F(0)),
    "parallel": (parallel, [V], F(0)),
    "NaN with bits": (njit(lambda x: x), [np.array([0x7FC12345, 0xFFC00001, 1 << 31, 1], np.uint32).view(F)], F),
    "six axes": (njit(lambda x: x.T), [np.arange(64, dtype=F).reshape((2,) * 6)], np.zeros((2,) * 6, F)),
    "Fortran's order": (njit(lambda x: np.asfortranarray(x)), [M], F),
    "other bits": (njit(lambda x: x.view(np.int32)), [V], INT),
    "fastmath": (quick, [V], F),
    "two functions": (outer, [V], F),
    "closing": (closing, [V], F),
    "a view": (njit(lambda x: x[::-1]), [V], F),
    "the input itself": (njit(lambda x: x), [V], F),
    "a transpose": (njit(lambda x: x.T), [M], np.zeros((3, 2), F)),
    "two axes": (njit(lambda x: np.dot(x, x.T)), [M], np.zeros((2, 2), F)),
    "a row": (njit(lambda x: x[1]), [M], np.zeros(3, F)),
    "an axis of no size": (njit(lambda x: x * 2), [np.zeros((0, 3), F)], F),
    "booleans": (njit(lambda b: ~b), [B], np.bool_),
    "a comparison": (njit(lambda x: x > 0), [V], np.bool_),
    "a bool": (njit(lambda x: x[0] > 0), [V], np.bool_(0)),
    "complex": (njit(lambda z: z * z.conjugate()), [Z], np.complex64),
    "a complex number": (njit(lambda z: z.sum()), [Z], np.complex64(0)),
    "real of complex": (njit(lambda z: z.real), [Z], F),
    "int8": (njit(lambda n: n + n), [N.astype(np.int8)], np.int8),
    "uint8": (njit(lambda n: n // np.uint8(2)), [np.array([3, 200], np.uint8)], np.uint8),
    "integers to floats": (njit(lambda n: n), [N], F),
    "floats from doubles": (njit(lambda x: x.astype(np.float64) / 3), [V], F),
    "a Python float": (njit(lambda: 0.1), [], F(0)),
    "infinities": (njit(lambda x: 1e300 * x.astype(np.float64)), [V], F),
    "subnormal": (njit(lambda x: x.astype(np.float64)[0] * 1e-300 * 1e-10 * 1e300), [V], F(0)),
    "allocates": (njit(lambda x: np.zeros(3) + x.size), [V], F),
    "linear algebra": (njit(lambda x: np.linalg.norm(x)), [V], F(0)),
    "raises": (raises_below_zero, [-V], F),
    "raises not": (raises_below_zero, [V], F),
    "division by zero": (divides, [V], F(0)),
    "another shape": (another_shape, [V], F),
    "does not fit": (wide, [N], INT),
    "too few results": (njit(lambda x: (x, x)), [V], (F, F, F)),
    "another number of axes": (njit(lambda x: x.sum()), [V], F),
    "a float for an integer": (njit(lambda x: x), [V], np.zeros(3, INT)),
    "a string": (njit(lambda x, how: x * len(how)), [V, "abc"], F),
    "a list": (njit(lambda pair: pair[0] + pair[1]), [[V, V]], F),
}

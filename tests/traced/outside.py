"""Functions that read or change what is outside of them: variables, objects, generators, clocks, files."""

from __future__ import annotations

import array
import contextvars
import ctypes
import datetime
import fractions
import io
import itertools
import logging
import operator
import os
import pathlib
import queue
import random
import re
import sys
import time
import types
import uuid

import numpy as np

from tests.traced.rows import Table

TABLE = Table()
COUNT = 0


class Mean:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def __call__(self, v):
        self.count += 1
        return v / self.count


def bump():
    global COUNT
    COUNT += 1
    return 1.0


# ------------------------------------------------------------------------- what is read


@TABLE.equal(made=True)
def an_object_an_array_and_a_dict():
    box = types.SimpleNamespace(value=2.0, log=print, table={"a": [1.0]})
    table = np.asarray([1.0, 2.0, 4.0], np.float32)

    def f(x):
        if x > 3:
            x = x * box.value
        for k in range(3):
            if x > 2:
                x = x / table[k]
        while x > 1:
            x = x / box.value - 0.1 * box.table["a"][0] - table.sum() * 0.01
        return x

    return f


STATE = types.SimpleNamespace(time=2.0)
PATTERN, HALF, PATH = re.compile("a+"), fractions.Fraction(1, 2), pathlib.PurePath("a/b")
DAY, FIRST = datetime.date(2020, 1, 3), operator.itemgetter(0)


TABLE.equal_all({"an attribute with the name of a module": lambda x: x * STATE.time})
TABLE.either_all(
    {
        "a pattern": lambda x: x * len(PATTERN.match("aaab").group()),
        "a getter": lambda x: FIRST([x, 2 * x]),
        "a print to the error stream": lambda x: (print("traced", file=sys.stderr), x)[1],
        "a message of a logger": lambda x: (logging.getLogger("a.user").debug("a message"), x)[1],
    },
)
TABLE.either_all(
    {
        "a fraction, a path and a date": lambda x: x * float(HALF) * len(PATH.parts) * DAY.day,
        "a ufunc": lambda x: x * float(np.hypot(3, 4)),
    },
    slow=True,
)

# ---------------------------------------------------------------------- what is changed


@TABLE.either(made=True)
def a_nonlocal_counter():
    calls = 0.0

    def f(x):
        nonlocal calls
        if x > 3:
            calls += 1.0
        return x + calls

    return f, lambda: calls


@TABLE.either(made=True)
def a_global_counter_of_a_helper():
    global COUNT
    COUNT = 0
    return lambda x: x + (bump() if x > 3 else 0.0) + COUNT, lambda: COUNT


@TABLE.either(made=True)
def a_list():
    kept = [1.0]

    def f(x):
        if x > 3:
            kept.append(2.0)
        return x * sum(kept)

    return f, lambda: list(kept)


@TABLE.either(made=True)
def values_that_are_kept():
    kept = []

    def f(x):
        kept.append(x)
        return x * 2

    return f, lambda: [float(v) for v in kept]


@TABLE.either(made=True)
def an_array_of_numpy():
    b = np.ones(2, np.float32)

    def f(x):
        if x > 3:
            b[:] = b + 1
        return x * b.sum()

    return f, lambda: b.tolist()


@TABLE.either(made=True)
def an_attribute():
    box = types.SimpleNamespace(value=1.0)

    def f(x):
        box.value = box.value + 1.0
        return x * box.value

    return f, lambda: box.value


@TABLE.either(made=True)
def a_count():
    it = itertools.count()
    return lambda x: x + next(it), lambda: repr(it)


# --------------------------------------------------------------------- what draws numbers


@TABLE.either(made=True)
def a_generator_of_numpy():
    rng = np.random.default_rng(0)
    return lambda x: x + rng.normal(), lambda: rng.bit_generator.state["state"]["state"]


@TABLE.either(made=True)
def the_generator_of_python():
    random.seed(0)
    return lambda x: x * random.random(), lambda: hash(random.getstate())


# --------------------------------------- what is never in a program: each call is another

SECONDS = time.perf_counter
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
NUMBER, QUEUE, TEXT, BYTES = ctypes.c_int(0), queue.Queue(), io.StringIO(), bytearray(8)
ARRAY = array.array("d")


def counted(v):
    COUNTS.append(1)
    return v * len(COUNTS)


COUNTS: list[int] = []
VECTORIZED = np.vectorize(counted)


class Timed:
    now = property(lambda self: time.process_time())


class Clock:
    def now(self):
        return time.time()


def imports_the_time(x):
    import time as clock
    from time import thread_time

    return x + clock.monotonic() % 1 + thread_time()


def opens_a_file(x):
    with open(__file__) as file:
        return x + len(file.read())


def imports_what_nothing_imported(x):
    import a_module_of_nobody as m  # pyright: ignore[reportMissingImports]

    return m.f(x)


def adds_to(change):
    """A function that changes something, and reads it."""

    def f(x):
        return x * change()

    return f


def set_variable():
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def set_number():
    NUMBER.value += 1
    return NUMBER.value


READS = {
    "the time": (lambda x: x + time.time() % 1, "time"),
    "a name of the time": (lambda x: x + SECONDS() % 1, "SECONDS|perf_counter"),
    "the time in a method": (lambda x: x + Clock().now() % 1, "time"),
    "the time in a property": (lambda x: x + Timed().now, "time|now"),
    "the date": (lambda x: x + datetime.datetime.now().microsecond, "datetime"),
    "an identifier": (lambda x: x + uuid.uuid4().int % 7, "uuid"),
    "the environment": (lambda x: x + len(os.getenv("HOME", "")), "getenv"),
    "random bytes": (lambda x: x + os.urandom(1)[0], "urandom"),
    "a new generator": (lambda x: x + np.random.default_rng().normal(), "default_rng"),
    "a new generator of Python": (lambda x: x + random.Random().random(), "Random"),
    "an import of the time": (imports_the_time, "time|import"),
    "an import of what is unknown": (imports_what_nothing_imported, "a_module_of_nobody|import"),
    "an import by its name": (lambda x: x + __import__("time").time(), "__import__"),
    "an attribute by its name": (lambda x: x + getattr(np, "loadtxt")("number.txt"), "loadtxt|getattr"),  # noqa: B009
    "all modules": (lambda x: x + len(sys.modules), "modules"),
    "all global variables": (lambda x: x + len(globals()), "globals"),
    "a text that is evaluated": (lambda x: eval("x + 1", {"x": x}), "eval"),
    "an open file": (opens_a_file, "open"),
    "a file of NumPy's": (lambda x: x + np.load("number.npy"), "load"),
}
CHANGES = {
    "a context variable": set_variable,
    "a number of C": set_number,
    "a queue": lambda: (QUEUE.put(1), QUEUE.qsize())[1],
    "a text in memory": lambda: (TEXT.write("a"), len(TEXT.getvalue()))[1],
    "what is printed": lambda: (print("a", file=TEXT), len(TEXT.getvalue()))[1],
    "bytes": lambda: (BYTES.append(1), len(BYTES))[1],
    "an array of numbers": lambda: (ARRAY.append(1.0), len(ARRAY))[1],
    "a vectorized function": lambda: float(VECTORIZED(1.0)),
}

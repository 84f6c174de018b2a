"""Functions that read or change what is outside of them: variables, objects, generators, clocks, files."""

from __future__ import annotations

import time
import types

import numpy as np

from tests.traced.rows import Table

TABLE = Table()
COUNT = 0


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


TABLE.equal_all({"an attribute with the name of a module": lambda x: x * STATE.time})
TABLE.either_all({"a ufunc": lambda x: x * float(np.hypot(3, 4))})

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
def an_array_of_numpy():
    b = np.ones(2, np.float32)

    def f(x):
        if x > 3:
            b[:] = b + 1
        return x * b.sum()

    return f, lambda: b.tolist()


# --------------------------------------- what is never in a program: each call is another


def imports_the_time(x):
    import time as clock
    from time import thread_time

    return x + clock.monotonic() % 1 + thread_time()


READS = {
    "the time": (lambda x: x + time.time() % 1, "time"),
    "a new generator": (lambda x: x + np.random.default_rng().normal(), "default_rng"),
    "an import": (imports_the_time, "import it at the top of the file"),
    "an attribute by its name": (lambda x: x + getattr(np, "loadtxt")("number.txt"), "loadtxt|getattr"),  # noqa: B009
    "a text that is evaluated": (lambda x: eval("x + 1", {"x": x}), "eval"),
}

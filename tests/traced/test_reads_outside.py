"""A body that asks for the time, a file or random numbers is refused in traced mode, and called in "auto"."""

from __future__ import annotations

import datetime
import os
import random
import sys
import time
import uuid
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
import tests.shared.python_helpers  # noqa: F401

F = jnp.float32
_seconds = time.perf_counter


class Clock:
    def now(self):
        return time.time()


_clock = Clock()


class Ticks(type):
    def __call__(cls):
        return time.time()


class Tick(metaclass=Ticks):
    def __iter__(self):
        yield time.perf_counter()


class Field:
    def __get__(self, *_):
        return time.process_time()


class Timed:
    now = Field()


def _import(x):
    import time as clock

    return x + clock.monotonic() % 1


def _import_a_name(x):
    from time import thread_time

    return x + thread_time()


def _import_a_part(x):
    import numpy.random as draws

    return x + draws.default_rng().normal()


def _open(x):
    with open(__file__) as file:
        return x + len(file.read())


def _import_what_nothing_imported(x):
    import a_module_of_nobody as m  # pyright: ignore[reportMissingImports]

    return m.f(x)


def _import_a_module_of_a_package(x):
    from tests.shared import a_module_of_nobody as m  # pyright: ignore[reportAttributeAccessIssue]

    return m.f(x)


def _import_by_dots(x):
    from ..shared import a_module_of_nobody as m  # pyright: ignore[reportAttributeAccessIssue]

    return m.f(x)


READING = {
    "time": (lambda x: x + time.time() % 1, "time.time"),
    "a name of it": (lambda x: x + _seconds() % 1, "_seconds"),
    "in a method": (lambda x: x + _clock.now() % 1, "time.time"),
    "datetime": (lambda x: x + datetime.datetime.now().microsecond, "datetime.datetime"),
    "uuid": (lambda x: x + uuid.uuid4().int % 7, "uuid.uuid4"),
    "environment": (lambda x: x + len(os.getenv("HOME", "")), "os.getenv"),
    "random bytes": (lambda x: x + os.urandom(1)[0], "os.urandom"),
    "numpy's generator": (lambda x: x + np.random.default_rng().normal(), "np.random.default_rng"),
    "an old one": (lambda x: x + np.random.RandomState().normal(), "np.random.RandomState"),
    "python's generator": (lambda x: x + random.Random().random(), "random.Random"),
    "a class of a metaclass": (lambda x: x + Tick(), "time.time"),
    "an iterator": (lambda x: x + sum(type.__call__(Tick)), "time.(time|perf_counter)"),
    "a descriptor": (lambda x: x + Timed.now, "time.process_time"),
    "an import in the function": (_import, "time.monotonic"),
    "an imported name": (_import_a_name, "time.thread_time"),
    "an imported part": (_import_a_part, "numpy.random.default_rng"),
    "an import by its name": (lambda x: x + __import__("time").time(), "__import__"),
    "an attribute by its name": (lambda x: x + getattr(np, "loadtxt")("number.txt"), "np.loadtxt"),  # noqa: B009
    "what nothing imported yet": (_import_what_nothing_imported, "a_module_of_nobody"),
    "a module of a package": (_import_a_module_of_a_package, "a_module_of_nobody"),
    "a module by dots": (_import_by_dots, "a_module_of_nobody"),
    "all modules": (lambda x: x + len(sys.modules), "sys.modules"),
    "all global variables": (lambda x: x + len(globals()), "globals"),
    "a text that is evaluated": (lambda x: eval("x + 1", {"x": x}), "eval"),
    "a text that is run": (lambda x: exec("y = 1") or x, "exec"),
    "an open file": (_open, "open"),
    "a file": (lambda x: x + np.load("number.npy"), "np.load"),
}


@pytest.mark.parametrize(("body", "name"), READING.values(), ids=READING)
def test_what_is_read_from_outside_is_refused(body, name):
    f = jax.jit(lambda x: jaxpyop.py_function(body, [x], F, mode="traced"))
    with pytest.raises(TypeError, match=rf"test_reads_outside.py:\d+: `{name}` gives a time, random numbers, or"):
        f(1.0)


@pytest.mark.parametrize(("body", "name"), READING.values(), ids=READING)
def test_auto_calls_what_reads_from_outside(body, name):
    op = lambda x: jaxpyop.py_function(body, [x], F, mode="auto", output_shapes=())
    assert "python_call" in str(jax.make_jaxpr(op)(1.0))


class State:
    def __init__(self):
        self.time = jnp.float32(2.0)


_state = State()


def _logs(x):
    warnings.warn("once", stacklevel=1)
    return x


def _import_of_jax(x):
    from jax.scipy import special

    return special.expit(x)


def _import_of_this_package(x):
    from tests.shared.python_helpers import halve

    return halve(x)


KEPT = {
    "an attribute of such a name": lambda x: x * _state.time,
    "a warning": _logs,
    "an import of JAX's": _import_of_jax,
    "an import of what is known": _import_of_this_package,
    "jax's generator": lambda x: x + jax.random.normal(jax.random.key(0)),
    "a library that is not known": lambda x: x * len(pytest.approx(1.0).__class__.__name__),
}


def check_traced(body):
    """The body becomes a part of the program, and gives what it gives when it is called."""
    op = lambda x, mode: jaxpyop.py_function(body, [x], F, mode=mode, output_shapes=())
    assert "python_call" not in str(jax.make_jaxpr(lambda x: op(x, "traced"))(1.0))
    traced, eager = (jax.jit(lambda x, mode=mode: op(x, mode))(1.0) for mode in ("traced", "eager"))
    np.testing.assert_allclose(traced, eager, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:once")
@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_what_gives_no_value_from_outside_is_traced(body):
    check_traced(body)


def test_auto_calls_a_library_that_is_not_known():
    op = lambda x: jaxpyop.py_function(KEPT["a library that is not known"], [x], F, mode="auto", output_shapes=())
    assert "python_call" in str(jax.make_jaxpr(op)(1.0))

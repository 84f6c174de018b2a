"""Shapes are inferred once for a function that reads constants alone, and anew for every other one.

Each body returns two numbers, because of something that it reads, and three once that has changed.
"""

from __future__ import annotations

import functools
import gc
import math
import os
import random
import sys
import tempfile
import time
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._op.body import shape_cache as inferred
from jaxpyop._op.body import user as bodies
from jaxpyop._paths.follow import explore as follow
from tests.shared.util import py_function

F = jnp.float32
N = 2
SIZES = types.ModuleType("sizes_of_a_user")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    inferred._found.clear()
    SIZES.n = 2
    monkeypatch.setitem(sys.modules, SIZES.__name__, SIZES)


@pytest.fixture
def runs(monkeypatch):
    """The abstract runs of bodies."""
    found = []
    infer = bodies.infer_shapes
    monkeypatch.setattr(bodies, "infer_shapes", lambda f, args, **kwargs: found.append(1) or infer(f, args, **kwargs))
    return found


def shape(body, *args, **options):
    """What a program says that the body returns."""
    return jax.make_jaxpr(lambda *args: py_function(body, args, F, **options))(*(args or (0.5,))).out_avals[0].shape


def _ask(x):
    return jnp.sin(float(x))


def _loops(x):
    while x > 1:
        x = x / 2
    return np.sin(x)


def _helper(n):
    return jnp.ones(n + N - 2)


def _twice(x):
    return jnp.stack([x, x])


def _jitted(x):
    return jnp.zeros(N) + x


# What gives a body; each is called twice, and the body is traced twice.
KNOWN = {
    "one function": lambda: _twice,
    "a lambda made anew": lambda: lambda x: jnp.stack([x, x]),
    "over a number": lambda n=2: lambda x: jnp.full(n, x),
    "over a tuple": lambda n=2: (lambda sizes: lambda x: jnp.full(sizes, x))((n, n)),
    "over a function of its own": lambda n=2: (lambda make: lambda x: make(x))(lambda x: jnp.full(n, x)),
    "over a dtype": lambda dtype=jnp.float32: lambda x: jnp.zeros(2, dtype) + x,
    "a global, and a helper": lambda: lambda x: _helper(2) + x,
    "a default": lambda n=2: lambda x, n=n: jnp.full(n, x),
    "a function of JAX's": lambda f=jnp.atleast_2d: f,
    "a vmapped function": lambda: lambda x: jax.vmap(lambda y: y * x)(jnp.ones(2)),
    "Python's modules": lambda: lambda x: jnp.full(int(math.sqrt(4)), x),
    "that asks for a value": lambda: _ask,
    "with a loop on a value": lambda: _loops,
    "that calls itself": lambda: _recursive,
}


def _recursive(x, depth=2):
    return _recursive(jnp.stack([x, x]), depth - 1) if depth else x


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_once(make, runs):
    first = shape(make())
    assert len(runs) == 1
    assert shape(make()) == first
    assert len(runs) == 1


def test_once_for_each_type(runs):
    for x in (0.5, jnp.ones(3), jnp.ones(3), jnp.ones(4), 1, 0.5):
        shape(_twice, x)
    assert len(runs) == 4
    with jax.enable_x64(True):
        shape(_twice, 0.5)
    assert len(runs) == 5


def test_once_for_each_static_input(runs):
    def body(x, how):
        return jnp.full(2 if how == "two" else 3, x)

    def shape_of(how):
        return jax.eval_shape(lambda x: py_function(body, [x, how], F), 0.5).shape

    assert [shape_of(how) for how in ("two", "three", "two")] == [(2,), (3,), (2,)]
    assert len(runs) == 2


class Model:
    n = 2

    def method(self, x):
        return jnp.full(self.n, x)


def _change_global(monkeypatch):
    monkeypatch.setitem(globals(), "N", 3)


def _of_an_object():
    model = Model()
    return model.method, lambda _: setattr(model, "n", 3)


def _over_an_object():
    model = Model()
    return lambda x: jnp.full(model.n, x), lambda _: setattr(model, "n", 3)


def _over_a_class():
    return lambda x: jnp.full(Model.n, x), lambda patch: patch.setattr(Model, "n", 3)


def _over_a_list():
    sizes = [2]
    return lambda x: jnp.full(sizes[0], x), lambda _: sizes.__setitem__(0, 3)


def _over_a_set():
    sizes = {1, 2}
    return lambda x: jnp.full(len(sizes), x), lambda _: sizes.add(3)


def _over_a_dict_in_a_dict():
    sizes = {"a": {"n": 2}}
    return lambda x: jnp.full(sizes["a"]["n"], x), lambda _: sizes["a"].update(n=3)


def _over_an_array():
    sizes = np.array([2])
    return lambda x: jnp.full(sizes[0], x), lambda _: sizes.__setitem__(0, 3)


def _over_a_large_array():
    sizes = np.full(10_000, 2)
    return lambda x: jnp.full(sizes[5000], x), lambda _: sizes.__setitem__(5000, 3)


def _over_a_jax_array():
    size = jnp.int32(2)

    def change(_):
        nonlocal size
        size = jnp.int32(3)

    return lambda x: jnp.full(int(size), x), change


def _over_a_variable():
    n = 2

    def change(_):
        nonlocal n
        n = 3

    return lambda x: jnp.full(n, x), change


def _over_an_attribute_of_a_function():
    def body(x):
        return jnp.full(body.n, x)

    body.n = 2
    return body, lambda _: setattr(body, "n", 3)


def _over_other_code():
    def body(x):
        return jnp.full(2, x)

    return body, lambda _: setattr(body, "__code__", (lambda x: jnp.full(3, x)).__code__)


def _over_another_default():
    def body(x, n=2):
        return jnp.full(n, x)

    return body, lambda _: setattr(body, "__defaults__", (3,))


def _over_a_module():
    return lambda x: jnp.full(SIZES.n, x), lambda patch: patch.setattr(SIZES, "n", 3)


def _over_a_function_of_a_module():
    SIZES.make = lambda x: jnp.full(2, x)
    return lambda x: SIZES.make(x), lambda patch: patch.setattr(SIZES, "make", lambda x: jnp.full(3, x))


def _over_a_module_under_two_names():
    global OTHER
    OTHER = types.ModuleType("other_sizes_of_a_user")
    OTHER.n, OTHER.m = 2, 1

    def m():
        return OTHER.m

    return lambda x: jnp.full(m() and OTHER.n, x), lambda patch: patch.setattr(OTHER, "n", 3)


def _over_an_attribute_that_a_module_makes():
    sizes = types.ModuleType("sizes_on_demand")
    found = [2]
    sizes.__getattr__ = lambda name: found[0]
    return lambda x: jnp.full(sizes.n, x), lambda _: found.__setitem__(0, 3)


def _over_the_dict_of_a_module():
    return lambda x: jnp.full(SIZES.__dict__["n"], x), lambda patch: patch.setattr(SIZES, "n", 3)


def _over_the_globals_of_a_function():
    return lambda x: jnp.full(_helper.__globals__["N"], x), _change_global


def _over_an_import():
    def body(x):
        import sizes_of_a_user

        return jnp.full(sizes_of_a_user.n, x)

    return body, lambda patch: patch.setattr(SIZES, "n", 3)


def _over_a_partial():
    sizes = [2]
    return functools.partial(lambda sizes, x: jnp.full(sizes[0], x), sizes), lambda _: sizes.__setitem__(0, 3)


def _over_an_environment_variable():
    os.environ["A_SIZE_OF_A_USER"] = "2"
    body = lambda x: jnp.full(int(os.environ["A_SIZE_OF_A_USER"]), x)
    return body, lambda patch: patch.setenv("A_SIZE_OF_A_USER", "3")


def _over_a_name_in_a_string():
    return lambda x: jnp.full(getattr(SIZES, "n"), x), lambda patch: patch.setattr(SIZES, "n", 3)  # noqa: B009


def _over_a_setting():
    config = jaxpyop.config
    config.max_records = 2
    return lambda x: jnp.full(jaxpyop.config.max_records, x), lambda patch: patch.setattr(config, "max_records", 3)


def _over_a_file():
    path = f"{tempfile.gettempdir()}/numbers_of_a_user_{os.getpid()}"
    np.savetxt(path, np.ones(2))
    return lambda x: np.fromregex(path, "(1)", [("n", F)])["n"] + x, lambda _: np.savetxt(path, np.ones(3))


def _over_an_iterator():
    sizes = iter([2, 3])
    return lambda x: jnp.full(next(sizes), x), lambda _: None


def _over_random_numbers():
    np.random.seed(0)
    return lambda x: jnp.full(2 + (np.random.rand() > 2), x), lambda patch: patch.setattr(np.random, "rand", lambda: 3)


def _over_time():
    return lambda x: jnp.full(2 + (time.time() < 0), x), lambda patch: patch.setattr(time, "time", lambda: -1)


def _over_pythons_random_numbers():
    return lambda x: jnp.full(2 + (random.random() > 2), x), lambda patch: patch.setattr(random, "random", lambda: 3)


CHANGED = {
    "a global": lambda: (lambda x: jnp.full(N, x), _change_global),
    "a global of a helper": lambda: (lambda x: _helper(2) + x, _change_global),
    "a global of a nested function": lambda: (lambda x: (lambda: jnp.full(N, x))(), _change_global),
    "a global of a jitted function, traced before": lambda: (lambda x: jax.jit(_jitted)(x), _change_global),
    "an object, of a method": _of_an_object,
    "an object": _over_an_object,
    "a class": _over_a_class,
    "a list": _over_a_list,
    "a set": _over_a_set,
    "a dict in a dict": _over_a_dict_in_a_dict,
    "an array": _over_an_array,
    "a large array": _over_a_large_array,
    "a jax.Array": _over_a_jax_array,
    "a variable": _over_a_variable,
    "an attribute of a function": _over_an_attribute_of_a_function,
    "other code": _over_other_code,
    "another default": _over_another_default,
    "a module": _over_a_module,
    "a function of a module": _over_a_function_of_a_module,
    "a module, under two names": _over_a_module_under_two_names,
    "an attribute that a module makes": _over_an_attribute_that_a_module_makes,
    "the dict of a module": _over_the_dict_of_a_module,
    "the globals of a function": _over_the_globals_of_a_function,
    "an import": _over_an_import,
    "a list, of a partial": _over_a_partial,
    "an environment variable": _over_an_environment_variable,
    "a name in a string": _over_a_name_in_a_string,
    "a setting": _over_a_setting,
    "a file": _over_a_file,
    "an iterator": _over_an_iterator,
    "random numbers": _over_random_numbers,
    "Python's random numbers": _over_pythons_random_numbers,
    "the time": _over_time,
}


@pytest.mark.parametrize("make", CHANGED.values(), ids=CHANGED)
def test_what_changed_is_seen(make, monkeypatch):
    monkeypatch.setattr(jaxpyop.config, "max_records", jaxpyop.config.max_records)  # to be put back
    body, change = make()
    assert shape(body) == (2,)
    change(monkeypatch)
    jax.jit(_jitted).clear_cache()  # JAX's own does not see it
    assert shape(body) == (3,)


class Proxy:
    def __getattr__(self, name):
        raise RuntimeError("outside of its context")


def test_an_object_that_cannot_be_looked_at():
    proxy = Proxy()
    assert shape(lambda x: x if proxy is None else jnp.stack([x, x])) == (2,)


def _of_a_closure(value):
    return lambda x: jnp.stack([x, value(x)])


def _of_a_default(value):
    return lambda x, value=value: jnp.stack([x, value(x)])


@pytest.mark.parametrize("make", [_of_a_closure, _of_a_default], ids=lambda f: f.__name__)
def test_nothing_is_kept_alive(make):
    value = lambda x: x + 1
    body = make(value)
    kept = [weakref.ref(value), weakref.ref(body)]
    assert shape(body) == (2,)
    assert inferred._found
    del value, body
    gc.collect()
    assert [ref() for ref in kept] == [None, None]


def test_as_many_are_kept_as_there_is_room(runs, monkeypatch):
    monkeypatch.setattr(inferred, "_MAX_SHAPES", 2)
    for n in (1, 2, 3, 2, 3, 1):
        shape(lambda x, n=n: jnp.full(n, x))
    assert len(runs) == 4
    assert len(inferred._found) == 2


def test_an_attempt_that_took_too_long_is_made_again(runs, monkeypatch):
    body = lambda x: float(x)
    monkeypatch.setattr(follow, "_SHAPE_SECONDS", -1.0)
    shape(body)
    monkeypatch.setattr(follow, "_SHAPE_SECONDS", 5.0)
    assert [shape(body), shape(body), len(runs)] == [(), (), 2]

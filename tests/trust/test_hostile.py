"""Bodies of every odd kind, with odd closures, that raise odd exceptions.

What a body may return is in test_results.py and test_hostile_results.py,
which exceptions come out in test_errors.py, closures and kinds of callables in
test_calls.py and test_closures.py: only what those leave out is here.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.error_cases import ReadOnlyNotes
from tests.shared.util import both_sides, numpy_function, py_function, run

F = jnp.float32


# --------------------------------------------------------------- kinds of func


class Holder:
    def __init__(self, by=-1.0):
        self.by = by

    def scaled(self, by, x):
        return by * x

    @property
    def as_property(self):
        return lambda x: -x

    negated = functools.partialmethod(scaled, -1)

    @staticmethod
    def static(x):
        return -x

    @classmethod
    def of_class(cls, x):
        return -x


class Meta(type):
    def __call__(cls, x):
        return -x


class Made(metaclass=Meta):
    pass


class ByGetattr:
    def __getattr__(self, name):
        raise AttributeError(f"nothing named {name}")

    def __call__(self, x):
        return -x


@functools.singledispatch
def dispatched(x):
    return -x


@jax.custom_vjp
def with_custom_vjp(x):
    return -x


with_custom_vjp.defvjp(lambda x: (-x, None), lambda _, ct: (-ct,))

KINDS = {
    "operator": operator.neg,
    "method of an array": jnp.float32(0).__sub__,
    "partial of an operator": functools.partial(operator.mul, -1),
    "partialmethod": Holder().negated,
    "property that gives a function": Holder().as_property,
    "static method": Holder.static,
    "staticmethod object": staticmethod(lambda x: -x),
    "class method": Holder.of_class,
    "bound partial": types.MethodType(functools.partial(lambda self, x: -x), Holder()),
    "class made by a metaclass": Made,
    "object without a name": ByGetattr(),
    "singledispatch": dispatched,
    "twice wrapped": functools.wraps(np.sin)(functools.wraps(np.cos)(lambda *a, **k: -a[0])),
    "custom_vjp": with_custom_vjp,
    "checkpointed": jax.checkpoint(lambda x: -x),
    "vmapped": lambda x: jax.vmap(jnp.negative)(jnp.asarray(x)[None])[0],
    "np.vectorize": np.vectorize(lambda x: -x, otypes=[np.float32]),
    "frompyfunc": lambda x: np.float32(np.frompyfunc(lambda v: -v, 1, 1)(np.asarray(x))),
    "jitted with an op in it": jax.jit(lambda x: numpy_function(np.negative, [x], F)),
}


@pytest.mark.parametrize("func", KINDS.values(), ids=KINDS)
@both_sides
def test_every_kind_of_callable(api, func, route):
    f = lambda x: api(func, [x], F, output_shapes=())
    assert route(f, F(3)) == -3
    np.testing.assert_array_equal(route(jax.vmap(f), jnp.arange(3.0)), -jnp.arange(3.0))


SCALAR_FUNCTIONS = {"builtin class": float, "C function": math.sin, "builtin": abs, "ufunc": np.exp}


@pytest.mark.parametrize("func", SCALAR_FUNCTIONS.values(), ids=SCALAR_FUNCTIONS)
@both_sides
def test_functions_of_python_numbers(api, func, route):
    y = route(lambda x: api(func, [x], F, output_shapes=()), F(-2))
    np.testing.assert_allclose(y, func(-2.0), rtol=1e-6)


@both_sides
def test_a_cached_function_says_that_arrays_are_unhashable(api, route):
    cached = functools.lru_cache(lambda x: -x)
    with pytest.raises(TypeError, match="unhashable"), jaxpyop.reraise():
        route(lambda x: api(cached, [x], F, output_shapes=()), F(3))
    assert route(lambda: api(functools.lru_cache(lambda: 3.0), [], F, output_shapes=())) == 3


TRACED_KINDS = ["operator", "partialmethod", "class method", "bound partial", "class made by a metaclass", "custom_vjp"]


@pytest.mark.parametrize("kind", TRACED_KINDS)
def test_every_kind_of_callable_is_traced(kind):
    f = lambda x: py_function(KINDS[kind], [x], F, mode="traced")
    assert jax.jit(f)(3.0) == -3
    assert jax.jit(jax.grad(f))(3.0) == -1


# ------------------------------------------------------------ traced surroundings


def decorated(x):
    @functools.wraps(np.sin)
    def body(y):
        return y + x

    return body


def by_nested_default(x):
    def inner(y, add=lambda y: y + x):
        return add(y)

    return inner


def by_partial_of_partial(x):
    return functools.partial(functools.partial(lambda a, b, y: a + b + y, x), 1.0)


SURROUNDINGS = {
    "decorated": (decorated, "x"),
    "function as a default": (by_nested_default, "x"),
    "partial of partial": (by_partial_of_partial, "argument 0 of functools.partial"),
    "bound to self": (lambda x: types.MethodType(lambda self, y: self + y, x), "self"),
    "list in a partial": (
        lambda x: functools.partial(lambda xs, y: xs[0] + y, [x]),
        "argument 0 of functools.partial",
    ),
}


@pytest.mark.parametrize(("make", "name"), SURROUNDINGS.values(), ids=SURROUNDINGS)
@both_sides
def test_traced_values_around_are_named(api, make, name):
    f = jax.jit(lambda x: api(make(x), [2.0], F, output_shapes=()))
    with pytest.raises(ValueError, match=rf"func uses '{name}' from the code around it.*pass it through inp"):
        f(1.0)


class Cached:
    def __init__(self, x):
        self.box = {"deep": [x]}

    @functools.cached_property
    def value(self):
        return self.box["deep"][0]

    def __call__(self, y):
        return y + self.value


@pytest.mark.parametrize(
    "make",
    [Cached, lambda x: functools.lru_cache(lambda *_: x), lambda x: functools.partialmethod(lambda s, y: y + x)],
    ids=["attribute", "cached function", "partialmethod"],
)
def test_traced_values_that_only_the_body_finds(make, transport):
    func = make
    op = lambda x: py_function(lambda y, f=None: call(func, x)(y), [2.0], F, output_shapes=())
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"pass it through inp"):
        jax.block_until_ready(jax.jit(op)(1.0))


def call(make, x):
    made = make(x)
    return made.__get__(object(), object) if isinstance(made, functools.partialmethod) else made


def test_lists_that_hold_themselves_in_a_closure(route):
    ring = []
    ring.append(ring)
    assert route(lambda x: numpy_function(lambda x: x + len(ring), [x], F), F(1)) == 2


# -------------------------------------------------------------------- exceptions


def circular():
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def with_odd_notes():
    error = ValueError("mine")
    error.__notes__ = 3
    return error


class Unpicklable(Exception):  # noqa: N818
    def __init__(self, one, two, *, three):
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("not to be pickled")


class EndlessStr(Exception):  # noqa: N818
    def __str__(self):
        return str(self)


def endless(x):
    return endless(x)


def raising(make):
    def body(x):
        raise make()

    return body


FAILURES = {
    "circular causes": (raising(circular), ValueError),
    "unpicklable": (raising(lambda: Unpicklable(1, 2, three=3)), Unpicklable),
    "endless __str__": (raising(lambda: EndlessStr("mine")), EndlessStr),
    "endless recursion": (endless, RecursionError),
    "more memory than there is": (lambda x: np.empty(2**50, np.float32), MemoryError),
    "wrong number of arguments": (lambda x, y: x, TypeError),
    "an exception class that cannot be made": (lambda x: (_ for _ in ()).throw(Unpicklable), TypeError),
    "exit by sys.exit(text)": (raising(lambda: SystemExit("text")), SystemExit),
}
PROGRAMS = {
    "direct": lambda op: op,
    "jit": jax.jit,
    "vmap": lambda op: lambda x: jax.vmap(op)(x[None])[0],
    "jit of vmap": lambda op: jax.jit(lambda x: jax.vmap(op)(x[None])[0]),
    "jit of grad": lambda op: jax.jit(jax.grad(op)),
}


@pytest.mark.parametrize(("func", "kind"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@both_sides
def test_odd_failures_come_out_and_the_next_call_is_right(api, program, func, kind, transport):
    fails = [True]
    options = {"vjp": lambda i, o, c: 2 * c[0]} if api is numpy_function else {}
    body = lambda x: func(x) if fails[0] else x * 2
    f = program(lambda x: api(body, [x], F, output_shapes=(), **options))
    for fails[0] in (True, False, True, False):  # the body reads it
        if fails[0]:
            error = raised_by(run, f, F(1))
            assert isinstance(error, kind)
        else:
            assert run(f, F(1)) == 2


def raised_by(f, *args):
    try:
        f(*args)
    except BaseException as error:  # pytest.raises asks for the text, which some do not have
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("make", [with_odd_notes, lambda: ReadOnlyNotes("mine")], ids=["no list", "read-only"])
@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_exceptions_that_take_no_notes(make, method, transport):
    """Under a bare vmap JAX itself fails to add its note."""
    f = jax.jit(jax.vmap(lambda x: numpy_function(raising(make), [x], F, vmap_method=method)))
    assert type(raised_by(run, f, jnp.arange(3.0))) is type(make())


@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize("program", ["vmap", "jit of vmap", "scan", "parallel"])
def test_a_failure_after_some_results(program, at, transport):
    fails = [True]

    def body(x):
        if fails[0] and x == at:
            raise KeyError(at)
        return x * 2

    method = "parallel" if program == "parallel" else "sequential"
    op = lambda x: numpy_function(body, [x], F, vmap_method=method)
    f = {
        "vmap": jax.vmap(op),
        "jit of vmap": jax.jit(jax.vmap(op)),
        "parallel": jax.jit(jax.vmap(op)),
        "scan": jax.jit(lambda x: jax.lax.scan(lambda c, v: (c, op(v)), 0.0, x)[1]),
    }[program]
    for fails[0] in (True, False, True, False):  # the body reads it
        if fails[0]:
            with pytest.raises(KeyError, match=str(at)):
                run(f, jnp.arange(5.0))
        else:
            np.testing.assert_array_equal(run(f, jnp.arange(5.0)), 2 * jnp.arange(5.0))

"""Kinds of functions, and what they use of the code around them: traced values are refused."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import (
    Counter,
    every_api,
    numpy_function,
    py_func,
    py_function,
)

F = jnp.float32
both_sides = pytest.mark.parametrize("api", [py_function, py_func])


# ---------------------------------------------------------- traced closures


def by_cell(x):
    return lambda y: y + x


def by_nested_function(x):
    def helper(y):
        return y + x

    def body(y):
        return helper(y)

    return body


def by_default(x):
    return lambda y, x=x: y + x


def by_keyword_default(x):
    def body(y, *, x=x):
        return y + x

    return body


def by_partial(x):
    return functools.partial(lambda x, y: x + y, x)


def by_partial_keyword(x):
    return functools.partial(lambda y, x: x + y, x=x)


def by_partial_of_closure(x):
    return functools.partial(lambda z, y: y + x + z, 1.0)


def by_list_in_cell(x):
    box = [x]
    return lambda y: y + box[0]


def by_dict_in_cell(x):
    x = {"x": [x]}
    return lambda y: y + x["x"][0]


def by_bound_method_of_closure(x):
    class Body:
        def run(self, y):
            return y + x

    return Body().run


FOUND = {
    "cell": (by_cell, "x"),
    "nested function": (by_nested_function, "x"),
    "default": (by_default, "x"),
    "keyword default": (by_keyword_default, "x"),
    "partial": (by_partial, "argument 0 of functools.partial"),
    "partial keyword": (by_partial_keyword, "x"),
    "partial of closure": (by_partial_of_closure, "x"),
    "list in cell": (by_list_in_cell, "box"),
    "dict in cell": (by_dict_in_cell, "x"),
    "bound method": (by_bound_method_of_closure, "x"),
}
TRACINGS = {
    "jit": lambda f: jax.jit(f)(1.0),
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c), None), jnp.float32(1), None, length=2),
    "jit of grad": lambda f: jax.jit(jax.grad(f))(1.0),
}


@pytest.mark.parametrize("trace", TRACINGS.values(), ids=TRACINGS)
@pytest.mark.parametrize(("make", "name"), FOUND.values(), ids=FOUND)
@both_sides
def test_a_traced_value_in_a_closure_is_named(api, make, name, trace):
    with pytest.raises(ValueError, match=rf"func uses '{name}' from the code around it.*pass it through inp"):
        trace(lambda x: api(make(x), [2.0], F))


class Holder:
    def __init__(self, x):
        self.x = x

    def method(self, y):
        return y + self.x

    def __call__(self, y):
        return y + self.x


holder: list = []


def by_global(x):
    holder[:] = [x]
    return lambda y: y + holder[0]


ONLY_IN_THE_BODY = {
    "attribute of self": lambda x: Holder(x).method,
    "attribute of callable": Holder,
    "global": by_global,
}


@pytest.mark.parametrize("make", ONLY_IN_THE_BODY.values(), ids=ONLY_IN_THE_BODY)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_a_traced_value_found_only_in_the_body_gets_the_same_advice(api, make, transport):
    try:
        with pytest.raises(Exception, match=r"(?s)(Tracer|traced).*pass it through inp") as caught:
            jax.block_until_ready(jax.jit(lambda x: api(make(x), [2.0], F, output_shapes=()))(1.0))
        assert not isinstance(caught.value, AssertionError)
    finally:
        holder.clear()


@every_api
def test_concrete_closures_work(api, route):
    y, box = 2.0, [np.float32(3)]
    z = jnp.float32(4)

    def body(x, w=1.0):
        return x + y + box[0] + z + w

    assert route(lambda x: api(body, [x], F), F(0)) == 10


def test_recursive_functions_and_unset_cells(route):
    def body(x):
        return x if x < 1 else body(x - 1)

    if False:
        unset = 0

    def other(x):
        if x > 1000:
            return unset
        return x

    assert route(lambda x: numpy_function(body, [x], F), F(3)) == 0
    assert route(lambda x: numpy_function(other, [x], F), F(3)) == 3


def test_mutual_recursion(route):
    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    assert route(lambda n: numpy_function(even, [n], jnp.bool_), jnp.int32(6))


def test_asyncio_inside_a_body_works(route):
    async def work(x):
        await asyncio.sleep(0)
        return x * 2

    assert route(lambda x: numpy_function(lambda x: asyncio.run(work(x)), [x], F), F(3)) == 6


def test_asyncio_inside_a_body_where_a_loop_runs(route, transport):
    """As in a notebook's cell: what the error advises works, of direct calls too."""

    async def work(x):
        await asyncio.sleep(0)
        return x * 2

    def body(x):
        coroutine = work(x)
        try:
            return asyncio.run(coroutine)
        finally:
            coroutine.close()  # which a refused run never awaits

    async def cell():
        with pytest.raises(RuntimeError, match="running event loop") as caught, jaxpyop.reraise():
            route(lambda x: numpy_function(body, [x], F), F(3))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return caught.value.__notes__, route(lambda x: numpy_function(body, [x], F, executor=pool), F(3))

    notes, result = asyncio.run(cell())
    assert result == 6
    assert any("pass executor=concurrent.futures.ThreadPoolExecutor(1)" in note for note in notes)


# --------------------------------------------------------------- kinds of func


KINDS = {
    "ufunc": np.negative,
    "builtin": lambda x: -x,
    "partial": functools.partial(np.multiply, np.float32(-1)),
    "callable object": type("Neg", (), {"__call__": lambda self, x: -x})(),
    "bound method": type("Neg", (), {"run": lambda self, x: -x})().run,
    "jitted": jax.jit(lambda x: -x),
    "wrapped": functools.wraps(np.sin)(lambda x: -x),
    "jax function": jnp.negative,
}


@pytest.mark.parametrize("func", KINDS.values(), ids=KINDS)
@both_sides
def test_any_callable(api, func, route):
    assert route(lambda x: api(func, [x], F), F(3)) == -3


def test_unhashable_callable(route):
    class Body:
        __hash__ = None

        def __call__(self, x):
            return x * 2

    assert route(lambda x: numpy_function(Body(), [x], F), F(3)) == 6


def test_callable_with_odd_equality(route):
    class Body:
        def __init__(self, by):
            self.by = by

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

        def __call__(self, x):
            return x * self.by

    assert [route(lambda x, by=by: numpy_function(Body(by), [x], F), F(3)) for by in (1, 2)] == [3, 6]


def test_many_inputs(route):
    xs = [F(i) for i in range(70)]
    assert route(lambda *xs: numpy_function(lambda *a: sum(a), list(xs), F), *xs) == sum(range(70))


def test_counter_checks_itself():
    body = Counter()
    assert body(np.float32(1)) == 2
    assert body.count == 1
    assert re.match("counter", body.__name__)

"""What is freed after drop, collection and `jax.clear_caches()`: arrays, gradients, traced bodies.

The callables of programs, records' bounds and errors are in test_lifetime.py.
"""

from __future__ import annotations

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host.errors import KEPT
from jaxpyop._op import RECORDS
from tests.shared import util
from tests.shared.util import eventually, held, numpy_function, py_function

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


class Func:
    """A callable that can be watched."""

    __name__ = "func"

    def __init__(self, func):
        self.func = func

    def __call__(self, *args):
        return self.func(*args)


def freed(*refs):
    jax.clear_caches()
    return util.freed(*refs)


PROGRAMS = {
    "grad": lambda op: jax.grad(lambda x: op(x).sum()),
    "jit of grad": lambda op: jax.jit(jax.grad(lambda x: op(x).sum())),
    "jit of vmap of grad": lambda op: jax.jit(jax.vmap(jax.grad(op))),
    "vjp": lambda op: lambda x: jax.vjp(op, x)[1](x)[0],
    "jvp": lambda op: lambda x: jax.jvp(op, (x,), (x,))[1],
    "hessian": lambda op: jax.hessian(lambda x: op(x).sum()),
    "jit of scan of grad": lambda op: jax.jit(lambda x: jax.lax.scan(lambda c, v: (c, jax.grad(op)(v)), 0.0, x)[1]),
}


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_differentiated_body_and_the_array_it_captured(program, mode, transport):
    captured = jnp.full((), 3.0)
    body = Func(lambda x, c=captured: c * jnp.sin(x))
    refs = [weakref.ref(body), weakref.ref(captured)]
    f = program(functools.partial(lambda body, x: py_function(body, [x], F, mode=mode), body))
    jax.block_until_ready(f(X))
    del captured, body, f
    RECORDS.clear()  # records live within their bounds
    assert freed(*refs)


@pytest.mark.parametrize("program", ["grad", "jit of grad", "jit of vmap of grad", "vjp", "jit of scan of grad"])
def test_the_gradient_of_a_numpy_function(program, transport):
    gradient = Func(lambda i, o, c: 2 * c[0])
    ref = weakref.ref(gradient)
    op = functools.partial(lambda vjp, x: numpy_function(lambda x: x * 2, [x], F, vjp=vjp), gradient)
    f = PROGRAMS[program](op)
    np.testing.assert_array_equal(f(X), 2 * X if program == "vjp" else [2, 2, 2])
    del gradient, op, f
    assert freed(ref)


def test_a_kept_gradient_keeps_its_callable(transport):
    """The check can fail."""
    gradient = Func(lambda i, o, c: 2 * c[0])
    ref = weakref.ref(gradient)
    op = functools.partial(lambda vjp, x: numpy_function(lambda x: x * 2, [x], F, vjp=vjp), gradient)
    f = PROGRAMS["jit of grad"](op)
    f(X)
    del gradient, op
    jax.clear_caches()
    assert held(ref)
    np.testing.assert_array_equal(f(X), [2, 2, 2])


def test_a_record_holds_its_arrays_until_it_goes(transport):
    refs = []

    def body(x):
        y = jnp.sin(x) + jnp.ones(1000)
        big = np.asarray(x) * np.ones(1000, np.float32)
        constant = jnp.asarray(big)
        refs.append(weakref.ref(constant))
        return (y * constant).sum()

    f = jax.jit(lambda x: jax.vjp(lambda x: py_function(body, [x], F, output_shapes=()), x))
    with jaxpyop.config.override(max_records=3):
        pulls = [jax.block_until_ready(f(F(i)))[1] for i in range(8)]
        assert [ref() is not None for ref in refs] == [False] * 5 + [True] * 3
        for pull in pulls[-3:]:
            jax.block_until_ready(pull(F(1)))
    RECORDS.clear()
    del pulls, pull
    assert freed(*refs)


def test_results_of_py_functions_are_freed(transport):
    refs = []

    def body(x):
        out = jnp.sin(x)
        refs.append(weakref.ref(out))
        return out

    f = jax.jit(lambda x: py_function(body, [x], F, output_shapes=(100_000,)))
    for _ in range(5):
        jax.block_until_ready(f(jnp.ones(100_000)))
    assert eventually(lambda: sum(ref() is not None for ref in refs) <= 1)


def test_what_an_exception_holds_goes_when_as_many_follow_as_are_kept(transport):
    refs = []

    class Thing:
        pass

    def body(x):
        thing = Thing()  # held by the traceback's frame
        refs.append(weakref.ref(thing))
        raise KeyError("mine")

    f = jax.jit(lambda x: numpy_function(body, [x], F))
    for _ in range(KEPT + 10):
        with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
            jax.block_until_ready(f(X))
    assert eventually(lambda: not any(ref() for ref in refs[: -KEPT - 1]))


def test_collection_in_a_body(transport):
    class Cycle:
        def __init__(self, array):
            self.me, self.array = self, array

    def body(x):
        Cycle(x)
        Cycle(jnp.ones(1000))
        gc.collect()
        return x * 2

    for api in (numpy_function, py_function):
        f = jax.jit(lambda x, api=api: api(body, [x], F, output_shapes=(20_000,)))
        for i in range(2):
            np.testing.assert_array_equal(f(jnp.full(20_000, float(i))), np.full(20_000, 2.0 * i))
        g = jax.jit(jax.grad(lambda x: py_function(body, [x], F, output_shapes=(3,)).sum()))
        np.testing.assert_array_equal(g(X), [2, 2, 2])

"""What is freed when a program is dropped: functions, rules, arrays, static inputs, results, exceptions."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import eventually, freed, held
from tests.shared.functions import numpy_function, py_func, py_function

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


class Func:
    """A function that a weak reference can watch."""

    __name__ = "func"

    def __init__(self, func=lambda x: x * 2):
        self.func = func

    def __call__(self, *args):
        return self.func(*args)


def watched(func=lambda x: x * 2):
    func = Func(func)
    return func, weakref.ref(func)


USES = {
    "direct": lambda op: op(X),
    "jit": lambda op: [f(X) for f in [jax.jit(op)] for _ in range(5)],
    "vmap": lambda op: jax.vmap(op)(X),
    "jit of scan": lambda op: jax.jit(lambda x: jax.lax.scan(lambda c, v: (c, op(v)), 0.0, x))(X),
    "jit of cond": lambda op: jax.jit(lambda x: jax.lax.cond(x[0] > 0, op, lambda x: x, x))(X),
    "eval_shape": lambda op: jax.eval_shape(op, X),
    "gradient": lambda op: jax.grad(lambda x: op(x).sum())(X),
    "jit of gradient": lambda op: jax.jit(jax.grad(lambda x: op(x).sum()))(X),
    "vjp": lambda op: jax.vjp(op, X)[1](X),
    "jvp": lambda op: jax.jvp(op, (X,), (X,)),
    "jit of vmap of gradient": lambda op: jax.jit(jax.vmap(jax.grad(op)))(X),
}
# JAX itself keeps what it has traced for these.
TRACES_KEPT = {"jit of scan", "jit of cond", "jvp", "vjp"}
SLOW = {"jit of scan", "jit of cond", "jvp", "gradient", "jit of vmap of gradient"}


def op_and_what_it_holds(api, rule=None, **options):
    """A function of an array that calls a function, which has captured another array."""
    captured = jnp.full((), 3.0)
    func, func_ref = watched(lambda x, c=captured: c * x)
    rule, rule_ref = watched(rule)
    if rule.func is not None:
        options["vjp"] = rule
    op = functools.partial(lambda func, options, x: api(func, [x], F, **options), func, options)
    return op, [func_ref, weakref.ref(captured), rule_ref]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in USES])
def test_a_dropped_program_frees_its_functions_and_what_they_captured(name):
    ops, refs = zip(
        op_and_what_it_holds(py_function),
        op_and_what_it_holds(py_function, mode="traced"),
        *[op_and_what_it_holds(numpy_function, lambda i, o, c: 3 * c[0])] * (name != "jvp"),
    )
    for op in ops:
        jax.block_until_ready(USES[name](op))
    del ops, op
    jaxpyop.clear_records()
    if name in TRACES_KEPT:
        jax.clear_caches()
    assert freed(*[ref for each in refs for ref in each])


def test_a_kept_program_keeps_its_functions():
    """The check can fail."""
    op, refs = op_and_what_it_holds(numpy_function, lambda i, o, c: 3 * c[0])
    f = jax.jit(jax.grad(functools.partial(lambda op, x: op(x).sum(), op)))
    np.testing.assert_array_equal(f(X), [3, 3, 3])
    del op
    assert all(held(ref) for ref in refs)
    np.testing.assert_array_equal(f(X), [3, 3, 3])


def test_static_inputs_are_freed_with_the_program():
    thing, ref = watched()
    program = functools.partial(lambda t, x: py_func(lambda t, x: x, [t, x], F), thing)
    jax.block_until_ready(jax.jit(program)(X))
    del thing, program
    assert freed(ref)


class Tracked(np.ndarray):
    """An array that a weak reference can watch."""


def test_inputs_and_results_of_functions_are_freed():
    refs = []

    def body(x):
        out = (x * 2).view(Tracked)
        refs.append(weakref.ref(out))
        return out

    x = np.ones(100_000, np.float32).view(Tracked)
    given = weakref.ref(x)
    numpy_function(body, [x], F)
    del x
    assert freed(given, *refs)
    f = jax.jit(lambda x: numpy_function(body, [x], F))
    for _ in range(5):
        jax.block_until_ready(f(jnp.ones(100_000)))
    assert eventually(lambda: sum(ref() is not None for ref in refs) <= 1)


class MyError(Exception):
    """An exception that a weak reference can watch."""


def test_errors_that_nobody_asks_for_are_kept_in_a_bounded_number():
    errors, frames = [], []

    def fail(x):
        local, ref = watched()
        frames.append(ref)
        error = MyError(f"mine: {local.__name__}")
        errors.append(weakref.ref(error))
        raise error

    f = jax.jit(lambda x: py_func(fail, [x], F))
    for _ in range(100):
        with pytest.raises(Exception, match="mine"):
            jax.block_until_ready(f(X))
    assert eventually(lambda: sum(ref() is not None for ref in errors) <= 70)
    assert sum(ref() is not None for ref in frames) <= 2


@pytest.mark.slow
def test_a_collection_of_garbage_in_a_function():
    def body(x):
        circle = [x, jnp.ones(1000)]
        circle.append(circle)
        del circle
        gc.collect()
        return x * 2

    for api in (numpy_function, py_function):
        f = jax.jit(lambda x, api=api: api(body, [x], F, output_shapes=(20_000,)))
        for i in range(2):
            np.testing.assert_array_equal(f(jnp.full(20_000, float(i))), np.full(20_000, 2.0 * i))
    assert jax.jit(jax.grad(lambda x: py_function(body, [x], F)))(1.0) == 2

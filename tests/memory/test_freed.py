"""What is freed when a program is dropped: functions, rules, arrays, static inputs, results, exceptions."""

import functools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import eventually, freed
from tests.shared.functions import numpy_function, py_func, py_function
from tests.shared.tables import rows

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
    "cut": lambda op: [f(X) for f in [jaxpyop.jit(lambda x: op(x) + 1)] for _ in range(2)],
}
# JAX itself keeps what it has traced for these.
TRACES_KEPT = {"jit of scan", "jit of cond", "jvp", "vjp", "cut"}


def op_and_what_it_holds(api, rule=None, **options):
    """A function of an array that calls a function, which has captured another array."""
    captured = jnp.full((), 3.0)
    func, func_ref = watched(lambda x, c=captured: c * x)
    rule, rule_ref = watched(rule)
    if rule.func is not None:
        options["vjp"] = rule
    op = functools.partial(lambda func, options, x: api(func, [x], F, **options), func, options)
    return op, [func_ref, weakref.ref(captured), rule_ref]


@pytest.mark.parametrize("name", rows(USES, fast=["direct", "jit"]))
def test_a_dropped_program_frees_its_functions_and_what_they_captured(name):
    ops, refs = zip(
        op_and_what_it_holds(py_function),
        op_and_what_it_holds(py_function, mode="traced"),
        *[op_and_what_it_holds(numpy_function, lambda i, o, c: 3 * c)] * (name != "jvp"),
    )
    for op in ops:
        jax.block_until_ready(USES[name](op))
    del ops, op
    jaxpyop.clear_records()
    if name in TRACES_KEPT:
        jax.clear_caches()
    assert freed(*[ref for each in refs for ref in each])


def test_an_object_that_holds_its_own_program():
    """With a weak method, as the page on limits says."""

    class Model:
        def __init__(self):
            predict = weakref.WeakMethod(self.predict)
            self.program = jax.jit(lambda x: numpy_function(lambda x: predict()(x), [x], F))

        def predict(self, x):
            return x

    model = Model()
    jax.block_until_ready(model.program(X))
    model = weakref.ref(model)
    assert freed(model)


@pytest.mark.slow
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

"""Calls outside of `jit`, calls in a function that is itself called, and what surrounds a function."""

import _thread
import contextvars
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.effects.ops import STATELESS, F, X, every_route, wait
from tests.shared.checks import eventually
from tests.shared.functions import numpy_function, py_func

every_op = pytest.mark.parametrize("op", STATELESS.values(), ids=STATELESS)


@every_op
def test_a_direct_call_is_on_the_callers_thread_and_compiles_nothing(op, caplog):
    threads = []

    def body(x):
        threads.append(threading.get_ident())
        return np.asarray(x)

    x = jax.block_until_ready(jnp.asarray(X))
    op(body, [x], F)
    with jax.log_compiles():
        for k in range(3):
            x = np.ones((1511 + k, 3), np.float32)  # a fresh function and a new shape each time
            np.testing.assert_allclose(op(lambda x: body(x) + k, [x], F), x + k)  # noqa: B023
        assert threads == [threading.get_ident()] * 4
        assert "ompil" not in caplog.text
        jax.jit(lambda x: x * 3 + 17)(x)
        assert "ompil" in caplog.text


@every_route
def test_a_function_sees_its_callers_context_and_settings(route):
    """In a program with more in it, on a thread of XLA's as well."""
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    def body(x):
        seen.append((variable.get(), jax.config.jax_enable_x64))
        return x

    token = variable.set("mine")
    try:
        for program in (lambda x: py_func(body, [x], F), lambda x: py_func(body, [x], F) * 2 @ x):
            wait(route(program)(X))
            with jax.enable_x64(True):
                wait(route(lambda x, program=program: program(x))(X))
        assert seen == [("mine", False), ("mine", True)] * 2
    finally:
        variable.reset(token)


def test_a_function_on_a_thread_of_xlas_sees_its_callers_context():
    """From JAX 0.12 on, XLA calls it there if the input is not there yet. Before, the caller's thread does."""
    variable, seen = contextvars.ContextVar("variable", default="unset"), []
    program = jax.jit(lambda x: numpy_function(lambda x: (seen.append(variable.get()), x)[1], [x], F))
    busy = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, x: jnp.sin(x @ x), x))
    token = variable.set("mine")
    try:
        for _ in range(2):
            program(busy(jnp.ones((300, 300)))).block_until_ready()
    finally:
        variable.reset(token)
    assert seen == ["mine"] * 2


def test_functions_on_threads_that_python_does_not_know_see_a_copy_of_the_context():
    """Two run at the same time, and one context cannot be entered twice."""
    variable, both = contextvars.ContextVar("variable", default="unset"), threading.Barrier(2, timeout=60)
    seen, errors, ended = [], [], []

    def body(x):
        both.wait()
        seen.append(variable.get())
        variable.set("changed")
        return x

    def run():
        try:
            wait(program(X))
        except Exception as error:
            errors.append(error)
        ended.append(threading.get_ident())

    program = jax.jit(lambda x: numpy_function(body, [x], F))
    program = contextvars.copy_context().run(lambda: (variable.set("mine"), program.lower(X).compile())[1])
    for count in (2, 4):
        for _ in range(2):
            _thread.start_new_thread(run, ())
        assert eventually(lambda count=count: len(ended) == count, 30)
    assert (seen, errors) == (["mine"] * 4, [])


def test_a_program_keeps_the_settings_that_it_was_traced_with():
    seen = []
    program = lambda x: py_func(lambda x: seen.append(jax.config.jax_enable_x64), [x], None)
    with jax.enable_x64(True):
        compiled = jax.jit(program).lower(X).compile()
    wait(compiled(X))
    assert seen == [True]

"""Ifs and loops in a program: under each transformation, in functions that JAX calls, without a callback, in time."""

from __future__ import annotations

import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.shared.checks import trees_close
from tests.traced.rows import op


def body(x):
    while x > 1:
        x = x / 2 if x > 3 else x - 1
    return x * x if x > 0.2 else -x


@pytest.mark.slow
def test_tangents_of_a_batch_whose_loops_end_at_different_turns():
    along = lambda f: lambda x: jax.jvp(jax.vmap(f), [x], [x])
    x = jnp.array([0.3, 1.3, 6.0])
    with jax.checking_leaks():
        got = jax.jit(along(op(body, "traced")))(x)
    trees_close(got, along(op(body, "eager"))(x))


def step(carry, v):
    if v > carry:
        return carry + v, v
    return carry * 0.5, v * 2


def doubled_or_less(v):
    return v * 2 if v > 0 else v - 1


def halved(v):
    while v > 1:
        v = v / 2
    return v


# Functions that JAX refuses to run on values, each with the same in plain JAX.
INNER = {
    "an if in jit": (
        lambda x: jax.jit(doubled_or_less)(x[0]) + jax.jit(doubled_or_less)(x[1]),
        lambda x: jnp.where(x[:2] > 0, x[:2] * 2, x[:2] - 1).sum(),
    ),
    "a loop in vmap": (lambda x: jax.vmap(halved)(x).sum(), lambda x: sum(halved(v) for v in x)),
    "an if in scan": (
        lambda x: lax.scan(step, x[0] * 0, x)[1].sum() if x[0] > 0 else x[1],
        lambda x: x[0] + 2 * x[1] + x[2],
    ),
    "an if and a loop in grad": (
        lambda x: jax.grad(lambda v: v**3 if v > 5 else halved(v * 4.0))(x[0]) * x[1],
        lambda x: 2.0 * x[1],
    ),
}


@pytest.mark.parametrize(
    "name", ["an if in scan", *(pytest.param(n, marks=pytest.mark.slow) for n in INNER if "scan" not in n)]
)
def test_functions_that_jax_calls_may_branch_and_loop(name):
    body, plain = INNER[name]
    x = jnp.asarray([0.5, -1.5, 2.0])
    got = jax.jit(op(body, "traced", max_steps=9))(x)
    np.testing.assert_allclose(got, plain(x), rtol=1e-6)


def host_calls(operation):
    jaxpr = str(jax.make_jaxpr(operation)(1.0))
    compiled = jax.jit(operation).lower(1.0).compile().as_text()
    return re.findall(r"python_call|[a-z]+_callback\[", jaxpr), re.findall(r'target="\w*callback\w*"', compiled)


def test_there_is_no_callback_in_the_program():
    assert host_calls(op(body, "traced")) == ([], [])
    in_jaxpr, compiled = host_calls(op(body, "eager"))  # what this looks for exists
    assert in_jaxpr
    assert compiled


def test_forty_ifs_in_a_row_are_traced_in_time():
    def body(x):
        y = x
        for k in range(40):
            if y > 0.1 * k:
                y = y * 0.75 + jnp.sin(x)
            else:
                y = y - 0.1 * x
        return y

    start = time.thread_time()
    jax.make_jaxpr(op(body, "traced"))(2.0)
    assert time.thread_time() - start < 20  # one path after the other would take for ever


def test_a_direct_call_runs_the_function_itself():
    ran = []
    assert op(lambda x: ran.append(float(x)) or x, "traced")(2.0) == 2.0
    assert ran == [2.0]


def test_a_print_of_a_text_happens_while_jax_traces(capsys):
    def body(x):
        while x > 1:
            print("a turn")
            x = x / 2
        return x

    program = jax.jit(op(body, "traced"))
    assert program(8.0) == 1.0
    capsys.readouterr()
    assert program(4.0) == 1.0
    assert capsys.readouterr().out == ""


def test_a_debug_print_happens_where_python_would_print(capfd):
    def body(x):
        jax.debug.print("start")
        if x > 0:
            jax.debug.print("positive")
        else:
            jax.debug.print("negative")
        return x

    jax.jit(op(body, "traced"))(-1.0)
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.split()) == ["negative", "start"]

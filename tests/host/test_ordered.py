"""Program order among ordered ops."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpyop
from tests.shared.effect_cases import F, Log, X, ordered_ops, wait
from tests.shared.util import numpy_function, py_func

# ---------------------------------------------------------------------- ordered


@ordered_ops
def test_program_order_within_a_program(op, route):
    log = Log()
    call = lambda v: op(log, [v], F, output_shapes=())

    def program(x):
        for i in range(10):
            call(float(i) + 0 * x[0])
        lax.fori_loop(10, 13, lambda i, c: (call(i * 1.0), c)[1], 0)
        lax.scan(lambda c, v: (call(v), (c, None))[1], 0.0, jnp.array([13.0, 14.0]))
        jax.jit(lambda: (call(15.0), None)[1])()
        lax.cond(x[0] > 0, lambda: call(16.0), lambda: call(-1.0))
        return x

    for _ in range(3):
        del log.seen[:]
        route(program, X)
        assert log.seen == [float(i) for i in range(17)]


def test_order_among_different_ops(transport):
    seen = []
    a, b = lambda x: seen.append(("a", float(x))), lambda x: seen.append(("b", float(x)))

    @jax.jit
    def program(x):
        for i in range(5):
            jaxpyop.py_func(a, [x + i], None, ordered=True)
            jaxpyop.py_function(b, [x + i], None, ordered=True)

    for _ in range(3):
        program(0.0)
    jax.effects_barrier()
    assert seen == [(name, float(i)) for i in range(5) for name in "ab"] * 3


@ordered_ops
def test_direct_calls_between_programs_keep_their_place(op, transport):
    """A direct call waits for the ordered calls still in flight (0.12 would let it pass)."""
    seen = []

    def slow(x):
        time.sleep(0.02)
        seen.append(float(x))
        return x

    f = jax.jit(lambda x: op(slow, [x], F, output_shapes=()))
    f(jnp.float32(0))
    for i in range(1, 8, 2):
        f(jnp.float32(i))
        op(slow, [jnp.float32(i + 1)], F)
    jax.effects_barrier()
    assert seen == [float(i) for i in range(9)]


def test_programs_between_programs_keep_their_place(transport):
    log = Log()
    f = jax.jit(lambda x: py_func(log, [x], F, ordered=True))
    g = jax.jit(lambda x: py_func(log, [-x], F, ordered=True))
    for i in range(1, 20):
        f(float(i))
        g(float(i))
    jax.effects_barrier()
    assert log.seen == [s * float(i) for i in range(1, 20) for s in (1, -1)]


def test_a_direct_ordered_call_inside_an_ordered_body(route):
    """The inner call has nothing to wait for but the call it is part of."""
    seen = []

    def inner(x):
        seen.append(("inner", float(x)))
        return x

    def body(x):
        seen.append(("outer", float(x)))
        return py_func(inner, [x], F, ordered=True)

    route(lambda x: py_func(body, [x], F, ordered=True, output_shapes=()), jnp.float32(1))
    assert seen == [("outer", 1.0), ("inner", 1.0)]


def test_a_direct_ordered_call_inside_an_unordered_body(route):
    seen = []

    def body(x):
        py_func(lambda x: seen.append(float(x)), [x], None, ordered=True)
        return x

    route(lambda x: numpy_function(body, [x], F, output_shapes=()), jnp.float32(1))
    assert seen == [1.0]


@ordered_ops
def test_ordered_under_vmap_keeps_the_batchs_order(op, route):
    log = Log()
    f = jax.vmap(lambda x: op(log, [x], F, output_shapes=()))
    route(lambda x: (f(x), f(x + 10), x)[2], X)
    assert log.seen == [0.5, -1.0, 2.0, 10.5, 9.0, 12.0]


def test_an_ordered_call_that_fails_leaves_the_next_in_order(transport):
    seen = []

    def body(x):
        seen.append(float(x))
        if x == 1:
            raise ValueError("one")

    f = jax.jit(lambda x: (py_func(body, [x], None, ordered=True), x)[1])
    f(0.0)
    with pytest.raises(ValueError, match="one"), jaxpyop.reraise():
        wait(f(1.0))
    f(2.0)
    jax.effects_barrier()
    assert seen == [0.0, 1.0, 2.0]

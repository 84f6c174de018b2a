"""Ordered ops go the short way to the host, and keep their order there."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from tests.shared.effect_cases import F, Log, X, ordered_ops, wait
from tests.shared.util import close, py_func, py_function

COUNT = 12
SCALAR = jax.ShapeDtypeStruct((), F)


class Slow(Log):
    """A body that logs when it begins and when it ends; the first take the longest."""

    def __call__(self, k, x):
        self.seen.append(("begins", int(k)))
        time.sleep(0.0005 * (COUNT - int(k)))
        self.seen.append(("ends", int(k)))
        return np.float32(x.sum())

    def check(self):
        assert self.seen == [(what, k) for k in range(COUNT) for what in ("begins", "ends")]


OWN = lambda log, k, x: py_func(log, [k, x], SCALAR, ordered=True)
JAXS = lambda log, k, x: io_callback(log, SCALAR, k, x, ordered=True)


@pytest.mark.parametrize("every", [1, 2, 3], ids=["ours", "every second is JAX's", "every third is JAX's"])
def test_order_holds_where_xla_runs_other_calls_at_once(every, transport):
    """Large and independent inputs, which XLA has ready in any order: without a token all of it fails."""
    log = Slow()

    @jax.jit
    def program(x):
        inputs = [jnp.tanh(x @ x * k) for k in range(COUNT)]
        ops = [JAXS if every > 1 and k % every == 1 else OWN for k in range(COUNT)]
        return inputs, [op(log, k, x) for k, (op, x) in enumerate(zip(ops, inputs))]

    for _ in range(3):
        del log.seen[:]
        wait(program(jnp.ones((200, 200))))
        log.check()


def test_order_holds_across_control_flow(transport):
    """Large arrays, in and around loops, branches and inner programs."""
    log = Log(lambda x: None)
    note = lambda x: py_func(log, [x[0, 0]], None, ordered=True)

    @jax.jit
    def program(x):
        note(jnp.tanh(x @ x) * 0)
        lax.fori_loop(1, 3, lambda i, c: (note(c * 0 + i), c)[1], x)
        note(x * 0 + 3)
        lax.cond(x[0, 0] > 0, lambda: (note(x @ x * 0 + 4), None)[1], lambda: None)
        jax.jit(lambda x: (note(x * 0 + 5), x)[1])(x)
        return lax.while_loop(lambda c: c[0, 0] < 8, lambda c: (note(c), c + 1)[1], x * 0 + 6)

    for _ in range(3):
        del log.seen[:]
        wait(program(jnp.ones((200, 200))))
        assert log.seen == [0, 1, 2, 3, 4, 5, 6, 7]


# Each: a program of a log, with what it gives and what it has logged for X.
PROGRAMS = {
    "no inputs": (lambda log, x: py_func(lambda: log(2.0), [], SCALAR, ordered=True) + x, X + 2, [2.0]),
    "no result": (
        lambda log, x: (py_func(lambda x: (log(x), None)[1], [x], None, ordered=True), x)[1],
        X,
        [[0.5, -1.0, 2.0]],
    ),
    "empty result": (
        lambda log, x: py_func(lambda x: log(x)[:0], [x], jax.ShapeDtypeStruct((0,), F), ordered=True),
        X[:0],
        [[0.5, -1.0, 2.0]],
    ),
    "empty input": (lambda log, x: py_func(log, [x[:0]], F, ordered=True), X[:0], [[]]),
    "two results": (
        lambda log, x: sum(py_func(lambda x: (log(x), x.sum()), [x], [F, F], output_shapes=[(3,), ()], ordered=True)),
        X + 1.5,
        [[0.5, -1.0, 2.0]],
    ),
    "scan": (
        lambda log, x: lax.scan(lambda c, v: (c + py_func(log, [v], SCALAR, ordered=True), None), 0.0, x)[0],
        1.5,
        [0.5, -1.0, 2.0],
    ),
    "gradient of scan": (
        lambda log, x: jax.grad(
            lambda x: lax.scan(
                lambda c, v: (c + py_function(lambda v: (log(v), v * v)[1], [v], SCALAR, ordered=True), None), 0.0, x
            )[0]
        )(x),
        2 * X,
        [0.5, -1.0, 2.0],
    ),
    "vmap": (
        lambda log, x: jax.vmap(lambda v: py_func(log, [v], SCALAR, ordered=True))(x),
        X,
        [0.5, -1.0, 2.0],
    ),
}


@pytest.mark.parametrize(("program", "result", "logged"), PROGRAMS.values(), ids=PROGRAMS)
def test_programs(program, result, logged, transport):
    log = Log()
    f = jax.jit(lambda x: program(log, x))
    for _ in range(2):
        del log.seen[:]
        got = f(X)
        wait(got)
        close(got, result)
        assert log.seen == logged


@ordered_ops
def test_they_take_the_buffers_as_they_are(op):
    """`io_callback`'s way costs ten times as much in a loop."""
    text = jax.jit(lambda x: op(lambda x: x, [x], F)).lower(X).as_text()
    assert "xla_buffer_python_cpu_callback" in text
    assert "xla_ffi_python_cpu_callback" not in text
    assert "token" in text


def test_packed_values_go_the_other_way():
    """A buffer callback would see two of them in each byte."""
    x = jnp.array([1, -2, 3], jnp.int4)
    f = jax.jit(lambda x: py_func(lambda x: x, [x], jnp.int4, ordered=True))
    assert "xla_ffi_python_cpu_callback" in f.lower(x).as_text()
    np.testing.assert_array_equal(f(x), x)

"""`ordered=True`: program order among all ordered calls, in programs, between them, and outside of them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import jaxpyop
from tests.effects.ops import ORDERED, F, Log, X, every_route, wait
from tests.shared.checks import over_transport
from tests.shared.functions import numpy_function, py_func

SCALAR = jax.ShapeDtypeStruct((), F)


@every_route
def test_program_order_among_different_ops_and_control_flow(route):
    seen = []
    bodies = [lambda x, name=name: (seen.append((name, float(x))), x)[1] for name in ORDERED]

    def call(v):
        [op(body, [v], F, output_shapes=()) for op, body in zip(ORDERED.values(), bodies)]

    def program(x):
        for i in range(3):
            call(float(i) + 0 * x[0])
        lax.fori_loop(3, 5, lambda i, c: (call(i * 1.0), c)[1], 0)
        lax.scan(lambda c, v: (call(v), (c, None))[1], 0.0, jnp.array([5.0, 6.0]))
        jax.jit(lambda: call(7.0))()
        lax.cond(x[0] > 0, lambda: call(8.0), lambda: call(-1.0))
        lax.while_loop(lambda v: v < 11, lambda v: (call(v), v + 1)[1], 9.0)
        return x

    f = route(program)
    for _ in range(2):
        seen.clear()
        wait(f(X))
        assert seen == [(name, float(i)) for i in range(11) for name in ORDERED]


COUNT = 8


class Slow(Log):
    """A function that notes when it begins and when it ends; the first take the longest."""

    def __call__(self, k, x):
        self.seen.append(("begins", int(k)))
        time.sleep(0.0005 * (COUNT - int(k)))
        self.seen.append(("ends", int(k)))
        return np.float32(x.sum())


OURS = lambda log, k, x: py_func(log, [k, x], SCALAR, ordered=True)
JAXS = lambda log, k, x: io_callback(log, SCALAR, k, x, ordered=True)


@pytest.mark.parametrize("transport", ["auto", "callback"])
def test_order_where_xla_could_run_the_calls_at_once(transport):
    """Large and independent inputs, which XLA has ready in any order. `io_callback` belongs to the same sequence."""
    log = Slow()

    @jax.jit
    def program(x):
        inputs = [jnp.tanh(x @ x * k) for k in range(COUNT)]
        return inputs, [(JAXS if k % 3 == 1 else OURS)(log, k, x) for k, x in enumerate(inputs)]

    for _ in range(2):
        log.seen.clear()
        with over_transport(transport):
            wait(program(jnp.ones((200, 200))))
        assert log.seen == [(what, k) for k in range(COUNT) for what in ("begins", "ends")]


# --------------------------------------------------------------------- between programs


def test_programs_and_direct_calls_between_programs_keep_their_place():
    """A direct call waits for the ordered calls that still run. The programs have to wait for their input."""
    log = Log()
    work = jax.jit(lambda x: lax.fori_loop(0, 10, lambda i, x: jnp.sin(x @ x), x)[0, 0] * 0)
    f, g = (jax.jit(lambda x, k=k: py_func(log, [x + k], F, ordered=True)) for k in (0, 1))
    ones = jnp.ones((400, 400))
    for i in (0, 2):  # the first turn compiles
        f(work(ones) + i)
        py_func(log, [np.float32(i + 1)], F, ordered=True)
    f(work(ones) + 4)
    g(4.0)
    jax.effects_barrier()
    assert log.seen == [0, 1, 2, 3, 4, 5]


@every_route
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_direct_ordered_call_in_a_function(ordered, route):
    """The inner call has nothing to wait for but the call that it is part of."""
    seen = []

    def inner(x):
        seen.append(("inner", float(x)))
        return x

    def body(x):
        seen.append(("outer", float(x)))
        return py_func(inner, [x], F, ordered=True)

    wait(route(lambda x: numpy_function(body, [x], F, ordered=ordered, output_shapes=()))(jnp.float32(1)))
    assert seen == [("outer", 1.0), ("inner", 1.0)]


def test_a_call_that_fails_leaves_the_next_in_order():
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


def test_the_route_of_ordered_calls():
    """They take XLA's buffers as they are, but for packed values, of which a buffer has two in each byte."""
    small = jnp.array([1, -2, 3], jnp.int4)
    op = lambda x, name: py_func(lambda x: x, [x], x.dtype, ordered=True, name=name)
    f = jax.jit(lambda x, small: (op(x, "numbers"), op(small, "packed")))
    if jax.__version_info__ < (0, 10, 2):
        with pytest.raises(NotImplementedError, match="'packed': this version of JAX hands over wrong values of int4"):
            f(X, small)
        return
    with jaxpyop.report() as report:
        _, packed = wait(f(X, small))
    np.testing.assert_array_equal(packed, small)
    assert {row["op"]: row["route"] for row in report.rows()} == {"numbers": "buffer", "packed": "callback"}

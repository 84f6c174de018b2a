"""A stateful function runs exactly once, whatever the program does with its result."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.effects.ops import STATEFUL, STATELESS, UNORDERED, F, Log, X, every_route, wait
from tests.shared.checks import over_transport, trees_close
from tests.shared.functions import numpy_function, py_func, py_function
from tests.shared.tables import named

FULL = [0.5, -1.0, 2.0]


def in_scan(step):
    """A scan over the numbers of an array, of a function of the array and a number."""
    return lambda x: lax.scan(lambda c, v: (c, step(x, v)), 0.0, x)


def nested(op):
    """A scan in a `jit` in a scan."""
    inner = jax.jit(lambda v: lax.scan(lambda c, w: (op(w), (c, w))[1], 0.0, v[None]))
    return in_scan(lambda x, v: inner(v)[0])


# What a program does with an op, and what its function then sees.
PROGRAMS = {
    "result unused": (lambda op: lambda x: (op(x), x * 2)[1], [FULL]),
    "program without results": (lambda op: lambda x: (op(x), None)[1], [FULL]),
    "twice alike": (lambda op: lambda x: (op(x), op(x)), [FULL] * 2),
    "of a constant": (lambda op: lambda x: (op(1.0), x)[1], [1.0]),
    "empty input": (lambda op: lambda x: op(x[:0]), [[]]),
    "scan, unused": (lambda op: in_scan(lambda x, v: (op(v), v)[1]), FULL),
    "scan, the same each time": (lambda op: in_scan(lambda x, v: (op(x[0]), v)[1]), [0.5] * 3),
    "while_loop": (lambda op: lambda x: lax.while_loop(lambda v: v < 2, lambda v: 1 - op(v), 0.0), [0.0, 1.0]),
    "while_loop's test": (lambda op: lambda x: lax.while_loop(lambda v: op(v) > -2, lambda v: v + 1, 1.0), [1.0, 2.0]),
    "cond, the other": (lambda op: lambda x: lax.cond(x[2] < 0, lambda: op(x[0]), lambda: op(x[1])), [-1.0]),
    "cond, unused": (lambda op: lambda x: (lax.cond(x[2] > 0, lambda: op(x[0]), lambda: x[1]), x)[1], [0.5]),
    "map of checkpoint": (lambda op: lambda x: (lax.map(jax.checkpoint(op), x), x)[1], FULL),
    "vmap, unused": (lambda op: lambda x: (jax.vmap(op)(x), x)[1], FULL),
    "vmap of scan": (lambda op: jax.vmap(lambda x: lax.scan(lambda c, v: (op(c), v), x, x[None])[0]), FULL),
    "cond in scan": (lambda op: in_scan(lambda x, v: lax.cond(v > 0, op, lambda v: v, v)), [0.5, 2.0]),
    "scan in jit in scan": (nested, FULL),
}


# Others are nearly the same.
SLOW = ["of a constant", "scan, unused", "while_loop's test", "cond, unused", "vmap of scan", "cond in scan"]


@every_route
@pytest.mark.parametrize(("program", "seen"), named(PROGRAMS, SLOW))
def test_exactly_once(program, seen, route):
    """The program has each op once, each with a function of its own. A stateless one may run less often."""
    ops = STATEFUL | {"stateless": numpy_function}
    logs = {name: Log(lambda x: -x) for name in ops}

    def of(name):
        return lambda x: ops[name](logs[name], [x], F, output_shapes=np.shape(x))

    f = route(lambda x: [program(op)(x) for op in [lambda x: -jnp.asarray(x), *map(of, ops)]])
    for _ in range(2):
        wanted, *found = wait(f(jnp.asarray(X)))
        [trees_close(got, wanted) for got in found]
        assert logs["ordered py_func"].seen == seen
        assert [sorted(logs[name].seen) for name in UNORDERED] == [sorted(seen)] * len(UNORDERED)
        assert len(logs["stateless"].seen) <= len(seen)
        [log.seen.clear() for log in logs.values()]


@every_route
def test_a_call_without_results(route):
    log, again, runs = Log(lambda x: None), Log(lambda x: []), []

    def program(x):
        py_func(log, [x], None)
        jax.vmap(lambda x: py_function(again, [x], []))(x)
        assert numpy_function(lambda: runs.append(1), [], None) is None

    f = route(program)
    for n in (1, 2):
        assert wait(f(X)) is None
        assert (log.seen, again.seen, runs) == ([FULL] * n, FULL * n, [1] * n)


def test_a_stateless_call_of_constants_runs_at_each_execution_and_not_while_jax_traces():
    logs = [Log(), Log()]
    f = lambda x: sum(op(log, [1.0], F, output_shapes=()) for op, log in zip(STATELESS.values(), logs)) + x
    compiled = jax.jit(f).lower(X).compile()
    assert [log.seen for log in logs] == [[], []]
    for n in (1, 2):
        trees_close(compiled(X), X + 2)
        assert [log.seen for log in logs] == [[1.0] * n] * 2


@pytest.mark.parametrize("transport", ["auto", "callback"])
def test_results_of_no_size(transport):
    """XLA skips a call without a byte to return, so that one is added."""
    logs = {name: Log(lambda x: np.zeros((0, *np.shape(x)))) for name in STATEFUL}

    def program(x):
        [STATEFUL[name](logs[name], [x], F, output_shapes=(0, 3)) for name in STATEFUL]  # unused
        return jax.vmap(lambda v: py_func(logs["py_func"], [v], F, output_shapes=(0,)))(x)

    with over_transport(transport):
        assert wait(jax.jit(program)(X)).shape == (3, 0)
    assert logs["py_function"].seen == logs["ordered py_func"].seen == [FULL]
    assert sorted(map(str, logs["py_func"].seen)) == sorted(map(str, [FULL, *FULL]))


@every_route
def test_a_batch_of_nothing_runs_nothing(route):
    log = Log()
    batched = lambda op: jax.vmap(lambda x: op(log, [x], F, output_shapes=()))
    f = route(lambda x: [batched(op)(x) for op in STATEFUL.values()])
    assert [out.shape for out in wait(f(jnp.zeros(0)))] == [(0,)] * len(STATEFUL)
    assert log.seen == []


def test_threads_lose_no_call():
    log = Log()
    f = jax.jit(lambda x: (py_func(log, [x], F), x)[1])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: [f(float(k)) for _ in range(20)], range(4)))
    jax.effects_barrier()
    assert sorted(log.seen) == [0.0] * 20 + [1.0] * 20 + [2.0] * 20 + [3.0] * 20


def test_a_vmapped_while_loop_of_one_length():
    """The other `while_loop`s under `vmap` are in test_refusals.py."""
    for op in UNORDERED.values():
        log = Log()
        step = lambda s, op=op, log=log: (s[0] + 1, op(log, [s[1]], F, output_shapes=()))
        wait(jax.vmap(lambda x: lax.while_loop(lambda s: s[0] < 1, step, (0, x))[1])(X))  # noqa: B023
        assert log.seen == FULL

"""Stateful ops run exactly once, or are refused."""

from __future__ import annotations

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.shared.effect_cases import OPS, UNORDERED, F, Log, X, every_op
from tests.shared.util import numpy_function, on_devices, py_func, py_function, run_python

# What a program does with the op, and what its body then sees; X goes in.
PROGRAMS = {
    "result used": (lambda op: lambda x: op(x) * 2, [[0.5, -1.0, 2.0]]),
    "result unused": (lambda op: lambda x: (op(x), x * 2)[1], [[0.5, -1.0, 2.0]]),
    "program without results": (lambda op: lambda x: (op(x), None)[1], [[0.5, -1.0, 2.0]]),
    "result times zero": (lambda op: lambda x: op(x) * 0, [[0.5, -1.0, 2.0]]),
    "twice alike": (lambda op: lambda x: (op(x), op(x)), [[0.5, -1.0, 2.0]] * 2),
    "twice alike, unused": (lambda op: lambda x: (op(x), op(x), x)[2], [[0.5, -1.0, 2.0]] * 2),
    "of a constant": (lambda op: lambda x: (op(1.0), x)[1], [1.0]),
    "of a constant, used": (lambda op: lambda x: op(1.0) + x, [1.0]),
    "empty input": (lambda op: lambda x: op(x[:0]), [[]]),
    "in jit": (lambda op: lambda x: jax.jit(op)(x), [[0.5, -1.0, 2.0]]),
    "in jit, unused": (lambda op: lambda x: (jax.jit(op)(x), x)[1], [[0.5, -1.0, 2.0]]),
    "in jit twice": (lambda op: lambda x: ((f := jax.jit(op))(x), f(x)), [[0.5, -1.0, 2.0]] * 2),
    "in scan": (lambda op: lambda x: lax.scan(lambda c, v: (c, op(v)), 0.0, x), [0.5, -1.0, 2.0]),
    "in scan, unused": (lambda op: lambda x: lax.scan(lambda c, v: (op(v), (c, None))[1], 0.0, x), [0.5, -1.0, 2.0]),
    "in scan, invariant": (lambda op: lambda x: lax.scan(lambda c, v: (op(x[0]), (c, v))[1], 0.0, x), [0.5] * 3),
    "in scan, constant": (lambda op: lambda x: lax.scan(lambda c, v: (op(7.0), (c, v))[1], 0.0, x), [7.0] * 3),
    "in unrolled scan": (
        lambda op: lambda x: lax.scan(lambda c, v: (op(v), (c, None))[1], 0.0, x, unroll=3),
        [0.5, -1.0, 2.0],
    ),
    "in while_loop": (
        lambda op: lambda x: lax.while_loop(lambda i: i < 3, lambda i: (op(i * 1.0), i + 1)[1], 0),
        [0.0, 1.0, 2.0],
    ),
    "in while_loop's test": (
        lambda op: lambda x: lax.while_loop(lambda v: op(v) < 3, lambda v: v + 1, 1.0),
        [1.0, 2.0, 3.0],
    ),
    "in while_loop of no turn": (lambda op: lambda x: lax.while_loop(lambda v: v < 0, lambda v: op(v), x[0]), []),
    "in fori_loop": (lambda op: lambda x: lax.fori_loop(0, 3, lambda i, v: (op(i * 1.0), v)[1], x), [0.0, 1.0, 2.0]),
    "in cond": (
        lambda op: lambda x: lax.cond(x[2] > 0, lambda x: (op(x[0]), x)[1], lambda x: (op(x[1]), x)[1], x),
        [0.5],
    ),
    "in cond, other": (
        lambda op: lambda x: lax.cond(x[2] < 0, lambda x: (op(x[0]), x)[1], lambda x: (op(x[1]), x)[1], x),
        [-1.0],
    ),
    "in switch": (lambda op: lambda x: lax.switch(1, [lambda x, k=k: op(x[k]) for k in range(3)], x), [-1.0]),
    "in map": (lambda op: lambda x: (lax.map(op, x), x)[1], [0.5, -1.0, 2.0]),
    "in vmap": (lambda op: lambda x: jax.vmap(op)(x), [0.5, -1.0, 2.0]),
    "in vmap, unused": (lambda op: lambda x: (jax.vmap(op)(x), x)[1], [0.5, -1.0, 2.0]),
    "in vmap of vmap": (lambda op: lambda x: jax.vmap(jax.vmap(op))(x[None, :]), [0.5, -1.0, 2.0]),
    "in cond in scan": (
        lambda op: (
            lambda x: lax.scan(lambda c, v: (lax.cond(v > 0, lambda v: op(v), lambda v: v, v), (c, v))[1], 0.0, x)
        ),
        [0.5, 2.0],
    ),
    "in scan in jit in scan": (
        lambda op: (
            lambda x: lax.scan(
                lambda c, v: (jax.jit(lambda v: lax.scan(lambda c, w: (op(w), (c, w))[1], 0.0, v[None]))(v), (c, v))[1],
                0.0,
                x,
            )
        ),
        [0.5, -1.0, 2.0],
    ),
}


@pytest.mark.parametrize(("program", "seen"), PROGRAMS.values(), ids=PROGRAMS)
@every_op
def test_exactly_once(op, program, seen, route):
    log = Log()
    route(program(lambda x: op(log, [x], F, output_shapes=np.shape(x))), X)
    assert log.seen == seen


@pytest.mark.parametrize(("program", "seen"), PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("op", [OPS["py_func"], OPS["ordered py_func"]], ids=["py_func", "ordered"])
def test_exactly_once_without_results(op, program, seen, route):
    """Tout=None; where the program uses the result it gets the input."""
    log = Log(lambda x: None)
    route(program(lambda x: (op(log, [x], None), x)[1]), X)
    assert log.seen == seen


@pytest.mark.parametrize(("program", "seen"), PROGRAMS.values(), ids=PROGRAMS)
def test_exactly_once_with_strict_promotion_and_leak_checks(program, seen, checked, transport):
    log = Log()
    jax.block_until_ready(jax.jit(program(lambda x: py_func(log, [x], F, output_shapes=np.shape(x))))(X))
    jax.effects_barrier()
    assert log.seen == seen


@every_op
def test_exactly_once_at_every_execution(op, transport):
    log = Log()
    compiled = jax.jit(lambda x: (op(log, [x], F), x)[1]).lower(1.0).compile()
    assert log.seen == []
    for n in range(1, 6):
        jax.block_until_ready(compiled(1.0))
        jax.effects_barrier()
        assert len(log.seen) == n


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)], ids=str)
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
@every_op
def test_zero_size_results(op, used, shape, route):
    log = Log(lambda x: np.zeros(shape))
    out = route(
        lambda x: op(log, [x], F, output_shapes=shape) if used else (op(log, [x], F, output_shapes=shape), x)[1], X
    )
    assert out.shape == (shape if used else (3,))
    assert len(log.seen) == 1


def test_zero_size_results_in_scan_and_vmap(route):
    log = Log(lambda x: np.zeros((0,)))
    op = lambda x: py_func(log, [x], F, output_shapes=(0,))
    route(lambda x: lax.scan(lambda c, v: (c, op(v)), 0.0, x), X)
    assert log.seen == [0.5, -1.0, 2.0]
    route(jax.vmap(op), X)
    assert log.seen == [0.5, -1.0, 2.0] * 2


@every_op
def test_a_batch_of_nothing_runs_nothing(op, route):
    log = Log()
    assert route(jax.vmap(lambda x: op(log, [x], F, output_shapes=())), jnp.zeros(0)).shape == (0,)
    assert log.seen == []


def test_no_inputs_and_no_results(route):
    runs = []
    assert route(lambda: py_func(lambda: runs.append(1), [], None)) is None
    assert runs == [1]


def test_some_results_unused(route):
    log = Log(lambda x: [x, np.zeros(0), x + 1])
    out = route(lambda x: py_func(log, [x], [F, F, F], output_shapes=[(), (0,), ()])[2], jnp.float32(1))
    assert out == 2
    assert log.seen == [1.0]


@pytest.mark.parametrize("tout", [None, []], ids=str)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_an_op_without_results_is_stateful(api, tout, route):
    log = Log(lambda x: tout)
    route(lambda x: (api(log, [x], tout), x)[1], X)
    assert len(log.seen) == 1


def test_ordered_implies_stateful(route):
    log = Log()
    route(lambda x: (numpy_function(log, [x], F, ordered=True), x)[1], X)
    assert len(log.seen) == 1


def test_py_func_stateful_false_may_be_dropped_and_is_no_effect():
    f = lambda x: (py_func(lambda x: x, [x], F, stateful=False), x)[1]
    assert not jax.make_jaxpr(f)(X).effects
    assert jax.make_jaxpr(lambda x: (py_func(lambda x: x, [x], F), x)[1])(X).effects


def test_many_threads_lose_no_call(transport):
    log = Log()
    f = jax.jit(lambda x: (py_func(log, [x], F), x)[1])
    f(0.0)
    jax.effects_barrier()
    threads = [threading.Thread(target=lambda k=k: [f(float(k)) for _ in range(30)]) for k in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    jax.effects_barrier()
    assert len(log.seen) == 181


def test_a_call_whose_result_nobody_waits_for(transport):
    log = Log()
    f = jax.jit(lambda x: py_func(log, [x], F))
    for i in range(20):
        f(float(i))
    jax.effects_barrier()
    assert sorted(log.seen) == [float(i) for i in range(20)]


# ------------------------------------------------------------------- gradients


def test_a_differentiated_stateful_op_runs_once(route):
    log = Log(lambda x: x**3)
    f = lambda x: py_function(log, [x], F, stateful=True, output_shapes=())
    value, slope = route(jax.value_and_grad(f), 2.0)
    assert (value, slope) == (8, 12)
    assert log.seen == [2.0]


@pytest.mark.parametrize("ordered", [False, True], ids=["stateful", "ordered"])
def test_the_gradient_of_a_stateful_numpy_function(ordered, route):
    log = Log(lambda x: x**2)
    f = lambda x: numpy_function(log, [x], F, stateful=True, ordered=ordered, vjp=lambda i, o, c: 2 * i[0] * c[0])
    value, slope = route(jax.value_and_grad(f), 3.0)
    assert (value, slope) == (9, 6)
    assert log.seen == [3.0]


@pytest.mark.parametrize("logged", ["carry", "index", "constant and index"])
@pytest.mark.parametrize("loop", ["scan", "fori_loop"])
@pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["stateful", "ordered"])
def test_logging_in_a_differentiated_loop(logged, loop, options, route):
    """A log line per step of a training loop, whose result nobody uses."""
    seen = []

    def log(*args):
        seen.append([float(a) for a in args])

    def loss(x):
        def step(c, i):
            inp = {"carry": [c], "index": [i], "constant and index": [7.0, i]}[logged]
            py_func(log, inp, None, **options)
            return c * x

        if loop == "fori_loop":
            return lax.fori_loop(0, 4, lambda i, c: step(c, i), 1.0)
        return lax.scan(lambda c, i: (step(c, i), None), 1.0, jnp.arange(4))[0]

    expected = {
        "carry": [[1.0], [2.0], [4.0], [8.0]],
        "index": [[0.0], [1.0], [2.0], [3.0]],
        "constant and index": [[7.0, 0.0], [7.0, 1.0], [7.0, 2.0], [7.0, 3.0]],
    }[logged]
    assert route(loss, 2.0) == 16
    assert seen == expected
    del seen[:]
    assert route(jax.grad(loss), 2.0) == 32
    assert seen == expected


@pytest.mark.parametrize("api", ["py_func", "py_function"])
def test_a_used_result_in_a_differentiated_scan(api, route):
    log = Log(lambda i: i * 1.0)

    def loss(x):
        step = lambda c, i: (c * x + OPS[api](log, [i], F, output_shapes=()), None)
        return lax.scan(step, 1.0, jnp.arange(4.0))[0]

    assert route(jax.grad(loss), 2.0) == 38
    assert log.seen == [0.0, 1.0, 2.0, 3.0]


def test_a_differentiated_scan_that_hoists_is_refused_or_documented(route):
    """Depends on neither carry nor xs: JAX runs it once instead of four times, and the value is right."""
    log = Log(lambda x: x * 2)

    def loss(x):
        return lax.scan(
            lambda c, _: (c + py_function(log, [x], F, stateful=True, output_shapes=()), None), 0.0, None, length=4
        )[0]

    try:
        slope = route(jax.grad(loss), 3.0)
    except Exception as error:
        assert "'log'" in str(error)  # noqa: PT017
    else:
        assert slope == 8
        assert len(log.seen) in (1, 4)


# ---------------------------------------------------------------------- refusals

REFUSED = {
    "grad of checkpoint": lambda op: jax.grad(lambda x: jax.checkpoint(lambda x: op(x[0]))(x)),
    "vmap of cond": lambda op: jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: x, x)),
    "vmap of switch": lambda op: jax.vmap(lambda x: lax.switch(jnp.int32(x), [op, lambda x: x], x)),
    "vmap of while_loop": lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: x < 3, lambda x: op(x) + 1, x)),
    "vmap of while_loop's test": lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: op(x) < 3, lambda x: x + 1, x)),
    "jit of vmap of cond": lambda op: jax.jit(jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: x, x))),
    "vmap of jit of cond": lambda op: jax.vmap(jax.jit(lambda x: lax.cond(x > 0, op, lambda x: x, x))),
    "vmap of scan of cond": lambda op: jax.vmap(
        lambda x: lax.scan(lambda c, _: (lax.cond(c > 0, op, lambda x: x, c), None), x, None, length=2)[0]
    ),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
@every_op
def test_where_jax_refuses_effects_the_error_names_the_op_and_the_cure(op, program, transport):
    log = Log()
    with pytest.raises(Exception, match=r"(?s)'log'.*stateful=False") as caught:
        jax.block_until_ready(program(lambda x: op(log, [x], F, output_shapes=()))(X))
    assert isinstance(caught.value, (NotImplementedError, ValueError, TypeError))
    assert log.seen == []


@pytest.mark.parametrize(
    "program", [p for n, p in REFUSED.items() if "grad" not in n], ids=[n for n in REFUSED if "grad" not in n]
)
@pytest.mark.parametrize("api", [py_function, numpy_function])
def test_the_cure_works(api, program, transport):
    op = lambda x: api(lambda x: x * 1, [x], F, output_shapes=())
    np.testing.assert_allclose(program(op)(X), program(lambda x: x * 1)(X))


ALLOWED = {
    "checkpoint without gradient": lambda op: lambda x: lax.map(jax.checkpoint(op), x),
    "vmap of while_loop of one length": lambda op: jax.vmap(
        lambda x: lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, op(s[1])), (0, x))[1]
    ),
    "vmap of scan": lambda op: jax.vmap(lambda x: lax.scan(lambda c, _: (op(c), None), x, None, length=1)[0]),
}


@pytest.mark.parametrize("program", ALLOWED.values(), ids=ALLOWED)
@pytest.mark.parametrize("op", [OPS[n] for n in UNORDERED], ids=UNORDERED)
def test_what_jax_allows_is_allowed(op, program, transport):
    log = Log()
    jax.block_until_ready(jax.jit(program(lambda x: op(log, [x], F, output_shapes=())))(X))
    jax.effects_barrier()
    assert sorted(log.seen) == [-1.0, 0.5, 2.0]


# ----------------------------------------------------------------- many devices

MANY_DEVICES = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P, NamedSharding, AxisType
jaxpyop.config.transport = {transport!r}
F = jnp.float32
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.{kind},))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
runs = []
def log(x):
    runs.append(np.asarray(x).tolist())
    return np.asarray(x) * 2
ops = [jaxpyop.py_func, lambda f, i, t, **o: jaxpyop.numpy_function(f, i, t, stateful=True, **o)]
if {ordered}:
    ops = [lambda f, i, t, **o: jaxpyop.py_func(f, i, t, ordered=True, **o)]
else:
    ops.append(lambda f, i, t, **o: jaxpyop.py_function(f, i, t, stateful=True, **o))
def once(program, *expected):
    for _ in range(2):
        del runs[:]
        out = jax.block_until_ready(program(x))
        jax.effects_barrier()
        assert runs == list(expected), runs
    return out
full = list(np.arange(8.0))
for op in ops:
    np.testing.assert_array_equal(once(jax.jit(lambda x: op(log, [x], F)), full), np.arange(8.0) * 2)
    once(jax.jit(lambda x: (op(log, [x], F), x)[1]), full)
    once(jax.jit(lambda x: (op(lambda x: (log(x), None)[1], [x], None), x)[1]), full)
    once(jax.jit(lambda x: op(lambda x: (log(x), np.zeros((0,)))[1], [x], F, output_shapes=(0,))), full)
    once(jax.jit(lambda x: (op(log, [7.0], F, output_shapes=()), x)[1]), 7.0)
    step = lambda c, v: (c, (op(log, [v], F, output_shapes=()), v)[1])
    once(jax.jit(lambda x: jax.lax.scan(step, 0.0, jnp.arange(3.0))[1] + x.sum()), 0.0, 1.0, 2.0)
    once(jax.jit(lambda x: op(log, [x], F) + 1), full)
    if not {ordered}:
        once(jax.jit(jax.vmap(lambda x: op(log, [x], F))), *full)
"""


@pytest.mark.parametrize(("kind", "transport"), [("Auto", "auto"), ("Explicit", "auto"), ("Explicit", "callback")])
def test_exactly_once_on_four_devices(kind, transport):
    run_python(
        MANY_DEVICES.format(transport=transport, kind=kind, ordered=False),
        timeout=60,
        **on_devices(4),
    )


@pytest.mark.parametrize("transport", ["auto"])
def test_ordered_on_four_devices_is_once_or_refused(transport):
    """JAX itself refuses ordered effects on more than one device."""
    code = MANY_DEVICES.format(transport=transport, kind="Auto", ordered=True)
    done = run_python(code, timeout=60, check=False, **on_devices(4))
    text = "rdered effects are not supported for more than 1 device|side-effect HLO cannot have a replicated"  # 0.10.0
    assert done.returncode == 0 or re.search(text, done.stderr), done.stderr[-3000:]


LOOPS = {
    "scan": lambda g: lambda x: jax.lax.scan(lambda c, _: (c + g(x), None), 0.0, None, length=3)[0],
    "fori": lambda g: lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + g(x), 0.0),
    "cond-in-scan": lambda g: (
        lambda x: jax.lax.scan(lambda c, _: (c + jax.lax.cond(True, g, g, x), None), 0.0, None, length=3)[0]
    ),
    "jit-in-scan": lambda g: lambda x: jax.lax.scan(lambda c, _: (c + jax.jit(g)(x), None), 0.0, None, length=3)[0],
    "scan-in-scan": lambda g: (
        lambda x: jax.lax.scan(
            lambda c, n: (jax.lax.scan(lambda d, _: (d + g(x) * n, None), c, None, length=1)[0], None), 0.0, jnp.ones(3)
        )[0]
    ),
}


# Calls whose inputs are the same in each iteration.
CALLS = {
    "an-input": lambda count, **how: lambda x: py_function(lambda x: x * count(), [x], F, output_shapes=(), **how),
    "a-constant": lambda count, **how: (
        lambda x: x * numpy_function(lambda _: count(), [1.0], F, output_shapes=(), **how)
    ),
    "no-input": lambda count, **how: lambda x: x * numpy_function(count, [], F, output_shapes=(), **how),
}


def derivative_of_a_loop(loop, call, wrap, **options):
    runs = []

    def count():
        runs.append(None)
        return np.float32(len(runs))

    found = wrap(jax.value_and_grad(loop(call(count, **options))))(2.0)
    jax.effects_barrier()
    assert len(runs) == 3
    return found


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["direct", "jit"])
@pytest.mark.parametrize("options", [{"stateful": True}, {"ordered": True}], ids=["stateful", "ordered"])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_derivative_of_a_loop_runs_it_in_each_iteration(call, loop, options, wrap):
    assert derivative_of_a_loop(loop, call, wrap, **options) == (12.0, 6.0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["direct", "jit"])
@pytest.mark.parametrize("options", [{"stateful": True}, {"ordered": True}], ids=["stateful", "ordered"])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_the_derivative_of_a_loop_keeps_a_call_without_results(loop, options, wrap):
    call = lambda count, **how: lambda x: (numpy_function(count, [], None, **how), x)[1]
    assert derivative_of_a_loop(loop, call, wrap, **options) == (6.0, 3.0)

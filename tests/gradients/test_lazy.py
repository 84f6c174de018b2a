"""The lazy tape against the eager one: same values, gradients, effects and errors, however often a body runs."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import _tape
from jaxpyop._tape.lazy import trie
from jaxpyop._tape.lazy.tracer import LazyTapeTracer
from tests.shared.tape_bodies import X3, F, check, custom_sin

F3 = jnp.asarray(X3)


@pytest.fixture(autouse=True)
def fresh():
    _tape.clear()


def runs(make, inputs, perturbed=None, count=5):
    """Outputs, gradients, tangents and effects of several runs of one body, which `make` makes of a log."""
    found = []
    for i in range(count):
        log = []
        outputs, record = _tape.record(make(log, i), [jnp.array(x) for x in inputs], perturbed)
        kept = [jnp.ones_like(o) if jnp.issubdtype(o.dtype, jnp.inexact) else None for o in outputs]
        jax.effects_barrier()
        derivatives = record.pullback(kept) + record.pushforward([jnp.array(x) for x in inputs])
        found.append((outputs, [jnp.zeros(3) if d is None else d for d in derivatives], log))
    return found


def compare(make, inputs, perturbed=None):
    found = {}
    for tape in ("eager", "lazy"):
        with jaxpyop.config.override(tape=tape):
            found[tape] = runs(make, inputs, perturbed)
    for eager, lazy in zip(found["eager"], found["lazy"], strict=True):
        check(lazy[0], eager[0])
        check(lazy[1], eager[1])
        assert [np.asarray(v).tolist() for v in lazy[2]] == [np.asarray(v).tolist() for v in eager[2]]


def body(function):
    return lambda log, i: functools.partial(function, log, i)


# --- memory that others see -----------------------------------------------------


def dlpack_import(log, i, x):
    numbers = np.arange(3, dtype=np.float32)
    y = x * jnp.from_dlpack(numbers)
    numbers[:] = 7
    return [y * 2.0]


def numpy_operand(log, i, x):
    numbers = np.arange(3, dtype=np.float32)
    y = x * numbers + jax.device_put(numbers) + jnp.asarray(numbers)
    numbers[:] = 7
    return [y]


def donated_constant(log, i, x):
    y = jax.lax.stop_gradient(x) * 2.0
    w = y + 1.0
    z = jax.jit(lambda v: v + 1.0, donate_argnums=0)(y)
    return [x * z + w]


def exports(log, i, x):
    y = x * 2.0
    z = y + 1.0
    log += [np.from_dlpack(y), np.asarray(z), jnp.from_dlpack(y), np.array(memoryview(y.__array__()))]
    return [z * y]


def donation(log, i, x):
    y = x * 2.0
    z = jax.jit(lambda v: v + 1.0, donate_argnums=0)(y)
    return [z + y * 0.5 + (y + 1.0)]


# --- effects ----------------------------------------------------------------------


def prints(log, i, x):
    y = x * 2.0
    jax.debug.callback(lambda v: log.append(v), y, ordered=True)
    y = y * y
    jax.debug.callback(lambda v: log.append(v), y[0], ordered=True)
    return [jnp.sum(y)]


def callbacks(log, i, x):
    y = jax.lax.stop_gradient(x * 2.0)
    n = jax.pure_callback(lambda v: np.sum(v), jax.ShapeDtypeStruct((), np.float32), y)
    jax.jit(lambda v: jax.debug.callback(log.append, v, ordered=True))(n)
    return [x * n]


def inner_op(log, i, x):
    y = jaxpyop.py_function(lambda v: v * float(v[0]), [x * 2.0], jax.ShapeDtypeStruct((3,), jnp.float32))
    return [y * x]


# --- values that are asked for later ------------------------------------------------


def used_later(log, i, x):
    h = jnp.sin(x * 3.0)
    k = h * h
    if float(jnp.sum(k)) > 100:
        return [h]
    return [h * k if i % 2 else k + x] + ([jnp.cos(h)] if i > 3 else [x])


def asked_twice(log, i, x):
    h = jnp.sin(x)
    log += [h[0], h[1], jnp.sum(h), h]
    return [h * 2.0, h]


# --- numbers and types -----------------------------------------------------------------


def zeros(log, i, x):
    y = (x * 0.0, x * -0.0, 1.0 / (x * 0.0 + 0.0), 1.0 / (x * -0.0 - 0.0), x + float("nan"))
    log += [jnp.signbit(v) for v in y]
    return [x * i, x * float(i), x + (0.1 * i), 1 - x]


def integers(log, i, x):
    n = jnp.argsort(x)
    m = jnp.abs(n - 1) // 2 + (-n)
    return [x * (n / 2), x[n], m, n > 1, (x > 0) * x, ~(x > 0), n**2, abs(n), (x > 0) & (x < 1), n * 2.5]


def complexes(log, i, x):
    z = x * (1.0 + 2.0j) + 1j
    return [abs(z) * x, (z * z).imag, jnp.conj(z).real]


def keys(log, i, x):
    key = jax.random.fold_in(jax.random.key(0), jnp.argmax(x))
    return [x * jax.random.normal(key, (3,)), jax.random.key_data(key)]


def x64_inside(log, i, x):
    y = x * 3.0
    with jax.enable_x64(True):
        z = jax.lax.stop_gradient(y).astype(jnp.float64) / 3.0
        log.append(z.dtype == jnp.float64)
        z = (z * z).astype(jnp.float32)
    return [z + y]


def x64_numbers(log, i, x):
    y = x * 3.0
    with jax.enable_x64(True):
        z = (y.astype(jnp.float64) / 3 + 1 / 3) * 0.1
    return [z.astype(jnp.float32) + y]


def precision_inside(log, i, x):
    y = jnp.outer(x, x) * 2.0
    with jax.default_matmul_precision("highest"):
        log.append(jnp.sum(y))
        z = y @ y
    return [z @ y]


def of_threads(log, i, x):
    values = [x * float(k) for k in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        log += pool.map(np.asarray, values)
    return [sum(values[1:], values[0])]


BODIES = {
    f.__name__: f
    for f in (
        *(dlpack_import, numpy_operand, exports, donation, donated_constant, prints, callbacks, inner_op, used_later),
        *(asked_twice, zeros, integers, complexes, keys, x64_inside, x64_numbers, precision_inside, of_threads),
    )
}


@pytest.mark.parametrize("name", BODIES)
def test_same_as_the_eager_tape(name):
    compare(body(BODIES[name]), [X3])


def products(log, i, x, data):
    y = data * 2.0 - 1.0
    z = x @ jnp.outer(y, data**2)
    log += [y.sum(), data.tolist(), 1.0 / data]
    return [z * z / data, jnp.where(data > y, x, data), x[jnp.argsort(data)], data]


@pytest.mark.parametrize("perturbed", [(True, True), (True, False), (False, True), (False, False)])
def test_inputs_that_are_constants(perturbed):
    compare(body(products), [X3, np.array([1.5, 0.25, -2.0], np.float32)], perturbed)


# --- arrays that outlive the body --------------------------------------------------------

USES = {
    "numpy": lambda x: np.asarray(x) * 2.0,
    "operator": lambda x: x * 2.0,
    "jnp": lambda x: jnp.add(x, x),
    "jit": lambda x: jax.jit(lambda v: v * 2.0)(x),
    "grad": lambda x: jax.grad(lambda v: jnp.sum(v * v))(x),
    "vmap": lambda x: jax.vmap(lambda v: v * 2.0)(x),
    "scan": lambda x: jax.lax.scan(lambda c, v: (c, v * 2.0), 0.0, x)[1],
    "body": lambda x: _tape.record(lambda v: [v * 0.0 + x * 2.0], [F3])[0][0],
}


@pytest.mark.parametrize("use", USES)
def test_constants_that_outlive_the_body(use):
    kept = []

    def keeps(x):
        y = jax.lax.stop_gradient(x) * 3.0
        kept.append(y + 1.0)
        return [x * y]

    with jaxpyop.config.override(tape="lazy"):
        for _ in range(4):
            _tape.record(keeps, [F3])
            check([jnp.asarray(USES[use](kept[-1]))], [(X3 * 3 + 1) * 2])


def test_running_mean():
    state = {"mean": jnp.zeros(())}

    def normed(x):
        state["mean"] = 0.5 * state["mean"] + 0.5 * jnp.mean(jax.lax.stop_gradient(x))
        return [x - state["mean"]]

    with jaxpyop.config.override(tape="lazy"):
        for _ in range(6):
            check([_tape.vjp(normed, [F3], [jnp.ones(3)])[0]], [np.ones(3, np.float32)])
    assert float(state["mean"]) == pytest.approx(X3.mean() * (1 - 0.5**6), rel=1e-6)


# --- errors -----------------------------------------------------------------------------------


def test_errors_come_at_the_users_line():
    def wrong(x):
        y = x * 2.0
        z = jnp.dot(y, jnp.ones(4))  # the line
        return [z]

    with jaxpyop.config.override(tape="lazy"):
        for _ in range(3):
            with pytest.raises(TypeError, match="dot") as error:
                _tape.record(wrong, [F3])
            assert any("the line" in str(entry.statement) for entry in error.traceback)


@pytest.mark.parametrize("inside", [True, False])
def test_nan_comes_at_the_users_line(inside):
    def undefined(x):
        y = x * 2.0
        with jax.debug_nans(True):
            z = jnp.log(y - 100.0)  # the line
        return [z]

    with jaxpyop.config.override(tape="lazy"):
        for _ in range(3):
            with pytest.raises(FloatingPointError, match="nan") as error, jax.debug_nans(not inside):
                _tape.record(undefined, [F3])
            assert any("the line" in str(entry.statement) for entry in error.traceback)


def test_after_an_error_the_next_run_is_right():
    def fails(x, at):
        y = x * 2.0
        z = y * y
        if int(at) == 1:
            raise KeyError("stop")
        return [z + float(jnp.sum(y))]

    with jaxpyop.config.override(tape="lazy"):
        for at in (0, 1, 0, 1, 0, 0):
            run = lambda at=at: _tape.vjp(fails, [F3, jnp.asarray(at)], [jnp.ones(3)])[0]
            if at:
                with pytest.raises(KeyError, match="stop"):
                    run()
            else:
                check([run()], [8 * X3])


# --- what is compiled, and what is kept ----------------------------------------------------------


def lazy_gradient(function, x=F3):
    with jaxpyop.config.override(tape="lazy"):
        return _tape.vjp(lambda y: [function(y)], [x], [jnp.ones(())])[0]


def test_nothing_is_compiled_after_the_third_run():
    def loops(x):
        total = jnp.sum(x * x)
        while total > 0.1:
            x = jnp.tanh(x) * 0.5
            total = jnp.sum(x * x)
        return total

    expected = lazy_gradient(loops)
    for _ in range(3):
        lazy_gradient(loops)
    with jax.log_compiles(False), jax.check_tracer_leaks(False):
        before = places()
        for _ in range(5):
            check([lazy_gradient(loops)], [expected])
        assert places() == before


def places():
    def count(place):
        return sum(map(count, {id(p): p for p in place.moves.values()}.values()), 1)

    return sum(map(count, trie._roots.values()))


def test_a_number_that_is_new_each_time_is_an_input():
    for i in range(20):
        check(
            [lazy_gradient(lambda x, i=i: jnp.sum(x * (i + 0.5)) * float(i))], [np.full(3, (i + 0.5) * i, np.float32)]
        )
    assert places() < 60


def pending(x):
    return isinstance(x, LazyTapeTracer)


@pytest.mark.parametrize(
    ("function", "size", "is_lazy"),
    [
        pytest.param(lambda x: x * x, 3, False, id="one call"),
        pytest.param(lambda x: x * x if (abs(x) > 0).all() else x, 3, False, id="a decision"),
        pytest.param(lambda x: jnp.sin(x) * x + x / 2.0 - 1.0, 3, True, id="five calls"),
        pytest.param(lambda x: x * x, 10_000, True, id="one call on a large array"),
    ],
)
def test_a_function_that_gains_nothing_is_recorded_eagerly(function, size, is_lazy):
    seen = []

    def body(x):
        seen.append(pending(x))
        return [function(x)]

    with jaxpyop.config.override(tape="lazy"):
        for _ in range(40):
            _tape.record(body, [jnp.ones(size)])
    assert seen == [True] * 33 + [is_lazy] * 7


def test_a_function_that_gains_later_is_recorded_lazily_again():
    seen = []

    def body(x, turns):
        seen.append(pending(x))
        for _ in range(int(turns)):
            x = jnp.sin(x) * x
        return [x]

    with jaxpyop.config.override(tape="lazy"):
        for turns in [1] * 40 + [5] * 200:
            _tape.record(body, [F3, jnp.asarray(turns)])
    assert not seen[39]
    assert all(seen[-5:])


def test_the_record_of_a_large_array_is_the_array():
    def products(x):
        y = x
        for _ in range(5):
            y = y * x + x
        return [jnp.sum(y)]

    x = jnp.ones(100_000)
    with jaxpyop.config.override(tape="lazy"):
        records = [_tape.record(products, [x])[1] for _ in range(3)]
    assert [a is x for a in records[-1].arrays()] == [True]


def test_stretches_that_never_repeat_are_bounded(monkeypatch):
    monkeypatch.setattr(trie, "MAX_PLACES", 100)
    for n in range(1, 40):
        check([lazy_gradient(lambda x, n=n: sum([x[0]] * n))], [np.array([n, 0, 0], np.float32)])
        assert places() <= 150


@pytest.mark.parametrize("clear", [jax.clear_caches, jaxpyop.clear_records])
def test_stretches_are_cleared(clear):
    lazy_gradient(lambda x: jnp.sum(x * x))
    assert places() > 1
    clear()
    assert places() == 0
    check([lazy_gradient(lambda x: jnp.sum(x * x))], [2 * X3])


def test_several_threads():
    def work(k):
        return [lazy_gradient(lambda x: jnp.sum(jnp.sin(x) * x * (k % 3)) + custom_sin(x, x)[0]) for _ in range(10)]

    with jaxpyop.config.override(tape="lazy"), concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(8)))
    for k, gradients in enumerate(found):
        for gradient in gradients:
            check([gradient], [found[k % 3][0]])


@pytest.mark.parametrize("mode", ["direct", "jit"])
def test_through_the_op(mode):
    def branches(x, y):
        z = x * y + 1.0
        return jnp.sum(z * z) if jnp.sum(z) > 0 else jnp.sum(z) * 2.0

    def loss(x, y):
        return jaxpyop.py_function(branches, [x, y], jnp.float32)

    grad = jax.grad(loss, (0, 1))
    grad = jax.jit(grad) if mode == "jit" else grad
    with jaxpyop.config.override(tape="lazy"):
        for i in range(5):
            x, y = F3 * i, jnp.ones(3) * (1 - i)
            check(grad(x, y), jax.grad(branches_of(i), (0, 1))(x, y))


def branches_of(i):
    positive = float(jnp.sum(F3 * i * (1 - i) + 1.0)) > 0
    return lambda x, y: jnp.sum((x * y + 1.0) ** 2) if positive else jnp.sum(x * y + 1.0) * 2.0


def test_a_function_that_runs_again_gives_the_bits_of_the_eager_run():
    def body(x):
        y = x
        for _ in range(10):
            y = jnp.sin(y) * 1.1 + y * x
        return y * y / 3.0

    op = lambda x: jaxpyop.py_function(body, [x], jax.ShapeDtypeStruct((64,), jnp.float32))
    step = jax.jit(lambda x: jax.vjp(op, x)[1])
    x = jnp.linspace(0.1, 1.0, 64)
    with jaxpyop.config.override(tape="lazy"):
        for _ in range(4):
            pull = step(x)
            jaxpyop.clear_records()
            for _ in range(3):
                check(pull(jnp.ones(64)), [jax.grad(lambda x: jnp.sum(body(x)))(x)], rtol=1e-4)


def test_large_float_scalar_types_are_kept():
    with jax.enable_x64(True), jaxpyop.config.override(tape="lazy"):
        for _ in range(3):
            x = jnp.asarray(X3, jnp.float64)
            (gradient,) = _tape.vjp(lambda y: [jnp.sum(y * 0.1 * y)], [x], [jnp.ones((), jnp.float64)])
            check([gradient], [np.asarray(0.2 * x)])
    check([lazy_gradient(lambda y: jnp.sum(y * F(0.1) * y))], [np.float32(0.2) * X3])

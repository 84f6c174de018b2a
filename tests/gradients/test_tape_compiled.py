"""Recorded programs that come back often have one compiled pullback; others compile what an eager `jax.grad` does."""

import gc
import itertools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import _tape
from jaxpyop._tape import operations, recording
from jaxpyop._tape.derivatives import OFTEN
from tests.shared.tape_bodies import X3, Z3, F, arrays, chain, check

pytestmark = pytest.mark.usefixtures("strict_promotion")


# --- compilation ----------------------------------------------------------------


@pytest.fixture
def compilations():
    """Counts XLA compilations, as a list that grows."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def pullbacks(monkeypatch):
    """Notes which backward passes of a shared program are compiled, as a list that grows."""
    recording._recorded_programs.cache_clear()
    found, often = [], recording.Program._often

    def noted(*args):
        traced = often(*args)
        found.append(traced is not None)
        return traced

    monkeypatch.setattr(recording.Program, "_often", noted)
    return found


def test_compiled_when_it_came_often(pullbacks, compilations):
    one = [jnp.ones(3)]
    for _ in range(OFTEN + 3):
        before = len(compilations)
        _tape.vjp(chain(3), arrays([X3]), one)
    assert pullbacks == [False] * OFTEN + [True] * 3
    assert len(compilations) == before


def test_fresh_lengths_do_not_compile(compilations):
    one = [jnp.ones(3)]
    for n in (1, 2, 3, 4, 5):  # the operations themselves
        _tape.vjp(chain(n), arrays([X3]), one)
    before = len(compilations)
    for n in range(10, 30):
        _tape.vjp(chain(n), arrays([X3]), one)
    assert len(compilations) == before


def test_constants_are_inputs(pullbacks):
    x, results = F(0.3), []
    for i in range(OFTEN + 2):
        body = chain(2, jnp.float32(0.1 * i))
        results += _tape.vjp(body, [x], [F(1)])
        check(results[-1:], [jax.grad(lambda y, body=body: body(y)[0])(x)])
    assert len({float(r) for r in results}) == OFTEN + 2
    assert pullbacks == [False] * OFTEN + [True] * 2


def test_types_are_part_of_the_key(pullbacks):
    for x in (F(2), jnp.asarray(X3), jnp.float16(2), jnp.asarray(Z3)):
        for _ in range(OFTEN + 1):
            check(_tape.vjp(lambda y: [y * y], [x], [jnp.ones_like(x)]), [2 * x])
    assert recording._recorded_programs.cache_info().currsize == 4


def test_fresh_lambdas_in_scan_share_one_function(compilations):
    def body(x):
        return [jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=4)[0]]

    for _ in range(OFTEN + 1):
        _tape.vjp(body, [F(0.5)], [F(1)])
    before = len(compilations)
    for _ in range(3):
        _tape.vjp(body, [F(0.5)], [F(1)])
    assert len(compilations) == before


def test_scans_that_differ_in_a_number_do_not_share():
    for rate in (0.5, 0.25, -0.0, 0.0):

        def body(x, rate=rate):
            return [jax.lax.scan(lambda c, _: (c * rate, None), x, None, length=2)[0]]

        for _ in range(OFTEN + 1):
            check(_tape.vjp(body, [F(3)], [F(1)]), [F(rate * rate)])


def clipped_mean(x, length):
    return jnp.sort(x)[:length].mean()


def test_lengths_that_depend_on_values_compile_what_jax_does(compilations):
    x = jnp.asarray(np.random.default_rng(0).normal(size=100), jnp.float32)
    runs = {
        "jax": lambda n: jax.grad(clipped_mean)(x, n),
        "tape": lambda n: _tape.vjp(lambda y: [clipped_mean(y, n)], [x], [F(1)])[0],
    }
    compiled = {}
    for name, first in (("jax", 10), ("tape", 40)):
        for k in range(OFTEN + 2):  # what does not depend on the length
            runs[name](first - k)
        before = len(compilations)
        for n in range(first + 1, first + 11):
            for _ in range(2):
                check([runs[name](n)], [jax.grad(clipped_mean)(x, n)] if name == "jax" else [_clipped_slope(x, n)])
        compiled[name] = len(compilations) - before
    assert 0 < compiled["tape"] <= compiled["jax"]


def _clipped_slope(x, length):
    slope = np.zeros(x.size, np.float32)
    slope[np.argsort(x)[:length]] = 1 / length
    return slope


def test_what_is_kept_is_bounded():
    bounded = (operations.shared, recording._recorded_programs)
    assert [function.cache_info().maxsize for function in bounded] == [4096, 256]
    _, record = _tape.record(lambda x: [x * float(k) for k in range(1, 6)], [F(3)])
    for wanted in itertools.product([False, True], repeat=5):
        (slope,) = record.pullback([F(1) if w else None for w in wanted])
        assert (slope or 0) == sum(k for k, w in enumerate(wanted, 1) if w)
    assert len(record._program._pullbacks) <= recording._MAX_PULLBACKS


def test_programs_beyond_the_bound_are_pulled_back_call_by_call(pullbacks, monkeypatch):
    monkeypatch.setattr(recording, "MAX_COMPILED", 5)
    for _ in range(OFTEN + 1):
        actual = _tape.vjp(chain(4), arrays([X3]), [jnp.ones(3)])
        check(actual, [jax.grad(lambda y: jnp.sum(chain(4)(y)[0]))(jnp.asarray(X3))])
    assert pullbacks == []


def over_table(table):
    """What a jitted function closes over may be written to, and is new in every call."""
    return lambda x: [jnp.sum(jax.jit(lambda y: jnp.sin(y) * table * table)(x))]


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, jax.checkpoint, lambda f: lambda x: jax.lax.fori_loop(0, 2, lambda i, c: f(c), x)],
    ids=["jit", "in checkpoint", "in scan"],
)
def test_arrays_that_a_jitted_function_closes_over_may_change(wrap):
    table = np.ones(3, np.float32)
    for k in (1, 10, 3, 4, 5):
        table[:] = k
        body = lambda x: [jnp.sum(wrap(jax.jit(lambda y: jnp.sin(y) * table * table))(x))]
        outputs, record = _tape.record(body, [X3])
        wanted, pull = jax.vjp(body, X3)
        check(outputs, wanted)
        check(record.pullback([jnp.float32(1)]), pull([jnp.float32(1)]))


def test_arrays_that_a_jitted_function_closes_over_are_those_of_the_call():
    table = np.ones(3, np.float32)
    _, record = _tape.record(over_table(table), [X3])
    table[:] = 5  # a copy was recorded
    check(record.pullback([jnp.float32(1)]), [jnp.cos(X3)])


def test_arrays_that_a_jitted_function_closes_over_are_operands(pullbacks):
    for k in range(OFTEN + 2):
        _, record = _tape.record(over_table(jnp.full(3, 1.0 + k)), [X3])
        record.pullback([jnp.float32(1)])
    assert pullbacks == [False] * OFTEN + [True] * 2


def test_arrays_that_a_jitted_function_closes_over_are_counted_and_freed():
    tables = [jnp.ones(1000)]

    def body(x):
        table = tables.pop()
        return [jnp.sum(jax.jit(lambda y: jnp.sin(y * table) * table)(x))]

    freed = weakref.ref(tables[0])
    _, record = _tape.record(body, [jnp.ones(1000)])
    assert record.nbytes >= 8000
    del record
    gc.collect()
    assert freed() is None

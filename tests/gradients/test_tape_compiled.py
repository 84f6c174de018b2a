"""Recorded programs that come again have one compiled pullback."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import _tape
from jaxpyop._tape import cache, replay
from jaxpyop._tape import tape as tape_module
from tests.shared.tape_bodies import X3, Z3, F, arrays, chain, check

pytestmark = pytest.mark.usefixtures("strict_promotion", "eager_tape")


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


class Pullbacks(cache.Cache):
    """Notes which looks found a compiled pullback."""

    def __init__(self):
        super().__init__(256)
        self.found = []

    def compiled(self, key, make):
        function = super().compiled(key, make)
        self.found.append(function is not None)
        return function


@pytest.fixture
def pullbacks(monkeypatch):
    fresh = Pullbacks()
    monkeypatch.setattr(replay, "pullbacks", fresh)
    return fresh


def test_compiled_on_second_sight(pullbacks, compilations):
    one = [jnp.ones(3)]
    for _ in range(4):
        before = len(compilations)
        _tape.vjp(chain(3), arrays([X3]), one)
    assert pullbacks.found == [False, True, True, True]
    assert len(compilations) == before


def test_fresh_lengths_do_not_compile(compilations):
    one = [jnp.ones(3)]
    for n in (1, 2, 3):  # the operations themselves
        _tape.vjp(chain(n), arrays([X3]), one)
    before = len(compilations)
    for n in range(10, 30):
        _tape.vjp(chain(n), arrays([X3]), one)
    assert len(compilations) == before


def test_constants_are_inputs(pullbacks):
    x, results = F(0.3), []
    for i in range(4):
        body = chain(2, jnp.float32(0.1 * i))
        results += _tape.vjp(body, [x], [F(1)])
        check(results[-1:], [jax.grad(lambda y, body=body: body(y)[0])(x)])
    assert len({float(r) for r in results}) == 4
    assert pullbacks.found == [False, True, True, True]


def test_types_are_part_of_the_key(pullbacks):
    for x in (F(2), jnp.asarray(X3), jnp.float16(2), jnp.asarray(Z3)):
        for _ in range(3):
            check(_tape.vjp(lambda y: [y * y], [x], [jnp.ones_like(x)]), [2 * x])
    assert len(pullbacks) == 4


def test_fresh_lambdas_in_scan_share_one_function(compilations):
    def body(x):
        return [jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=4)[0]]

    for _ in range(3):
        _tape.vjp(body, [F(0.5)], [F(1)])
    before = len(compilations)
    for _ in range(3):
        _tape.vjp(body, [F(0.5)], [F(1)])
    assert len(compilations) == before


def test_scans_that_differ_in_a_number_do_not_share():
    for rate in (0.5, 0.25, -0.0, 0.0):

        def body(x, rate=rate):
            return [jax.lax.scan(lambda c, _: (c * rate, None), x, None, length=2)[0]]

        for _ in range(3):
            check(_tape.vjp(body, [F(3)], [F(1)]), [F(rate * rate)])


def test_cache_is_bounded():
    bounded = cache.Cache(3)
    for i in range(3):
        assert bounded.compiled(i, lambda: "made") is None
    assert bounded.compiled(0, lambda: "made") == "made"
    for i in range(10, 12):
        bounded.compiled(i, lambda: "made")
    assert len(bounded) == 3
    assert bounded.get(0) == "made"  # was used after 1 and 2
    assert bounded.get(1) is None


def test_programs_beyond_the_bound_are_pulled_back_call_by_call(pullbacks, monkeypatch):
    monkeypatch.setattr(tape_module, "MAX_COMPILED", 5)
    for _ in range(3):
        actual = _tape.vjp(chain(4), arrays([X3]), [jnp.ones(3)])
        check(actual, [jax.grad(lambda y: jnp.sum(chain(4)(y)[0]))(jnp.asarray(X3))])
    assert len(pullbacks) == 0


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
    for k in range(6):
        _, record = _tape.record(over_table(jnp.full(3, 1.0 + k)), [X3])
        record.pullback([jnp.float32(1)])
    assert pullbacks.found == [False, True, True, True, True, True]


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

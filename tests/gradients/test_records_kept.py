"""What the store keeps of programs that train: next to nothing, and each body runs once all the same."""

import gc

import jax
import jax.numpy as jnp
import pytest

import jaxpyop
from jaxpyop import _tape
from jaxpyop._op import RECORDS
from tests.shared.util import Counter, eventually, py_function

X = jnp.arange(1.0, 4.0)


@pytest.fixture(autouse=True)
def _empty():
    """An empty store, of which ten records that were read would stay."""
    gc.collect()
    RECORDS.clear()
    with jaxpyop.config.override(max_records=320):
        yield


def square():
    counter = Counter(lambda x: x * jnp.sin(x))
    return counter, lambda x: py_function(counter, [x], jnp.float32, output_shapes=lambda x: x.shape)


def scan(f, x):
    step = lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=300)[0]
    return jax.jit(jax.grad(step))(x[0])


def pulled_thrice(f, x):
    _, pull = jax.vjp(f, x)
    return [pull(jnp.ones_like(x)) for _ in range(3)]


def scan_pulled_thrice(f, x):
    def program(x):
        _, pull = jax.vjp(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=300)[0], x)
        return [pull(jnp.ones_like(x)) for _ in range(3)]

    return jax.jit(program)(x)


PROGRAMS = {  # each with how often the body is to run
    "scan": (scan, 300),
    "scan pulled thrice": (scan_pulled_thrice, 300),
    "pulled thrice": (pulled_thrice, 1),
    "pulled thrice, forward under jit": (lambda f, x: pulled_thrice(jax.jit(f), x), 1),
    "pulled thrice under jit": (lambda f, x: jax.jit(lambda x: pulled_thrice(f, x))(x), 1),
    "jacrev": (lambda f, x: jax.jacrev(f)(x), 1),
    "jacrev under jit": (lambda f, x: jax.jit(jax.jacrev(f))(x), 1),
    "jacrev of vmap": (lambda f, x: jax.jit(jax.jacrev(jax.vmap(f)))(jnp.arange(40.0)), 40),
    "jacrev of vmap, direct": (lambda f, x: jax.jacrev(jax.vmap(f))(jnp.arange(20.0)), 20),
    "vmap of vmap of grad": (lambda f, x: jax.vmap(jax.vmap(jax.grad(f)))(jnp.ones((3, 4))), 12),
    "checkpoint": (lambda f, x: jax.jit(jax.grad(lambda x: jnp.sum(jax.checkpoint(f)(x))))(x), 1),
}


@pytest.mark.parametrize(("program", "runs"), PROGRAMS.values(), ids=PROGRAMS)
def test_each_body_runs_once(program, runs):
    counter, f = square()
    jax.block_until_ready(program(f, X))
    assert counter.count == runs


def test_two_programs_in_turn_run_each_body_once():
    (one, f), (other, g) = square(), square()
    first, second = (jax.jit(lambda x, f=f: jax.vjp(f, x)[1]) for f in (f, g))
    pulls = [pull for i in range(150) for pull in (first(X + i), second(X - i))]
    for pull in pulls:
        jax.block_until_ready(pull(X))
    assert (one.count, other.count) == (150, 150)


@pytest.mark.filterwarnings("ignore:.*records of forward passes were pushed out")
def test_a_training_run_leaves_little(transport):
    _, f = square()
    step = jax.jit(jax.grad(lambda x: jnp.sum(f(x))))
    x = jnp.ones(2**18)
    evicted = RECORDS.stats()["evicted"]
    for _ in range(40):  # of a megabyte and more each
        jax.block_until_ready(step(x))
    RECORDS.make_room()
    assert 2**20 < RECORDS.stats()["nbytes"] < 16 * 2**20
    assert RECORDS.stats()["evicted"] == evicted


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize("step", [jax.grad, lambda f: jax.vmap(jax.grad(f))], ids=["grad", "vmap of grad"])
def test_outside_jit_nothing_is_left(step, stateful):
    if stateful:
        loss = lambda x: py_function(jnp.sin, [x], jnp.float32, output_shapes=(), stateful=True)
    else:
        loss = lambda x: py_function(jnp.sin, [x], jnp.float32, output_shapes=())
    for _ in range(5):
        jax.block_until_ready(step(loss)(jnp.ones(3) if step is not jax.grad else 1.0))
    assert eventually(lambda: RECORDS.stats()["count"] == 0)


def test_outside_jit_a_pullback_keeps_its_record():
    counter, f = square()
    _, pull = jax.vjp(f, X)
    for _ in range(60):
        jax.vjp(f, X)[1](X)
    assert RECORDS.stats()["count"] == 1
    pull(X)
    assert counter.count == 61
    del pull
    assert eventually(lambda: RECORDS.stats()["count"] == 0)


def test_records_of_one_line_share_it():
    def body(x):
        for _ in range(30):
            x = jnp.sin(x) * x
        return x

    first, second = (_tape.record(lambda x: [body(x)], [jnp.float32(1)])[1] for _ in range(2))
    assert first._program is second._program
    step = jax.jit(lambda x: jax.vjp(lambda x: py_function(body, [x], jnp.float32, output_shapes=()), x)[1])
    step(1.0)
    assert 30 * 1000 < RECORDS.stats()["nbytes"] < 60 * 1700  # the arrays alone, which are small

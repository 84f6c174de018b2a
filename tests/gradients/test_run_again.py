"""A record that was pushed out is made again, and only if the function does what it did: equal or refused."""

import contextlib
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._jaxcore import frames
from jaxpyop._op import RECORDS
from tests.shared.util import numpy_function, py_function

STEPS = 12
RUNS = {
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=STEPS)[0],
    "vmap": lambda f: lambda x: jnp.sum(jax.vmap(f)(x + jnp.arange(STEPS, dtype=jnp.float32))),
    "one by one": lambda f: lambda x: sum(f(x + k) for k in range(STEPS)),
}


@pytest.fixture(autouse=True)
def _two_records():
    # The warning comes once for each name of an op.
    frames._warned.clear()
    with jaxpyop.config.override(max_records=2):
        yield
    jaxpyop.clear_records()


def steady(x):
    return jnp.sin(x) * 1.5


def draws():
    generator = np.random.default_rng(0)
    return lambda x: x * generator.normal()


def counts():
    seen = []

    def f(x):
        seen.append(0)
        return x * (1.0 + len(seen) / 100)

    return f


def fwd_of(body):
    def fwd(x):
        y = np.float32(body(float(x)))
        return y, y / x

    return fwd


def as_tape(body):
    return lambda x: py_function(body, [x], jnp.float32)


def as_rule(body):
    fwd = fwd_of(body)
    return lambda x: numpy_function(lambda x: fwd(x)[0], [x], jnp.float32(0), vjp=(fwd, lambda r, ct: [r * ct[0]]))


def as_block(body):
    def fwd(x):
        y = np.asarray([body(float(v)) for v in x.ravel()], np.float32).reshape(x.shape)
        return y, y / x

    return lambda x: numpy_function(
        lambda x: fwd(x)[0], [x], jnp.float32, vjp=(fwd, lambda r, ct: [r * ct[0]]), vmap_method="expand_dims"
    )


OPS = {"tape": as_tape, "fwd": as_rule}
AGAIN = "records of forward passes were pushed out before the backward pass came"


@contextlib.contextmanager
def told_once():
    with pytest.warns(RuntimeWarning, match=AGAIN) as told:
        yield
    assert len(told) == 1
    assert "max_record_bytes" in str(told[0].message)


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "direct"])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("op", OPS)
def test_a_steady_function_runs_again_with_one_warning(op, run, jit):
    # The rule's residual is y / x, so that its derivative is that of a straight line through the origin.
    program, reference = RUNS[run](OPS[op](steady)), RUNS[run](steady if op == "tape" else lambda x: _line(x))
    with told_once():
        found = jit(jax.grad(program))(0.7)
    np.testing.assert_allclose(found, jax.grad(reference)(0.7), rtol=1e-5)


def _line(x):
    return x * jax.lax.stop_gradient(steady(x) / x)


@pytest.mark.parametrize("body", [draws, counts])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("op", OPS)
def test_a_function_that_gives_something_else_is_refused(op, run, body):
    with (
        pytest.warns(RuntimeWarning, match=AGAIN),
        pytest.raises(Exception, match=r"(func|fwd of vjp) ran again .*other results.*stateful=True"),
    ):
        jax.block_until_ready(jax.jit(jax.grad(RUNS[run](OPS[op](body()))))(0.7))


@pytest.mark.parametrize("body", [lambda: steady, draws], ids=["steady", "draws"])
def test_a_block_whose_residuals_are_gone(body):
    f = as_block(body())
    x = jnp.arange(1.0, 5.0)

    def program(x):
        y, pull = jax.vjp(jax.vmap(f), x)
        for k in range(3):  # these push the residuals out
            y = y + jax.vjp(jax.vmap(f), x + k)[0]
        return pull(y)[0] * 0 + pull(jnp.ones_like(x))[0]

    if body is draws:
        with pytest.warns(RuntimeWarning, match=AGAIN), pytest.raises(Exception, match="fwd of vjp ran again"):
            jax.block_until_ready(jax.jit(program)(x))
    else:
        with told_once():
            np.testing.assert_allclose(jax.jit(program)(x), jax.vmap(steady)(x) / x, rtol=1e-6)


def test_the_second_derivative_of_what_draws_is_refused():
    f = as_tape(draws())
    with (
        pytest.warns(RuntimeWarning, match=AGAIN),
        pytest.raises(Exception, match="func ran again"),
    ):
        jax.block_until_ready(jax.jit(jax.grad(lambda x: jnp.sum(jax.vmap(jax.grad(f))(x))))(jnp.arange(9.0)))


def test_a_stateful_function_never_runs_again():
    f = lambda x: py_function(draws(), [x], jnp.float32, stateful=True)
    with pytest.raises(Exception, match="stateful op cannot be run again"):
        jax.block_until_ready(jax.jit(jax.grad(RUNS["scan"](f)))(0.7))


def test_records_that_the_user_cleared_are_made_again_silently():
    _, pull = jax.vjp(jax.jit(as_tape(steady)), jnp.float32(0.7))
    jaxpyop.clear_records()
    np.testing.assert_allclose(pull(jnp.float32(1.0))[0], 1.5 * np.cos(0.7), rtol=1e-6)


def test_records_may_take_a_share_of_the_machine():
    """256 MB were 240 steps of a scan with states of 1 MB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    default = jaxpyop._config._SETTINGS["max_record_bytes"][0]
    assert 256 * 2**20 <= default <= max(memory // 8, 256 * 2**20)
    assert RECORDS.stats()["max_bytes"] == jaxpyop.config.max_record_bytes


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[::-1],
        lambda a: np.where(np.arange(a.size) == a.size // 2, a + 1e-3, a),
        lambda a: -a,
        lambda a: np.random.default_rng(1).permutation(a),
    ],
    ids=["reversed", "one element", "negative", "shuffled"],
)
@pytest.mark.parametrize("size", [1, 100, 200_000])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8])
def test_a_fingerprint_tells(dtype, size, change):
    from jaxpyop._op.values import fingerprints

    a = (np.random.default_rng(0).normal(size=size) * 40).astype(dtype)
    b = np.asarray(change(a)).astype(dtype)
    assert fingerprints([a]) == fingerprints([a.copy()])
    if not np.array_equal(a, b):
        assert fingerprints([a]) != fingerprints([b])
        rows = fingerprints([np.stack([a, b, a])], (3,))
        assert re.fullmatch(r"(\d+) (?!\1)\d+ \1", " ".join(map(str, rows)))


class Changing:
    """A number that is another one in each run of a function."""

    def __init__(self):
        self.runs = 0

    def __call__(self):
        self.runs += 1
        return 1.0 + self.runs


def test_only_results_are_compared():
    """A function that gives the same results with another derivative is not noticed, as the page on gradients says."""
    number = Changing()
    f = as_tape(lambda x: (k := number()) * (x - jax.lax.stop_gradient(x)) + jax.lax.stop_gradient(x) * (k > 0))
    with told_once():
        assert np.isfinite(jax.jit(jax.grad(RUNS["scan"](f)))(0.7))


def everything(*_, **__):
    return True


CHECKPOINTS = {
    "the function": jax.checkpoint,
    "around more": lambda f: jax.checkpoint(lambda x: f(x * 1.0) * 1.0),
    "in itself": lambda f: jax.checkpoint(lambda x: jax.checkpoint(f)(x)),
    "nothing saveable": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.nothing_saveable),
    "everything saveable": lambda f: jax.checkpoint(f, policy=everything),
    "in a scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (jax.checkpoint(f)(c), None), x, None, length=2)[0],
    "around a scan": lambda f: jax.checkpoint(RUNS["scan"](f)),
    "around a vmap": lambda f: jax.checkpoint(lambda x: jnp.sum(jax.vmap(f)(jnp.stack([x, x])))),
    "in a vmap": lambda f: lambda x: jnp.sum(jax.vmap(jax.checkpoint(f))(jnp.stack([x, x]))),
    "around a cond": lambda f: jax.checkpoint(lambda x: jax.lax.cond(x > 0, f, lambda x: x, x)),
}


@pytest.mark.parametrize("staged", [lambda f: f, jax.jit, jaxpyop.jit], ids=["direct", "jit", "cut"])
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_in_a_checkpoint_the_gradient_is_that_of_the_run_that_gave_the_value(name, kind, staged):
    f = CHECKPOINTS[name](OPS[kind](draws()))
    with jaxpyop.config.override(max_records=100):
        value, slope = staged(jax.value_and_grad(f))(jnp.float32(0.75))
    # Each function is linear in x.
    np.testing.assert_allclose(slope * 0.75, value, rtol=1e-5)

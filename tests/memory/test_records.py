"""Records of forward passes: within their bounds, good for several backward passes, and never lost in silence."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import freed
from tests.shared.functions import py_function

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])
SIZE = 1000


def noting(refs):
    """A function whose record holds an array that it makes, of 4000 bytes."""

    def body(x):
        constant = jnp.asarray(np.asarray(x) * np.ones(SIZE, np.float32))
        refs.append(weakref.ref(constant))
        return (jnp.sin(x) * constant).sum()

    return jax.jit(lambda x: jax.vjp(lambda x: py_function(body, [x], F, output_shapes=()), x))


@pytest.mark.parametrize(
    ("bounds", "fewest", "most"),
    [({"max_records": 2}, 2, 2), ({"max_record_bytes": 20_000}, 1, 5)],
    ids=["by number", "by bytes"],
)
@pytest.mark.filterwarnings("ignore:.*records of forward passes were pushed out")
def test_arrays_live_as_long_as_their_records(bounds, fewest, most):
    refs = []
    jaxpyop.clear_records()
    f = noting(refs)
    with jaxpyop.config.override(**bounds):
        pulls = [jax.block_until_ready(f(F(i)))[1] for i in range(6)]
        alive = [ref() is not None for ref in refs]
        assert alive == sorted(alive)  # the latest
        assert fewest <= sum(alive) <= most
        # A record that is gone is made again.
        np.testing.assert_allclose(pulls[1](F(1))[0], SIZE * np.cos(1), rtol=1e-3)
    jaxpyop.clear_records()
    del pulls
    assert freed(*refs)


@pytest.mark.filterwarnings("ignore:.*records of forward passes were pushed out")
def test_a_record_that_was_pushed_out_is_counted_and_made_again():
    f = jax.jit(lambda x: jax.vjp(lambda x: py_function(lambda x: x**3, [x], F, name="cube"), x))
    with jaxpyop.config.override(max_records=10), jaxpyop.report() as report:
        kept = [jax.block_until_ready(f(F(i))) for i in range(30)]
        assert [(y, pull(F(1))[0]) for y, pull in kept] == [(i**3, 3 * i**2) for i in range(30)]
    (row,) = [row for row in report.rows() if row["op"] == "cube"]
    assert row["pushed_out"] == row["recomputed"] > 10
    assert row["runs"] == 30 + row["recomputed"]


def test_a_stateful_function_is_not_run_again():
    op = lambda x: py_function(lambda x: x**3, [x], F, stateful=True)
    with jaxpyop.config.override(max_records=2):
        f = jax.jit(lambda x: jax.vjp(op, x))
        first = jax.block_until_ready(f(X))
        for i in range(5):
            jax.block_until_ready(f(X + i))
        text = r"cannot be run again; increase jaxpyop\.config\.max_records"
        with pytest.raises(RuntimeError, match=text), jaxpyop.reraise():
            jax.block_until_ready(first[1](jnp.ones(3)))
        np.testing.assert_allclose(f(X)[1](jnp.ones(3))[0], 3 * X**2, rtol=1e-6)


def test_outside_of_jit_a_record_goes_with_its_pullback():
    refs = []

    def body(x):
        constant = jnp.ones(SIZE) * 2
        refs.append(weakref.ref(constant))
        return (jnp.sin(x) * constant).sum()

    _, pull = jax.vjp(lambda x: py_function(body, [x], F), F(0))
    assert [pull(F(k))[0] for k in (1, 2, 3)] == [2 * SIZE, 4 * SIZE, 6 * SIZE]
    assert len(refs) == 1  # a record serves several backward passes
    assert refs[0]() is not None
    del pull
    assert freed(*refs)

"""What Python gives is what traced mode gives, or there is an error: never a different value, gradient or effect.

The functions are in control_flow.py, numbers.py, containers.py, idioms.py, outside.py, objects.py and subtleties.py.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.traced import containers, control_flow, idioms, numbers, objects, outside, subtleties
from tests.traced.rows import is_refusal, op

TABLES = {"control flow": control_flow, "numbers": numbers, "containers": containers, "idioms": idioms}
TABLES |= {"outside": outside, "objects": objects, "subtleties": subtleties}
ROWS = [row for module in TABLES.values() for row in module.TABLE.rows]
# The subtleties are about values; what their gradients go through is in the other tables, too.
DIFFERENTIABLE = [
    row
    for module in TABLES.values()
    for row in module.TABLE.rows
    if module is not subtleties and row.argnums and row.make()[1]() is None
]
# Loops of different lengths, which run together in a batch, and a derivative at zero.
FAST_GRADIENTS = ("an attribute in a loop", "an array and a zero", "powers of a counter")

# Python 3.12 says that `~` of a bool will be an error one day.
pytestmark = pytest.mark.filterwarnings("ignore:Bitwise inversion")


def calls(run, row, state):
    """What a function gives at each point, and the state after each call."""
    return [(np.asarray(run(*map(jax.numpy.asarray, point)), np.float32), state()) for point in row.points]


def assert_same_calls(got, wanted):
    assert [state for _, state in got] == [state for _, state in wanted]
    values, python = ([value for value, _ in found] for found in (got, wanted))
    np.testing.assert_allclose(values, python, rtol=2e-5, atol=1e-5)


def python_calls(row):
    function, state = row.make()
    return calls(function, row, state)


def traced_or_refused(row, run):
    """The result of a run, or nothing if the function is refused and may be."""
    try:
        return run()
    except Exception as error:
        if row.equal or not is_refusal(error):
            raise
        return None


@pytest.mark.parametrize("row", [row.param() for row in ROWS])
def test_traced_mode_gives_the_value_of_python(row):
    function, state = row.make()
    before = state()
    got = traced_or_refused(row, lambda: calls(jax.jit(op(function, "traced")), row, state))
    if got is None:
        assert state() == before
    else:
        assert_same_calls(got, python_calls(row))


@pytest.mark.parametrize("row", [row.param(slow=True) for row in ROWS if not row.equal])
def test_auto_mode_gives_the_value_of_python(row):
    """Those that may be refused. What must be traced is traced in mode auto, too, as in the test above."""
    function, state = row.make()
    assert_same_calls(calls(jax.jit(op(function, "auto")), row, state), python_calls(row))


def gradients(row, mode, transform, **options):
    return transform(jax.value_and_grad(op(row.make()[0], mode, **options), row.argnums))


@pytest.mark.parametrize("row", [row.param(slow=row.name not in FAST_GRADIENTS) for row in DIFFERENTIABLE])
def test_gradients_and_batches_of_them_are_those_of_eager_mode(row):
    eager = gradients(row, "eager", lambda f: f)
    wanted = jax.tree.map(lambda *xs: np.stack(xs), *[eager(*map(jax.numpy.asarray, point)) for point in row.points])
    batch = list(map(np.stack, zip(*row.points, strict=True)))
    traced = gradients(row, "traced", lambda f: jax.jit(jax.vmap(f)), max_steps=130)
    if (got := traced_or_refused(row, lambda: traced(*batch))) is not None:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), got, wanted)

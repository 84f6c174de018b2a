"""What a trace costs, counted: each part of a body is recorded as often as its types need, and no more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxpyop import _jaxcore
from jaxpyop._paths import PathError
from jaxpyop._paths.rewrite import loop_statements
from tests.shared import loop_bodies, path_bodies
from tests.shared.loop_bodies import points, traced

# The body, a turn, a test: one each. An `if` has two sides, which are recorded, and again when both fit the result.
# A turn is looked at once more where a Python number before the loop is an array after it, without the loops in it.
RECORDINGS = {
    loop_bodies.newton: 3,
    loop_bodies.collatz: 7,
    loop_bodies.bisection: 11,
    loop_bodies.for_of_a_value: 3,
    loop_bodies.nested_loops: 9,
    path_bodies.log_huber: 5,
}


@pytest.mark.parametrize(("body", "count"), RECORDINGS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_recordings(body, count, monkeypatch):
    x, m = points[1]
    trace = lambda: jax.make_jaxpr(lambda x, m: traced(body)(x, m))(x, m)
    trace()  # to find that it asks for values
    calls = []
    record = _jaxcore.make_jaxpr
    monkeypatch.setattr(_jaxcore, "make_jaxpr", lambda *args: calls.append(0) or record(*args))
    trace()
    assert len(calls) == count


def test_a_recording_is_what_jax_would_make_of_it():
    f = lambda x, y: [x + 1, 2.0, True, y, jnp.ones(2) * x]
    for args in ([1.0, jnp.float32(2)], [jax.ShapeDtypeStruct((2,), jnp.float32, weak_type=True), jnp.int32(2)]):
        assert str(_jaxcore.make_jaxpr(f, args)) == str(jax.make_jaxpr(f)(*args))


def gives_way(x, half):
    total, used = 0.0, half
    for _ in range(jnp.int32(x)):
        used = half * total  # half precision while `total` is a Python number
        total = total + x
    return used.astype(jnp.float32) + total


def stays_a_number(x, half):
    y = 0.5
    for _ in range(jnp.int32(x)):
        y = y * 2
    return y * half


def gives_way_inside(x, half):
    total, used = 0.0, half
    for i in range(jnp.int32(x)):
        used = jnp.where(i > 1, half, half * total)
        for _ in range(i):
            total = total + x
    return used + total


def accumulates(x, half):
    total = 0.0
    for i in range(jnp.int32(x)):
        inner = 0
        for j in range(i):
            inner = inner + j * half
        total = total + inner * x
    return total


@pytest.mark.parametrize("body", [gives_way, gives_way_inside], ids=lambda f: f.__name__)
def test_a_number_that_becomes_an_array_is_recorded_again_and_refused(body):
    """In Python the first iteration counts in half precision, and the others do not."""
    with pytest.raises(PathError, match="the dtype of this operation depends on the path"):
        traced(body)(jnp.float32(3.0), jnp.bfloat16(0.5))


@pytest.mark.parametrize("body", [stays_a_number, accumulates], ids=lambda f: f.__name__)
def test_types_are_those_of_recording_again(body, monkeypatch):
    args = jnp.float32(3.0), jnp.bfloat16(0.5)

    def types_and_value():
        jaxpr = jax.make_jaxpr(lambda *xs: traced(body)(*xs))(*args)
        types = [[str(v.aval) for v in eqn.outvars] for eqn in jaxpr.eqns if eqn.primitive.name == "loop"]
        return types, jaxpr.out_avals, float(traced(body)(*args))

    found = types_and_value()
    monkeypatch.setattr(loop_statements, "with_full_types", lambda *_: None)
    assert found == types_and_value()

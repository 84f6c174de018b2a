"""The traces that we make current are one and the same to JAX's cache of jitted functions, from step to step.

A jitted function called on values without a tangent, in a recorded body or an abstract run, leaves an entry in that
cache for each trace that it sees. `_cache_size` counts them.
"""

import threading

import jax
import jax.numpy as jnp
import pytest

import jaxpyop
from jaxpyop._jaxcore import current_trace, set_current_trace
from jaxpyop._jaxcore.traces import RecurringTrace

Y = jnp.arange(3.0)


def helper():
    return jax.jit(lambda y: jnp.cos(y) * 2)


def regression(jitted):
    def body(w):
        return jnp.sum((jnp.tanh(w * Y) - jitted(Y)) ** 2)

    return lambda w: jaxpyop.py_function(body, [w], jnp.float32, output_shapes=())


def nested(jitted):
    def inner(w):
        return jnp.sum(w * jitted(Y))

    def outer(w):
        return jax.grad(lambda w: jaxpyop.py_function(inner, [w], jnp.float32))(w) * w

    return lambda w: jaxpyop.py_function(outer, [w], jnp.float32, output_shapes=())


@jax.custom_vjp
def scaled(w, y):
    return w * y


scaled.defvjp(lambda w, y: (w * y, (w, y)), lambda kept, ct: (jnp.sum(ct * kept[1]), ct * kept[0]))


def custom_rule(jitted):
    def body(w):
        return jnp.sum(scaled(w, jitted(Y)))

    return lambda w: jaxpyop.py_function(body, [w], jnp.float32, output_shapes=())


def shapes_found(jitted):
    """Without shapes promised, an abstract run finds them, for a new op each time."""
    loss = regression(jitted)

    def program(w):
        jax.eval_shape(lambda w: jaxpyop.py_function(lambda w: w * jitted(Y), [w], jnp.float32), w)
        return loss(w)

    return program


LOSSES = {"regression": regression, "nested": nested, "custom_vjp": custom_rule, "shapes found": shapes_found}


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_steps_leave_no_entries_behind(loss, jit):
    jitted = helper()
    step = jax.grad(loss(jitted))
    step = jax.jit(step) if jit else step
    for _ in range(3):
        step(1.0)
    before = jitted._cache_size()
    for _ in range(20):
        step(1.0)
    assert jitted._cache_size() == before


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_threads_leave_no_entries_behind(jit):
    jitted = helper()
    step = jax.grad(regression(jitted))
    step = jax.jit(step) if jit else step
    step(1.0)
    before = jitted._cache_size()
    for _ in range(10):
        thread = threading.Thread(target=step, args=(1.0,))
        thread.start()
        thread.join()
    assert jitted._cache_size() == before


def test_plain_calls_stay_on_their_fast_path():
    """A function that JAX first sees in a body is not marked as slow for calls from elsewhere."""
    jitted = helper()
    jax.grad(regression(jitted))(1.0)
    before = jitted._cache_size()
    jitted(Y)
    assert jitted._cache_size() == before + 1  # an entry of its own, with its executable


def test_a_tracer_of_an_earlier_recording_is_dead():
    kept = []

    def body(x):
        kept.append(x)
        return x * kept[0]

    loss = lambda x: jaxpyop.py_function(body, [x], jnp.float32, output_shapes=())
    assert jax.grad(loss)(2.0) == 4.0
    with pytest.raises(jax.errors.UnexpectedTracerError, match=r"stop_gradient\(x\)"):
        jax.grad(loss)(3.0)


def test_open_traces_are_told_apart():
    first, second = RecurringTrace(), RecurringTrace()
    assert first._weakref != second._weakref
    known_by = second._weakref
    second.close()
    second.close()
    third, fourth = RecurringTrace(), RecurringTrace()
    assert third._weakref == known_by
    assert len({first._weakref, third._weakref, fourth._weakref}) == 3
    assert third.is_valid()
    assert not second.is_valid()
    for trace in (first, third, fourth):
        trace.close()


def test_a_trace_that_is_dropped_unclosed_costs_one_identity_only():
    trace = RecurringTrace()
    with set_current_trace(trace):
        assert current_trace() is trace
    known_by = trace._weakref
    del trace
    after = RecurringTrace()
    assert after._weakref is not known_by
    after.close()

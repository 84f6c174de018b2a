"""What is freed and what is bounded."""

from __future__ import annotations

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._host.errors import KEPT
from jaxpyop._op import RECORDS
from tests.shared.util import APIS, eventually, every_api, freed, held, numpy_function, py_func, py_function

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


class Body:
    """A callable that can be watched."""

    __name__ = "body"

    def __init__(self, func=lambda x: x * 2):
        self.func = func

    def __call__(self, x):
        return self.func(x)


USES = {
    "direct": lambda op: op(X),
    "jit": lambda op: jax.jit(op)(X),
    "jit, many calls": lambda op: [f(X) for f in [jax.jit(op)] for _ in range(20)],
    "lowered and compiled": lambda op: jax.jit(op).lower(X).compile()(X),
    "vmap": lambda op: jax.vmap(op)(X),
    "jit of vmap": lambda op: jax.jit(jax.vmap(op))(X),
    "scan": lambda op: jax.lax.scan(lambda c, v: (c, op(v)), 0.0, X),
    "jit of scan": lambda op: jax.jit(lambda x: jax.lax.scan(lambda c, v: (c, op(v)), 0.0, x))(X),
    "eval_shape": lambda op: jax.eval_shape(op, X),
    "cond": lambda op: jax.lax.cond(X[0] > 0, op, lambda x: x, X),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@every_api
def test_a_dropped_program_frees_the_callable(api, use, transport):
    body = Body()
    ref = weakref.ref(body)
    op = functools.partial(lambda body, x: api(body, [x], F), body)
    jax.block_until_ready(use(op))
    jax.effects_barrier()
    del op, body
    if "scan" in use.__code__.co_names or "cond" in use.__code__.co_names:
        jax.clear_caches()  # JAX keeps traces of control flow by itself
    assert freed(ref)


def test_a_kept_program_keeps_the_callable(transport):
    """The check can fail."""
    body = Body()
    ref = weakref.ref(body)
    f = jax.jit(functools.partial(lambda body, x: py_func(body, [x], F), body))
    f(X)
    del body
    assert held(ref)
    np.testing.assert_array_equal(f(X), X * 2)
    del f
    assert freed(ref)


@pytest.mark.parametrize("api", ["py_function", "numpy_function"])
def test_a_dropped_gradient_frees_the_callable(api, transport):
    body = Body()
    ref = weakref.ref(body)
    options = {"vjp": lambda i, o, c: 2 * c[0]} if api == "numpy_function" else {}
    op = functools.partial(lambda body, x: APIS[api](body, [x], F, **options).sum(), body)
    jax.block_until_ready(jax.jit(jax.grad(op))(X))
    jax.block_until_ready(jax.grad(op)(X))
    del op, body
    RECORDS.clear()  # records live within their bounds
    assert freed(ref)


def test_static_inputs_are_freed_with_the_program(transport):
    class Thing:
        pass

    thing = Thing()
    ref = weakref.ref(thing)
    jax.block_until_ready(jax.jit(functools.partial(lambda t, x: py_func(lambda t, x: x, [t, x], F), thing))(X))
    del thing
    assert freed(ref)


def test_direct_calls_keep_nothing():
    refs = []
    for _ in range(50):
        body = Body()
        refs.append(weakref.ref(body))
        for api in (py_function, numpy_function):
            api(body, [X], F)
    del body
    assert freed(*refs)


def test_inputs_of_direct_calls_are_freed():
    class Tracked(np.ndarray):
        pass

    x = np.ones(100_000, np.float32).view(Tracked)
    ref = weakref.ref(x)
    numpy_function(np.negative, [x], F)
    del x
    assert freed(ref)


def test_results_of_bodies_are_freed(transport):
    refs = []

    class Tracked(np.ndarray):
        pass

    def body(x):
        out = (x * 2).view(Tracked)
        refs.append(weakref.ref(out))
        return out

    f = jax.jit(lambda x: numpy_function(body, [x], F))
    big = jnp.ones(100_000)
    for _ in range(10):
        jax.block_until_ready(f(big))
    assert eventually(lambda: sum(ref() is not None for ref in refs) <= 1)


def test_memory_of_large_calls_does_not_grow(transport):
    import tracemalloc

    f = jax.jit(lambda x: numpy_function(lambda x: x * 2, [x], F))
    big = jnp.ones(1_000_000)  # 4 MB
    for _ in range(5):
        jax.block_until_ready(f(big))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(20):
        jax.block_until_ready(f(big))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10_000_000


def test_errors_keep_a_bounded_number_of_callables(transport):
    refs = []
    for _ in range(KEPT + 20):

        def fail(x):
            raise ValueError("mine")

        body = Body(fail)
        refs.append(weakref.ref(body))
        with pytest.raises(ValueError, match="mine"), jaxpyop.reraise():
            jax.block_until_ready(jax.jit(functools.partial(lambda b, x: py_func(b, [x], F), body))(X))
        del body
    assert eventually(lambda: sum(ref() is not None for ref in refs) <= KEPT + 4)


# --------------------------------------------------------------------- records


def forward(x):
    return py_function(lambda x: x**3, [x], F)


@pytest.mark.filterwarnings("ignore:.*records of forward passes were pushed out")
def test_forward_passes_without_backward_stay_within_the_count(transport):
    with jaxpyop.config.override(max_records=10):
        f = jax.jit(lambda x: jax.vjp(forward, x))
        kept = [jax.block_until_ready(f(X + i)) for i in range(50)]
        assert RECORDS.stats()["count"] <= 10
        for i, (y, pull) in enumerate(kept):  # evicted ones recompute
            np.testing.assert_allclose(y, (X + i) ** 3, rtol=1e-5)
            np.testing.assert_allclose(pull(jnp.ones(3))[0], 3 * (X + i) ** 2, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*records of forward passes were pushed out")
def test_forward_passes_stay_within_the_bytes(transport):
    with jaxpyop.config.override(max_record_bytes=100_000):
        f = jax.jit(lambda x: jax.vjp(forward, x))
        kept = [jax.block_until_ready(f(jnp.full(2500, float(i)))) for i in range(20)]
        assert RECORDS.stats()["nbytes"] <= 100_000
        assert RECORDS.stats()["count"] < 20
        np.testing.assert_allclose(kept[0][1](jnp.ones(2500))[0], 0.0)
        np.testing.assert_allclose(kept[3][1](jnp.ones(2500))[0], 27.0, rtol=1e-5)


def test_a_record_serves_several_backward_passes(transport):
    runs = []

    def body(x):
        runs.append(1)
        return x**3

    y, pull = jax.jit(lambda x: jax.vjp(lambda x: py_function(body, [x], F, output_shapes=(3,)), x))(X)
    for k in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(pull(jnp.full(3, k))[0], k * 3 * X**2, rtol=1e-6)
    assert len(runs) == 1
    np.testing.assert_allclose(y, X**3, rtol=1e-6)


def test_an_evicted_record_of_a_stateful_op_is_an_error_that_names_the_setting(transport):
    op = lambda x: py_function(lambda x: x**3, [x], F, stateful=True)
    with jaxpyop.config.override(max_records=2):
        f = jax.jit(lambda x: jax.vjp(op, x))
        first = jax.block_until_ready(f(X))
        for i in range(5):
            jax.block_until_ready(f(X + i))
        with (
            pytest.raises(RuntimeError, match=r"cannot be run again; increase jaxpyop\.config\.max_records"),
            jaxpyop.reraise(),
        ):
            jax.block_until_ready(first[1](jnp.ones(3)))
        last = f(X)
        np.testing.assert_allclose(last[1](jnp.ones(3))[0], 3 * X**2, rtol=1e-6)

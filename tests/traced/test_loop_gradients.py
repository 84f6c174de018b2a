"""Derivatives of loops on values: any order, both modes, large states, and what JAX checks them for."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop._paths.loop import backward
from tests.shared import loop_bodies
from tests.shared.loop_bodies import traced
from tests.shared.path_bodies import close, primitives

pytestmark = pytest.mark.filterwarnings("error")


def shrink(x, a):
    while x > 1:
        x = x * a
    return x


def eager(x, a):
    return x * a**7  # what `shrink` is around the point below


POINT = (jnp.float32(4.0), jnp.float32(0.8))

SECOND = {
    "forward-over-reverse": lambda f: jax.jacfwd(jax.jacrev(f, (0, 1)), (0, 1)),
    "reverse-over-reverse": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1)),
    "forward-over-forward": lambda f: jax.jacfwd(jax.jacfwd(f, (0, 1)), (0, 1)),
    "reverse-over-forward": lambda f: jax.jacrev(jax.jacfwd(f, (0, 1)), (0, 1)),
}


@pytest.mark.parametrize("kept", [0, 2**20], ids=["every-so-many-th", "all"])
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_second_derivatives(second, kept, monkeypatch):
    monkeypatch.setattr(backward, "ALL_KEPT_BYTES", kept)
    got = jax.jit(second(traced(shrink, 10)))(*POINT)
    jax.tree.map(close, got, second(eager)(*POINT))


@pytest.mark.parametrize("bound", [7, 8, 10, 16, 17])
def test_any_bound_that_does(bound, monkeypatch):
    monkeypatch.setattr(backward, "ALL_KEPT_BYTES", 0)
    jax.tree.map(close, jax.grad(traced(shrink, bound), (0, 1))(*POINT), jax.grad(eager, (0, 1))(*POINT))
    assert np.isnan(jax.grad(traced(shrink, 6))(*POINT))


def test_large_states_are_kept_at_every_so_many_th_turn():
    def body(x):
        k = 0
        while k < 100 and x[0] > 0:
            x, k = x * 0.99, k + 1
        return x.sum()

    x = jnp.ones(300_000)
    jaxpr = jax.make_jaxpr(jax.grad(traced(body, 100)))(x)
    rows = [v.aval.shape[0] for v in values_in(jaxpr.jaxpr) if v.aval.ndim == 2 and v.aval.shape[1] == x.size]
    assert rows
    assert max(rows) == 10
    close(jax.jit(jax.grad(traced(body, 100)))(x)[:3], np.full(3, 0.99**100), rtol=1e-4)


def values_in(jaxpr):
    for eqn in jaxpr.eqns:
        yield from eqn.outvars
        for value in eqn.params.values():
            for part in (value.test, value.body) if hasattr(value, "test") else (value,):
                if hasattr(inner := getattr(part, "jaxpr", part), "eqns"):
                    yield from values_in(inner)


def test_a_value_that_one_turn_uses_many_times_has_its_whole_derivative():
    def body(x, table):
        k = 0
        while x > 0.1 and k < 5:
            x, k = x * table[k] * table[0], k + 1
        return x

    table = jnp.asarray([0.9, 0.8, 0.7, 0.6, 0.5])
    got = jax.grad(traced(body, 5), 1)(jnp.float32(2.0), table)
    close(got, jax.grad(lambda t: 2.0 * t[0] ** 5 * t.prod())(table))


def test_unused_and_integer_results_need_no_backward_pass():
    def body(x):
        k = 0
        while x > 1:
            x, k = x / 2, k + 1
        return k * 1.0

    assert jax.grad(lambda x: traced(body)(x) + x)(8.0) == 1.0


@pytest.mark.parametrize(
    "body", [loop_bodies.newton, loop_bodies.nested_loops, loop_bodies.methods], ids=lambda f: f.__name__
)
def test_no_tracer_leaks_and_strict_promotion(body):
    x, m = loop_bodies.points[1]
    with jax.checking_leaks():
        jax.jit(jax.grad(traced(body))).trace(x, m)


@pytest.mark.parametrize("setting", ["jax_enable_checks", "jax_debug_nans", "jax_disable_jit"])
def test_under_the_settings_of_jax(setting):
    before = getattr(jax.config, setting)
    jax.config.update(setting, True)
    try:
        got = jax.grad(traced(shrink, 10), (0, 1))(*POINT)
    finally:
        jax.config.update(setting, before)
    jax.tree.map(close, got, jax.grad(eager, (0, 1))(*POINT))


def test_half_precision_and_double():
    got = jax.jit(traced(shrink))(jnp.bfloat16(4.0), jnp.bfloat16(0.5))
    assert (got.dtype, float(got)) == (jnp.bfloat16, 1.0)
    with jax.enable_x64(True):
        got = jax.jit(jax.grad(traced(shrink)))(jnp.float64(4.0), jnp.float64(0.8))
        assert (got.dtype, float(got)) == (jnp.float64, pytest.approx(0.8**7, rel=1e-12))


def test_checkpoint_and_shard_map():
    close(jax.jit(jax.grad(jax.checkpoint(traced(shrink, 10))))(*POINT), 0.8**7)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    each = lambda x: jax.vmap(traced(shrink), (0, None))(x, 0.5)
    over = jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    with pytest.raises(NotImplementedError, match=r"in jax\.shard_map, a loop .* needs check_vma=False"):
        jax.jit(jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec))(jnp.ones(3))
    close(jax.jit(over)(jnp.asarray([4.0, 9.0, 0.5])), [1.0, 0.5625, 0.5])
    close(jax.jit(jax.grad(lambda x: over(x).sum()))(jnp.asarray([4.0, 9.0, 0.5])), [0.25, 0.0625, 1.0])


# Sequential ifs


def forty_ifs():
    lines = ["def body(x):", "    y = x"]
    for k in range(40):
        lines += [f"    if y > {0.1 * k}:", "        y = y * 0.75 + jnp.sin(x)", "    else:", "        y = y - 0.1 * x"]
    return "\n".join([*lines, "    return y", ""])


def test_forty_ifs_in_a_row_are_forty_conds_in_time(tmp_path, monkeypatch):
    (tmp_path / "many_ifs.py").write_text("import jax.numpy as jnp\n\n" + forty_ifs())
    monkeypatch.syspath_prepend(tmp_path)
    from many_ifs import body

    start = time.thread_time()
    jaxpr = jax.make_jaxpr(traced(body))(2.0)
    assert time.thread_time() - start < 2
    assert primitives(jaxpr)["cond"] == 40
    close(jax.jit(traced(body))(2.0), body(np.float32(2.0)))

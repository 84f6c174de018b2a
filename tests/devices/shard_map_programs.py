"""Programs with a `shard_map` over four devices: the function runs once for each shard."""

# ruff: noqa: B023  # what a loop makes is called in the same turn

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.devices.common import (
    FULL,
    OPS,
    F,
    Log,
    finish,
    numpy_function,
    program,
    py_function,
    same,
    stateful,
)


@program
def shard_map_runs_once_per_shard(on):
    for op in OPS.values():
        log = Log()
        for over in (on.shard_map, lambda f: jax.shard_map(f, mesh=on.mesh, in_specs=P("d"), out_specs=P("d"))):
            same(finish(over(lambda x: op(log, [x], F))(on.x)), FULL * 2)
            assert sorted(log.seen) == FULL.reshape(4, 2).tolist()
            log.seen.clear()


@program
def shard_map_with_several_results(on):
    for op in OPS.values():
        log = Log(lambda x, y: (x * 2, (x.sum() * y).astype(np.int32), np.asarray(x)[::-1].copy()))
        tout, shapes = (F, jnp.int32, F), ((2,), (), (2,))
        f = on.shard_map(
            lambda x, y: (lambda a, n, b: (a, lax.psum(n, "d"), b))(*op(log, [x, y], tout, output_shapes=shapes)),
            (P("d"), P()),
            (P("d"), P(), P("d")),
        )
        a, n, b = finish(f(on.x, 3.0))
        same(a, FULL * 2)
        same(n, FULL.sum() * 3)
        same(b, FULL.reshape(4, 2)[:, ::-1].ravel())
        assert sorted(log.seen) == FULL.reshape(4, 2).tolist()
        same(a + b, np.asarray(a) + np.asarray(b))  # usable eagerly


@program
def shard_map_without_results(on):
    log = Log(lambda x: None)
    f = on.shard_map(lambda x: (stateful(log, [x], None), x)[1])
    finish(f(on.x))
    assert sorted(log.seen) == FULL.reshape(4, 2).tolist()


@program
def shard_map_of_vmap(on):
    for op in OPS.values():
        for method in ("sequential", "expand_dims", "broadcast_all", "parallel"):
            log = Log(lambda x, y: x * y)
            f = on.shard_map(lambda x, y: jax.vmap(lambda x: op(log, [x, y], F, vmap_method=method))(x), (P("d"), P()))
            same(finish(f(on.x, 3.0)), FULL * 3)
            assert len(log.seen) == (8 if method in ("sequential", "parallel") else 4)


@program
def vmap_of_shard_map(on):
    xs = jax.device_put(np.stack([FULL, -FULL]), NamedSharding(on.mesh, P(None, "d")))
    f = jax.jit(jax.vmap(on.shard_map(lambda x: numpy_function(lambda x: x * 2, [x], F))))
    same(f(xs), 2 * np.asarray(xs))


@program
def shard_map_over_one_axis_of_two(on):
    mesh = on.make_mesh((2, 2), ("a", "b"))
    x = jax.device_put(FULL.reshape(4, 2), NamedSharding(mesh, P("a", "b")))
    for op in OPS.values():
        log = Log()
        f = on.shard_map(lambda x: op(log, [x], F), P("a", "b"), P("a", "b"), mesh)
        same(finish(f(x)), 2 * FULL.reshape(4, 2))
        assert len(log.seen) == 4
        g = on.shard_map(
            lambda x: lax.psum(op(lambda x: x.sum(), [x], F, output_shapes=()), ("a", "b")), P("a", "b"), P(), mesh
        )
        same(g(x), FULL.sum())


@program
def shard_map_of_loops(on):
    for op in OPS.values():
        log = Log(lambda x: x + 1)
        f = on.shard_map(lambda x: lax.fori_loop(0, 3, lambda i, c: op(log, [c], F), x))
        same(finish(f(on.x)), FULL + 3)
        assert len(log.seen) == 12
        f = on.shard_map(lambda x: lax.cond(x[0] > 3, lambda x: op(lambda x: x * 2, [x], F), lambda x: x, x))
        same(finish(f(on.x)), np.where(FULL > 3, FULL * 2, FULL))


@program
def shard_map_gradients_of_several_results(on):
    def body(x, w):
        return x**2 * w, (x * w).sum()

    def loss(x, w):
        def each(x, w):
            a, b = py_function(body, [x, w], (F, F), output_shapes=(x.shape, ()))
            return lax.psum(a.sum() + b, "d")

        return on.shard_map(each, (P("d"), P()), P())(x, w)

    gx, gw = jax.jit(jax.grad(loss, (0, 1)))(on.x, 3.0)
    same(gx, 6 * FULL + 3)
    same(gw, (FULL**2).sum() + FULL.sum())
    hessian = jax.jit(jax.grad(lambda x: jax.grad(loss)(x, 3.0).sum()))(on.x)
    same(hessian, np.full(8, 6.0))


RULES = {
    "vjp": {"vjp": lambda i, o, c: 2 * i[0] * c[0]},
    "pair": {"vjp": (lambda x: (x**2, x), lambda x, c: 2 * x * c[0])},
    "numerical": {"vjp": "numerical", "jvp": "numerical"},
}


@program
def shard_map_gradients_of_numpy_functions(on):
    for kind, rules in RULES.items():
        near = functools.partial(same, rtol=1e-2 if kind == "numerical" else 1e-6, atol=1e-2)
        square = lambda x: numpy_function(lambda x: x**2, [x], F, **rules)
        f = on.shard_map(lambda x: lax.psum(square(x).sum(), "d"), out_specs=P())
        near(jax.jit(jax.grad(f))(on.x), 2 * FULL)
        near(on.shard_map(jax.grad(lambda x: square(x).sum()))(on.x), 2 * FULL)
        if "jvp" in rules:
            near(jax.jit(lambda x: jax.jvp(f, (x,), (x,))[1])(on.x), 2 * (FULL**2).sum())
            near(on.shard_map(lambda x: jax.jvp(square, (x,), (x,))[1])(on.x), 2 * FULL**2)


@program
def shard_map_of_a_linear_function(on):
    scaled = lambda x: numpy_function(lambda x: 2 * x, [x], F, transpose=lambda c: 2 * c[0])
    loss = lambda x: lax.psum((scaled(x) ** 2).sum(), "d")
    f = on.shard_map(loss, out_specs=P())
    same(jax.jit(jax.grad(f))(on.x), 8 * FULL)
    same(jax.jit(jax.grad(lambda x: jax.grad(f)(x).sum()))(on.x), np.full(8, 8.0))
    same(jax.jit(lambda x: jax.jvp(f, (x,), (x,))[1])(on.x), 8 * (FULL**2).sum())
    back = on.shard_map(lambda y: jax.linear_transpose(scaled, y)(y)[0])
    same(back(on.x), 2 * FULL)


@program
def shard_map_shards_run_at_once(on):
    barrier = threading.Barrier(4, timeout=10)
    f = on.shard_map(lambda x: numpy_function(lambda x: (barrier.wait(), x)[1], [x], F))
    same(f(on.x), FULL)

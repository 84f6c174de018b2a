"""Programs with a `shard_map` over four devices: the function runs once for each shard."""

# ruff: noqa: B023  # what a loop makes is called in the same turn

import concurrent.futures
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxpyop import numerical
from tests.devices.common import FULL, OPS, SHARDS, F, Log, finish, program, programs_of_an_op, same
from tests.shared.functions import numpy_function, py_function

POOL = concurrent.futures.ThreadPoolExecutor(1)


def over(f):
    return lambda on, op: on.shard_map(lambda x: f(op, x))


def batched(method):
    return over(lambda op, x: jax.vmap(lambda x: op(x, vmap_method=method))(x)), 2 * FULL


directly = lambda on, op: jax.shard_map(op, mesh=on.mesh, in_specs=P("d"), out_specs=P("d"))
total = lambda on, op: on.shard_map(lambda x: lax.psum(op(x).sum(), "d"), out_specs=P())
loop = over(lambda op, x: lax.fori_loop(0, 3, lambda i, x: op(x), x))
cond = over(lambda op, x: lax.cond(x[0] > 3, op, lambda x: x, x))
programs_of_an_op(
    {
        "shard_map": (over(lambda op, x: op(x)), 2 * FULL, SHARDS),
        "shard_map, direct": (directly, 2 * FULL, SHARDS),
        "shard_map, unused": (over(lambda op, x: (op(x), x)[1]), FULL, SHARDS),
        "shard_map, when": (over(lambda op, x: op(x, when=x[0] > 1)), np.where(FULL > 1, 2 * FULL, 0), SHARDS[1:]),
        "shard_map on a thread": (over(lambda op, x: op(x, executor=POOL)), 2 * FULL, SHARDS),
        "shard_map of sequential": (*batched("sequential"), FULL.tolist()),
        "shard_map of parallel": (*batched("parallel"), FULL.tolist()),
        "shard_map of expand_dims": (*batched("expand_dims"), SHARDS),
        "shard_map of broadcast_all": (*batched("broadcast_all"), SHARDS),
        "shard_map of a loop": (loop, 8 * FULL, [[k * a, k * b] for k in (1, 2, 4) for a, b in SHARDS]),
        "shard_map of cond": (cond, np.where(FULL > 3, 2 * FULL, FULL), SHARDS[2:]),
        "shard_map before a collective": (total, 56, SHARDS),
    }
)


@program
def shard_map_with_several_results(on):
    for op in OPS.values():
        log = Log(lambda x, y: (x * 2, (x.sum() * y).astype(np.int32), np.asarray(x)[::-1].copy()))

        def each(x, y):
            a, n, b = op(log, [x, y], (F, jnp.int32, F), output_shapes=((2,), (), (2,)))
            return a, lax.psum(n, "d"), b

        a, n, b = finish(on.shard_map(each, (P("d"), P()), (P("d"), P(), P("d")))(on.x, 3.0))
        same(n, FULL.sum() * 3)
        same(a + b, 2 * FULL + FULL.reshape(4, 2)[:, ::-1].ravel())
        assert sorted(log.seen) == SHARDS


@program
def shard_map_gradients_of_several_results(on):
    def each(x, w):
        a, b = py_function(lambda x, w: (x**2 * w, (x * w).sum()), [x, w], (F, F), output_shapes=(x.shape, ()))
        return lax.psum(a.sum() + b, "d")

    loss = on.shard_map(each, (P("d"), P()), P())
    gx, gw = jax.jit(jax.grad(loss, (0, 1)))(on.x, 3.0)
    same(gx, 6 * FULL + 3)
    same(gw, (FULL**2).sum() + FULL.sum())
    same(jax.jit(jax.grad(lambda x: jax.grad(loss)(x, 3.0).sum()))(on.x), np.full(8, 6.0))


# Functions whose value is a multiple of x**2, which gives the multiple as well.
SQUARES = {
    "vjp": (1, lambda x: numpy_function(np.square, [x], F, vjp=lambda i, o, c: 2 * i[0] * c)),
    "pair": (1, lambda x: numpy_function(np.square, [x], F, vjp=(lambda x: (x**2, x), lambda x, c: 2 * x * c))),
    "numerical": (1, lambda x: numpy_function(np.square, [x], F, vjp=numerical(), jvp=numerical())),
    "transpose": (4, lambda x: numpy_function(lambda x: 2 * x, [x], F, transpose=lambda c: 2 * c) ** 2),
}


@program
def shard_map_gradients_of_numpy_functions(on):
    for kind, (k, square) in SQUARES.items():
        near = functools.partial(same, rtol=1e-2 if kind == "numerical" else 1e-6, atol=1e-2)
        f = on.shard_map(lambda x: lax.psum(square(x).sum(), "d"), out_specs=P())
        near(jax.jit(jax.grad(f))(on.x), 2 * k * FULL)
        near(on.shard_map(jax.grad(lambda x: square(x).sum()))(on.x), 2 * k * FULL)
        if kind in ("numerical", "transpose"):
            near(jax.jit(lambda x: jax.jvp(f, (x,), (x,))[1])(on.x), 2 * k * (FULL**2).sum())
            near(on.shard_map(lambda x: jax.jvp(square, (x,), (x,))[1])(on.x), 2 * k * FULL**2)
    scaled = lambda x: numpy_function(lambda x: 2 * x, [x], F, transpose=lambda c: 2 * c)
    same(on.shard_map(lambda y: jax.linear_transpose(scaled, y)(y)[0])(on.x), 2 * FULL)


@program
def shards_run_at_once(on):
    barrier = threading.Barrier(4, timeout=60)
    same(on.shard_map(lambda x: numpy_function(lambda x: (barrier.wait(), x)[1], [x], F))(on.x), FULL)

"""Programs under `jit` over four devices: the function runs once, on the whole array."""

# ruff: noqa: B023, PT017  # what a loop makes is called in the same turn

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.devices.common import (
    FULL,
    OPS,
    F,
    Log,
    expect_error,
    fail,
    finish,
    numpy_function,
    program,
    py_function,
    same,
    stateful,
)


@program
def jit_with_several_results(on):
    for name, op in OPS.items():
        log = Log(lambda x: (x * 2, x.sum(), np.arange(3, dtype=np.int32)))
        f = jax.jit(lambda x: op(log, [x], (F, F, jnp.int32), output_shapes=((8,), (), (3,))))
        y, total, n = finish(f(on.x))
        same(y, FULL * 2)
        same(total, 28)
        same(n, [0, 1, 2])
        assert log.seen[0] == FULL.tolist()
        assert len(log.seen) == 1 or (name != "py_func" and "stateful" not in name)
        same(y + on.x, FULL * 3)  # usable eagerly with what went in
        same(on.x * total, FULL * 28)
        same(jnp.sum(n), 3)


@program
def jit_gradient_through_both(on):
    cube = lambda x: py_function(lambda x: x**3 if float(x.sum()) > 0 else -x, [x], F, output_shapes=(8,))
    loss = lambda x: (cube(x) * x + x).sum()
    expected = 4 * FULL**3 + 1
    with on.gradient_context():
        same(jax.jit(jax.grad(loss))(on.x), expected)
        same(jax.grad(loss)(on.x), expected)
        same(jax.grad(lambda x: (jax.jit(cube)(x) * x + x).sum())(on.x), expected)
        g = jax.jit(jax.grad(loss))(on.x)
        same(g + on.x, expected + FULL)


@program
def jit_gradient_of_a_stateful_py_function(on):
    seen = []
    body = lambda x: (seen.append(np.asarray(jax.lax.stop_gradient(x)).tolist()), x**3)[1]
    f = jax.jit(jax.grad(lambda x: (py_function(body, [x], F, stateful=True, output_shapes=(8,)) * x).sum()))
    with on.gradient_context():
        same(finish(f(on.x)), 4 * FULL**3)
    assert seen == [FULL.tolist()]


@program
def jit_gradient_of_a_numpy_function(on):
    for options in ({}, {"stateful": True}):
        square = lambda x: numpy_function(lambda x: x**2, [x], F, vjp=lambda i, o, c: 2 * i[0] * c[0], **options)
        with on.gradient_context():
            same(jax.jit(jax.grad(lambda x: (square(x) + x).sum()))(on.x), 2 * FULL + 1)


@program
def jit_stateful_exactly_one_whole_call(on):
    for op in (stateful, functools.partial(py_function, stateful=True)):
        for use in (lambda y, x: y, lambda y, x: x, lambda y, x: y + x):
            log = Log()
            f = jax.jit(lambda x: use(op(log, [x], F, output_shapes=(8,)), x))
            for n in range(1, 4):
                finish(f(on.x))
                assert log.seen == [FULL.tolist()] * n


@program
def jit_stateful_batches_in_order(on):
    for method, seen in (("sequential", FULL.tolist()), ("expand_dims", [FULL.tolist()])):
        log = Log()
        f = jax.jit(jax.vmap(lambda x: stateful(log, [x], F, vmap_method=method)))
        same(finish(f(on.x)), FULL * 2)
        assert log.seen == seen
    log = Log()
    same(finish(jax.jit(jax.vmap(lambda x: stateful(log, [x], F, vmap_method="parallel")))(on.x)), FULL * 2)
    assert sorted(log.seen) == FULL.tolist()


@program
def jit_ordered_one_whole_call_or_refused(on):
    """JAX 0.10 to 0.12 refuse ordered effects on more than one device."""
    log = Log()
    f = jax.jit(lambda x: stateful(log, [stateful(log, [x], F, ordered=True)], F, ordered=True))
    try:
        finish(f(on.x))
    except (ValueError, jax.errors.JaxRuntimeError) as error:  # the latter of XLA's, in 0.10.0
        text = "rdered effects are not supported for more than 1 device|side-effect HLO cannot have a replicated"
        assert re.search(text, str(error))
        assert log.seen == []
    else:
        assert log.seen == [FULL.tolist(), (2 * FULL).tolist()]


@program
def jit_of_scan_and_cond_and_large_arrays(on):
    big = jax.device_put(np.ones((8, 100_000), np.float32), NamedSharding(on.mesh, P("d")))
    for op in OPS.values():
        twice = lambda x: lax.scan(lambda c, _: (op(lambda x: x * 2, [c], F), None), x, None, length=2)[0]
        same(finish(jax.jit(twice)(on.x)), FULL * 4)
        f = jax.jit(lambda x, p: lax.cond(p, lambda x: op(lambda x: x * 2, [x], F), lambda x: x, x))
        same(finish(f(on.x, True)), FULL * 2)
        same(finish(jax.jit(lambda x: op(lambda x: x * 2 + 1, [x], F))(big))[:, ::1000], 3.0)


@program
def jit_stateful_of_a_constant_and_in_scan(on):
    for op in (stateful, functools.partial(py_function, stateful=True)):
        log = Log(lambda x: x)
        step = lambda c, v: (c, (op(log, [v], F, output_shapes=()), v)[1])
        program = lambda x: (op(log, [7.0], F, output_shapes=()), lax.scan(step, 0.0, jnp.arange(3.0))[1] + x.sum())
        finish(jax.jit(program)(on.x))
        assert sorted(log.seen) == [0.0, 1.0, 2.0, 7.0]


@program
def jit_and_shard_map_where_when_is_true(on):
    log = Log()
    op = lambda x: stateful(log, [x], F, when=x.sum() > 4)
    same(finish(jax.jit(op)(on.x)), FULL * 2)
    same(finish(jax.jit(lambda x: op(x - 9))(on.x)), FULL * 0)
    assert log.seen == [FULL.tolist()]
    log.seen.clear()
    same(finish(on.shard_map(op)(on.x)), [0, 0, 4, 6, 8, 10, 12, 14])
    assert sorted(log.seen) == [[2, 3], [4, 5], [6, 7]]
    square = lambda x: py_function(lambda x: x**2, [x], F, when=x > 3)
    same(jax.jit(jax.vmap(jax.grad(square)))(on.x), [0, 0, 0, 0, 8, 10, 12, 14])


@program
def direct_calls_and_batches(on):
    for op in OPS.values():
        log = Log()
        same(op(log, [on.x], F), FULL * 2)
        assert log.seen == [FULL.tolist()]
        same(jax.vmap(lambda x: op(lambda x: x * 2, [x], F))(on.x), FULL * 2)


@program
def jit_and_shard_map_on_a_thread(on):
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        for op in OPS.values():
            log = Log(lambda x: (names.append(threading.current_thread().name), x * 2)[1])
            for over, runs in ((jax.jit, 1), (on.shard_map, 4)):
                names = []
                del log.seen[:]
                same(
                    finish(over(lambda x: op(log, [x], F, output_shapes=lambda x: x.shape, executor=pool))(on.x)),
                    FULL * 2,
                )
                assert len(log.seen) == runs
                assert set(names) == {"mine_0"}


@program
def jit_and_shard_map_of_keys(on):
    key = jax.random.key(7)
    keys = jax.device_put(jax.random.split(key, 8), NamedSharding(on.mesh, P("d")))
    wanted = jax.random.key_data(jax.vmap(lambda k: jax.random.fold_in(k, 1))(jax.random.split(key, 8)))
    op = lambda k: py_function(lambda k: jax.random.fold_in(k, 1), [k], key)
    for over in (jax.jit, on.shard_map):
        same(jax.random.key_data(finish(over(jax.vmap(op))(keys))), wanted)


@program
def jit_of_per_example_gradients(on):
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
    points = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
    x = jax.device_put(points, NamedSharding(on.mesh, P("d")))
    slope = lambda i, o, c: (1 - o[0] ** 2) * c[0]
    ops = [
        lambda z: py_function(jnp.tanh, [z], F),
        lambda z: py_function(jnp.tanh, [z], F, stateful=True),
        lambda z: py_function(jnp.tanh, [z], F, vmap_method="parallel"),
        lambda z: numpy_function(np.tanh, [z], F, vmap_method="expand_dims", vjp=slope),
    ]
    loss = lambda op, w, x, y: (((x @ op(w)) - y) ** 2).sum() + op(x @ w).sum()
    gradients = lambda op: jax.vmap(jax.grad(functools.partial(loss, op)), (None, 0, 0))
    wanted = gradients(jnp.tanh)(weights, points, FULL)
    for op in ops:
        same(jax.jit(gradients(op))(weights, x, on.x), wanted, rtol=1e-4, atol=1e-6)


@program
def jit_stateful_with_no_or_empty_results(on):
    log = Log(lambda x: None)
    f = jax.jit(lambda x: (stateful(log, [x], None), x + 1)[1])
    for n in range(1, 4):
        same(finish(f(on.x)) + on.x, 2 * FULL + 1)
        assert log.seen == [FULL.tolist()] * n
    log = Log(lambda x: (np.zeros(0), np.zeros((0, 2))))
    f = jax.jit(lambda x: stateful(log, [x], (F, F), output_shapes=((0,), (0, 2))))
    assert [a.shape for a in finish(f(on.x))] == [(0,), (0, 2)]
    assert log.seen == [FULL.tolist()]


@program
def jit_of_arrays_in_other_places(on):
    """On each device, on another device, on two of the four, over two axes."""
    two = Mesh(np.array(jax.devices()[1:3]), ("d",), axis_types=(AxisType[on.kind],))
    axes = on.make_mesh((2, 2), ("a", "b"))
    places = [
        NamedSharding(on.mesh, P()),
        jax.devices()[2],
        NamedSharding(two, P("d")),
        NamedSharding(axes, P("a", "b")),
    ]
    for op, place in itertools.product(OPS.values(), places):
        value = FULL.reshape(2, 4) if place is places[-1] else FULL
        x, log = jax.device_put(value, place), Log()
        y = finish(jax.jit(lambda x: op(log, [x], F, output_shapes=x.shape))(x))
        same(y + x, 3 * value)
        assert log.seen == [value.tolist()]
    sharding = NamedSharding(on.mesh, P("d"))
    f = jax.jit(lambda x: numpy_function(Log(), [x], F), in_shardings=sharding, out_shardings=sharding)
    assert f(on.x).sharding.is_equivalent_to(sharding, 1)


@program
def pmap(on):
    for op in OPS.values():
        log = Log()
        same(finish(jax.pmap(lambda x: op(log, [x], F, output_shapes=()))(FULL[:4])), FULL[:4] * 2)
        assert sorted(log.seen) == FULL[:4].tolist()
    same(jax.pmap(jax.grad(lambda x: py_function(lambda x: x**3, [x], F)))(FULL[:4]), 3 * FULL[:4] ** 2)
    expect_error(jax.pmap(lambda x: numpy_function(fail, [x], F)), jnp.asarray(FULL[:4]))


def branching(where, x):
    y = x * x
    for _ in range(3):
        y = where(y, jnp.sin(y))
    return y * 3


SLOPE = {"vjp": lambda i, o, c: 3 * i[0] ** 2 * c[0]}
# In plain JAX, and with an op.
KINDS = {
    "on values": (
        lambda x: branching(lambda y, s: jnp.where(jnp.sum(y) > 0, s, y), x),
        lambda x: py_function(lambda x: branching(lambda y, s: s if float(jnp.sum(y)) > 0 else y, x), [x], F),
    ),
    "vjp": (lambda x: x**3, lambda x: numpy_function(lambda x: x**3, [x], F, **SLOPE)),
    "numerical": (lambda x: x**3, lambda x: numpy_function(lambda x: x**3, [x], F, vjp="numerical")),
    "transpose": (
        lambda x: x * x * 2,
        lambda x: x * numpy_function(lambda x: x * 2, [x], F, transpose=lambda c: 2 * c[0]),
    ),
    "traced": (
        lambda x: jnp.where(x > 1, x * 2, x) ** 2,
        lambda x: py_function(lambda x: (x * 2 if x > 1 else x) ** 2, [x], F, mode="traced"),
    ),
}


@program
def gradients_inside_and_outside_of_set_mesh(on):
    """JAX refuses a gradient outside of `jit` and of `jax.set_mesh`, with or without an op."""
    forms = [lambda f: jax.vmap(jax.grad(f)), lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())]
    for plain, op in KINDS.values():
        for form in forms:
            wanted = form(plain)(FULL)
            same(jax.jit(form(op))(on.x), wanted, rtol=5e-3, atol=1e-2)
            with jax.set_mesh(on.mesh):
                same(form(op)(on.x), wanted, rtol=5e-3, atol=1e-2)
        same(jax.grad(op)(1.5), jax.grad(plain)(1.5), rtol=5e-3)  # what is not on the mesh


def doubled(x):
    while x < 100.0:
        x = x * 2
    return x


@program
def a_traced_loop_is_right_or_refused(on):
    x, refused = on.x + 1, 0
    wanted = np.asarray([doubled(float(v)) for v in FULL + 1])
    loop = lambda x: py_function(doubled, [x], F, mode="traced", max_steps=60)
    for form, value in ((jax.vmap, wanted), (lambda f: jax.jit(jax.vmap(jax.grad(f))), wanted / (FULL + 1))):
        try:
            same(form(loop)(x), value, rtol=1e-5)
        except NotImplementedError as error:
            assert "mesh with Explicit axes; make the mesh with axis_types" in str(error)
            refused += 1
    assert (refused > 0) == (on.kind == "Explicit"), refused

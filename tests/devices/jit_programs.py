"""Programs under `jit` over four devices: the function runs once, on the whole array."""

# ruff: noqa: B023, PT017  # what a loop makes is called in the same turn

from __future__ import annotations

import concurrent.futures
import functools
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
def jit_result_and_input_in_one_program(on):
    for op in OPS.values():
        f = jax.jit(lambda x: op(lambda x: x * 2, [x], F) + x)
        same(f(on.x), FULL * 3)
        same(
            jax.jit(lambda x: op(lambda x: x * 2, [x + 1], F) * op(lambda x: x + 1, [x], F))(on.x), (FULL + 1) ** 2 * 2
        )


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
def jit_gradients_of_a_batch(on):
    cube = lambda x: py_function(lambda x: x**3, [x], F)
    same(jax.jit(jax.vmap(jax.grad(cube)))(on.x), 3 * FULL**2)
    same(jax.jit(jax.vmap(jax.grad(jax.grad(cube))))(on.x), 6 * FULL)


@program
def jit_per_example_gradients(on):
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
    points = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
    w = jax.device_put(weights, NamedSharding(on.mesh, P()))
    x = jax.device_put(points, NamedSharding(on.mesh, P("d")))
    slope = {"vjp": lambda i, o, c: (1 - o[0] ** 2) * c[0]}
    ops = {
        "py_function": lambda z: py_function(jnp.tanh, [z], F),
        "stateful": lambda z: py_function(jnp.tanh, [z], F, stateful=True),
        "parallel": lambda z: py_function(jnp.tanh, [z], F, vmap_method="parallel"),
        "numpy_function": lambda z: numpy_function(np.tanh, [z], F, **slope),
        "expand_dims": lambda z: numpy_function(np.tanh, [z], F, vmap_method="expand_dims", **slope),
        "broadcast_all": lambda z: numpy_function(np.tanh, [z], F, vmap_method="broadcast_all", **slope),
    }

    def of_results(op, w, x, y):
        return ((op(x @ w) - y) ** 2).sum()

    def of_inputs(op, w, x, y):
        return ((x @ op(w) - y) ** 2).sum()

    for loss in (of_results, of_inputs):
        transformed = lambda op: [
            jax.vmap(jax.grad(functools.partial(loss, op)), (None, 0, 0)),
            jax.grad(lambda *args: jax.vmap(functools.partial(loss, op), (None, 0, 0))(*args).sum()),
        ]
        expected = [f(weights, points, FULL) for f in transformed(jnp.tanh)]
        for op in ops.values():
            for f, found in zip(transformed(op), expected):
                same(jax.jit(f)(w, x, on.x), found, rtol=1e-5)


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
def jit_stateful_without_results(on):
    log = Log(lambda x: None)
    f = jax.jit(lambda x: (stateful(log, [x], None), x + 1)[1])
    for n in range(1, 4):
        same(finish(f(on.x)) + on.x, 2 * FULL + 1)
        assert log.seen == [FULL.tolist()] * n


@program
def jit_stateful_with_empty_results(on):
    log = Log(lambda x: (np.zeros(0), np.zeros((0, 2))))
    f = jax.jit(lambda x: stateful(log, [x], (F, F), output_shapes=((0,), (0, 2))))
    assert [a.shape for a in finish(f(on.x))] == [(0,), (0, 2)]
    assert log.seen == [FULL.tolist()]


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
def jit_stateful_in_a_loop(on):
    log = Log(lambda x, i: x + i)
    f = jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: stateful(log, [c, i * 1.0], F, output_shapes=(8,)), x))
    same(finish(f(on.x)), FULL + 3)
    assert log.seen == [FULL.tolist(), FULL.tolist(), (FULL + 1).tolist()]


@program
def jit_stateful_and_stateless_together(on):
    log = Log()
    f = jax.jit(
        lambda x: stateful(log, [numpy_function(lambda x: x + 1, [x], F)], F) + numpy_function(lambda x: x, [x], F)
    )
    same(finish(f(on.x)), 2 * (FULL + 1) + FULL)
    assert log.seen == [(FULL + 1).tolist()]


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
def jit_of_a_replicated_array(on):
    for op in OPS.values():
        x = jax.device_put(FULL, NamedSharding(on.mesh, P()))
        same(jax.jit(lambda x: op(lambda x: x * 2, [x], F))(x) + x, FULL * 3)


@program
def jit_with_given_shardings(on):
    for op in OPS.values():
        sharding = NamedSharding(on.mesh, P("d"))
        f = jax.jit(lambda x: op(lambda x: x * 2, [x], F), in_shardings=sharding, out_shardings=sharding)
        y = f(on.x)
        assert y.sharding.is_equivalent_to(sharding, 1)
        same(y + on.x, FULL * 3)


@program
def jit_on_two_of_four_devices(on):
    mesh = Mesh(np.array(jax.devices()[1:3]), ("d",), axis_types=(AxisType[on.kind],))
    x = jax.device_put(FULL, NamedSharding(mesh, P("d")))
    for op in OPS.values():
        log = Log()
        y = finish(jax.jit(lambda x: op(log, [x], F))(x))
        same(y + x, FULL * 3)
        assert set(map(tuple, log.seen)) == {tuple(FULL)}


@program
def jit_on_another_device(on):
    x = jax.device_put(FULL, jax.devices()[2])
    for op in OPS.values():
        same(jax.jit(lambda x: op(lambda x: x * 2, [x], F) + x)(x), FULL * 3)


@program
def jit_over_two_axes(on):
    mesh = on.make_mesh((2, 2), ("a", "b"))
    x = jax.device_put(FULL.reshape(2, 4), NamedSharding(mesh, P("a", "b")))
    for op in OPS.values():
        log = Log()
        y = finish(jax.jit(lambda x: op(log, [x], F))(x))
        same(y + x, 3 * FULL.reshape(2, 4))
        assert log.seen[0] == FULL.reshape(2, 4).tolist()


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
def jit_of_other_promises(on):
    log = Log(lambda x: log)
    assert jax.jit(lambda x: stateful(log, [x], None))(on.x) is None
    jax.effects_barrier()
    assert log.seen == [FULL.tolist()]
    for op in OPS.values():
        same(jax.jit(lambda x: op(lambda x: x.mean(), [x], F(0)))(on.x), 3.5)
        same(
            jax.jit(lambda x: op(lambda x: [[1.0, 2.0], [3.0, 4.0]], [x], F, output_shapes=(2, 2)))(on.x),
            [[1, 2], [3, 4]],
        )


@program
def pmap(on):
    if not hasattr(jax, "pmap"):
        return
    for op in OPS.values():
        log = Log()
        same(finish(jax.pmap(lambda x: op(log, [x], F))(FULL[:4])), FULL[:4] * 2)
        assert sorted(log.seen) == FULL[:4].tolist()
    same(jax.pmap(jax.grad(lambda x: py_function(lambda x: x**3, [x], F)))(FULL[:4]), 3 * FULL[:4] ** 2)
    expect_error(jax.pmap(lambda x: numpy_function(fail, [x], F)), jnp.asarray(FULL[:4]))
    same(jax.pmap(lambda x: numpy_function(lambda x: x * 2, [x], F))(FULL[:4]), FULL[:4] * 2)

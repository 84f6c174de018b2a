"""The tape and effects, exceptions, threads, memory."""

import functools
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import _jaxcore, _tape
from tests.shared.tape_bodies import (
    CASES,
    X3,
    F,
    arrays,
    chain,
    check,
    custom_square,
    listed,
    reference,
    tape_grad,
    while_body,
)

pytestmark = pytest.mark.usefixtures("strict_promotion")


# --- effects, exceptions, threads, memory ---------------------------------------


@pytest.mark.parametrize("where", ["body", "jit", "scan", "cond"])
def test_effects_run_once(where, capsys):
    def noisy(x):
        jax.debug.print("saw {}", x[0])
        return x * x

    bodies = {
        "body": noisy,
        "jit": jax.jit(noisy),
        "scan": lambda x: jax.lax.scan(lambda c, _: (noisy(c), None), x, None, length=1)[0],
        "cond": lambda x: jax.lax.cond(x[0] > 0, noisy, lambda y: y, x),
    }
    for _ in range(2):
        _, record = _tape.record(listed(bodies[where]), arrays([X3]))
        jax.effects_barrier()
        assert capsys.readouterr().out.count("saw 0.5") == 1
        for _ in range(2):
            check(record.pullback([jnp.ones(3)]), [2 * X3])
            check(record.pushforward([jnp.ones(3)]), [2 * X3])
        jax.effects_barrier()
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("where", ["body", "jit", "scan", "cond"])
def test_nested_python_functions_run_once(where):
    runs = []

    def cube(x):
        runs.append(float(x))
        return x**3

    def nested(x):
        return jaxpyop.py_function(cube, [x], jnp.float32) * x

    body = {
        "body": nested,
        "jit": jax.jit(nested),
        "scan": lambda x: jax.lax.scan(lambda c, _: (nested(c), None), x, None, length=1)[0],
        "cond": lambda x: jax.lax.cond(x > 0, nested, lambda y: y, x),
    }[where]
    outputs, record = _tape.record(listed(body), [F(2)])
    check(outputs, [F(16)])
    for _ in range(3):
        check(record.pullback([F(1)]), [F(32)])
        check(record.pushforward([F(1)]), [F(32)])
    assert runs == [2.0]
    check([tape_grad(tape_grad(body))(F(2))], [F(48)])


def test_nested_python_functions_are_freed():
    def body(x):
        def double(y):
            return y * 2.0

        alive.append(weakref.ref(double))
        return [jaxpyop.py_function(double, [x], jnp.float32)]

    alive = []
    _tape.vjp(body, [F(1)], [F(1)])
    gc.collect()
    assert alive[0]() is None


def test_custom_vjp_runs_forward_rule_once():
    calls = []

    @jax.custom_vjp
    def f(x):
        return x * 2.0

    def fwd(x):
        calls.append("fwd")
        return x * 2.0, None

    def bwd(_, ct):
        calls.append("bwd")
        return (ct * 7.0,)

    f.defvjp(fwd, bwd)
    _, record = _tape.record(lambda x: [f(x)], [F(1)])
    assert calls == ["fwd"]
    check(record.pullback([F(1)]), [F(7)])
    check(record.pullback([F(2)]), [F(14)])
    assert calls == ["fwd", "bwd", "bwd"]
    check(record.pushforward([F(1)]), [F(7)])  # where JAX has no forward mode


def test_exceptions_leave_no_trace():
    class OwnError(Exception):
        pass

    def body(x):
        y = x * 2.0
        raise OwnError("from the body", float(y))

    before = _jaxcore.current_trace()
    for _ in range(2):
        with pytest.raises(OwnError, match="from the body"):
            _tape.record(body, [F(1)])
        assert _jaxcore.current_trace() is before
    check(_tape.vjp(lambda x: [x * x], [F(3)], [F(1)]), [F(6)])


def test_reentrant_records_are_independent():
    def body(x):
        inner, record = _tape.record(lambda y: [y * x], [x])
        return [inner[0] + record.pullback([jnp.ones_like(x)])[0], x]

    outputs, record = _tape.record(body, [F(3)])
    check(outputs, [F(12), F(3)])
    check(record.pullback([F(1), None]), [F(7)])


def test_threads():
    errors = []
    start = threading.Barrier(6)

    def work(n):
        try:
            start.wait()
            for i in range(15):
                x = F(0.1 * n + 0.01 * i)
                actual = _tape.vjp(chain(1 + (n + i) % 3), [x], [F(1)])
                expected = 1.0
                value = np.float64(x)
                for _ in range(1 + (n + i) % 3):
                    expected *= 0.5 * np.cos(0.5 * value) + 1
                    value += np.sin(0.5 * value)
                np.testing.assert_allclose(float(actual[0]), expected, rtol=1e-5)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_tracer_that_leaks_is_a_value_only():
    leaked = []
    _tape.record(lambda x: [leaked.append(x * 2.0) or x], [F(3)])
    assert float(leaked[0]) == 6.0
    assert np.asarray(leaked[0]) == 6.0
    assert f"{leaked[0]:.1f}" == "6.0"
    with pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer"):
        leaked[0] + 1.0


@pytest.mark.parametrize("name", ["scan", "custom_vjp", "jit_over_tape_values", "grad_inside", "checkpoint"])
def test_no_false_leaks(name):
    body, _, inputs = CASES[name]
    _, cotangents, expected = reference(name)
    with jax.checking_leaks():
        for _ in range(2):
            check(_tape.vjp(listed(body), arrays(inputs), cotangents), expected)
        if name == "scan":
            check([tape_grad(tape_grad(jnp.sin))(F(1))], [-np.sin(F(1))])


def test_record_keeps_neither_tracers_nor_the_body():
    class Held:
        pass

    held, boxes = Held(), []

    def body(x, held=held):
        y = jnp.sin(x) * jnp.cos(x)
        boxes.append(weakref.ref(y))
        return [jax.jit(lambda z: z * y)(x)]

    alive = weakref.ref(held)
    _, record = _tape.record(body, [F(1)])
    del held, body
    gc.collect()
    assert alive() is None
    assert boxes[0]() is None
    assert record.pullback([F(1)])[0] is not None


def array_bytes(record):
    return sum(a.nbytes for a in record.arrays())


def test_arrays_are_kept_once():
    x = jnp.ones(1000, jnp.float32)
    _, record = _tape.record(lambda a, b: [a * b + (a + b) * x], [x, x])
    assert array_bytes(record) == 4000  # x, once: sums need nothing, a product only the other factor
    _, record = _tape.record(lambda a: [custom_square(a * x, a)], [x])
    assert array_bytes(record) == 2 * 4000  # x and the product, which the rule saved
    _, record = _tape.record(lambda a: [a.astype(jnp.int32), a + x], [x])
    assert array_bytes(record) == 0
    for _ in range(3):
        check(record.pullback([None, x]), [x])
        check(record.pushforward([x])[1:], [x])


def test_numpy_constants_may_be_written_later():
    def body(x):
        scale = np.ones(3, np.float32)
        y = x * scale
        scale[:] = 5.0
        z = x * scale
        scale[:] = 9.0
        return [y + z]

    for _ in range(3):
        check(_tape.vjp(body, arrays([X3]), [jnp.ones(3)]), [np.full(3, 6, np.float32)])


def test_integers_are_not_recorded():
    _, record = _tape.record(lambda x: [jnp.argmax(x) + 1, x > 0, jnp.sign(x) * 2.0], arrays([X3]))
    assert record._program.entries == ()
    assert record.pullback([None, None, jnp.ones(3)]) == [None]


@pytest.mark.parametrize(
    ("cotangents", "error", "match"),
    [
        ([], ValueError, "got 0 cotangents for 2 outputs"),
        ([None, jnp.int32(1)], TypeError, "output 1 is of dtype int32: its cotangent must be None"),
        ([jnp.ones(2), None], ValueError, "its cotangent is float32.2.: they must be alike"),
        ([jnp.ones(3, jnp.float16), None], ValueError, "its cotangent is float16"),
    ],
    ids=["count", "integer", "shape", "dtype"],
)
def test_cotangents_are_checked(cotangents, error, match):
    _, record = _tape.record(lambda x: [x * 2.0, jnp.argmax(x)], arrays([X3]))
    with pytest.raises(error, match=match):
        record.pullback(cotangents)


def test_what_has_no_reverse_mode_raises_in_the_backward_pass():
    _, record = _tape.record(lambda x: [while_body(x)], [F(1)])
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        record.pullback([F(1)])
    _, record = _tape.record(lambda x: [jax.pure_callback(lambda v: v, jax.typeof(x), x) * x], [F(2)])
    with pytest.raises(ValueError, match="Pure callbacks do not support JVP"):
        record.pullback([F(1)])


def test_shard_map():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    x = jnp.asarray(X3)
    with pytest.raises(NotImplementedError, match=r"jax\.jit"):
        _tape.record(lambda y: [shard(jnp.sin)(y)], [x])
    for _ in range(3):
        check(_tape.vjp(lambda y: [jax.jit(shard(jnp.sin))(y) + shard(jnp.sin)(x)], [x], [x]), [x * np.cos(x)])
        check([shard(lambda y: _tape.vjp(lambda z: [jnp.sin(z)], [y], [y])[0])(x)], [x * np.cos(x)])


def test_mutable_arrays_are_refused():
    def body(x):
        store = jax.new_ref(jnp.zeros(()))
        store[...] = x
        return [store[...]]

    with pytest.raises(NotImplementedError, match="mutable array"):
        _tape.record(body, [F(1)])

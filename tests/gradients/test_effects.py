"""Effects, nested ops, rules of JAX's own and mutable data in a function that is differentiated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpyop import py_function
from tests.gradients.bodies import X3, F, while_loop
from tests.shared.checks import Counter, close
from tests.shared.tables import rows

X = jnp.asarray(X3)

# Where an operation is in a function of a scalar.
WHERE = {
    "body": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: lax.cond(x > 0, f, lambda y: y, x),
}


def both_modes(body):
    """Derivatives of a function of a scalar, taken of one run of it: twice in reverse, and in forward mode."""
    _, pull = jax.vjp(lambda x: py_function(body, [x], F, output_shapes=()), F(2))
    return [float(pull(F(k))[0]) for k in (1, 2)]


@pytest.mark.parametrize("where", rows(WHERE, ["jit"]))
def test_a_print_happens_once(where, capsys):
    def noisy(x):
        jax.debug.print("saw {}", x)
        return x * x

    body = WHERE[where](noisy)
    for _ in range(2):
        assert both_modes(body) == [4, 8]
        jax.effects_barrier()
        assert capsys.readouterr().out.count("saw 2.0") == 1
    op = lambda x: py_function(body, [x], F, output_shapes=())
    assert jax.jvp(op, (2.0,), (1.0,))[1] == 4
    jax.effects_barrier()
    assert capsys.readouterr().out.count("saw 2.0") == 1


@pytest.mark.parametrize("where", rows(WHERE, ["body"]))
def test_a_function_inside_runs_once(where):
    cube = Counter(lambda x: x * x * x)
    nested = WHERE[where](lambda x: py_function(cube, [x], F, output_shapes=()) * x)
    assert both_modes(nested) == [32, 64]
    assert cube.count == 1
    op = lambda x: py_function(nested, [x], F, output_shapes=())
    assert jax.jvp(op, (2.0,), (1.0,))[1] == 32
    assert cube.count == 2
    if where == "body":
        assert jax.grad(jax.grad(op))(2.0) == 48


def test_what_is_written_after_it_was_used():
    """Neither NumPy arrays nor arrays that a jitted function closes over are read again later."""

    def body(x):
        scale = np.ones(3, np.float32)
        y = x * scale
        scale[:] = 5.0
        z = x * scale
        scale[:] = 9.0
        return y + z

    close(jax.grad(lambda x: py_function(body, [x], F).sum())(X), [6, 6, 6])


def in_loop(f):
    return lambda x: lax.fori_loop(0, 1, lambda i, c: f(c), x)


WRAPPED = {"alone": lambda f: f, "in checkpoint": jax.checkpoint, "in scan": in_loop}


@pytest.mark.parametrize("wrap", rows(WRAPPED, ["alone"]))
def test_an_array_that_a_jitted_function_closes_over_may_change(wrap):
    table = np.ones(3, np.float32)
    body = lambda x: WRAPPED[wrap](jax.jit(lambda y: y * y * table))(x)
    for k in (1, 10, 3, 4):
        table[:] = k
        value, pull = jax.vjp(lambda x: py_function(body, [x], F), X)
        if wrap == "alone":
            table[:] = 99  # a copy was recorded, as it is not of what JAX itself keeps in a checkpoint or a scan
        close(value, k * X**2)
        close(pull(jnp.ones(3))[0], 2 * k * X)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (while_loop, "Reverse-mode differentiation does not work"),
        (lambda x: jax.pure_callback(lambda v: v, x, x) * x, "Pure callbacks do not support JVP"),
    ],
    ids=["while_loop", "pure_callback"],
)
def test_what_has_no_reverse_mode_raises_in_the_backward_pass(body, text):
    value, pull = jax.vjp(lambda x: py_function(body, [x], F), F(1))
    assert np.isfinite(value)
    with pytest.raises(ValueError, match=text):
        pull(F(1))


def test_mutable_arrays_are_refused():
    def body(x):
        store = jax.new_ref(jnp.zeros(()))
        store[...] = x
        return store[...]

    with pytest.raises(NotImplementedError, match="mutable array"):
        jax.grad(lambda x: py_function(body, [x], F))(1.0)


@pytest.mark.slow
def test_shard_map_inside_asks_for_jit():
    spec = jax.sharding.PartitionSpec("i")
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    square = jax.shard_map(lambda x: x * x, mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(NotImplementedError, match=r"jax\.jit"):
        jax.grad(lambda x: py_function(square, [x], F).sum())(X)
    close(jax.grad(lambda x: py_function(jax.jit(square), [x], F).sum())(X), 2 * X)

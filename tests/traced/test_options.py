"""mode="traced" beside the other arguments of an op: results, structures, settings, what is around it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.traced.rows import F


def traced(body, Tout=F, **options):
    return lambda *args: jaxpyop.py_function(body, args, Tout, mode="traced", **options)


def test_inputs_and_results_are_trees_with_static_leaves():
    def body(batch, *, how):
        assert how == "twice"
        return {"y": batch["x"] * 2 if batch["x"].sum() > 0 else batch["x"], "n": 3}

    call = jaxpyop.py_function(Tout={"y": jnp.float32, "n": jnp.int32}, mode="traced")(body)
    out = jax.jit(lambda x: call({"x": x}, how="twice"))(jnp.arange(3.0))
    np.testing.assert_array_equal(out["y"], [0, 2, 4])
    assert (int(out["n"]), out["n"].dtype) == (3, jnp.int32)


def test_several_results():
    body = lambda x: [x, 1, 2.5, np.ones(2, np.float32)] if x > 0 else [-x, 2, 0.5, np.zeros(2, np.float32)]
    for x in (1.0, -3.0):
        got = jax.jit(traced(body, [F, jnp.int32, F, F]))(x)
        for ours, wanted in zip(got, body(x), strict=True):
            np.testing.assert_array_equal(ours, wanted)


@pytest.mark.slow
def test_keys_as_inputs_and_results():
    program = jax.jit(lambda key, x: traced(lambda k, x: jax.random.split(k)[0] if x > 0 else k, key)(key, x))
    key = jax.random.key(3)
    for x, wanted in ((1.0, jax.random.split(key)[0]), (-1.0, key)):
        np.testing.assert_array_equal(jax.random.key_data(program(key, x)), jax.random.key_data(wanted))


WRONG = {
    "an integer that may not fit": (lambda x: x.astype(jnp.int32), jnp.int8, {}, TypeError, "may not fit int8"),
    "a shape": (lambda x: x, F, {"output_shapes": (3,)}, ValueError, r"\(\) where \(3,\) was declared"),
    "a kind": (lambda x: x, jnp.int32, {}, TypeError, "float32, which casting='same_kind' does not turn into int32"),
    "a text": (lambda x: "text", F, {}, TypeError, "py_function"),
    "the count": (lambda x: (x, x), F, {}, ValueError, "py_function.*2"),
}


@pytest.mark.parametrize(("body", "dtype", "options", "kind", "match"), WRONG.values(), ids=WRONG)
def test_results_are_checked_while_jax_traces(body, dtype, options, kind, match):
    with pytest.raises(kind, match=match):
        jax.make_jaxpr(traced(body, dtype, **options))(1.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stateful": True}, "pass mode='eager'"),
        ({"ordered": True}, "pass mode='eager'"),
        ({"Tout": None}, "without a result is stateful"),
        ({"mode": "fast"}, "mode='fast'; expected one of 'eager', 'traced'"),
    ],
    ids=["stateful", "ordered", "without a result", "no such mode"],
)
def test_options_that_exclude_it(options, match):
    with pytest.raises(ValueError, match=match):
        jaxpyop.py_function(abs, [1.0], **({"mode": "traced", "Tout": F} | options))


def test_the_setting_holds_for_what_can_be_traced():
    text = lambda **options: str(jax.make_jaxpr(lambda x: jaxpyop.py_function(jnp.sin, [x], F, **options))(1.0))
    with jaxpyop.config.override(mode="traced"):
        assert "python_call" not in text()
        assert "python_call" in text(mode="eager")
        assert "python_call" in text(stateful=True)


@pytest.mark.slow
def test_it_may_close_over_traced_values_and_other_ops():
    inner = traced(lambda x: x * 3.0 if x > 1 else x)
    outer = lambda x, y: traced(lambda v: inner(v) * y if v > y else v + y)(x)
    plain = lambda x, y: x * 3.0 * y if x > y else x + y
    for x, y in [(1.0, 2.0), (3.0, 2.0)]:
        got = jax.jit(jax.grad(outer, (0, 1)))(x, y)
        assert tuple(map(float, got)) == tuple(map(float, jax.grad(plain, (0, 1))(x, y)))


def test_rules_of_the_user_decide_its_derivative():
    @jax.custom_jvp
    def clipped(x):
        return jnp.minimum(x, 1.0)

    @jax.custom_vjp
    def reversed_gradient(x):
        return 2.0 * x

    clipped.defjvps(lambda t, out, x: 3.0 * t)
    reversed_gradient.defvjp(lambda x: (2.0 * x, None), lambda _, ct: (-ct,))
    gradient = jax.jit(jax.grad(traced(lambda x: clipped(x) if x > 1 else reversed_gradient(x))))
    assert (gradient(2.0), gradient(0.5)) == (3.0, -1.0)


# -------------------------------------------------------- collectives and combiners


@pytest.mark.parametrize("call", [lambda x: lax.psum(x, "i"), lambda x: x + lax.axis_index("i")], ids=["psum", "index"])
@pytest.mark.parametrize("wrap", [pytest.param(lambda f: f, marks=pytest.mark.slow), jax.jit], ids=["direct", "jit"])
def test_only_what_is_traced_sees_the_axes_around_it(call, wrap):
    over = lambda mode: wrap(
        jax.vmap(lambda x: jaxpyop.py_function(call, [x], F, mode=mode, output_shapes=()), axis_name="i")
    )
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(over("traced")(x), jax.vmap(call, axis_name="i")(x))
    with pytest.raises(Exception, match=r"(?s)unbound axis name.*collectives \(psum, axis_index, ...\) go outside"):
        jax.block_until_ready(over("eager")(x))


def test_a_body_has_axes_of_its_own_and_the_caller_keeps_his():
    inner = lambda x: jax.vmap(lambda v: lax.psum(v, "i"), axis_name="i")(x)
    over = jax.vmap(lambda x: lax.psum(jaxpyop.py_function(inner, [x], F), "i"), axis_name="i")
    np.testing.assert_array_equal(over(jnp.ones((3, 2))), np.full((3, 2), 6))


COMBINED = {
    "reduce": lambda op, x: lax.reduce(x, 0.0, op, (0,)),
    "a program in reduce": lambda op, x: lax.reduce(x, 0.0, jax.jit(op), (0,)),
    "a branch in reduce": lambda op, x: lax.reduce(x, 0.0, lambda a, b: lax.cond(a > b, op, jnp.add, a, b), (0,)),
    "reduce_window": lambda op, x: lax.reduce_window(x, 0.0, op, (2,), (1,), "VALID"),
    "apply": lambda op, x: x.at[1].apply(lambda v: op(v, v)),
}


@pytest.mark.parametrize("use", COMBINED.values(), ids=COMBINED)
def test_only_what_is_traced_may_combine_values(use):
    """XLA would end the process."""
    add = lambda x, y: jaxpyop.numpy_function(np.add, [x, y], F, output_shapes=())
    for wrap in (jax.jit, lambda f: f):
        with pytest.raises(NotImplementedError, match=r"'add': the function of .* cannot call Python.*jax\.lax\.scan"):
            wrap(lambda x: use(add, x))(jnp.arange(5.0))


def test_what_is_advised_instead_of_a_combiner_works():
    x = jnp.arange(5.0)
    assert jax.jit(lambda x: lax.reduce(x, 0.0, traced(jnp.add), (0,)))(x) == 10
    add = lambda x, y: jaxpyop.numpy_function(np.add, [x, y], F, output_shapes=())
    assert jax.jit(lambda x: lax.scan(lambda total, v: (add(total, v), None), 0.0, x)[0])(x) == 10

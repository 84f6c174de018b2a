"""mode="traced": the same values and gradients as eager, and no callback in the program."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop


def early_return(x):
    if x > 2:
        return x * 3
    if x > 1:
        return x * x
    return jnp.sin(x)


def elif_chain(x):
    if x < -1:
        y = -x
    elif x < 0:
        y = x * x
    elif x < 1:
        y = jnp.exp(x)
    else:
        y = jnp.log(x)
    return y + x


def sequential_ifs(x):
    for bound in (-1.0, 0.0, 1.0, 2.0):
        if x > bound:
            x = x * 1.5
    return x


def static_loop(x):
    total = jnp.zeros_like(x)
    for k in range(4):
        total = total + x**k if x > k else total - x
    return total


def nested_if(x):
    if x > 0:
        if x > 1:
            return jnp.sqrt(x)
        return x
    return -x


def log_huber(x):
    m = 1.5
    if abs(x) <= m:
        return x**2
    return m**2 * (1 - 2 * jnp.log(m) + jnp.log(x**2))


def inner_scan(x):
    if x > 0.5:
        return jax.lax.scan(lambda c, a: (c * a, None), x, jnp.arange(1.0, 4.0))[0]
    return jax.lax.fori_loop(0, 3, lambda i, c: c + x, x)


@jax.custom_vjp
def doubled_gradient(x):
    return x * x


doubled_gradient.defvjp(lambda x: (x * x, x), lambda x, ct: (4 * x * ct,))


@jax.custom_jvp
def tripled_tangent(x):
    return jnp.cos(x)


tripled_tangent.defjvps(lambda t, y, x: -3 * jnp.sin(x) * t)

BODIES = {
    "plain": lambda x: x * x + 1,
    "if": lambda x: x * x if x > 0.5 else -x,
    "conditional-sides": lambda x: (x if x > 0 else 2.0) * (3.0 if x < 1 else x),
    "and": lambda x: x * 2 if x > 0 and x < 1 else x,
    "or": lambda x: x * 2 if x < 0 or x > 1 else x,
    "not": lambda x: x * 2 if not x > 1 else x,
    "comparison-chain": lambda x: x**2 if 0 < x < 1 else x**3,
    "min": lambda x: min(x, jnp.float32(1.0)) * x,
    "max": lambda x: max(x, 0.5 * x, jnp.float32(0.3)) * x,
    "abs": lambda x: abs(x) * x if x != 0 else x,
    "early-return": early_return,
    "elif": elif_chain,
    "sequential-ifs": sequential_ifs,
    "static-loop": static_loop,
    "nested-if": nested_if,
    "log-huber": log_huber,
    "inner-scan": inner_scan,
    "inner-jit": lambda x: jax.jit(lambda y: y * y if True else y)(x) if x > 1 else x,
    "inner-grad": lambda x: jax.grad(lambda y: y**3)(x) if x > 0 else x,
    "inner-vmap": lambda x: jax.vmap(lambda k: k * x)(jnp.arange(3.0)).sum() if x > 0 else x,
    "inner-cond": lambda x: jax.lax.cond(x > 1, jnp.sin, jnp.cos, x) if x > 0 else x,
    "relu": lambda x: jax.nn.relu(x) * 2 if x < 1 else jax.nn.gelu(x),
    "custom-vjp": lambda x: doubled_gradient(x) if x > 0 else x,
    "custom-jvp": lambda x: tripled_tangent(x) if x > 0 else x,
    "indexing": lambda x: jnp.stack([x, x * x, x**3])[1] if x > 0 else jnp.zeros(3).at[2].set(x)[2],
    "sort": lambda x: jnp.sort(jnp.stack([x, 1 - x, x * x]))[1] if x > 0 else x,
    "linalg": lambda x: jnp.linalg.solve(jnp.eye(2) * (x + 2), jnp.ones(2)).sum() if x > 0 else x,
    "constant-side": lambda x: x if x > 0 else 0.0,
    "float": lambda x: x * float(x) if float(x) > 0 else x,
    "int": lambda x: x * jnp.arange(9.0)[int(x.astype(int))] if int((x * 2).astype(int)) > 1 else x,
    "item": lambda x: x * x.item() if x.item() > 0 else x,
    "checkpoint": lambda x: jax.checkpoint(jnp.sin)(x) * x if x > 0 else x,
}
POINTS = jnp.array([-1.7, -0.4, 0.3, 0.8, 1.3, 2.4])
TRANSFORMS = {
    "jit": lambda f: lambda x: jnp.stack([jax.jit(f)(v) for v in x]),
    "vmap-grad": lambda f: jax.jit(jax.vmap(jax.grad(f))),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, v: (c, f(v)), 0.0, x)[1]),
}


def as_op(body, mode, **options):
    return lambda x: jaxpyop.py_function(body, [x], jnp.float32, mode=mode, output_shapes=(), **options)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_traced_equals_eager(body, transform):
    traced = transform(as_op(body, "traced"))(POINTS)
    eager = transform(as_op(body, "eager"))(POINTS)
    np.testing.assert_allclose(traced, eager, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_callback_in_the_program(body):
    def host_calls(op):
        compiled = jax.jit(op).lower(1.0).compile().as_text()
        jaxpr = str(jax.make_jaxpr(op)(1.0))
        return re.findall(r"python_call|[a-z]+_callback\[", jaxpr), re.findall(r'target="\w*callback\w*"', compiled)

    assert host_calls(as_op(body, "traced")) == ([], [])
    in_jaxpr, compiled = host_calls(as_op(body, "eager"))  # what this looks for exists
    assert in_jaxpr
    assert compiled


def test_both_modes_of_differentiation_and_higher_orders():
    op = as_op(log_huber, "traced")
    for x in (1.0, 3.0):
        second = jax.grad(jax.grad(log_huber))(x)
        np.testing.assert_allclose(jax.jit(jax.hessian(op))(x), second, rtol=1e-6)
        np.testing.assert_allclose(jax.jvp(op, (x,), (1.0,))[1], jax.grad(log_huber)(x), rtol=1e-6)


def test_direct_call_runs_the_python_function_itself():
    ran = []

    def body(x):
        ran.append(float(x))  # values are there in a direct call
        return x

    assert as_op(body, "traced")(2.0) == 2.0
    assert ran == [2.0]


def test_may_close_over_traced_values():
    def loss(scale):
        return jaxpyop.py_function(lambda x: x * scale if x > scale else scale, [3.0], jnp.float32, mode="traced")

    assert jax.jit(jax.grad(loss))(2.0) == 3.0
    assert jax.jit(jax.grad(loss))(4.0) == 1.0


def test_inputs_and_results_are_pytrees_with_static_leaves():
    def body(batch, *, how):
        assert how == "twice"
        return {"y": batch["x"] * 2 if batch["x"].sum() > 0 else batch["x"], "n": 3}

    @jax.jit
    def run(x):
        call = jaxpyop.py_function(Tout={"y": jnp.float32, "n": jnp.int32}, mode="traced")(body)
        return call({"x": x}, how="twice")

    out = run(jnp.arange(3.0))
    np.testing.assert_array_equal(out["y"], [0, 2, 4])
    assert out["n"] == 3
    assert out["n"].dtype == jnp.int32


def test_config_mode_is_the_default_of_what_can_be_traced():
    with jaxpyop.config.override(mode="traced"):
        assert "python_call" not in str(jax.make_jaxpr(as_op(early_return, None))(1.0))
        assert "python_call" in str(jax.make_jaxpr(as_op(early_return, "eager"))(1.0))
        assert "python_call" in str(jax.make_jaxpr(as_op(early_return, None, stateful=True))(1.0))


REFUSED = {
    "math": (lambda x: math.sin(x), r"float\(x\) asks for the value"),
    "index": (lambda x: [1.0, 2.0][x.astype(int)], r"operator\.index\(x\) asks for the value"),
    "complex": (lambda x: abs(complex(x)), r"complex\(x\) asks for the value"),
    "tolist": (lambda x: x.tolist(), r"x\.tolist\(\) asks for the value"),
    "numpy": (lambda x: np.sin(x), r"np\.asarray\(x\) asks for the value"),
    "raise": (lambda x: x if x > 0 else 1 / 0, r"a path raises ZeroDivisionError"),
}


@pytest.mark.parametrize(("body", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_op_line_and_cure(body, reason):
    line = body.__code__.co_firstlineno
    wanted = rf"py_function 'lambda': {re.escape(__file__)}:{line}: {reason}.*mode=\"eager\""
    with pytest.raises(TypeError, match=wanted):
        jax.jit(as_op(body, "traced"))(1.0)


def test_a_loop_on_values_is_a_loop():
    def collatz(x):
        while x > 1:
            x = x / 2
        return x

    assert jax.jit(as_op(collatz, "traced"))(8.0) == 1.0
    assert jax.jit(as_op(collatz, "eager"))(8.0) == 1.0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stateful": True}, "pass mode='eager'"),
        ({"ordered": True}, "pass mode='eager'"),
        ({"mode": "fast"}, "mode='fast'; expected one of 'eager', 'traced'"),
    ],
    ids=["stateful", "ordered", "no-such-mode"],
)
def test_what_cannot_be_traced_at_all(options, match):
    with pytest.raises(ValueError, match=match):
        jaxpyop.py_function(abs, [1.0], jnp.float32, **({"mode": "traced"} | options))


def test_no_result_cannot_be_traced():
    with pytest.raises(ValueError, match="without a result is stateful"):
        jaxpyop.py_function(print, [1.0], None, mode="traced")


def test_results_are_checked_when_tracing():
    narrow = lambda x: jaxpyop.py_function(lambda x: x.astype(jnp.int32), [x], jnp.int8, mode="traced")
    with pytest.raises(TypeError, match="may not fit int8"):
        jax.jit(narrow)(1.0)
    wrong = lambda x: jaxpyop.py_function(lambda x: x, [x], jnp.float32, output_shapes=(3,), mode="traced")
    with pytest.raises(ValueError, match=r"shape \(\) where \(3,\) was declared; write output_shapes=\(\)"):
        jax.jit(wrong)(1.0)
    kind = lambda x: jaxpyop.py_function(lambda x: x, [x], jnp.int32, mode="traced")
    with pytest.raises(TypeError, match="float32, which casting='same_kind' does not turn into int32"):
        jax.jit(kind)(1.0)


def on_values(x):
    while x > 1:
        x = x / 2
    return np.float32(max(x, 0.5 if x < 0 else 0.25))


def on_values_and_an_op(x):
    while x > 10:
        x = x / 2
    return x * jaxpyop.py_function(lambda v: float(v) * v if v > 1 else v, [x], jnp.float32)


def test_functions_that_a_body_hands_on_run_as_they_were_written():
    def body(x):
        def here(x):
            return on_values(x) if x > 1 else np.float32(x)

        y = x
        while y > 10:
            y = y / 2
        return y + sum(jax.pure_callback(f, jax.ShapeDtypeStruct((), jnp.float32), y) for f in (on_values, here))

    assert jax.jit(lambda x: jaxpyop.py_function(body, [x], jnp.float32, mode="traced"))(6.0) == 7.5
    op = lambda x: jaxpyop.py_function(on_values_and_an_op, [x], jnp.float32, mode="traced", max_steps=9)
    assert jax.jit(jax.value_and_grad(op))(4.0) == (64.0, 32.0)  # what `float` gave is a constant


def _taken(x, seen):
    return (x > 0 and seen(x) > 1) * 1.0


def _taken_number(x, seen):
    return (x > 0 and seen(x)) or x * 2


@pytest.mark.parametrize("body", [_taken, _taken_number])
def test_an_effect_in_a_second_operand_happens_where_python_evaluates_it(body):
    log = []
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    seen = lambda x: jaxpyop.numpy_function(lambda v: log.append(float(v)) or v, [x], shape, stateful=True)
    op = jax.jit(lambda x: jaxpyop.py_function(lambda x: body(x, seen), [x], jnp.float32, mode="traced"))
    for x, runs in ((4.0, [4.0]), (-1.0, [])):
        log.clear()
        jax.block_until_ready(op(x))
        jax.effects_barrier()
        assert log == runs

"""After a few steps nothing is compiled and nothing is traced any more, also of bodies that JAX compiles anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from jaxpyop import _tape
from jaxpyop._tape.derivatives import Linear
from tests.shared.tape_bodies import CASES, arrays, is_float, listed

A = jnp.eye(3) * 3 + 0.1
B = jnp.arange(3.0)


def gamma(x):
    return jnp.sum(jax.random.gamma(jax.random.key(3), x * jnp.ones(2)))


def linear_solve(x):
    def solve(a, b):
        by_lu = lambda _, b: jnp.linalg.solve(lax.stop_gradient(a), b)
        return lax.custom_linear_solve(lambda v: a @ v, b, by_lu, symmetric=True)

    return jnp.sum(solve(A * x, B))


def conjugate_gradients(x):
    return jnp.sum(jax.scipy.sparse.linalg.cg(lambda v: A * x @ v, B)[0])


def stabilised(x):
    return jnp.sum(jax.scipy.sparse.linalg.bicgstab(lambda v: A * x @ v, B)[0])


def minimal_residuals(x):
    return jnp.sum(jax.scipy.sparse.linalg.gmres(lambda v: A * x @ v, B)[0])


def linear_call(x):
    return jax.custom_derivatives.linear_call(lambda r, v: r * v, lambda r, ct: r * ct, 2.0, x) * x


def linear_call_that_closes_over_arrays(x):
    two = jnp.float32(2)
    return jax.custom_derivatives.linear_call(lambda r, v: r * v * two, lambda r, ct: r * ct * two, 1.0, x) * x


@jax.jit
def printing(x):
    jax.debug.print("printed {x}", x=x)
    return x * 2


def debug_print(x):
    return printing(x) * x


@jax.jit
def printing_around(x):
    jax.debug.print("around {x}", x=x)
    return printing(x) * B[1]


def debug_print_deeper(x):
    return printing_around(x) * x


def frexp_of_what_has_no_tangent(x):  # which JAX expands on 0.12
    return x * jnp.frexp(B)[0][1]


def interpolation(x):  # as this, and the next two
    return jnp.interp(x, B, B**2)


def matrix_exponential(x):
    return jnp.sum(jax.scipy.linalg.expm(A * x))


def fraction(x):
    return jnp.frexp(x)[0] * x


def fresh_functions_of_what_has_no_tangent(x):
    jitted = jax.jit(lambda b: jnp.cos(b) * 2 + b)(B)
    looped = lax.fori_loop(0, 3, lambda _, b: b * 2 + 1, jitted)
    return jnp.sum(lax.cond(looped[0] > 0, lambda b: -b, lambda b: b, looped)) * x * x


@jax.custom_vjp
def squared(x):
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))


def jitted_custom_vjp(x):
    return jit_of_custom(x) * x


jit_of_custom = jax.jit(lambda x: jnp.sin(squared(x)) + x)


def powers(x):
    return x**2 + x**3 * x**-1 + 2.0 * x**1 - x**0


BODIES = [gamma, linear_solve, conjugate_gradients, stabilised, minimal_residuals]
BODIES += [fresh_functions_of_what_has_no_tangent]
BODIES += [jitted_custom_vjp, powers, frexp_of_what_has_no_tangent, interpolation, matrix_exponential, fraction]
BODIES = {body.__name__: body for body in BODIES}
MODES = {"reverse": jax.grad, "forward": lambda f: lambda x: jax.jvp(f, (x,), (1.0,))[1]}


def events(run):
    """What JAX traces and compiles while something runs."""
    found = []
    listen = lambda name, *_, **__: found.append(name)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return [name for name in found if "compile" in name or "trace" in name]


def in_each_mode(names):
    """Pairs of a name and a mode; a `jax.custom_vjp` has no forward mode, in JAX either."""
    return [(name, mode) for name in names for mode in MODES if mode == "reverse" or "custom_vjp" not in name]


@pytest.mark.parametrize(("name", "mode"), in_each_mode(BODIES))
def test_steps_compile_nothing(name, mode):
    body = BODIES[name]
    step = jax.jit(MODES[mode](lambda x: jaxpyop.py_function(body, [x], jnp.float32, output_shapes=())))
    slopes = [step(1.5) for _ in range(5)]
    assert events(lambda: slopes.extend(jax.block_until_ready(step(1.5)) for _ in range(3))) == []
    np.testing.assert_allclose(slopes, float(MODES[mode](body)(1.5)), rtol=1e-4)


# What belongs to one call is linearized in each step: functions that are made in the call, and effects.
LINEARIZED = [linear_call, linear_call_that_closes_over_arrays, debug_print, debug_print_deeper]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("body", LINEARIZED, ids=lambda body: body.__name__)
def test_what_is_linearized_in_each_step_runs_once_in_it(body, mode, capfd):
    step = jax.jit(MODES[mode](lambda x: jaxpyop.py_function(body, [x], jnp.float32, output_shapes=())))
    slopes = [step(1.5) for _ in range(3)]
    jax.block_until_ready(slopes)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("printed") == 3 * (body in (debug_print, debug_print_deeper))
    np.testing.assert_allclose(slopes, float(MODES[mode](body)(1.5)), rtol=1e-4)
    jax.effects_barrier()
    capfd.readouterr()


@pytest.mark.parametrize("body", [interpolation, matrix_exponential, fraction], ids=lambda body: body.__name__)
def test_what_jax_expands_is_not_linearized_in_each_step(body):
    """JAX tells of this by no event."""
    slopes = []
    for _ in range(3):
        _, record = _tape.record(lambda x: [body(x)], [jnp.float32(1.5)])
        slopes.append(float(record.pullback([jnp.float32(1)])[0]))
        assert not any(isinstance(entry.how, Linear) for entry in record._program.entries)
    np.testing.assert_allclose(slopes, float(jax.grad(body)(1.5)), rtol=1e-6)


# What a rule of the user's or of JAX's compiles when it is called, as in plain JAX; and constants deep in a loop.
COMPILES = ["custom_root", "custom_root_of_vector", "custom_vjp_closure_convert", "jit_constant_in_scan"]
COMPILES += ["jit_constant_in_checkpoint"]


@pytest.mark.parametrize(("name", "mode"), in_each_mode(name for name in CASES if name not in COMPILES))
def test_no_body_is_compiled_for_ever(name, mode):
    body, _, inputs = CASES[name]
    values = [jnp.asarray(v) for v in arrays(inputs)]
    ones = lambda values: [jnp.ones_like(v) if is_float(v) else None for v in values]

    def step():
        outs, record = _tape.record(listed(body), values)
        if mode == "reverse":
            jax.block_until_ready(record.pullback(ones(outs)))
        else:
            jax.block_until_ready(record.pushforward(ones(values)))

    for _ in range(5):
        step()
    assert events(step) == []


@pytest.mark.parametrize("exponent", [-2, -1, 0, 1, 2, 3, 2.0, True, np.int32(2)], ids=repr)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.complex64])
def test_powers_as_in_jnp(exponent, dtype):
    x = jnp.asarray([1.5, -0.5], dtype)
    ((out,), record) = _tape.record(lambda x: [x**exponent], [x])
    want, pull = jax.vjp(lambda x: x**exponent, x)
    assert out.dtype == want.dtype
    np.testing.assert_array_equal(out, want)
    np.testing.assert_allclose(record.pullback([jnp.ones_like(x)])[0], pull(jnp.ones_like(x))[0], rtol=2e-3)


def test_values_without_a_tangent_are_those_of_eager_calls():
    y = jnp.asarray([0.1, -2.0, 3.0])
    calls = [jnp.abs, jnp.exp, jnp.log1p, lambda y: y + 1, lambda y: y[1], lambda y: jnp.where(y > 0, y, 0), jnp.argmax]
    seen = []

    def body(x):
        seen[:] = [f(y) for f in calls]
        return [x * 2]

    for _ in range(3):
        _tape.record(body, [jnp.float32(1)])
        for got, f in zip(seen, calls):
            want = f(y)
            assert type(got) is type(want)
            assert got.aval == want.aval
            np.testing.assert_array_equal(got, want)


def test_a_number_that_comes_again_is_on_the_device():
    """Its type and value are those of jnp's, and the record of a step has no copy of its own."""
    numbers = [0.5, 3, -0.0, 0.0, True, 2.5]
    x = jnp.float32(2)

    def body(x):
        return [x * n for n in numbers]

    taken = [_tape.record(body, [x]) for _ in range(4)]
    want, pull = jax.vjp(body, x)
    for outs, record in taken:
        assert [(o.dtype, o.weak_type) for o in outs] == [(w.dtype, w.weak_type) for w in want]
        np.testing.assert_array_equal(np.signbit(outs), np.signbit(want))
        ones = [jnp.ones_like(x)] * len(numbers)
        np.testing.assert_allclose(record.pullback(ones)[0], pull(ones)[0])
    kept = [{id(v) for v in record._kept if isinstance(v, jax.Array)} for _, record in taken]
    assert len(kept[2] & kept[3]) == 3
    for array in [v for v in taken[-1][1]._kept if isinstance(v, jax.Array)]:
        array.delete()  # as some do with all arrays
    assert [float(o) for o in _tape.record(body, [jnp.float32(2)])[0]] == [1, 6, 0, 0, 2, 5]


def test_an_operation_is_the_jitted_function_that_jax_has_for_it():
    _, record = _tape.record(lambda x: [jnp.sin(x), x * x], [jnp.float32(1.5)])
    found = [entry.how.run for entry in record._program.entries]
    assert [type(run).__name__ for run in found] == ["PjitFunction", "PjitFunction"]


def test_a_cotangent_of_zero_is_made_on_the_host(monkeypatch):
    """Where the result does not depend on an input; on the device it took as long as the rest of the backward pass."""
    step = jax.jit(jax.grad(lambda x, m: jaxpyop.py_function(lambda x, m: x * x, [x, m], jnp.float32), (0, 1)))
    for _ in range(3):
        assert [float(c) for c in step(3.0, 2.0)] == [6.0, 0.0]
    made = []
    monkeypatch.setattr(jnp, "zeros", lambda *_: made.append(1))
    assert [float(c) for c in step(3.0, 2.0)] == [6.0, 0.0]
    assert made == []

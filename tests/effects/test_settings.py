"""Programs under JAX's own settings: 64 bits, its debug modes, its checks, its guard of transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.effects.ops import F, X, wait
from tests.shared.checks import run
from tests.shared.functions import numpy_function, py_func, py_function
from tests.shared.tables import in_turn

ON_DEVICE = jnp.asarray(X)  # before any guard

SETTINGS = {
    "64 bits": lambda: jax.enable_x64(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "check_tracer_leaks": jax.checking_leaks,
    "disable_jit": jax.disable_jit,
    "enable_checks": lambda: jax.enable_checks(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "transfers disallowed": lambda: jax.transfer_guard("disallow"),
}


def cube(x):
    return x * x * x if x.sum() > x.min() else x


def by_turns(x):
    y, k = x, 1
    while k < 3 and y.sum() > x.min():
        y, k = y * x, k + 1
    return y


def op(x, body=cube, **options):
    return py_function(body, [x], F, **options)


def sine(x, **options):
    return numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c, **options)


def pulled(f):
    """The derivative times the input; without a constant of JAX's, which would be a transfer."""
    return lambda x: jax.vjp(f, x)[1](x)[0]


# A program without values of the host, and what it makes of X.
PROGRAMS = {
    "py_function": (op, X**3),
    "gradient": (pulled(op), 3 * X**3),
    "forward mode": (lambda x: jax.jvp(op, (x,), (x,))[1], 3 * X**3),
    "gradient of scan": (pulled(lambda x: lax.scan(lambda c, v: (c, op(v)), x, x[None])[1][0]), 3 * X**3),
    "gradient of a stateful op": (pulled(lambda x: op(x, stateful=True)), 3 * X**3),
    "gradient of a traced if": (pulled(lambda x: op(x, mode="traced")), 3 * X**3),
    "gradient of a traced loop": (pulled(lambda x: op(x, by_turns, mode="traced", max_steps=3)), 3 * X**3),
    "gradient of numpy_function": (pulled(sine), np.cos(X) * X),
    "ordered": (lambda x: py_func(np.negative, [x], F, ordered=True), -X),
    "parallel": (jax.vmap(lambda x: sine(x, vmap_method="parallel")), np.sin(X)),
    "cond": (lambda x: lax.cond(x.sum() > x.min(), op, lambda x: x, x), X**3),
    "an op in a function": (lambda x: py_function(lambda x: op(x) + sine(x), [x], F), X**3 + np.sin(X)),
}


def ready_for_a_guard():
    """JAX's token comes to the device with an ordered program: a transfer of JAX's. A barrier drops it."""
    jax.block_until_ready(jax.jit(PROGRAMS["ordered"][0])(ON_DEVICE))


def check(setting, jit, names):
    ready_for_a_guard()
    with setting():
        found = {name: jax.block_until_ready(jit(PROGRAMS[name][0])(ON_DEVICE)) for name in names}
    for name, got in found.items():
        assert got.dtype == F, name
        np.testing.assert_allclose(got, PROGRAMS[name][1], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("setting", ["64 bits", "strict promotion", "transfers disallowed"])
def test_an_effect_and_a_gradient(setting):
    check(SETTINGS[setting], jax.jit, ["ordered", "gradient"])


ROUTES = {"jit": jax.jit, "cut": jaxpyop.jit, "direct": lambda f: f}
ALL_UNDER_JIT = [(setting, "jit") for setting in SETTINGS]


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "route"), in_turn(SETTINGS, ["cut", "direct"], and_also=ALL_UNDER_JIT))
def test_programs(setting, route):
    check(SETTINGS[setting], ROUTES[route], PROGRAMS)


def test_the_promotion_of_the_caller_is_that_of_the_function():
    mixed = jax.jit(lambda x: py_function(lambda x: x + jnp.arange(3), [x], F, output_shapes=(3,)))
    assert run(mixed, ON_DEVICE[:3]).dtype == F
    with jax.numpy_dtype_promotion("strict"), pytest.raises(ValueError, match="jax_numpy_dtype_promotion=strict"):
        run(mixed, ON_DEVICE[:3])


# ------------------------------------------------------------ blocks around an op


def of_64_bits(x):
    with jax.enable_x64(True):
        return jnp.abs(numpy_function(lambda x: np.int64(2**40 + 5), [x], np.int64, stateful=True)).astype(F)


def with_a_constant(x):
    with jax.enable_x64(True):
        return numpy_function(lambda x, c: F((c - F(1 / 3)) * 1e9), [x, np.array(1 / 3)], F, ordered=True)


def in_a_loop(x):
    with jax.enable_x64(True):
        half = lambda c, _: (numpy_function(lambda c: c / 2, [c], np.float64, stateful=True), None)
        return (lax.scan(half, x.astype(np.float64), None, length=3)[0] * 8 * (1 + 2**-40) - x).astype(F)


def drawn(x):
    with jax.default_prng_impl("rbg"):
        return py_function(lambda x: x + jax.random.uniform(jax.random.key(0)), [x], F)


def where_it_runs(x):
    with jax.enable_x64(True):
        return py_function(lambda x: x / 3, [x.astype(np.float64)], np.float64, when=x > 0).astype(F)


def slope_of_a_difference(x):
    scale = lambda: 11 if jax.config.jax_default_prng_impl == "rbg" else 13
    with jax.default_prng_impl("rbg"):
        return numpy_function(lambda x: x * F(scale()), [x], F, vjp=jaxpyop.numerical())


BLOCKS = {
    "64 bits": (of_64_bits, 2.0**40),
    "a constant of 64 bits": (with_a_constant, (1 / 3 - float(np.float32(1 / 3))) * 1e9),
    "64 bits in a loop": (in_a_loop, 2.0**-40),
    "another kind of keys": (drawn, 1.3990464),
    "a flag": (where_it_runs, 1 / 3),
    "a gradient": (jax.grad(slope_of_a_difference), 11.0),
}
BLOCK_ROUTES = ROUTES | {"cut, loops by Python": lambda f: jaxpyop.jit(f, loops="python")}


@pytest.mark.parametrize("route", BLOCK_ROUTES.values(), ids=BLOCK_ROUTES)
@pytest.mark.parametrize(("program", "expected"), BLOCKS.values(), ids=BLOCKS)
def test_a_block_with_other_settings_around_an_op(program, expected, route):
    """The function and its derivatives have these settings wherever they run, and no value loses bits on its way."""
    np.testing.assert_allclose(run(route(program), F(1)), expected, rtol=1e-5)


def test_nans_are_looked_for_where_the_program_runs():
    """Also if it was traced where nobody asked for that."""
    not_a_number = lambda *args: F(np.nan)
    cut = jaxpyop.jit(lambda x: numpy_function(not_a_number, [x], F(0), stateful=True))
    pull = jax.vjp(lambda x: numpy_function(np.negative, [x], F(0), vjp=not_a_number), F(1))[1]
    for call in (cut, pull):
        call(F(1))
        with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
            call(F(1))


def test_what_is_in_a_block_with_other_settings_cannot_be_saved():
    for program in (of_64_bits, drawn):
        with pytest.raises(ValueError, match="a Python call is made in a block with other settings of JAX"):
            jaxpyop.export(program)(F(1))


# --------------------------------------------------------------------- transfers


def test_a_transfer_in_a_function_is_the_functions_own():
    """The guard holds in a function, as it does in that of `jax.pure_callback`."""
    f = lambda x: py_function(lambda x: x + np.ones(3, np.float32), [x], F, output_shapes=(3,))
    for route in (jax.jit, lambda f: f):
        with jax.transfer_guard("disallow"), pytest.raises(Exception, match="Disallowed host-to-device"):
            wait(route(f)(ON_DEVICE))


def test_what_is_forbidden_even_on_purpose_stays_so():
    for refused in (jax.device_put, lambda x: numpy_function(np.sin, [x], F)):
        with jax.transfer_guard("disallow_explicit"), pytest.raises(Exception, match="Disallowed host-to-device"):
            refused(X)

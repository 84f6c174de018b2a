"""The same results under every setting of JAX's that may stand in the way.

The short form runs a small suite of programs under each setting in this
process, and in processes of their own what is read at the start of one.
JAXPYOP_TEST_LONG=1 runs the core test files under each setting, and all of them under jax_enable_checks, which JAX's
own tests run under.
"""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.shared.util import ROOT, numpy_function, py_func, py_function, run_python

F = jnp.float32
X = np.array([0.5, -1.0, 2.0], np.float32)
ON_DEVICE = jnp.asarray(X)  # before any guard
LIMIT = jnp.float32(10)

# ----------------------------------------------------- programs under each setting

SETTINGS = {
    "x64 off": lambda: jax.enable_x64(False),
    "x64 on": lambda: jax.enable_x64(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "check_tracer_leaks": jax.checking_leaks,
    "disable_jit": jax.disable_jit,
    "enable_checks": lambda: jax.enable_checks(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "transfers disallowed": lambda: jax.transfer_guard("disallow"),
    "transfers logged": lambda: jax.transfer_guard("log"),
}
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def cube(x):
    return x * x * x if x.sum() > x.min() else x


def op(x, **options):
    return py_function(cube, [x], F, **options)


def sine(x, **options):
    return numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c[0], **options)


def pulled(f):
    """The derivative times the input; without a constant of JAX's, which is a transfer."""
    return lambda x: jax.vjp(f, x)[1](x)[0]


# Each: a program without values of the host, and what it makes of X.
PROGRAMS = {
    "py_function": (op, X**3),
    "gradient": (pulled(op), 3 * X**3),
    "second derivative": (pulled(pulled(op)), 9 * X**3),
    "forward mode": (lambda x: jax.jvp(op, (x,), (x,))[1], 3 * X**3),
    "gradient of vmap": (pulled(jax.vmap(lambda x: py_function(lambda x: x * x, [x], F))), 2 * X**2),
    "gradient of scan": (pulled(lambda x: lax.scan(lambda c, v: (c, op(v)), x, x[None])[1][0]), 3 * X**3),
    "gradient of checkpoint": (pulled(jax.checkpoint(op)), 3 * X**3),
    "gradient of a stateful op": (pulled(lambda x: op(x, stateful=True)), 3 * X**3),
    "traced": (lambda x: op(x, mode="traced"), X**3),
    "gradient of traced": (pulled(lambda x: op(x, mode="traced")), 3 * X**3),
    "numpy_function": (sine, np.sin(X)),
    "gradient of numpy_function": (pulled(sine), np.cos(X) * X),
    "views": (lambda x: sine(x, copy=False), np.sin(X)),
    "py_func": (lambda x: py_func(np.negative, [x], F), -X),
    "ordered": (lambda x: py_func(np.negative, [x], F, ordered=True), -X),
    "no result": (lambda x: (py_func(lambda x: None, [x], None), x)[1], X),
    "a number": (lambda x: numpy_function(lambda x, by: x * by, [x, 2.0], F), 2 * X),
    "a Python number back": (lambda x: py_function(lambda x: 1.5, [x], F, output_shapes=()), np.float32(1.5)),
    "vmap": (jax.vmap(sine), np.sin(X)),
    "vmap of py_function": (jax.vmap(lambda x: py_function(lambda x: x * x, [x], F)), X**2),
    "expand_dims": (jax.vmap(lambda x: sine(x, vmap_method="expand_dims")), np.sin(X)),
    "parallel": (jax.vmap(lambda x: sine(x, vmap_method="parallel")), np.sin(X)),
    "map": (lambda x: lax.map(sine, x), np.sin(X)),
    "cond": (lambda x: lax.cond(x.sum() > x.min(), op, lambda x: x, x), X**3),
    "while_loop": (
        lambda x: lax.while_loop(lambda x: x.max() < LIMIT, lambda x: py_function(lambda x: x + x, [x], F), x),
        8 * X,
    ),
    "an op in a body": (lambda x: py_function(lambda x: op(x) + sine(x), [x], F), X**3 + np.sin(X)),
}


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize(("program", "expected"), PROGRAMS.values(), ids=PROGRAMS)
@every_setting
def test_programs(setting, program, expected, jit, transport):
    jax.jit(PROGRAMS["ordered"][0])(ON_DEVICE)  # brings JAX's token to the device, which is a transfer of JAX's
    with setting():
        got = jax.block_until_ready((jax.jit(program) if jit else program)(ON_DEVICE))
        jax.effects_barrier()
    assert got.dtype == F
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@every_setting
def test_a_stateful_op_runs_once(setting, jit, transport):
    seen = []
    f = lambda x: (py_func(lambda x: seen.append(x.tolist()), [x], None), x)[1]
    with setting():
        jax.block_until_ready((jax.jit(f) if jit else f)(ON_DEVICE))
        jax.effects_barrier()
    assert seen == [X.tolist()]


@pytest.mark.parametrize("api", [py_function, numpy_function], ids=["py_function", "numpy_function"])
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@every_setting
def test_errors(setting, jit, api, transport):
    def body(x):
        if x.sum() > x.min():
            raise KeyError("mine")
        return x

    f = lambda x: api(body, [x], F)
    with setting():
        with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
            jax.block_until_ready((jax.jit(f) if jit else f)(ON_DEVICE))
        np.testing.assert_allclose(jax.jit(op)(ON_DEVICE), X**3, rtol=1e-6)


# ------------------------------------------------------------- leaks, NaN, transfers


def _leaks(op):
    f = jax.grad(lambda x: lax.scan(lambda c, i: (c * x + op(i), None), x, jnp.arange(3.0))[0])
    with jax.checking_leaks():
        try:
            return float(jax.jit(f)(2.0))
        except Exception as error:
            assert "Leaked trace" in str(error)  # noqa: PT017
            return None


def test_a_stateful_op_in_a_differentiated_scan_leaks_nothing():
    """JAX keeps the effect of `jax.debug.callback` in a circle there, which its check takes for a leak."""
    assert _leaks(lambda i: py_func(lambda i: i, [i], F, output_shapes=())) == 33
    assert _leaks(lambda i: numpy_function(lambda i: i, [i], F, output_shapes=())) == 33


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
@pytest.mark.parametrize(
    "api", [py_function, numpy_function, py_func], ids=["py_function", "numpy_function", "py_func"]
)
def test_a_nan_is_found(api, jit, transport):
    """In a result of a compiled program, as with `jax.pure_callback`; a body's own operations are checked too."""
    f = lambda x: api(lambda x: x * float("nan"), [x], F) * 2
    with jax.debug_nans(True), pytest.raises(Exception, match="nan"):
        jax.block_until_ready((jax.jit(f) if jit else f)(ON_DEVICE))
    np.testing.assert_array_equal(jax.jit(f)(ON_DEVICE), np.full(3, np.nan))


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_a_transfer_in_a_body_is_the_bodys_own(jit, transport):
    """The guard holds inside a body, as in that of `jax.pure_callback`."""
    f = lambda x: py_function(lambda x: x + np.ones(3, np.float32), [x], F, output_shapes=(3,))
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="Disallowed host-to-device"):
        jax.block_until_ready((jax.jit(f) if jit else f)(ON_DEVICE))


@pytest.mark.parametrize(("program", "expected"), PROGRAMS.values(), ids=PROGRAMS)
def test_transfers_of_ours_are_not_logged(program, expected, capfd):
    with jax.transfer_guard("log"):
        jax.block_until_ready(program(ON_DEVICE))
        assert "host-to-device" not in capfd.readouterr().err


def test_the_log_of_transfers_has_others(capfd):
    with jax.transfer_guard("log"):
        jnp.sin(X)
    assert "host-to-device" in capfd.readouterr().err


def test_every_level_of_the_guard_is_kept():
    """What is forbidden even on purpose stays so: `jax.device_put` and `jax.pure_callback` are refused as well."""
    for refused in (jax.device_put, lambda x: numpy_function(np.sin, [x], F)):
        with jax.transfer_guard("disallow_explicit"), pytest.raises(Exception, match="Disallowed host-to-device"):
            refused(X)


# ------------------------------------------------------------- processes of their own

CACHED = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
from jax import lax
F = jnp.float32
x = jnp.array([0.5, -1.0, 2.0])
def body(x):
    return x * {by} if x.sum() > 0 else x
def same(name, got, wanted):
    np.testing.assert_allclose(got, wanted, err_msg=name, rtol=1e-6)
op = lambda x: jaxpyop.py_function(body, [x], F)
numpy_op = lambda x: jaxpyop.numpy_function(body, [x], F, vjp=lambda i, o, c: c[0] * {by})
for transport in ("auto", "callback"):
    with jaxpyop.config.override(transport=transport):
        for f in (op, numpy_op):
            same("jit", jax.jit(f)(x), x * {by})
            same("grad", jax.jit(jax.grad(lambda x: f(x).sum()))(x), [{by}] * 3)
            same("scan", jax.jit(lambda x: lax.scan(lambda c, v: (f(c), None), x, None, length=2)[0])(x), x * {by} ** 2)
        same("vmap", jax.jit(jax.vmap(op))(x[None]), x[None] * {by})
        same("traced", jax.jit(lambda x: jaxpyop.py_function(body, [x], F, mode="traced"))(x), x * {by})
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
same("plain", jax.jit(lambda x: jnp.sort(jnp.cos(x)))(x), np.sort(np.cos(x)))
hits = sum("cache_hits" in name for name in events)
print("hits", hits)
"""


def test_the_persistent_cache_brings_back_programs_but_no_callables(tmp_path):
    """Two processes with other functions of the same name; what has no op in it comes from the cache."""
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), **CACHE}
    first = run_python(CACHED.format(by=2.0), **env)
    assert "hits 0" in first.stdout
    assert "hits 1" in run_python(CACHED.format(by=3.0), **env).stdout


CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# How each setting is given to a process.
ENVIRONMENTS = {
    "x64": {"JAX_ENABLE_X64": "1"},
    "debug_nans": {"JAX_DEBUG_NANS": "1"},
    "check_tracer_leaks": {"JAX_CHECK_TRACER_LEAKS": "1"},
    "disable_jit": {"JAX_DISABLE_JIT": "1"},
    "enable_checks": {"JAX_ENABLE_CHECKS": "1"},
    "strict promotion": {"JAX_NUMPY_DTYPE_PROMOTION": "strict"},
    "transfers logged": {"JAX_TRANSFER_GUARD": "log"},
    "compilation cache": {"JAX_COMPILATION_CACHE_DIR": "{tmp}", **CACHE},
    "cpu": {"JAX_PLATFORMS": "cpu"},
}


@pytest.mark.parametrize("name", ["x64", "strict promotion", "cpu"])
def test_settings_from_the_environment(name):
    run_python(
        """
import jaxpyop, jax, jax.numpy as jnp
f = lambda x: jaxpyop.py_function(lambda x: x * x if x > 0 else x, [x], jnp.float32, output_shapes=())
assert jax.jit(jax.value_and_grad(f))(jnp.float32(3)) == (9, 6)
assert jax.jit(jax.vmap(lambda x: jaxpyop.py_func(abs, [x], jnp.float32)))(jnp.float32([-1, 2])).tolist() == [1, 2]
""",
        **ENVIRONMENTS[name],
    )


CORE = [
    *("host/test_transforms", "host/test_vmap", "host/test_stateful", "host/test_ordered"),
    *("gradients/test_gradients", "gradients/test_gradients_inputs", "gradients/test_vjp", "traced/test_traced"),
    *("api/test_results", "api/test_casting", "api/test_shapes", "api/test_output_shapes"),
]
WHOLE = {"enable_checks"}
NOT_UNDER = {
    # Their programs mix inputs, which are float64 then, with promised float32; or they are about x64 being off.
    "x64": """
        test_a_backward_pass_without_vjp_names_the_op_and_both_ways_out
        test_a_compiled_program_runs_the_body_each_time test_derivatives_under_every_transformation
        test_exactly_once test_float64_cotangents_are_cast test_forms_of_a_single_tout test_python_types
        test_results_are_checked_when_tracing test_strict_promotion_and_leak_checks
        test_the_callable_gets_structs_in_the_structure_of_the_inputs test_the_cure_works
        test_the_environment_of_the_caller test_the_same_for_a_numpy_function_with_vjp test_values_and_runs
        test_values_are_checked_against_the_narrow_dtype test_what_jax_allows_is_allowed
        test_where_jax_refuses_effects_the_error_names_the_op_and_the_cure
        test_wide_tout_without_x64_warns_as_jax_does test_the_warning_of_a_wide_tout_is_at_the_users_line
        test_a_wide_tout_warns_once_in_each_call test_the_message_is_one_line_that_says_what_to_write""",
    # Bodies that return a NaN on purpose.
    "debug_nans": "nan",
    # JAX takes the effect of a differentiated scan for a leak, as that of jax.debug.callback (see above).
    "check_tracer_leaks": "test_a_used_result_in_a_differentiated_scan test_logging_in_a_differentiated_loop",
    # Nothing is traced then: the op is called directly, needs no shape and may do anything.
    "disable_jit": """
        test_a_wrong_assumption_is_an_error_that_says_what_to_write
        test_a_wrong_shape_that_broadcasts_is_an_error_too test_inputs_that_do_not_broadcast_need_a_shape
        test_the_stateful_py_function_is_assumed_elementwise test_which_of_several_results
        test_where_jax_refuses_effects_the_error_names_the_op_and_the_cure test_a_loop_on_values_is_refused
        test_refusals_name_op_line_and_cure test_results_are_checked_when_tracing
        test_what_the_body_keeps_of_the_abstract_run_is_explained
        test_forward_mode_through_a_backward_pass_that_is_not_linear""",
    # Their own bodies and losses promote.
    "strict promotion": """
        test_integer_outputs_have_no_gradient test_real_inputs_complex_results test_python_types""",
}


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_tests(name, tmp_path):
    here = os.path.join(ROOT, "tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    if name in WHOLE:
        command += ["-n2", "--all", here]
    else:
        left_out = " or ".join(["devices", *NOT_UNDER.get(name, "").split()])
        command += ["-n0", "-k", f"not ({left_out})", *(os.path.join(here, f"{file}.py") for file in CORE)]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "JAXPYOP_", "PYTEST_"))}
    env |= {k: v.format(tmp=tmp_path) for k, v in ENVIRONMENTS[name].items()}
    for _ in range(2 if "cache" in name else 1):  # the second run finds a cache
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=7100, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]

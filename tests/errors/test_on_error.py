"""`on_error=`: an element that failed has its fill and its derivatives, and all others are right."""

import concurrent.futures as cf
import multiprocessing
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numerical
from tests.shared.checks import run
from tests.shared.functions import numpy_function, py_function
from tests.shared.tables import named

F = jnp.float32
TOUT = jax.ShapeDtypeStruct((), F)
K = 2  # The element that fails.
XS = jnp.arange(1.0, 6.0)[:, None] * jnp.ones(2)
RIGHT, SLOPES = np.sum(np.square(XS), 1), 2 * np.asarray(XS)
BAD = XS[K]
# The warning comes once for each op. One test asks for it, under a name of its own.
pytestmark = pytest.mark.filterwarnings("ignore:.*on_error= filled:RuntimeWarning")


def fails(x):
    return bool((x > 2.5).all() and (x < 3.5).all())


def square(x):
    """Fails for one element, and changes its input before that."""
    if fails(x):
        if isinstance(x, np.ndarray):
            x[...] = 0
        raise ValueError("singular")
    return (x * x).sum()


def slope(inputs, outputs, cotangents):
    assert not fails(inputs[0]), "the rule of an element that failed is not called"
    return 2 * cotangents[..., None] * inputs[0]


def push(inputs, outputs, tangents):
    assert not fails(inputs[0]), "the rule of an element that failed is not called"
    return 2 * (inputs[0] * tangents[0]).sum(-1)


def forward(x):
    return square(x), x


def backward(x, cotangents):
    return 2 * cotangents * x


@jax.custom_vjp
def fails_backward(x):
    return x


def _back(x, ct):
    return (fail_in_rule([x], None, ct / 2 / x),)


def fail_in_rule(inputs, outputs, cotangents):
    if fails(inputs[0]):
        raise ArithmeticError("no derivative")
    return 2 * cotangents * inputs[0]


fails_backward.defvjp(lambda x: (x, x), _back)


def plain(x):
    return (x * x).sum()


# How an op is differentiated: its function, the API, and the options.
KINDS = {
    "vjp": (square, numpy_function, {"vjp": slope}),
    "(fwd, bwd)": (square, numpy_function, {"vjp": (forward, backward)}),
    "numerical": (square, numpy_function, {"vjp": numerical()}),
    "tape": (square, py_function, {}),
    "rule of py_function": (square, py_function, {"vjp": slope}),
    "parallel": (square, numpy_function, {"vjp": slope, "vmap_method": "parallel"}),
    "tape in parallel": (square, py_function, {"vmap_method": "parallel"}),
    "ordered": (square, numpy_function, {"ordered": True, "vjp": slope}),
    "when": (square, numpy_function, {"when": jnp.array(True), "vjp": slope}),
    "when, (fwd, bwd)": (square, numpy_function, {"when": jnp.array(True), "vjp": (forward, backward)}),
}
# What fails in the backward pass alone, or is asked for tangents.
BACKWARD = {
    "vjp": (plain, numpy_function, {"vjp": fail_in_rule}),
    "bwd": (plain, numpy_function, {"vjp": (lambda x: (plain(x), (x,)), lambda r, c: fail_in_rule(r, (), c))}),
    "rule of py_function": (plain, py_function, {"vjp": fail_in_rule}),
    "custom_vjp on the tape": (lambda x: plain(fails_backward(x)), py_function, {}),
}
FORWARD = {
    "jvp": (square, numpy_function, {"jvp": push}),
    "jvp='numerical'": (square, numpy_function, {"jvp": numerical()}),
    "tape": (square, py_function, {}),
}
ROUTES = {
    "direct": lambda f: lambda xs: jnp.stack([f(x) for x in xs]),
    "jit": lambda f: lambda xs, g=jax.jit: jnp.stack([*map(g(f), xs)]),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "scan": lambda f: jax.jit(lambda xs: jax.lax.scan(lambda c, x: (c, f(x)), 0, xs)[1]),
    "jaxpyop.jit of vmap": lambda f: jaxpyop.jit(jax.vmap(f)),
}
FILLS = {"nan": ("nan", np.nan), "a number": (-1.0, 0.0)}  # on_error=, and the derivative of an element that failed
FILLED = {f"{route}-nan": (ROUTES[route], *FILLS["nan"]) for route in ROUTES}
FILLED |= {"jit of vmap-a number": (ROUTES["jit of vmap"], *FILLS["a number"])}
every_fill = pytest.mark.parametrize(
    ("route", "fill", "derivative"), named(FILLED, FILLED.keys() - {"jit of vmap-nan"})
)


def make(kind, fill):
    func, api, options = kind
    return lambda x: api(func, [x], TOUT, on_error=fill, **options)


def but_for(values, fill):
    found = np.array(values)
    found[K] = fill
    return found


def assert_filled(route, op, right, slopes):
    """The values alone, and with their slopes."""
    np.testing.assert_array_equal(route(op)(XS), right)
    value_and_slopes = lambda x: (lambda value, slopes: jnp.append(slopes, value))(*jax.value_and_grad(op)(x))
    found = np.asarray(route(value_and_slopes)(XS))
    np.testing.assert_array_equal(found[:, -1], right)
    np.testing.assert_allclose(found[:, :-1], slopes, rtol=1e-3)


@every_fill
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_one_element_fails(kind, route, fill, derivative):
    assert_filled(route, make(kind, fill), but_for(RIGHT, float(fill)), but_for(SLOPES, derivative))


@every_fill
@pytest.mark.parametrize("kind", BACKWARD.values(), ids=BACKWARD)
def test_a_derivative_alone_fails(kind, route, fill, derivative):
    assert_filled(route, make(kind, fill), RIGHT, but_for(SLOPES, derivative))


@every_fill
@pytest.mark.parametrize("kind", FORWARD.values(), ids=FORWARD)
def test_tangents(kind, route, fill, derivative):
    op = make(kind, fill)
    found = route(lambda x: jnp.stack(jax.jvp(op, (x,), (jnp.ones(2),))))(XS)
    np.testing.assert_array_equal(found[:, 0], but_for(RIGHT, float(fill)))
    np.testing.assert_allclose(found[:, 1], but_for(SLOPES.sum(1), derivative), rtol=1e-3)


def test_both_parts_of_a_complex_fill_are_nan():
    assert np.isnan(numpy_function(square, [BAD], jnp.complex64, output_shapes=(), on_error="nan").imag)


def test_a_fill_is_no_lost_derivative():
    op = make((lambda x: [][0] if float(x) > 0 else x, py_function, {}), 0.5)
    with jaxpyop.config.override(constants="warn"):  # warnings are errors in all tests
        assert jax.value_and_grad(op)(1.0) == (0.5, 0.0)


@pytest.mark.slow
def test_in_worker_processes():
    with cf.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in ("vjp", "numerical", "tape"):
            func, api, options = KINDS[name]
            op = make((func, api, options | {"executor": pool}), "nan")
            assert_filled(jax.vmap, op, but_for(RIGHT, np.nan), but_for(SLOPES, np.nan))
        text = r"'worker': on_error= .* 3 elements .*ValueError: singular \(.*\.py:\d+\)\n  inputs: x="
        # One of the two workers gets two of the three elements, each in a job of its own.
        options = {"name": "worker", "on_error": "nan", "executor": jaxpyop.Workers(pool, chunksize=1)}
        with pytest.warns(RuntimeWarning, match=text):
            jax.vmap(lambda x: numpy_function(square, [x], TOUT, **options))(jnp.tile(XS, (3, 1)))


# -------------------------------------------------------------------- fills


def test_each_result_has_its_fill_and_padded_ones_are_empty():
    def body(x):
        if x > 0:
            raise ValueError("no")
        return {"a": x, "b": 7, "c": [x, x]}

    tout = {"a": TOUT, "b": jax.ShapeDtypeStruct((), jnp.int32), "c": jaxpyop.padded(F, 3)}
    op = jaxpyop.numpy_function(Tout=tout, on_error={"a": jnp.nan, "b": -1, "c": 9})(body)
    for f in (op, jax.jit(op)):
        found = f(1.0)
        assert np.isnan(found["a"])
        assert found["b"] == -1
        assert found["c"].values.tolist() == [9, 9, 9]
        assert found["c"].lengths == 0
        assert f(-1.0)["b"] == 7


# ---------------------------------------------------------------- what still raises


def interrupt(x):
    raise KeyboardInterrupt("stop")


NOT_FILLED = {
    "interrupt": (interrupt, KeyboardInterrupt, "stop"),
    "exit": (lambda x: sys.exit(3), SystemExit, "3"),
    "shape": (lambda x: np.ones(2), ValueError, r"shape \(2,\)"),
    "arguments": (lambda x, y: x, TypeError, "is called with 1 argument"),
    "inner refusal": (lambda x: numpy_function(lambda: 1j, [], F), TypeError, "complex"),
}


@pytest.mark.parametrize(("func", "error", "text"), NOT_FILLED.values(), ids=NOT_FILLED)
def test_errors_that_are_not_the_functions(func, error, text):
    op = lambda x: numpy_function(func, [x], TOUT, on_error="nan")
    for f in (op, jax.vmap(op), jax.jit(op)):
        with pytest.raises(error, match=text):
            run(f, XS)


def detached(x):
    return x * float(x)


def at_random(x):
    return x * np.random.default_rng().random(dtype=F)


def without_rule(x):
    return numpy_function(np.sin, [x], TOUT)


def in_a_mutable_array(x):
    ref = jax.new_ref(jnp.zeros((), F))
    ref[...] = x
    return ref[...]


# Errors of ours that come while the function runs for a derivative.
NOT_FILLED_LATER = {
    "a constant": (detached, TypeError, "makes a constant of a differentiated"),
    "other results": (at_random, RuntimeError, "gave other results than in the forward pass"),
    "a missing rule": (without_rule, ValueError, "a backward pass needs the gradient"),
    "a mutable array": (in_a_mutable_array, NotImplementedError, "stored in a mutable array"),
}


@pytest.mark.filterwarnings("ignore:.*pushed out:RuntimeWarning")
@pytest.mark.parametrize(("func", "error", "text"), NOT_FILLED_LATER.values(), ids=NOT_FILLED_LATER)
def test_errors_of_derivatives_that_are_not_the_functions(func, error, text):
    op = jax.vmap(jax.grad(lambda x: py_function(func, [x], TOUT, on_error=0)))
    with jaxpyop.config.override(constants="error", max_record_bytes=1), pytest.raises(error, match=text):
        run(jax.jit(op), XS[:, 0])


def cubed(x, k):
    return 1 // 0 if fails(x) else ((x**3).sum() * k.sum(), (x * k).sum())


SECOND = {"hessian": jax.hessian, "reverse over reverse": lambda f, at: jax.jacrev(jax.grad(f, at), at)}


@pytest.mark.parametrize("second", named(SECOND, slow=["hessian"]))
@pytest.mark.parametrize(("fills", "slope"), [((0, jnp.nan), 0), ((jnp.nan, 0), jnp.nan)], ids=["zero", "NaN"])
def test_second_derivatives_of_an_element_that_failed(second, fills, slope):
    """They are those of its fills, for each result and each input."""
    op = lambda x, k: py_function(cubed, [x, k], (TOUT, TOUT), on_error=fills)[0]
    expected = jax.vmap(second(lambda x, k: (x**3).sum() * k.sum(), (0, 1)))(XS, XS + 1)
    for route in (lambda f: f, jax.jit):
        found = route(jax.vmap(second(op, (0, 1))))(XS, XS + 1)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
            np.testing.assert_allclose(one, other.at[K].set(slope), rtol=1e-5)


def test_a_missing_rule_still_raises():
    for x in (BAD, XS[0]):
        with pytest.raises(ValueError, match="a backward pass needs the gradient"):
            jax.grad(make((square, numpy_function, {}), "nan"))(x)


def of_dtype(dtype, on_error):
    return {"Tout": jax.ShapeDtypeStruct((), dtype), "on_error": on_error}


KEY = jax.random.key(0).dtype
REFUSED = {
    "integer": (of_dtype(jnp.int32, "nan"), "on_error=nan does not fit result 0, which is int32; give one"),
    "bool": ({"Tout": [TOUT, jax.ShapeDtypeStruct((), bool)], "on_error": "nan"}, "result 1, which is bool"),
    "too large": (of_dtype(jnp.float16, 1e6), "on_error=1000000.0 does not fit result 0, which is float16"),
    "a float for an integer": (of_dtype(jnp.int8, 0.5), "does not fit result 0"),
    "text": ({"Tout": TOUT, "on_error": "zero"}, "on_error is 'zero'; expected"),
    "array": ({"Tout": TOUT, "on_error": np.zeros(3)}, "expected 'raise', 'nan', a number"),
    "structure": ({"Tout": TOUT, "on_error": [0.0, 1.0]}, "in the structure of Tout"),
    "shapes": ({"Tout": F, "on_error": "nan"}, "give output_shapes="),
    "key": ({"Tout": jax.ShapeDtypeStruct((), KEY), "on_error": 0}, "no fill for typed keys"),
    "out": ({"Tout": TOUT, "on_error": 0.0, "out": True}, "with out=True func fills them itself"),
    "transpose": ({"Tout": TOUT, "on_error": 0.0, "transpose": lambda c: c}, "declares func linear"),
    "whole batches": ({"Tout": TOUT, "on_error": 0.0, "vmap_method": "expand_dims"}, "pass vmap_method='sequential'"),
}


@pytest.mark.parametrize(("options", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_when_the_op_is_made(options, text):
    with pytest.raises(ValueError, match=rf"numpy_function: .*{text}"):
        jaxpyop.numpy_function(**options)(square)


def test_a_traced_function_cannot_fail():
    with pytest.raises(ValueError, match="it has on_error=, which is for functions that are called"):
        jaxpyop.py_function(Tout=TOUT, mode="traced", on_error=0.0)(square)
    jaxpyop.py_function(Tout=TOUT, mode="traced", on_error="raise")(square)
    for mode in ("traced", "auto"):
        with jaxpyop.config.override(mode=mode):
            assert jax.jit(make(KINDS["tape"], 5.0))(BAD) == 5


def test_one_warning_for_each_op_with_the_count_and_the_first_failure():
    @jaxpyop.numpy_function(Tout=TOUT, on_error="nan", name="told")
    def op(x):
        return 1 / int(x > 1.5) + x

    xs = jnp.array([1.0, 2.0, 0.0])
    with pytest.warns(RuntimeWarning, match="on_error=") as said:
        found = jax.vmap(op)(xs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(jax.jit(jax.vmap(op))(xs), found)
    assert len(said) == 1
    text = r"numpy_function 'told': on_error= filled the results of 2 elements that failed; .*"
    assert re.match(
        text + r"The first one: ZeroDivisionError: .* \(.*test_on_error.py:\d+\)\n  inputs: x=float32\[\] 1\.",
        str(said[0].message),
    )


def test_the_warning_comes_in_a_thread_that_runs_no_line_of_the_users():
    """Python drops a warning whose module is None, without a word."""

    @jax.jit
    @jaxpyop.numpy_function(Tout=TOUT, on_error="nan", name="threaded")
    def op(x):
        raise ValueError(x)

    op.lower(1.0)
    with cf.ThreadPoolExecutor(1) as pool, pytest.warns(RuntimeWarning, match="'threaded': on_error="):
        pool.submit(op, 1.0).result().block_until_ready()


def test_an_error_of_the_users_may_read_as_one_of_ours():
    def body(x):
        raise ValueError("py_function 'mine': func returned None where Tout='float32' has float32")

    op = lambda x: py_function(body, [x], TOUT, name="mine", on_error=7)
    for transform in (lambda f: f, jax.jit):
        assert transform(op)(1.0) == 7


def test_one_failing_call_of_a_difference_is_enough():
    def below_one(x):
        if x > 1:
            raise ValueError("too large")
        return x * x

    op = lambda x: numpy_function(below_one, [x], TOUT, on_error=7, vjp=numerical())
    for at, slope in ((0.999, 0), (0.5, 1)):
        np.testing.assert_allclose(jax.grad(op)(at), slope, rtol=1e-3)
        np.testing.assert_allclose(jax.jvp(op, (at,), (1.0,))[1], slope, rtol=1e-3)

"""`on_error=`: an element that failed has its fill and its derivatives, and all others are right."""

import concurrent.futures as cf
import multiprocessing
import pickle
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop._jaxcore import frames
from jaxpyop._op.request import make_op
from tests.shared.util import contrib, numpy_function, on_devices, py_func, py_function, run_python

F = jnp.float32
K = 2
XS = jnp.arange(1.0, 6.0)[:, None] * jnp.ones(2)
RIGHT, SLOPES = np.sum(np.square(XS), 1), 2 * np.asarray(XS)
BAD = XS[K]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*on_error= filled", RuntimeWarning)
        yield
    frames._warned.clear()


def fails(x):
    return bool((x > 2.5).all() and (x < 3.5).all())


def square(x):
    """A function that fails for one element, and changes its input before that."""
    if fails(x):
        if isinstance(x, np.ndarray):
            x[...] = 0
        raise ValueError("singular")
    return (x * x).sum()


def square_of_block(x):
    if ((x > 2.5) & (x < 3.5)).any():
        x[...] = 0
        raise ValueError("singular")
    return (x * x).sum(-1)


def fill_out(x, out):
    out[...] = -5
    out[...] = square(x)


def slope(inputs, outputs, cotangents):
    assert not fails(inputs[0]), "the rule of an element that failed is not called"
    return 2 * cotangents[0][..., None] * inputs[0]


def push(inputs, outputs, tangents):
    assert not fails(inputs[0]), "the rule of an element that failed is not called"
    return 2 * (inputs[0] * tangents[0]).sum(-1)


def forward(x):
    return square(x), x


def backward(x, cotangents):
    return 2 * cotangents[0] * x


@jax.custom_vjp
def fails_backward(x):
    return x


def _back(x, ct):
    if fails(x):
        raise ArithmeticError("no derivative")
    return (ct,)


fails_backward.defvjp(lambda x: (x, x), _back)


def fail_in_rule(inputs, outputs, cotangents):
    if fails(inputs[0]):
        raise ArithmeticError("no derivative")
    return 2 * cotangents[0] * inputs[0]


def plain(x):
    return (x * x).sum()


# How an op is differentiated: its function, the API, and the options.
KINDS = {
    "vjp": (square, numpy_function, {"vjp": slope}),
    "(fwd, bwd)": (square, numpy_function, {"vjp": (forward, backward)}),
    "numerical": (square, numpy_function, {"vjp": "numerical"}),
    "tape": (square, py_function, {}),
    "rule of py_function": (square, py_function, {"vjp": slope}),
    "out": (fill_out, numpy_function, {"out": True, "vjp": slope}),
    "parallel": (square, numpy_function, {"vjp": slope, "vmap_method": "parallel"}),
    "tape in parallel": (square, py_function, {"vmap_method": "parallel"}),
    "block": (square_of_block, numpy_function, {"vjp": slope, "vmap_method": "expand_dims"}),
    "block, broadcast": (square_of_block, numpy_function, {"vjp": slope, "vmap_method": "broadcast_all"}),
    "numerical block": (square_of_block, numpy_function, {"vjp": "numerical", "vmap_method": "expand_dims"}),
    "out of a block": (
        lambda x, out: np.copyto(out, square_of_block(x)),
        numpy_function,
        {"out": True, "vjp": slope, "vmap_method": "broadcast_all"},
    ),
    "ordered": (square, numpy_function, {"ordered": True, "vjp": slope}),
    "stateful tape": (square, py_function, {"stateful": True}),
    "py_func": (square, py_func, {"vjp": slope}),
    "contrib": (square, contrib, {"vjp": slope}),
    "when": (square, numpy_function, {"when": jnp.array(True), "vjp": slope}),
    "when, (fwd, bwd)": (square, numpy_function, {"when": jnp.array(True), "vjp": (forward, backward)}),
    "when, tape": (square, py_function, {"when": jnp.array(True)}),
}
ROUTES = {
    "direct": lambda f: lambda xs: jnp.stack([f(x) for x in xs]),
    "jit": lambda f: lambda xs: jnp.stack([jax.jit(f)(x) for x in xs]),
    "vmap": jax.vmap,
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "scan": lambda f: jax.jit(lambda xs: jax.lax.scan(lambda c, x: (c, f(x)), 0, xs)[1]),
    "jaxpyop.jit": lambda f: lambda xs: jnp.stack([jaxpyop.jit(f)(x) for x in xs]),
    "jaxpyop.jit of vmap": lambda f: jaxpyop.jit(jax.vmap(f)),
}
FILLS = {"nan": ("nan", np.nan), "value": (-1.0, 0.0)}


def make(kind, on_error):
    func, api, options = KINDS[kind]
    return lambda x: api(func, [x], jax.ShapeDtypeStruct((), F), on_error=on_error, **options)


def but_for(values, fill):
    found = np.array(values)
    found[K] = fill
    return found


@pytest.mark.parametrize("on_error", FILLS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_element_fails(kind, route, on_error):
    given, derivative = FILLS[on_error]
    op = make(kind, given)
    found = ROUTES[route](op)(XS)
    np.testing.assert_array_equal(found, but_for(RIGHT, float(given)))
    values, slopes = _with_slopes(ROUTES[route], op)
    np.testing.assert_array_equal(values, but_for(RIGHT, float(given)))
    np.testing.assert_allclose(slopes, but_for(SLOPES, derivative), rtol=1e-3)


def _with_slopes(route, op):
    def both(x):
        value, slopes = jax.value_and_grad(op)(x)
        return jnp.append(slopes, value)

    found = np.asarray(route(both)(XS))
    return found[:, -1], found[:, :-1]


FORWARD = {
    "jvp": (square, numpy_function, {"jvp": push}),
    "jvp='numerical'": (square, numpy_function, {"jvp": "numerical"}),
    "block": (square_of_block, numpy_function, {"jvp": push, "vmap_method": "expand_dims"}),
    "tape": (square, py_function, {}),
}


@pytest.mark.parametrize("on_error", FILLS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", FORWARD)
def test_tangents(kind, route, on_error):
    func, api, options = FORWARD[kind]
    given, derivative = FILLS[on_error]
    op = lambda x: api(func, [x], jax.ShapeDtypeStruct((), F), on_error=given, **options)
    found = ROUTES[route](lambda x: jnp.stack(jax.jvp(op, (x,), (jnp.ones(2),))))(XS)
    np.testing.assert_array_equal(found[:, 0], but_for(RIGHT, float(given)))
    np.testing.assert_allclose(found[:, 1], but_for(SLOPES.sum(1), derivative), rtol=1e-3)


# What fails in the backward pass alone.
BACKWARD = {
    "vjp": (plain, numpy_function, {"vjp": fail_in_rule}),
    "bwd": (plain, numpy_function, {"vjp": (lambda x: (plain(x), (x,)), lambda r, c: fail_in_rule(r, (), c))}),
    "rule of py_function": (plain, py_function, {"vjp": fail_in_rule}),
    "custom_vjp on the tape": (lambda x: plain(fails_backward(x)), py_function, {}),
}


@pytest.mark.parametrize("on_error", FILLS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", BACKWARD)
def test_a_derivative_fails(kind, route, on_error):
    func, api, options = BACKWARD[kind]
    given, derivative = FILLS[on_error]
    op = lambda x: api(func, [x], jax.ShapeDtypeStruct((), F), on_error=given, **options)
    values, slopes = _with_slopes(ROUTES[route], op)
    np.testing.assert_array_equal(values, RIGHT)
    np.testing.assert_allclose(slopes, but_for(SLOPES, derivative), rtol=1e-3)


@pytest.mark.parametrize("on_error", FILLS)
@pytest.mark.parametrize("kind", ["vjp", "(fwd, bwd)", "tape", "block"])
def test_jacobians(kind, on_error):
    given, derivative = FILLS[on_error]
    found = jax.jacrev(jax.vmap(make(kind, given)))(XS)
    np.testing.assert_allclose(found[np.arange(5), np.arange(5)], but_for(SLOPES, derivative), rtol=1e-5)


@pytest.mark.parametrize("on_error", FILLS)
def test_derivatives_of_second_order_on_the_tape(on_error):
    given, derivative = FILLS[on_error]
    hessian = jax.hessian(make("tape", given))
    np.testing.assert_array_equal(hessian(BAD), np.full((2, 2), derivative))
    np.testing.assert_array_equal(jax.jit(hessian)(BAD), np.full((2, 2), derivative))
    np.testing.assert_array_equal(hessian(XS[1]), 2 * np.eye(2))


def test_a_backward_pass_without_a_record():
    with jaxpyop.config.override(max_records=1):
        pullback = jax.vjp(jax.jit(jax.vmap(make("tape", "nan"))), XS)[1]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*were pushed out", RuntimeWarning)
            np.testing.assert_array_equal(pullback(jnp.ones(5))[0], but_for(SLOPES, np.nan))


def test_a_fill_on_the_tape_is_no_lost_derivative():
    def body(x):
        if float(x) > 0:
            raise ValueError("no")
        return x

    op = lambda x: py_function(body, [x], F, output_shapes=(), on_error=0.5)
    with jaxpyop.config.override(constants="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r".*on_error= filled", RuntimeWarning)
        assert jax.value_and_grad(op)(1.0) == (0.5, 0.0)


def test_workers():
    with cf.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for kind in ("vjp", "(fwd, bwd)", "tape", "block", "out"):
            func, api, options = KINDS[kind]
            shape = jax.ShapeDtypeStruct((), F)
            op = lambda x: api(func, [x], shape, on_error="nan", executor=pool, **options)  # noqa: B023
            values, slopes = _with_slopes(jax.vmap, op)
            np.testing.assert_array_equal(values, but_for(RIGHT, np.nan), kind)
            np.testing.assert_allclose(slopes, but_for(SLOPES, np.nan), rtol=1e-3, err_msg=kind)
        frames._warned.clear()
        text = r"'square': on_error= .* 1 element .*ValueError: singular\n  inputs: x="
        with pytest.warns(RuntimeWarning, match=text):
            jax.vmap(lambda x: numpy_function(square, [x], shape, on_error="nan", executor=pool))(XS)


DEVICES = """
import warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.host.test_on_error import KINDS, RIGHT, SLOPES, XS, but_for, make
warnings.simplefilter("ignore")
mesh = jax.make_mesh((2,), ("x",))
xs = jax.device_put(XS[:4], NamedSharding(mesh, P("x")))
for kind in ("vjp", "(fwd, bwd)", "tape", "block"):
    found, slopes = jax.jit(jax.vmap(jax.value_and_grad(make(kind, "nan"))))(xs)
    np.testing.assert_array_equal(found, but_for(RIGHT[:4], np.nan))
    np.testing.assert_allclose(slopes, but_for(SLOPES[:4], np.nan))
print("right")
"""


def test_several_devices():
    done = run_python(DEVICES, **on_devices(2))
    assert done.stdout.strip().endswith("right"), done.stderr


def test_all_results_and_padded_ones():
    def body(x):
        if x > 0:
            raise ValueError("no")
        return {"a": x, "b": 7, "c": [x, x]}

    tout = {"a": jax.ShapeDtypeStruct((), F), "b": jax.ShapeDtypeStruct((), jnp.int32), "c": jaxpyop.padded(F, 3)}
    fill = {"a": jnp.nan, "b": -1, "c": 9}
    op = jaxpyop.numpy_function(Tout=tout, on_error=fill)(body)
    for f in (op, jax.jit(op)):
        found = f(1.0)
        assert np.isnan(found["a"])
        assert found["b"] == -1
        assert found["c"].values.tolist() == [9, 9, 9]
        assert found["c"].lengths == 0
        assert f(-1.0)["b"] == 7


def test_an_op_without_results():
    assert numpy_function(square, [BAD], None, on_error="nan") is None


def test_complex_results():
    shape = jax.ShapeDtypeStruct((2,), jnp.complex64)
    op = lambda x: py_function(lambda x: [][0], [x], shape, on_error="nan")
    for found in (op(XS[0]), jax.jit(op)(XS[0]), jax.vjp(op, XS[0])[0]):
        assert np.isnan(found.real).all()
        assert np.isnan(found.imag).all()


def test_a_stateful_block_runs_once():
    got = []

    def body(x):
        got.append(x.shape)
        raise ValueError("no")

    op = lambda x: numpy_function(
        body, [x], F, output_shapes=(), stateful=True, vmap_method="broadcast_all", on_error="nan"
    )
    assert np.isnan(jax.vmap(op)(XS)).all()
    assert got == [(5, 2)]


# ---------------------------------------------------------------- what still raises


def interrupt(x):
    raise KeyboardInterrupt("stop")


NOT_FILLED = {
    "interrupt": (interrupt, KeyboardInterrupt, "stop"),
    "exit": (lambda x: sys.exit(3), SystemExit, "3"),
    "shape": (lambda x: np.ones(2), ValueError, r"shape \(2,\)"),
    "dtype": (lambda x: 1j, TypeError, "complex"),
    "structure": (lambda x: (1.0, 2.0), ValueError, "returned a tuple of 2"),
    "arguments": (lambda x, y: x, TypeError, "is called with 1 argument"),
    "inner refusal": (lambda x: numpy_function(lambda: 1j, [], F), TypeError, "complex"),
}


@pytest.mark.parametrize("route", ["direct", "jit", "vmap"])
@pytest.mark.parametrize("case", NOT_FILLED)
def test_errors_that_are_not_the_functions(case, route):
    func, error, text = NOT_FILLED[case]
    op = lambda x: numpy_function(func, [x], F, output_shapes=(), on_error="nan")
    with pytest.raises(error, match=text), jaxpyop.reraise():
        jax.block_until_ready(ROUTES[route](op)(XS[:1]))


def test_a_missing_rule_still_raises():
    for x in (BAD, XS[0]):
        with pytest.raises(ValueError, match="a backward pass needs the gradient"):
            jax.grad(lambda x: numpy_function(square, [x], F, output_shapes=(), on_error="nan"))(x)


TOUT = jax.ShapeDtypeStruct((), F)
REFUSED = {
    "integer": ({"Tout": jax.ShapeDtypeStruct((), jnp.int32), "on_error": "nan"}, "result 0 is int32; give a value"),
    "bool": ({"Tout": [TOUT, jax.ShapeDtypeStruct((), bool)], "on_error": "nan"}, "result 1 is bool"),
    "does not fit": (
        {"Tout": jax.ShapeDtypeStruct((), jnp.int8), "on_error": 300},
        "on_error=300 does not fit result 0",
    ),
    "a number beyond half precision": (
        {"Tout": jax.ShapeDtypeStruct((), jnp.float16), "on_error": 1e6},
        "on_error=1000000.0 does not fit result 0, which is float16",
    ),
    "a float for an integer": ({"Tout": jax.ShapeDtypeStruct((), jnp.int8), "on_error": 0.5}, "does not fit result 0"),
    "text": ({"Tout": TOUT, "on_error": "zero"}, "on_error is 'zero'; expected"),
    "None": ({"Tout": TOUT, "on_error": None}, "on_error is None; expected"),
    "array": ({"Tout": TOUT, "on_error": np.zeros(3)}, "expected 'raise', 'nan', a number"),
    "structure": ({"Tout": TOUT, "on_error": [0.0, 1.0]}, "in the structure of Tout"),
    "shapes": ({"Tout": F, "on_error": "nan"}, "give output_shapes="),
    "an unknown axis": ({"Tout": F, "output_shapes": (None,), "on_error": 0.0}, "give output_shapes="),
    "key": ({"Tout": jax.random.key(0).dtype, "output_shapes": (), "on_error": 0}, "no fill for typed keys"),
    "transpose": ({"Tout": TOUT, "on_error": 0.0, "transpose": lambda c: c}, "declares func linear"),
    "block of fwd": (
        {"Tout": TOUT, "on_error": 0.0, "vjp": (forward, backward), "vmap_method": "expand_dims"},
        "which element of a batch failed in fwd",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_when_the_op_is_made(case):
    options, text = REFUSED[case]
    with pytest.raises(ValueError, match=rf"numpy_function: .*{text}"):
        jaxpyop.numpy_function(**options)(square)


def test_traced_mode():
    with pytest.raises(ValueError, match="on_error= is for functions that are called"):
        jaxpyop.py_function(Tout=TOUT, mode="traced", on_error=0.0)(square)
    jaxpyop.py_function(Tout=TOUT, mode="traced", on_error="raise")(square)
    for mode in ("traced", "auto"):
        with jaxpyop.config.override(mode=mode):
            assert jax.jit(make("tape", 5.0))(BAD) == 5


def test_the_default_raises():
    with pytest.raises(ValueError, match="singular"):
        numpy_function(square, [BAD], F, on_error="raise")


# ---------------------------------------------------------------- what is told


def test_one_warning_for_each_op():
    op = jaxpyop.numpy_function(Tout=TOUT, on_error="nan")(lambda x: 1 / int(x > 1.5) + x)
    with pytest.warns(RuntimeWarning, match="on_error=") as said:
        found = jax.vmap(op)(jnp.array([1.0, 2.0, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(jax.jit(jax.vmap(op))(jnp.array([1.0, 2.0, 0.0])), found)
    assert len(said) == 1
    text = r"numpy_function 'lambda': on_error= filled the results of 2 elements that failed; .*"
    assert re.match(text + r"The first one: ZeroDivisionError: .*\n  inputs: x=float32\[\] 1\.", str(said[0].message))


def test_the_count_of_failures():
    options = {"vmap_method": "sequential", "casting": "same_kind", "executor": None, "chunksize": None}
    options |= {"progress": False, "stateful": False, "ordered": False}
    op = make_op("py_func", square, TOUT, None, on_jax=False, output_shapes=None, on_error="nan", **options)
    op.failures.note(ValueError("x"), 3)
    assert op.failures.count == 3
    there = pickle.loads(pickle.dumps(op.failures))
    assert there.count == 0
    there.note(ValueError("y"), 2)
    op.failures.add(there.taken())
    assert op.failures.count == 5
    assert op.failures.taken() == (0, "")


def test_no_python_call_more_without_it():
    """The path of a call without `on_error=` has no function of this feature in it."""
    seen = []

    def note(frame, event, arg):
        seen.append((frame.f_code.co_filename, frame.f_code.co_name)) if event == "call" else None

    op = jax.jit(jax.vmap(lambda x: numpy_function(lambda x: x * x, [x], F, vjp=lambda i, o, c: c[0])))
    grad = jax.grad(lambda x: op(x).sum())
    grad(XS)
    sys.setprofile(note)
    try:
        op(XS)
        grad(XS)
    finally:
        sys.setprofile(None)
    assert not [name for file, name in seen if file.endswith(("body/failed.py", "_host/metrics.py"))]

"""The user's own derivatives: values, and how often each function is called, under all transformations."""

from __future__ import annotations

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared import rule_cases
from tests.shared.rule_cases import FORWARD, FORWARD_RULES, REVERSE, REVERSE_RULES, XX, Counted, F, X, Y, plain
from tests.shared.util import Counter, numpy_function, py_func, py_function, run, trees_close

METHODS = ("sequential", "expand_dims", "broadcast_all", "parallel")
jitted = pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])


def close_to(got, wanted, kind):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    tolerance = 5e-3 if kind == "numerical" else 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, wanted)


def result_of(program, f, jit):
    return run(jax.jit(lambda: program(f)) if jit else lambda: program(f))


@jitted
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", REVERSE_RULES)
@pytest.mark.parametrize("name", REVERSE)
def test_reverse_mode(name, kind, method, jit):
    program, one_by_one, of_a_block = REVERSE[name]
    counted = Counted()
    op = lambda x, y: numpy_function(counted.func, [x, y], F, vmap_method=method, **counted[kind])
    close_to(result_of(program, op, jit), program(plain), kind)
    wanted = one_by_one if method in ("sequential", "parallel") else of_a_block
    if kind == "numerical" or wanted is None:
        return
    counts = counted.counts()
    assert counts.pop("bwd" if "pair" in kind else "vjp") == wanted
    assert set(counts) == ({"fwd"} if "pair" in kind else {"func"}), "without differentiation func, with it fwd"
    assert sum(counts.values()) <= wanted if name != "checkpoint" else 2


@jitted
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", FORWARD_RULES)
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode(name, kind, method, jit):
    program, one_by_one, of_a_block = FORWARD[name]
    counted = Counted()
    op = lambda x, y: numpy_function(counted.func, [x, y], F, vmap_method=method, **counted[kind])
    close_to(result_of(program, op, jit), program(plain), kind)
    if kind != "numerical":
        assert counted.jvp.count == (one_by_one if method in ("sequential", "parallel") else of_a_block)


@pytest.mark.parametrize("method", ["sequential", "broadcast_all"])
@pytest.mark.parametrize("kind", ["vjp and jvp", "pair and jvp", "numerical"])
def test_a_rule_is_linear_in_tangents_and_cotangents(kind, method, route):
    """No second derivative: solvers take the Jacobian of a linearization (optimistix, 0.1)."""
    op = lambda x, y: numpy_function(rule_cases.func, [x, y], F, vmap_method=method, **Counted()[kind])
    programs = (
        lambda f: jax.vmap(jax.jacfwd(lambda t, x: jax.linearize(lambda x: f(x, 2.0), x)[1](t) ** 2))(Y, X),
        lambda f: jax.jvp(lambda c: jax.vjp(f, X, Y)[1](c), (X,), (Y,)),
    )
    for program in programs:
        close_to(route(lambda program=program: program(op)), program(plain), kind)


@jitted
@pytest.mark.parametrize("kind", ["vjp", "pair", "vjp and jvp", "numerical"])
def test_of_py_function_instead_of_its_tape(kind, jit):
    seen = []

    def on_jax(f):
        def checked(*args):
            seen.append(f.__name__)
            assert all(isinstance(a, jax.Array) for a in jax.tree.leaves(args[-1]))  # bwd has residuals first
            return f(*args)

        return checked

    pair = (on_jax(rule_cases.fwd), on_jax(rule_cases.bwd))
    rules = {
        "vjp": {"vjp": on_jax(rule_cases.vjp)},
        "pair": {"vjp": pair},
        "vjp and jvp": {"vjp": on_jax(rule_cases.vjp), "jvp": on_jax(rule_cases.jvp)},
        "numerical": {"vjp": "numerical", "jvp": "numerical"},
    }[kind]
    op = lambda x, y: py_function(plain, [x, y], F, **rules)
    program = REVERSE["grad of vmap"][0]
    close_to(result_of(program, op, jit), program(plain), kind)
    if "jvp" in rules:
        close_to(result_of(FORWARD["jvp"][0], op, jit), FORWARD["jvp"][0](plain), kind)
    else:
        with pytest.raises(NotImplementedError, match=r"forward-mode.*needs the rule jvp=.*vjp= gives reverse mode"):
            result_of(FORWARD["jvp"][0], op, jit)


def test_one_mode_says_what_the_other_needs():
    only_jvp = lambda x, y: numpy_function(rule_cases.func, [x, y], F, jvp=rule_cases.jvp)
    with pytest.raises(ValueError, match=r"a backward pass needs.*vjp=f.*jvp= gives forward mode"):
        jax.grad(lambda x: only_jvp(x, Y).sum())(X)


# ---------------------------------------------------------------- kinds of inputs


def test_complex_numbers(route):
    z = jnp.array([0.5 + 1j, -1.25 - 0.5j], jnp.complex64)
    rules = {
        "exact": {"vjp": lambda i, o, c: 2 * i[0] * c[0], "jvp": lambda i, o, t: 2 * i[0] * t[0]},
        "pair": {"vjp": (lambda z: (z**2, z), lambda z, c: 2 * z * c[0]), "jvp": "numerical"},
        "numerical": {"vjp": "numerical", "jvp": "numerical"},
    }
    ct = jnp.array([1.0 + 1j, -2j], jnp.complex64)
    for kind, rule in rules.items():
        op = lambda z, rule=rule: numpy_function(lambda z: z**2, [z], jnp.complex64, **rule)
        for program in (lambda f, z: jax.vjp(f, z)[1](ct)[0], lambda f, z: jax.jvp(f, (z,), (ct,))[1]):
            got = route(lambda z, op=op, program=program: program(op, z), z)
            np.testing.assert_allclose(got, program(lambda z: z**2, z), rtol=5e-3, atol=5e-3, err_msg=kind)


def test_numerical_of_functions_that_are_not_holomorphic(route):
    z = jnp.array([0.5 + 1j, -1.25 - 0.5j], jnp.complex64)
    bodies = {"abs": (np.abs, jnp.abs, F), "conj": (np.conj, jnp.conj, jnp.complex64)}
    for on_numpy, on_jax, dtype in bodies.values():
        op = lambda z, f=on_numpy, d=dtype: numpy_function(f, [z], d, vjp="numerical")
        ct = on_jax(z) * 2
        got = route(lambda z, op=op, ct=ct: jax.vjp(op, z)[1](ct)[0], z)
        np.testing.assert_allclose(got, jax.vjp(on_jax, z)[1](ct)[0], rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("rule", ["vjp", "pair", "numerical"])
def test_pytrees_integers_statics_and_unused_results(rule, route):
    def body(tree, n, how):
        return {"y": tree["x"] * n, "k": np.int32(3), "z": np.sin(tree["x"])}

    def pull(inputs, outputs, cotangents):
        x, n = inputs
        k, y, z = cotangents  # by sorted keys
        assert k.dtype == jax.dtypes.float0
        return y * n + z * np.cos(x), None

    def fwd(tree, n, how):
        assert how == "static"
        return body(tree, n, how), (tree["x"], n)

    rules = {
        "vjp": pull,
        "pair": (fwd, lambda r, c: pull(r, None, c)),
        "numerical": "numerical",
    }
    tout = {"y": F, "k": jnp.int32, "z": F}
    shapes = {"y": (3,), "k": (), "z": (3,)}
    op = lambda x: numpy_function(body, [{"x": x}, jnp.int32(2), "static"], tout, output_shapes=shapes, vjp=rules[rule])
    got = route(jax.grad(lambda x: (op(x)["y"] ** 2).sum()), X)
    np.testing.assert_allclose(got, 8 * X, rtol=5e-3, atol=5e-3)


def test_tangents_that_are_zero_are_none(route):
    got = []

    def jvp(inputs, outputs, tangents):
        got.append([t is None for t in tangents])
        return tangents[0], None

    op = lambda x, n: numpy_function(lambda x, y, n: (x, y), [x, X, n], [F, F], jvp=jvp)
    _, (first, second) = route(lambda x: jax.jvp(lambda x: op(x, jnp.int32(1)), (x,), (Y,)), X)
    trees_close([first, second], [Y, jnp.zeros(3)])
    assert got == [[False, True, True]]


# Rules that give a Python number for three elements.
NUMBERS = {
    "vjp": {"vjp": lambda i, o, c: (0, 2.5)},
    "bwd": {"vjp": (lambda x, y: (y * 2.5, None), lambda r, c: (0, 2.5))},
    "bool": {"vjp": lambda i, o, c: (False, 2.5)},
    "jvp": {"jvp": lambda i, o, t: 2.5},
    "transpose": {"transpose": lambda c: (0, 2.5)},
}


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
@pytest.mark.parametrize("rules", NUMBERS.values(), ids=NUMBERS)
def test_a_python_number_stands_for_all_elements(rules, method, route):
    op = lambda x, y: numpy_function(lambda x, y: y * 2.5, [x, y], F, vmap_method=method, **rules)
    ones, at = jnp.ones((2, 3)), (XX, XX + 1)
    if "jvp" in rules:
        close_to(route(lambda: jax.jvp(jax.vmap(op), at, at)[1]), 2.5 * ones, method)
    else:
        found = route(lambda: jax.grad(lambda x, y: jax.vmap(op)(x, y).sum(), (0, 1))(*at))
        close_to(found, (0 * ones, 2.5 * ones), method)


# ---------------------------------------------------------------- wrong rules

WRONG = {
    "jvp count": ({"jvp": lambda i, o, t: (1.0, 2.0)}, r"jvp returned 2 tangents for 1 results"),
    "jvp shape": ({"jvp": lambda i, o, t: np.ones(2)}, r"jvp returned, for result 0, shape \(2,\); a tangent has"),
    "jvp array without axes": ({"jvp": lambda i, o, t: np.float32(1)}, r"jvp returned, for result 0, shape \(\)"),
    "bwd array without axes": (
        {"vjp": (lambda x: (x, 0), lambda r, c: np.zeros((), np.float32))},
        r"bwd of vjp returned, for input 0, shape \(\)",
    ),
    "jvp number": ({"jvp": lambda i, o, t: 1j}, r"jvp returned, for result 0, complex"),
    "jvp dtype": ({"jvp": lambda i, o, t: t[0] * 1j}, r"jvp returned, for result 0, complex"),
    "jvp text": ({"jvp": lambda i, o, t: "x"}, r"jvp returned, for result 0"),
    "bwd count": ({"vjp": (lambda x: (x, 0), lambda r, c: (c, c))}, r"bwd of vjp returned 2 cotangents for 1 array"),
    "bwd shape": ({"vjp": (lambda x: (x, 0), lambda r, c: c[0][0])}, r"bwd of vjp returned, for input 0, shape"),
    "bwd dtype": ({"vjp": (lambda x: (x, 0), lambda r, c: c[0] * 1j)}, r"bwd of vjp returned, for input 0, complex"),
    "fwd no pair": ({"vjp": (lambda x: x, lambda r, c: c[0])}, r"fwd of vjp: fwd returned a ndarray; return a pair"),
    "fwd outputs": (
        {"vjp": (lambda x: ([x, x], 0), lambda r, c: c[0])},
        r"fwd of vjp: func returned a list of 2 where Tout",
    ),
    "fwd dtype": ({"vjp": (lambda x: (x * 1j, 0), lambda r, c: c[0])}, r"fwd of vjp: func returned complex64"),
}


@pytest.mark.parametrize(("rules", "text"), WRONG.values(), ids=WRONG)
def test_wrong_rules_are_named(rules, text, route):
    op = lambda x: numpy_function(np.sin, [x], F, name="mine", **rules)
    take = (lambda x: jax.jvp(op, (x,), (x,))[1]) if "jvp" in rules else jax.grad(lambda x: op(x).sum())
    with pytest.raises((ValueError, TypeError), match=f"(?s)'mine'.*{text}"), jaxpyop.reraise():
        jax.block_until_ready(route(take, X))


@pytest.mark.parametrize("which", ["fwd", "bwd", "jvp"])
def test_exceptions_of_rules_come_out(which, route):
    error = KeyError("mine")

    def fail(*args):
        raise error

    rules = {"fwd": {"vjp": (fail, fail)}, "bwd": {"vjp": (lambda x: (x, x), fail)}, "jvp": {"jvp": fail}}[which]
    op = lambda x: numpy_function(np.sin, [x], F, **rules)
    take = (lambda x: jax.jvp(op, (x,), (x,))[1]) if which == "jvp" else jax.grad(lambda x: op(x).sum())
    with pytest.raises(KeyError, match="mine") as caught, jaxpyop.reraise():
        route(take, X)
    assert caught.value is error


def test_nan_of_a_rule_is_nan(route):
    op = lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: c[0] * np.nan)
    assert np.isnan(route(jax.grad(lambda x: op(x).sum()), X)).all()


def refused(**options):
    return lambda: numpy_function(np.sin, [1.0], F, **options)


REFUSED = {
    "no function": (refused(vjp=3), "vjp must be a function f\\(inputs, outputs, cotangents\\), a pair"),
    "three": (refused(vjp=(np.sin, np.sin, np.sin)), "or a pair of functions \\(fwd, bwd\\)"),
    "other text": (refused(jvp="numeric"), "jvp must be a function .* or 'numerical', got 'numeric'"),
    "numerical transpose": (refused(transpose="numerical"), "transpose must be a function f\\(cotangents\\)"),
    "transpose and vjp": (refused(transpose=np.sin, vjp=np.sin), "remove vjp= and jvp="),
    "transpose of integers": (
        lambda: numpy_function(np.sin, [1.0], jnp.int32, transpose=np.sin),
        "no result that Tout declares is floating",
    ),
    "numerical of a stateful op": (
        lambda: py_func(np.sin, [1.0], F, vjp="numerical"),
        "numerical derivatives call func again, which a stateful op does not allow; pass stateful=False",
    ),
    "traced": (lambda: py_function(jnp.sin, [1.0], F, mode="traced", vjp=np.sin), "mode='traced' runs nothing"),
}


@pytest.mark.parametrize(("make", "text"), REFUSED.values(), ids=REFUSED)
def test_rules_that_cannot_be_are_refused(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()


def test_rules_that_close_over_traced_values_are_refused():
    def program(x):
        return numpy_function(np.sin, [x], F, vjp=(lambda y: (y, 0), lambda r, c: c[0] * x))

    with pytest.raises(ValueError, match="bwd of vjp uses 'x' from the code around it"):
        jax.jit(program)(1.0)


# ---------------------------------------------------------------- numerical, where


def test_numerical_counts_its_calls(route):
    counted = Counted()
    op = lambda x: numpy_function(counted.func, [x, Y], F, **counted["numerical"])
    route(jax.grad(lambda x: op(x).sum()), X)
    assert counted.func.count == 1 + 2 * 3
    route(lambda x: jax.jvp(op, (x,), (x,)), X)
    assert counted.func.count == 7 + 1 + 2


def test_numerical_of_inputs_of_several_magnitudes(route):
    func = Counter(lambda x, y: np.sin(x[0]) + 1e-6 * x[1] + y)
    op = lambda x, y: numpy_function(func, [x, y], F(0), jvp="numerical")
    along = lambda x: jax.jvp(op, (x, 30.0), (jnp.ones(2), 2.0))[1]
    np.testing.assert_allclose(route(along, jnp.array([0.7, 1e6])), np.cos(0.7) + 1e-6 + 2, rtol=2e-3)
    assert func.count == 1 + 2 * 3
    assert np.isnan(route(along, jnp.array([jnp.nan, 1.0])))


def test_numerical_runs_on_the_executor_with_its_bar(capsys):
    import threading

    seen = set()

    def body(x):
        seen.add(threading.current_thread().name)
        return np.sin(x)

    with concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="mine") as pool:
        op = lambda x: numpy_function(
            body, [x], F, vjp="numerical", vmap_method="parallel", executor=pool, progress=True
        )
        got = jax.jit(jax.grad(lambda x: op(x).sum()))(X)
        np.testing.assert_allclose(got, np.cos(X), rtol=1e-3)
    assert any(name.startswith("mine") for name in seen)
    assert "6/6" in capsys.readouterr().err


def test_numerical_is_a_check_of_other_rules():
    from jax.test_util import check_grads

    op = lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: np.cos(i[0]) * c[0], jvp="numerical")
    check_grads(op, (X,), order=1, modes=["fwd", "rev"], rtol=1e-2, atol=1e-2)
    wrong = lambda x: numpy_function(np.sin, [x], F, vjp=lambda i, o, c: -np.cos(i[0]) * c[0], jvp="numerical")
    with pytest.raises(AssertionError):
        check_grads(wrong, (X,), order=1, modes=["rev"], rtol=1e-2, atol=1e-2)

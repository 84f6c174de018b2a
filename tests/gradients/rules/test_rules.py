"""The user's own derivatives, vjp= and jvp=: values, how often each function is called, and what it is given."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.gradients.bodies import TRANSFORMS, F
from tests.gradients.rules import cases
from tests.gradients.rules.cases import FORWARD, REVERSE, Counted, X, Y, close_to, wanted
from tests.shared.checks import close, trees_close
from tests.shared.tables import in_turn, rows

METHODS = ("sequential", "expand_dims", "broadcast_all", "parallel")
either = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["direct", "jit"])


def tolerance(kind):
    return 5e-3 if kind == "numerical" else 1e-4


def of_counted(kind, method):
    """An op with rules of a kind, and the counts of its calls."""
    counted = Counted()
    return lambda x, y: numpy_function(counted.func, [x, y], F, vmap_method=method, **counted.rules(kind)), counted


# Programs with a batch, to which the method makes a difference.
BATCHED = [name for name in REVERSE if "vmap" in name or name == "jacrev"]
PRODUCT = [*itertools.product(REVERSE, cases.REVERSE_RULES, ["sequential"])]
PRODUCT += itertools.product(BATCHED, cases.REVERSE_RULES, METHODS[1:])
FAST = [(name, kind, "sequential", "direct") for name in ("grad", "jacrev", "checkpoint") for kind in ("vjp", "pair")]
FAST += [("grad of vmap", "pair", "expand_dims", "direct")]
FAST += [("vmap of grad", "vjp", "broadcast_all", "direct"), ("grad of vmap", "vjp", "parallel", "direct")]
FAST += [("in one input", "vjp", "sequential", "direct"), ("scan", "pair", "sequential", "jit")]
ROWS = in_turn(PRODUCT, ["direct", "jit", "cut"], and_also=FAST)


@pytest.mark.parametrize(("name", "kind", "method", "transform"), rows(ROWS, FAST))
def test_reverse_mode(name, kind, method, transform):
    (program, one_by_one, of_a_block), (op, counted) = REVERSE[name], of_counted(kind, method)
    close_to(TRANSFORMS[transform](lambda: program(op))(), wanted(name), tolerance(kind))
    if kind == "numerical":
        return
    # The residuals of a pair belong to one element.
    each_alone = method in ("sequential", "parallel") or "pair" in kind
    often, counts = one_by_one if each_alone else of_a_block, counted.counts()
    assert counts.pop("bwd" if "pair" in kind else "vjp") == often
    assert set(counts) == ({"fwd"} if "pair" in kind else {"func"}), "without differentiation func, with it fwd"
    assert sum(counts.values()) <= (often if name != "checkpoint" else 2)


FAST_FORWARD = [(name, "jvp", "sequential") for name in ("jvp", "in one input", "linearize")]
FAST_FORWARD += [("vmap of jvp", "jvp", "broadcast_all"), ("jvp of vmap", "jvp", "parallel")]


@pytest.mark.parametrize(
    ("name", "kind", "method"), rows(itertools.product(FORWARD, cases.FORWARD_RULES, METHODS), FAST_FORWARD)
)
def test_forward_mode(name, kind, method):
    (program, one_by_one, of_a_block), (op, counted) = FORWARD[name], of_counted(kind, method)
    close_to(program(op), wanted(name, forward=True), tolerance(kind))
    if kind != "numerical":
        assert counted.jvp.count == (one_by_one if method in ("sequential", "parallel") else of_a_block)


LINEAR = [("vjp and jvp", "sequential"), *itertools.product(["pair and jvp", "numerical"], METHODS[:3])]


@pytest.mark.parametrize(("kind", "method"), rows(LINEAR, LINEAR[:1]))
def test_a_rule_is_linear_in_tangents_and_cotangents(kind, method):
    """No second derivative: solvers take the Jacobian of a linearization (optimistix, 0.1)."""
    op, _ = of_counted(kind, method)
    programs = (
        lambda f: jax.vmap(jax.jacfwd(lambda t, x: jax.linearize(lambda x: f(x, 2.0), x)[1](t) ** 2))(Y, X),
        lambda f: jax.jvp(lambda c: jax.vjp(f, X, Y)[1](c), (X,), (Y,)),
    )
    for program in programs:
        close_to(program(op), jax.jit(lambda program=program: program(cases.func))(), tolerance(kind))


@pytest.mark.parametrize("kind", ["vjp", "pair", "vjp and jvp", "numerical"])
def test_rules_of_a_py_function_replace_its_automatic_derivative(kind):
    counted, arrays = Counted(), []
    for name in ("vjp", "bwd", "jvp"):  # their last argument is of cotangents or tangents, arrays of JAX here
        rule = counted.counters[name].func
        counted.counters[name].func = lambda *args, rule=rule: arrays.extend(jax.tree.leaves(args[-1])) or rule(*args)
    op = lambda x, y: py_function(cases.func, [x, y], F, **counted.rules(kind))
    close_to(REVERSE["grad of vmap"][0](op), wanted("grad of vmap"), tolerance(kind))
    if kind in ("vjp", "pair"):
        with pytest.raises(
            NotImplementedError, match=r"forward-mode.*needs the rule jvp=.*vjp=, which gives reverse mode"
        ):
            jax.block_until_ready(FORWARD["jvp"][0](op))
    else:
        close_to(FORWARD["jvp"][0](op), wanted("jvp", forward=True), tolerance(kind))
    asked = {"vjp": {"vjp"}, "pair": {"fwd", "bwd"}, "vjp and jvp": {"vjp", "jvp"}, "numerical": set()}
    assert set(counted.counts()) == asked[kind]
    assert all(isinstance(a, jax.Array) for a in arrays)


# ----------------------------------------------------------- what rules are given


@either
def test_what_vjp_is_given(transform):
    got = []

    def vjp(inputs, outputs, cotangents):
        got.append((inputs, outputs, cotangents))
        return cotangents[0] * 2, None, None

    op = lambda x, n: numpy_function(lambda x, n, s: [x * 2, x * n], [x, n, "static"], [F, F], vjp=vjp)
    close(transform(jax.grad(lambda x: (op(x, jnp.int32(3))[0] * X).sum()))(X), 2 * X)
    ((inputs, outputs, cotangents),) = got
    assert type(inputs) is tuple
    assert type(outputs) is type(cotangents) is list
    assert all(isinstance(a, (np.ndarray, np.generic)) for a in (*inputs[:2], *outputs, *cotangents))
    assert inputs[1].dtype == np.int32
    assert inputs[2] == "static"
    close(inputs[0], X)
    close(outputs, [2 * X, 3 * X])
    close(cotangents[0], X)
    np.testing.assert_array_equal(cotangents[1], 0)  # an unused output


@either
def test_the_arrays_of_a_rule_may_be_changed_and_kept(transform):
    kept = []

    def vjp(i, o, c):
        kept.append(c)
        i[0][...] = 0
        c[...] *= 3
        return c

    f = transform(jax.grad(lambda x: numpy_function(lambda x: x * 3, [x], F, vjp=vjp).sum()))
    for k in range(4):
        close(f(X + k), [3, 3, 3])
    assert all((c == 3).all() for c in kept)


@pytest.mark.parametrize("rule", ["vjp", "numerical"])
def test_integers_statics_and_unused_results(rule):
    def pull(inputs, outputs, cotangents):
        (tree, n, how), ct = inputs, cotangents
        assert how == "static"
        assert ct["k"].dtype == jax.dtypes.float0
        return {"x": ct["y"] * n + ct["z"] * 2 * tree["x"]}, None

    body = lambda tree, n, how: {"y": tree["x"] * n, "k": np.int32(3), "z": tree["x"] ** 2}
    tout, rule = {"y": F, "k": jnp.int32, "z": F}, pull if rule == "vjp" else jaxpyop.numerical()
    op = lambda x: numpy_function(body, [{"x": x}, jnp.int32(2), "static"], tout, vjp=rule)
    np.testing.assert_allclose(jax.grad(lambda x: (op(x)["y"] ** 2).sum())(X), 8 * X, rtol=5e-3, atol=5e-3)


@either
def test_tangents_that_are_zero_are_none(transform):
    got = []

    def jvp(inputs, outputs, tangents):
        got.append([t is None for t in tangents])
        return tangents[0], None

    op = lambda x, n: numpy_function(lambda x, y, n: (x, y), [x, X, n], [F, F], jvp=jvp)
    _, (first, second) = transform(lambda x: jax.jvp(lambda x: op(x, jnp.int32(1)), (x,), (Y,)))(X)
    trees_close([first, second], [Y, jnp.zeros(3)])
    assert got == [[False, True, True]]


# Results of rules that stand for arrays: of the two inputs' cotangents, or of the tangent.
STAND_FOR = {
    "None": {"vjp": lambda i, o, c: (None, 2.5 * c)},
    "arrays": ({"vjp": lambda i, o, c: (np.zeros_like(c), 2.5 * c)}),
    "numbers": {"vjp": lambda i, o, c: (0, 2.5)},
    "float64": {"vjp": lambda i, o, c: (0 * c.astype(np.float64), 2.5 * c.astype(np.float64))},
    "number of jvp": {"jvp": lambda i, o, t: 2.5},
}


@pytest.mark.parametrize("method", ["sequential", "expand_dims"])
@pytest.mark.parametrize("rules", STAND_FOR.values(), ids=STAND_FOR)
def test_what_stands_for_an_array(rules, method):
    op = lambda x, y: numpy_function(lambda x, y: y * 2.5, [x, y], F, vmap_method=method, **rules)
    ones, at = np.ones((2, 3), np.float32), (cases.XX, cases.XX + 1)
    if "jvp" in rules:
        trees_close(jax.jvp(jax.vmap(op), at, at)[1], 2.5 * ones)
    else:
        trees_close(jax.grad(lambda x, y: jax.vmap(op)(x, y).sum(), (0, 1))(*at), (0 * ones, 2.5 * ones))


@either
def test_complex_numbers_follow_jax(transform):
    """JAX's convention: for a holomorphic f the cotangent is ct * f'(z), without a conjugate."""
    z = jnp.array([0.5 + 1j, -1.25 - 0.5j], jnp.complex64)
    ct = jnp.array([1.0 + 1j, -2j], jnp.complex64)
    rules = {"vjp": (lambda z: (z**2, z), lambda z, c: 2 * z * c), "jvp": lambda i, o, t: 2 * i[0] * t[0]}
    op = lambda z: numpy_function(lambda z: z**2, [z], jnp.complex64, **rules)
    for program in (lambda f, z: jax.vjp(f, z)[1](ct)[0], lambda f, z: jax.jvp(f, (z,), (ct,))[1]):
        close(transform(lambda z, program=program: program(op, z))(z), 2 * z * ct)

"""Where the shapes of results come from, and that a shape is checked at every call."""

import contextlib
import functools
import heapq
import logging
import random
import tempfile
import types

import hypothesis.extra.numpy as hnp
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from scipy import special

from tests.shared.checks import run, shape_of
from tests.shared.examples import few, many
from tests.shared.functions import contrib, every_api, numpy_function, py_func, py_function

F, INT = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
X = jnp.array([3.0, 1.0, 3.0])


# ----------------------------------------------------------------- outside of jit


@every_api
def test_outside_jit_nothing_needs_a_shape_and_a_given_one_is_checked(api):
    assert api(lambda: np.zeros((4, 0, 2)), [], F).shape == (4, 0, 2)
    a, b = api(lambda x: [x[:1], x[None]], [X], [F, F])
    assert (a.shape, b.shape) == ((1,), (1, 3))
    for shapes in (None, (2,), (None,)):
        assert api(np.unique, [X], F, output_shapes=shapes).shape == (2,)
    for shapes, declared in (((3,), r"\(3,\)"), ((None, None), r"\(None, None\)"), (lambda x: (3,), r"\(3,\)")):
        text = rf"'unique'.*func returned shape \(2,\) where {declared} was declared; write output_shapes=\(2,\)"
        with pytest.raises(ValueError, match=text):
            api(np.unique, [X], F, output_shapes=shapes)
    with pytest.raises(ValueError, match=r"write output_shapes=\(2,\), or that shape in Tout"):
        api(np.unique, [X], S((), F))


def test_an_eager_vmap_needs_no_shape_either():
    """The elements' own shape, if they agree on one."""
    op = jax.vmap(lambda x: numpy_function(np.unique, [x], F))
    rows = jnp.array([[1.0, 1.0, 2.0], [4.0, 5.0, 4.0]])
    np.testing.assert_array_equal(op(rows), [[1, 2], [4, 5]])
    with pytest.raises(ValueError, match=r"the shapes \(3,\) and \(2,\) for elements of one vmap"):
        op(rows.at[0, 1].set(7.0))


# ------------------------------------------------------- found by the function itself


ABSTRACT = {
    "reduction": (jnp.sum, ()),
    "jitted": (jax.jit(lambda x: x[:2]), (2,)),
    "nested op": (lambda x: py_function(jnp.sum, [x], F), ()),
    "numpy constant": (lambda x: np.zeros((2, 5)), (2, 5)),
}


@pytest.mark.parametrize(("body", "shape"), ABSTRACT.values(), ids=ABSTRACT)
def test_a_stateless_py_function_gives_its_own_shape(body, shape):
    op = lambda x: py_function(body, [x], F)
    assert shape_of(op, X) == shape
    assert shape_of(jax.vmap(op), jnp.stack([X, X])) == (2, *shape)
    np.testing.assert_allclose(jax.jit(op)(X), np.broadcast_to(body(X), shape), rtol=1e-6)


def test_a_function_that_needs_values_has_the_inputs_shape():
    """And errors that only the run without values meets do not come out."""
    branches = lambda x: x * 3 if x[0] > 0 else x
    for body in (lambda x: x * float(x[0]), branches, lambda x: jnp.asarray(np.asarray(x) * 3)):
        np.testing.assert_array_equal(jax.jit(lambda x: py_function(body, [x], F))(X), X * 3)  # noqa: B023


def sum_of_the_positive(x):
    total = 0.0
    for v in x:
        if v > 0:
            total += v
    return total


def halved(x):
    while x[0] > 1:
        x = x / 2
    return x[:2], {"turns": len(x)}


def with_an_early_return(x):
    if x[0] > 9:
        return jnp.zeros((2, 3))
    return jnp.outer(x[:2], x)


def with_numpy(x):
    out = np.zeros((2, 3))
    for i, v in enumerate(np.asarray(x)):
        if v > 1:
            out[:, i] = v
    return out


def with_an_unknown_library(x):
    if special.gammaln(float(x[0])) > 0:
        LOG.warning("large: %s", x)
    print(f"{x.max():.2f}", end="")
    return x[:2]


def with_random_numbers(x):
    generator = np.random.default_rng(1)
    if random.random() < 0.5 and np.random.rand() < 0.5:
        x = x[::-1]
    return x[:2] + (generator.normal(size=2) if x[0] > 9 else 0.0) * 0


def with_a_handler(x):
    try:
        if x[0] < 0:
            raise ValueError
        y = jnp.outer(x, x)
    except ValueError as error:
        y = jnp.zeros((3, 3)) * len(str(error))
    return y


def with_a_list_that_grows(x):
    losses, loss = [], x.sum()
    while loss > 1:
        loss = loss / 2
        losses.append(loss)
        if len(losses) > 20 or losses[-1] > 1e3:
            break
    return loss


def with_a_recursion(x):
    halve = lambda v: v if v < 1 else halve(v / 2)
    return halve(x.sum())


def with_a_length_that_depends_on_values(x):
    k = int(x[1])
    return x[x > 1].sum() + x[:k].sum()


def with_an_assigned_and_a_caught_value(x):
    try:
        y = x[:2]
        if x[0] < -9:
            raise ValueError
    except ValueError:
        y = x[:2] * 2
    return y


def with_what_is_not_known(x):
    with np.errstate(all="ignore") as _state, tempfile.TemporaryFile() as file:
        file.write(b"0")
    least, most = special.pseudo_huber(1.0, float(x[0])), 9.0
    for k, v in special.bernoulli(3) if x[0] > 100 else [(1, 2.0), (2, 3.0)]:
        least = k if v > x[0] else least
    return x[:2].at[0].set(1.0) if least < most else -x[:2]


def with_a_value_for_an_error(x):
    y = 0.0
    try:
        y = float(x[int(x[0])])
    except IndexError:
        y = y + 1
    return y


@functools.partial(jax.jit, static_argnames="n")
def first(x, n):
    return x[:n]


LOG = logging.getLogger("tests")

# Functions that branch on values, where the inputs' shape would be wrong.
BRANCHING = {
    "a loss": (sum_of_the_positive, F),
    "a loop on values": (halved, (F, {"turns": INT})),
    "an early return": (with_an_early_return, F),
    "a number of Python": (lambda x: float(x[0]) if x[1] > 0 else 1.0, F),
    "a comprehension": (lambda x: jnp.stack([v if v > 1 else -v for v in x[:2]]), F),
    "NumPy": (with_numpy, F),
    "a library, a text and a log": (with_an_unknown_library, F),
    "random numbers": (with_random_numbers, F),
    "a handler": (with_a_handler, F),
    "a value for an error": (with_a_value_for_an_error, F),
    "what is not known": (with_what_is_not_known, F),
    "a list that grows": (with_a_list_that_grows, F),
    "a recursion": (with_a_recursion, F),
    "a length": (with_a_length_that_depends_on_values, F),
    "static arguments": (lambda x: first(x, n=2) if x[0] > 0 else first(-x, n=2), F),
    "the larger of two rows": (lambda x: max(x[:2], -x[:2], key=lambda row: float(row.sum())), F),
    "a sum of rows": (lambda x: sum([float(v) for v in x], np.zeros(2)) * (1 if x[0] > 0 else 2), F),
    "a rounded array": (lambda x: round(x[:2], int(x[1])) if x[0] > 0 else -x[:2], F),
    "dot products of NumPy": (lambda x: np.matmul(np.asarray(x), np.asarray(x)) * (1 if x[0] > 0 else 2), F),
    "a method of a ufunc": (lambda x: np.add.outer(np.asarray(x), np.asarray(x)) * (1 if x[0] > 0 else 2), F),
    "a list of numbers": (lambda x: sum(v for v in x.tolist() if v > 1), F),
    "a value that is assigned and an error": (with_an_assigned_and_a_caught_value, F),
    "sorted numbers": (lambda x: jnp.array(sorted(float(v) for v in x)[:2]), F),
}


@pytest.mark.parametrize(("body", "tout"), BRANCHING.values(), ids=BRANCHING)
def test_a_function_that_branches_on_values_gives_its_own_shape(body, tout):
    op = lambda x: py_function(body, [x], tout)
    got, wanted = jax.jit(op)(X), op(X)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, wanted)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    batched = jax.eval_shape(jax.vmap(op), jnp.stack([X, X]))
    assert [s.shape for s in jax.tree.leaves(batched)] == [(2, *np.shape(s)) for s in jax.tree.leaves(wanted)]


def test_a_search_for_a_shape_has_no_effects():
    """Neither on a path that is not taken nor on generators of random numbers."""
    effects = []

    def body(x):
        if x[0] > 100:
            effects.append("a list from outside")
            LOG.handlers[0].flush("a log")
            np.save("/nowhere/a file", x)
            return x[:2] * random.random() * np.random.rand()
        return x[:2]

    LOG.handlers[:] = [types.SimpleNamespace(flush=effects.append)]
    states = random.getstate(), str(np.random.get_state())
    assert shape_of(lambda x: py_function(body, [x], F), X) in ((2,), (3,))
    assert effects == []
    assert (random.getstate(), str(np.random.get_state())) == states
    LOG.handlers.clear()


def with_a_value_of_before_an_error(x):
    y = x[:1]
    try:
        y = x
        raise ValueError
    except ValueError:
        return y


def with_a_suppressed_error(x):
    with contextlib.suppress(ValueError):
        if x[0] > -9:
            raise ValueError
        return x[:1]
    return x


UNKNOWN = {
    "what an error leaves": with_a_value_of_before_an_error,
    "a suppressed error": with_a_suppressed_error,
    "an array to write to": lambda x: np.multiply(np.asarray(x[:1]), 2, out=np.zeros(3)) if x[0] > -9 else x[:1],
    "a method that may change a list": lambda x: (heap := [x, x[:1]]) and heapq.heappop(heap) if x[0] > 0 else x[:1],
    "a length": lambda x: x[x > 1],
    "a library": lambda x: special.gammaln(np.asarray(x).tolist()[:2]) if x[0] > 0 else x[:2],
}


@pytest.mark.parametrize("body", UNKNOWN.values(), ids=UNKNOWN)
def test_where_the_shape_is_not_found_the_inputs_shape_is_assumed(body):
    assert shape_of(lambda x: py_function(body, [x], F), X) == (3,)


def test_two_shapes_on_two_paths_are_none():
    op = lambda x: py_function(lambda x: x[:2] if x[0] > 0 else x[:1], [x], F)
    assert shape_of(op, X) == (3,)
    with pytest.raises(Exception, match=r"func returned shape \(2,\)"):
        jax.jit(op)(X).block_until_ready()


AT_TRACE_TIME = {
    "py_function": (py_function, {}, True),
    "shapes": (py_function, {"output_shapes": (3,)}, False),
    "callable shapes": (py_function, {"output_shapes": lambda x: x.shape}, False),
    "stateful": (py_function, {"stateful": True}, False),
    "ordered": (py_function, {"ordered": True}, False),
    "numpy_function": (numpy_function, {}, False),
    "py_func": (py_func, {}, False),
    "contrib": (contrib, {}, False),
}


@pytest.mark.parametrize(("api", "options", "at_trace"), AT_TRACE_TIME.values(), ids=AT_TRACE_TIME)
def test_python_runs_at_trace_time_only_to_find_a_shape(api, options, at_trace):
    runs = []
    body = lambda x: runs.append(isinstance(x, jax.core.Tracer)) or x * 2
    compiled = jax.jit(lambda x: api(body, [x], F, **options)).lower(X).compile()
    assert runs == [True] * at_trace
    runs.clear()
    for _ in range(3):
        jax.block_until_ready(compiled(X))
    assert runs == [False] * 3


def test_a_compiled_gradient_has_one_abstract_run_and_a_direct_one_none():
    runs = []
    body = lambda x: runs.append(isinstance(jax.lax.stop_gradient(x), jax.core.Tracer)) or jnp.sin(x)
    gradient = jax.grad(lambda x: py_function(body, [x], F))
    gradient(0.5)
    assert runs == [False]
    jax.jit(gradient)(0.5)
    assert runs == [False, True, False]


# ------------------------------------------------------- assumed from the inputs


def the_broadcast_shape_is_assumed(shapes):
    a, b = (np.ones(s, np.float32) for s in shapes.input_shapes)
    op = lambda a, b: numpy_function(lambda a, b, s, n: (a + b) * n, [a, b, "text", 2.0], F)
    assert shape_of(op, a, b) == op(a, b).shape == shapes.result_shape


some_shapes = given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3))
test_the_inputs_broadcast_shape_is_assumed = few(some_shapes, the_broadcast_shape_is_assumed, examples=30)
test_many_broadcast_shapes_are_assumed = many(some_shapes, the_broadcast_shape_is_assumed, examples=100)


def test_the_assumed_shape_is_that_of_all_results_and_a_scalar_without_inputs():
    assert shape_of(lambda: numpy_function(lambda: 3.0, [], F)) == ()
    a, b = jax.jit(lambda x, y: numpy_function(lambda x, y: (x + y, x - y), [x, y], [F, F]))(X, np.ones((2, 1), F))
    np.testing.assert_array_equal([a, b], [[X + 1] * 2, [X - 1] * 2])


def test_inputs_that_do_not_broadcast_need_a_shape():
    op = lambda a, b, **o: numpy_function(lambda a, b: a, [a, b], F, **o)
    text = r"'lambda': the result's shape must be known.*do not broadcast.*output_shapes="
    with pytest.raises(ValueError, match=text):
        shape_of(op, jnp.ones(2), jnp.ones(3))
    assert shape_of(functools.partial(op, output_shapes=(2,)), jnp.ones(2), jnp.ones(3)) == (2,)


# ----------------------------------------------------------------------- checks


@every_api
def test_an_assumed_and_a_declared_shape_are_checked_at_every_call(api):
    """A shape that would broadcast is wrong too, and the next call is right."""
    now = []
    options = {"stateful": True} if api is py_function else {}
    op = lambda x, **o: api(lambda x: now[0](x), [x], F, name="mine", **options, **o)
    assumed, declared = jax.jit(op), jax.jit(lambda x: op(x, output_shapes=(3,)))
    bodies = {r"\(\)": lambda x: x.sum(), r"\(1,\)": lambda x: x[:1], r"\(1, 3\)": lambda x: x[None]}
    for shape, body in bodies.items():
        for f, how in ((assumed, "assumed"), (declared, "declared")):
            now[:] = [body]
            text = rf"'mine': .*func returned shape {shape} where \(3,\) was {how}"
            with pytest.raises(ValueError, match=text) as caught:
                run(f, X)
            caught.match(rf"write output_shapes={shape}")
            assert ("if a length varies, Tout=jaxpyop.padded(" in str(caught.value)) == (shape == r"\(1,\)")
            now[:] = [lambda x: x * 2]
            np.testing.assert_array_equal(run(f, X), X * 2)


def test_sizes_of_jax_export():
    """Keras builds models with them."""
    n, m = jax.export.symbolic_shape("n, m")
    sizes = {"a tuple": (n, 3), "a struct": S((n, 3), F), "a function": lambda x: (x.shape[0], 3), "sums": (n + m, 3)}
    for name, shape in sizes.items():
        for api in (numpy_function, py_function):
            found = shape_of(lambda x: api(lambda x: x, [x], F, output_shapes=shape), S((n, m), F))  # noqa: B023
            assert found == ((n + m, 3) if name == "sums" else (n, 3))


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_shape_errors_under_vmap_speak_of_one_element(method):
    op = lambda body: jax.vmap(lambda x: numpy_function(body, [x], F, vmap_method=method, output_shapes=(3,)))
    with pytest.raises(ValueError, match=r"write output_shapes=\(2,\)"):
        op(lambda x: x[..., :2])(jnp.stack([X, X]))
    if method != "sequential":  # each element's shape is right, so that to write it would not help
        with pytest.raises(ValueError, match=r"\(1, 3\) where \(2, 3\).*each element, with \(2,\) in front") as caught:
            op(lambda x: np.ones((1, 3)))(jnp.stack([X, X]))
        assert "write output_shapes" not in str(caught.value)

"""Functions that Numba compiled: a program calls them without Python, and they give what they give in Python."""

import logging

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function
from jaxpyop._op.primitive import lowering
from tests.shared.tables import rows

numba = pytest.importorskip("numba", reason="needs the extra `native`")
from tests.native import kernels  # noqa: E402
from tests.native.kernels import KERNELS, F, V  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::numba.NumbaPendingDeprecationWarning")


def outcome(run, x):
    """The arrays that a program returns, or the first line of the exception that its function raised."""
    try:
        with jaxpyop.reraise():
            found = jax.block_until_ready(run(x))
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0].replace("INTERNAL: ", "")
    return [(np.asarray(leaf).dtype, np.asarray(leaf).tobytes(), leaf.shape) for leaf in jax.tree.leaves(found)]


@pytest.fixture
def through_python(monkeypatch):
    """Takes a program, and has its calls go through Python."""

    def ordinary(program, x):
        with monkeypatch.context() as patch:
            patch.setattr(lowering, "lowered_natively", lambda *args: None)
            # A function of its own, because JAX would take the program that it has for this one.
            with jaxpyop.report() as report:
                found = outcome(jax.jit(lambda x: program(x)), x)
        assert "native" not in {row["route"] for row in report.rows()}
        return found

    return ordinary


def op_of(name, **options):
    func, inputs, tout = KERNELS[name]
    func = kernels.compiled(func)
    statics = [x for x in jax.tree.leaves(inputs) if isinstance(x, str)]
    arrays = [x for x in inputs if not isinstance(x, str)]
    return lambda arrays: numpy_function(func, [*arrays, *statics], tout, name=name, **options), arrays


# What is not called without Python, and the reason that is told.
ORDINARY = {
    "too few results": "which is not a tuple of 3",
    "another number of axes": "a number where an array is declared",
    "a float for an integer": "does not turn into int32",
    "a string": "an argument holds a str",
    "a list": "an argument holds a list",
    "an integer of 64 bits": "an argument holds a int",
    "element-wise": "numba.vectorize or guvectorize made it",
    "element-wise, raises": "numba.vectorize or guvectorize made it",
    "element-wise, out of range": "numba.vectorize or guvectorize made it",
    "generalized": "numba.vectorize or guvectorize made it",
    "a print": "enters Python itself",
    "raises in Python": "enters Python itself",
    "Python inside of Python": "enters Python itself",
    "of an integer, gets NaN": "not compiled for just the types",
    "of a double": "not compiled for just the types",
    "of several types": "not compiled for just the types",
    "an optional": "returns OptionalType",
    "a named tuple": "not a tuple of 2",
    "no named tuple": "in a Pair",
    "literally": "literal arguments",
    "keywords alone": "keyword-only",
    "yields": "generator",
    "parallel": "parallel=True",
}
FAST = ["branches"]
# The kernels that are called by more than the program itself. For the others this would take a minute.
INSIDE = ["branches", "several", "raises", "writes", "an integer", "complex", "allocates", "nested", "the input itself"]


def everywhere(op):
    """A program that calls an op by itself, in a scan, a branch and a loop: with one kernel."""

    def program(arrays):
        found = op(arrays)
        zeros = lambda: jax.tree.map(jnp.zeros_like, found)
        each = jax.lax.map(op, jax.tree.map(lambda x: jnp.stack([x, x]), arrays)) if arrays else None
        branch = jax.lax.cond(jax.tree.leaves(found)[0].size >= 0, lambda: op(arrays), zeros)
        return found, each, branch, jax.lax.fori_loop(0, 2, lambda i, before: op(arrays), zeros())

    return program


@pytest.mark.parametrize("name", rows(KERNELS, FAST))
def test_a_program_gives_what_python_gives(name, caplog, through_python):
    op, arrays = op_of(name)
    program = everywhere(op) if name in INSIDE else op
    with caplog.at_level(logging.INFO, "jaxpyop"), jaxpyop.report() as report:
        in_program = outcome(jax.jit(program), arrays)
    assert in_program == through_python(program, arrays)
    if name in ORDINARY:
        assert ORDINARY[name] in caplog.text
    else:
        assert not [record for record in caplog.records if record.name == "jaxpyop"]
    # XLA skips a call without values.
    if name != "an axis of no size":
        routes = {row["op"]: row["route"] for row in report.rows()}
        assert ("native" in routes[name]) == (name not in ORDINARY)


LOOPED = ["branches", "an integer", "several", "writes", "keywords", "a transpose", "complex"]
LOOPED += ["allocates", *(FAILS := ["raises", "another shape", "does not fit"])]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPED)
def test_a_batch_gives_what_python_gives(name, through_python):
    op, arrays = op_of(name)
    # The two methods of one call give the kernel that the other rows have, with one axis more.
    whole = op_of(name, vmap_method="expand_dims")[0] if name == "branches" else op
    # Of several elements that fail, any may be the first one on threads.
    on_threads = op if name in FAILS else op_of(name, vmap_method="parallel")[0]
    several = [np.stack([x, x + x, x]) for x in arrays]
    each = (0, *[None] * (len(arrays) - 1))

    def batch(several):
        run = lambda op: jax.vmap(lambda *arrays: op(arrays), each)(several[0], *arrays[1:])
        return run(op), run(whole), run(on_threads)

    assert outcome(jax.jit(batch), several) == through_python(batch, several)


@numba.njit
def positive_root(x, n):
    if x < 0:
        raise ValueError("below zero")
    return x**0.5 + n.sum(), n * 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 1000])
def test_threads_share_a_batch(size):
    kernel = lambda x, n: numpy_function(positive_root, [x, n], (F(0), kernels.N), vmap_method="parallel", name="root")
    op = jax.jit(jax.vmap(jax.vmap(kernel, (0, None)), (0, None)))
    x = np.arange(3 * size, dtype=F).reshape(size, 3)
    with jaxpyop.report() as report:
        roots, doubled = jax.block_until_ready(op(x, kernels.N))
    assert [row["route"] for row in report.rows()] == ["native"]
    np.testing.assert_array_equal(roots, [[F(positive_root(v, kernels.N)[0]) for v in row] for row in x])
    np.testing.assert_array_equal(doubled, np.broadcast_to(2 * kernels.N, (size, 3, 3)))
    x[size // 2, 1] = -1
    with pytest.raises(ValueError, match="below zero") as failed, jaxpyop.reraise():
        jax.block_until_ready(op(x, kernels.N))
    assert f"batch index ({size // 2}, 1)" in "".join(failed.value.__notes__)


PROGRAMS = {
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c) * 0.5, None), x, length=5)[0],
    "cond": lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x, x),
    "while": lambda f: lambda x: jax.lax.while_loop(lambda c: c[0] < 100, f, x),
    "vmap of cond": lambda f: (
        lambda x: jax.vmap(lambda y: jax.lax.cond(y[0] > 0, f, lambda y: y, y))(jnp.stack([x, -x]))
    ),
    "jaxpyop.jit": lambda f: jaxpyop.jit(f),
    "nested vmap": lambda f: lambda x: jax.vmap(jax.vmap(f))(jnp.stack([x, x + 1, x + 2])[None]),
}


@pytest.mark.parametrize("program", rows(PROGRAMS, ["scan"]))
def test_in_programs(program):
    make, x = PROGRAMS[program], jnp.asarray(np.abs(V) + 1)
    op = lambda x: numpy_function(kernels.branches, [x], F)
    np.testing.assert_allclose(jax.jit(make(op))(x), make(lambda x: x * 2)(x), rtol=1e-6)


@numba.njit
def product(x, y):
    return x * x * y


@numba.njit
def product_vjp(inputs, outputs, cotangents):
    x, y = inputs
    return 2 * x * y * cotangents, x * x * cotangents


@numba.njit
def of_first_alone(inputs, outputs, cotangents):
    return 2 * inputs[0] * inputs[1] * cotangents, None


@numba.njit
def product_jvp(inputs, outputs, tangents):
    x, y = inputs
    return 2 * x * y * tangents[0] + x * x * tangents[1]


@numba.njit
def fills(inputs, outputs, cotangents):
    return 2.5, None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sequential", "expand_dims"])
def test_rules_of_numba(method):
    op = numpy_function(Tout=F, vjp=product_vjp, jvp=product_jvp, vmap_method=method)(product)
    x, y = jnp.asarray(V), jnp.asarray(V + 1)
    for transform in (lambda f: f, jax.jit):
        with jaxpyop.report() as report:
            found = transform(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)))(x, y)
            jax.block_until_ready(found)
        np.testing.assert_allclose(found, (2 * x * y, x * x), rtol=1e-6)
        along = transform(lambda x, y: jax.jvp(op, (x, y), (y, x))[1])(x, y)
        np.testing.assert_allclose(along, 2 * x * y * y + x * x * x, rtol=1e-6)
    assert report.rows()[0]["route"] == "native"
    batch = jax.jit(jax.vmap(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)), (0, None)))(jnp.stack([x, y]), y)
    np.testing.assert_allclose(batch[0], [2 * x * y, 2 * y * y], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "wanted"), [(of_first_alone, 2), (fills, 2.5)], ids=["None", "a number"])
def test_what_rules_of_numba_may_return(rule, wanted):
    op = lambda x, y: numpy_function(product, [x, y], F, vjp=rule)
    found = jax.jit(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)))(jnp.ones(3), jnp.ones(3))
    np.testing.assert_array_equal(found, [[wanted] * 3, [0] * 3])


@numba.njit
def forgets_to_return(inputs, outputs, cotangents):
    cotangents * inputs[0]


@pytest.mark.slow
def test_a_rule_of_numba_that_forgets_to_return_is_refused():
    op = lambda x, y: numpy_function(product, [x, y], F, vjp=forgets_to_return)
    with pytest.raises(ValueError, match="vjp returned None"), jaxpyop.reraise():
        jax.jit(jax.grad(lambda x, y: op(x, y).sum(), (0, 1)))(jnp.ones(3), jnp.ones(3))


@numba.njit
def parts(x):
    return x * x, x + 1, np.argmax(x)


@numba.njit
def parts_vjp(inputs, outputs, cotangents):
    return (2 * inputs[0] * cotangents[0] + outputs[2] * cotangents[1],)


@numba.njit
def differences(x):
    return x[1:] - x[:-1]


@numba.njit
def differences_transpose(cotangents):
    found = np.zeros(cotangents.size + 1, np.float32)
    found[1:] += cotangents
    found[:-1] -= cotangents
    return found


@numba.njit
def fills_out(x, out):
    out[0][...] = x.sum()
    out[1][:2] = x[:2] > 0
    x[:] = 0


numbers = numpy_function(Tout=(F, F, np.int32(0)), vjp=parts_vjp)(parts)
linear = numpy_function(Tout=F, output_shapes=(2,), transpose=differences_transpose)(differences)
filled = numpy_function(Tout=(F(0), np.zeros(3, bool)), out=True)(fills_out)
DECLARED = {
    "results that are not used, or integers": (jax.grad(lambda x: numbers(x)[0].sum()), 2 * V),
    "transpose": (jax.grad(lambda x: (linear(x) ** 2).sum()), np.array([3.5, -10, 6.5])),
    "out": (filled, (F(1.25), np.array([True, False, False]))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DECLARED)
def test_other_rules_and_out_are_native(name, caplog, through_python):
    op, wanted = DECLARED[name]
    program = lambda x: (op(x), jax.vmap(op)(jnp.stack([x, x + 1])))
    with caplog.at_level(logging.INFO, "jaxpyop"):
        in_program = outcome(jax.jit(program), V)
    assert in_program == through_python(program, V)
    assert "through Python" not in caplog.text
    jax.tree.map(np.testing.assert_array_equal, jax.jit(op)(V), wanted)


# Expressions of a float32 array x, an int32 array n of its shape, and a number s.
NUMBERS = st.recursive(
    st.sampled_from(["x", "n", "s", "2", "0.5", "x[::-1]", "x.sum()", "n.max()"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "<"]), inner).map(
            "({0[0]} {0[1]} {0[2]})".format
        ),
        st.tuples(st.sampled_from(["np.sin", "np.abs", "np.floor", "-"]), inner).map("{0[0]}({0[1]})".format),
        st.tuples(inner, inner).map("np.where(x > 0, {0[0]}, {0[1]})".format),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@hypothesis.settings(max_examples=3, deadline=None, database=None)
@hypothesis.given(st.tuples(NUMBERS, NUMBERS), st.sampled_from([F, np.int32]))
def test_random_kernels(texts, dtype):
    kernel = numba.njit(eval(f"lambda x, n, s: ({texts[0]} + x, {texts[1]} + n * 0)", {"np": np}))
    arrays = [np.array([0.5, -2.0, 3.0], F), np.array([2, 0, -3], np.int32), F(1.5)]
    op = lambda arrays: numpy_function(kernel, arrays, (F, np.zeros(3, dtype)))
    found = outcome(jax.jit(op), arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "lowered_natively", lambda *args: None)
        assert found == outcome(jax.jit(lambda arrays: op(arrays)), arrays)

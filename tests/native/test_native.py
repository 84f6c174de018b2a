"""Functions that Numba compiled: a program calls them without Python, and they give what they give in Python."""

import concurrent.futures
import functools
import gc
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function
from jaxpyop._op.primitive import lowering
from tests.shared.processes import run_python
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
            return outcome(jax.jit(program), x)

    return ordinary


def op_of(name, **options):
    func, inputs, tout = KERNELS[name]
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
    "fills": "Numba does not compile it",
}
FAST = ["branches", "an integer", "several", "raises", "writes"]


@pytest.mark.parametrize("name", rows(KERNELS, FAST))
def test_a_program_gives_what_python_gives(name, caplog, through_python):
    op, arrays = op_of(name)
    with caplog.at_level(logging.INFO, "jaxpyop"), jaxpyop.report() as report:
        in_program = outcome(jax.jit(op), arrays)
    assert in_program == through_python(lambda arrays: op(arrays), arrays)
    if name in ORDINARY:
        assert ORDINARY[name] in caplog.text
    else:
        assert not [record for record in caplog.records if record.name == "jaxpyop"]
    # XLA skips a call without values.
    if name != "an axis of no size":
        routes = {row["op"]: row["route"] for row in report.rows()}
        assert ("native" in routes[name]) == (name not in ORDINARY)


LOOPED = [name for name in KERNELS if name not in (*ORDINARY, "a Python float", "an axis of no size", "nested")]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sequential", "expand_dims", "parallel"])
@pytest.mark.parametrize("name", LOOPED)
def test_a_batch_gives_what_python_gives(name, method, through_python):
    op, arrays = op_of(name, vmap_method=method)
    several = [np.stack([x, x * 0, x]) if np.asarray(x).dtype == bool else np.stack([x, x + x, x]) for x in arrays]
    each = (0, *[None] * (len(arrays) - 1))
    batch = lambda several: jax.vmap(lambda *arrays: op(arrays), each)(several[0], *arrays[1:])
    assert outcome(jax.jit(batch), several) == through_python(lambda x: batch(x), several)


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
def test_in_loops_and_branches(program):
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


@pytest.mark.parametrize("method", rows(["sequential", "expand_dims"], ["sequential"]))
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


# Options that send the call through Python.
OPTIONS = {
    "stateful": {"stateful": True},
    "on_error": {"on_error": 0, "output_shapes": (3,)},
    "executor": {"executor": concurrent.futures.ThreadPoolExecutor(1)},
    "when": {"when": True},
    "out": {"out": True, "output_shapes": (3,)},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_that_need_python_are_right(options):
    func = kernels.branches
    if "out" in options:
        func = numba.njit(lambda x, out: None if out.shape[0] == 0 else _double_into(x, out))
    op = lambda x: numpy_function(func, [x], F, **options)
    np.testing.assert_array_equal(jax.jit(op)(jnp.asarray(V)), 2 * V)


@numba.njit
def _double_into(x, out):
    out[:] = 2 * x


def test_no_import_of_numba_without_a_function_of_its_own():
    code = "import jax, sys, jaxpyop, numpy as np, jax.numpy as jnp\n"
    code += "jax.jit(lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32))(1.0)\n"
    run_python(code + "assert 'numba' not in sys.modules and 'jaxpyop._native.frame' not in sys.modules")


@pytest.mark.slow
def test_it_can_be_turned_off_and_the_doctor_says_so():
    code = """
import jax, numba, jaxpyop, numpy as np, jax.numpy as jnp
double = numba.njit(lambda x: x * 2)
with jaxpyop.report() as report:
    assert float(jax.jit(lambda x: jaxpyop.numpy_function(double, [x], jnp.float32(0)))(1.0)) == 2
print(report.rows()[0]["route"])
"""
    assert run_python(code).stdout.split() == ["native"]
    assert run_python(code, JAXPYOP_NATIVE="0").stdout.split() == ["buffer"]
    doctor = "from jaxpyop.__main__ import main; main(['doctor'])"
    assert "native calls" in run_python(doctor, JAXPYOP_NATIVE="0").stdout


@pytest.mark.slow
def test_many_threads_call_at_once():
    op = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, c: numpy_function(kernels.branches, [c], F) * 0.5, x))
    wanted = jax.block_until_ready(op(jnp.asarray(V)))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for found in pool.map(lambda k: op(jnp.asarray(V)), range(200)):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_a_kernel_of_numbas_own_threads_is_called_one_by_one():
    code = """
import concurrent.futures, jax, numba, jaxpyop, numpy as np, jax.numpy as jnp
@numba.njit(parallel=True)
def total(x):
    found = 0.0
    for i in numba.prange(x.size):
        found += x[i]
    return found
f = jax.jit(lambda x: jaxpyop.numpy_function(total, [x], jnp.float32(0)))
x = jnp.ones(1000)
with concurrent.futures.ThreadPoolExecutor(8) as pool, jaxpyop.report() as report:
    assert all(float(y) == 1000 for y in pool.map(lambda _: f(x), range(50)))
assert report.rows()[0]["route"] == "buffer", report
"""
    run_python(code, timeout=100)


@pytest.mark.slow
def test_a_program_that_is_gone_leaves_no_block():
    from jaxpyop._native import frame

    before = len(frame._blocks)
    f = jax.jit(lambda x: numpy_function(kernels.loop, [x], F(0)))
    f(jnp.asarray(V))
    assert len(frame._blocks) == before + 1
    del f
    jax.clear_caches()
    gc.collect()
    assert len(frame._blocks) <= before


@pytest.mark.slow
def test_numbers_of_64_bits():
    with jax.enable_x64(True):
        op = lambda x: numpy_function(kernels.loop, [x], np.float64(0))
        x = jnp.asarray(np.array([0.1, 0.2]))
        assert float(jax.jit(op)(x)) == float(op(x)) == kernels.loop(np.asarray(x))


@pytest.mark.slow
def test_partials_hold_no_arrays():
    op = lambda x: numpy_function(functools.partial(kernels.nested, pair=(V, F(2))), [x], F)
    np.testing.assert_array_equal(jax.jit(op)(jnp.asarray(V)), 3 * V)

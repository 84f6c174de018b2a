"""`out=True`: the function fills the op's results, in XLA's own memory where a program runs it on one CPU device."""

import threading
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numerical
from tests.arrays.memory import LARGE, SMALL, F, direct_and_compiled, held_by_garbage
from tests.batches.programs import BLOCKS, METHODS, InCaller
from tests.shared.checks import Counter, close, run
from tests.shared.functions import contrib, numpy_function, py_func, py_function
from tests.shared.processes import on_devices, run_python
from tests.shared.tables import named, rows

XS = np.arange(12, dtype=np.float32).reshape(4, 3)


def negative(x, out):
    np.negative(x, out=out)


@pytest.mark.parametrize("copy", rows([True, False], fast=[True]), ids=["copy", "lent"])
@pytest.mark.parametrize("method", METHODS)
@direct_and_compiled
def test_batches(compiled, method, copy):
    shapes = []

    def body(x, y, out):
        shapes.append(out.shape)
        np.multiply(x, y, out=out)

    op = lambda x, y: numpy_function(body, [x, y], F, out=True, vmap_method=method, copy=copy)
    ys = np.arange(1, 3, dtype=np.float32)[:, None]
    f = compiled(jax.vmap(jax.vmap(op, (None, 0)), (0, None)))
    close(f(XS, ys), XS[:, None] * ys)
    assert shapes == ([(4, 2, 3)] if method in BLOCKS else [(3,)] * 8)


SHAPES = {
    "Tout": (jax.ShapeDtypeStruct((2, 1), F), {}, (2, 1)),
    "a function": (F, {"output_shapes": lambda x: (*x.shape, 2)}, (3, 2)),
    "partly": (F, {"output_shapes": (None,)}, (3,)),
    "assumed": (F, {}, (3,)),
    "empty": (F, {"output_shapes": (0,)}, (0,)),
}


@pytest.mark.parametrize(("tout", "options", "shape"), SHAPES.values(), ids=SHAPES)
@direct_and_compiled
def test_shapes_are_found(compiled, tout, options, shape):
    seen = []

    def body(x, out):
        seen.append((out.shape, out.dtype, out.flags.carray))
        out.fill(7)

    close(compiled(lambda x: py_func(body, [x], tout, out=True, **options))(XS[0]), np.full(shape, 7))
    assert seen == [(shape, np.float32, True)]


@direct_and_compiled
def test_the_structure_is_that_of_tout(compiled):
    def body(x, out):
        out["a"][...] = x
        out["n"][0][...] = 3
        out["n"][1][::2] = True

    tout = {"a": jnp.bfloat16, "n": [jnp.int32(0), jax.ShapeDtypeStruct((4,), bool)]}
    y = compiled(lambda x: numpy_function(body, [x], tout, out=True))(XS[0])
    close(y["a"].astype(F), XS[0])
    assert (int(y["n"][0]), y["n"][1].tolist()) == (3, [True, False, True, False])


@pytest.mark.parametrize(("n", "batch"), rows([(LARGE, ()), (SMALL, (2,))], fast=[(LARGE, ())]))
def test_what_is_not_filled_is_zero(n, batch):
    """Also where XLA's memory held something else just before."""
    op = lambda x: numpy_function(lambda x, out: None, [x + 1], (F, F), out=True, copy=False)
    op = jax.vmap(op) if batch else op
    program = lambda x: jax.lax.scan(lambda c, _: ((c + 1) * 3 + op(c)[0], op(c * 2)[1].sum()), x, None, length=2)[1]
    assert jax.jit(program)(jnp.ones((*batch, n))).tolist() == [0, 0]


@direct_and_compiled
def test_the_arrays_themselves_may_be_returned(compiled):
    close(compiled(lambda x: numpy_function(np.negative, [x], F, out=True))(XS), -XS)
    y = compiled(lambda x: numpy_function(lambda x, out: np.divmod(x, -1, out=out), [x], (F, F), out=True))(XS)
    close(y[0], -XS)


@pytest.mark.parametrize("pool", [lambda: ThreadPoolExecutor(1, "mine"), InCaller], ids=["thread", "elsewhere"])
@pytest.mark.parametrize("method", rows(METHODS, fast=["sequential", "expand_dims"]))
def test_on_an_executor(pool, method):
    names = []

    def body(x, out):
        names.append(threading.current_thread().name)
        np.negative(x, out=out)

    options = {"out": True, "vmap_method": method, "output_shapes": lambda x: x.shape}
    with pool() as executor:
        op = lambda x: numpy_function(body, [x], F, executor=executor, **options)
        close(op(XS[0]), -XS[0])
        close(jax.jit(jax.vmap(op))(XS), -XS)
    assert pool is InCaller or set(names) == {"mine_0"}
    assert len(names) == (2 if method in BLOCKS else 5)


@pytest.mark.parametrize("n", rows([SMALL, LARGE], fast=[SMALL]))
def test_when(n):
    body = Counter(negative)
    op = lambda x, w: numpy_function(body, [x], F, out=True, when=w)
    close(jax.jit(jax.vmap(op))(jnp.ones((3, n)), jnp.array([True, False, True]))[:, 0], [-1, 0, -1])
    assert body.count == 2


def cube(x, out):
    np.power(x, 3, out=out)


RULES = {
    "vjp=f": (cube, {"vjp": lambda i, o, c: 3 * o / i[0] * c}),
    "vjp=(fwd, bwd)": (cube, {"vjp": (lambda x: (x**3, x), lambda x, c: 3 * x**2 * c)}),
    "vjp='numerical'": (cube, {"vjp": numerical()}),
    "transpose=": (lambda x, out: np.multiply(x, 12, out=out), {"transpose": lambda c: 12 * c}),
}


@pytest.mark.parametrize(("func", "rule"), RULES.values(), ids=RULES)
def test_derivatives(func, rule):
    op = lambda x: numpy_function(func, [x], F, out=True, **rule)
    np.testing.assert_allclose(jax.vmap(jax.grad(op))(jnp.full(3, 2.0)), [12] * 3, rtol=1e-2)


ON_FOUR = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
log = []
def body(x, out):
    log.append(x.tolist())
    np.negative(x[:-1], out=out[:-1])
mesh = jax.make_mesh((4,), ("d",))
x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, P("d")))
op = lambda x: jaxpyop.numpy_function(body, [x], jnp.float32, out=True)
assert jax.jit(op)(x).tolist() == [0, -1, -2, -3, -4, -5, -6, 0]
sharded = jax.shard_map(op, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
assert jax.jit(sharded)(x).tolist() == [0, 0, -2, 0, -4, 0, -6, 0]
assert sorted(log) == [[0, 1], list(range(8)), [2, 3], [4, 5], [6, 7]]
"""


@pytest.mark.slow
def test_on_four_devices():
    run_python(ON_FOUR, **on_devices(4))


# ------------------------------------------------------------------- what is kept


def keeping(part=lambda out: out):
    """A function that fills its result and keeps a part of it, and what it kept."""
    kept = []

    def greedy(x, out):
        out[...] = x
        kept.append(part(out))

    return greedy, kept


@pytest.mark.parametrize(
    "transform", named({"itself": lambda f: f, "a slice of an element": jax.vmap}, slow=["a slice of an element"])
)
def test_keeping_it_in_a_program_warns(transform):
    body, _ = keeping(lambda out: out if out.ndim > 1 else out[1:])
    op = lambda x: numpy_function(body, [x], F, out=True)
    with pytest.warns(RuntimeWarning, match="'greedy': func kept out, which out=True lends for the call only"):
        jax.block_until_ready(jax.jit(transform(op))(XS))


@pytest.mark.parametrize("n", rows([SMALL, LARGE], fast=[SMALL]))
def test_an_array_that_only_garbage_holds_was_not_kept(n):
    body = lambda x, out: held_by_garbage(out, np.copyto(out, x))
    op = lambda x: numpy_function(body, [x], F, out=True, copy=False)
    assert jax.jit(op)(jnp.ones(n)).sum() == n
    assert jax.jit(jax.vmap(op))(jnp.ones((2, n))).sum() == 2 * n


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*func kept out:RuntimeWarning")
def test_what_a_program_lent_can_no_longer_be_written_to():
    body, kept = keeping()
    op = lambda x: py_func(body, [x], F, out=True)
    results = [jax.block_until_ready(jax.jit(f)(x)) for f, x in ((op, XS), (jax.vmap(op), XS[:1]), (op, XS + 1))]
    for array in kept:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 99
    assert [float(y.max()) for y in results] == [11, 2, 12]


def test_what_a_direct_call_fills_may_be_kept():
    body, kept = keeping()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = py_func(body, [XS], F, out=True)
    kept[0] += 1
    close(kept[0], XS + 1)
    close(y, XS)


@direct_and_compiled
def test_a_function_that_raises(compiled):
    def body(x, out):
        out[...] = x
        if x[0] > 0:
            raise KeyError("no")

    f = compiled(lambda x: numpy_function(body, [x], F, out=True))
    with pytest.raises(KeyError, match="no") as caught:
        run(f, jnp.ones(LARGE))
    *_, (frame, _) = traceback.walk_tb(caught.tb)
    assert frame.f_code.co_name == "body"
    # A debugger must not read memory that is XLA's again.
    assert (compiled is jax.jit) != ("out" in frame.f_locals)
    close(f(jnp.zeros(3)), np.zeros(3))


# ------------------------------------------------------------------------- misuse

BAD = {
    "another array": (lambda x, out: x, ValueError, r"func returned an array, and out=True .*write out\[\.\.\.\] = "),
    "no keyword": (lambda x: x, TypeError, "with 1 arguments, .* and the keywords out, which it does not take"),
}


@pytest.mark.parametrize(("func", "kind", "text"), BAD.values(), ids=BAD)
@direct_and_compiled
def test_bad_functions(compiled, func, kind, text):
    with pytest.raises(kind, match=text):
        run(compiled(lambda x: numpy_function(func, [x], F, out=True)), XS)


MISUSED = {
    "no result": (lambda f: numpy_function(f, [1.0], None, out=True), ValueError, "Tout declares none"),
    "padded": (lambda f: numpy_function(f, [1.0], jaxpyop.padded(F, 3), out=True), ValueError, "padded results"),
    "a key": (lambda f: numpy_function(f, [1.0], jax.random.key(0), out=True), ValueError, "typed keys, which are not"),
    "py_function": (lambda f: py_function(f, [1.0], F, out=True), TypeError, "unexpected keyword argument 'out'"),
    "an array": (lambda f: py_func(f, [1.0], F, out=np.ones(1)), TypeError, r"out is array.*expected True or False"),
    "out is taken": (lambda f: contrib(f, [1], F, kwargs={"out": 1}, out=True), TypeError, "by the keyword out"),
    "no shape": (lambda f: py_func(f, [np.ones(2), np.ones(3)], F, out=True), ValueError, "do not broadcast; give"),
}


@pytest.mark.parametrize(("call", "kind", "text"), MISUSED.values(), ids=MISUSED)
def test_misuse(call, kind, text):
    with pytest.raises(kind, match=text):
        call(lambda *args, out: None)

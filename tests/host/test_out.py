"""`out=True`: func fills the op's results, in XLA's own memory where a program runs it on one CPU device."""

from __future__ import annotations

import concurrent.futures as cf
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.batch_cases import InCaller
from tests.shared.util import (
    Counter,
    close,
    contrib,
    every_numpy_api,
    numpy_function,
    on_devices,
    py_func,
    py_function,
    run,
    run_python,
)
from tests.shared.ways import every_way

F = jnp.float32
LARGE = 1_100_000  # of which XLA gets fresh memory from the system
XS = jnp.arange(12.0).reshape(4, 3)


def negative(x, out):
    np.negative(x, out=out)


def nothing(x, out):
    pass


@every_way
@every_numpy_api
def test_each_call_fills_its_results(api, way, route):
    body = Counter(negative)
    close(route(lambda xs: way(lambda x: api(body, [x], F, out=True), xs), XS), -XS)
    assert body.count == 4


@pytest.mark.parametrize("copy", [True, False], ids=["copy", "lent"])
@pytest.mark.parametrize("method", ["sequential", "parallel", "expand_dims", "broadcast_all"])
def test_batches(method, copy, route):
    shapes = []

    def body(x, y, out):
        shapes.append(out.shape)
        np.multiply(x, y, out=out)

    op = lambda x, y: numpy_function(body, [x, y], F, out=True, vmap_method=method, copy=copy)
    ys = jnp.arange(1.0, 3.0)[:, None]
    close(route(jax.vmap(jax.vmap(op, (None, 0)), (0, None)), XS, ys), XS[:, None] * ys)
    assert shapes == ([(4, 2, 3)] if method in ("expand_dims", "broadcast_all") else [(3,)] * 8)


SHAPES = {
    "Tout": (lambda x: jax.ShapeDtypeStruct((2, 1), F), {}, (2, 1)),
    "a scalar": (lambda x: F(0), {}, ()),
    "output_shapes": (lambda x: F, {"output_shapes": (5,)}, (5,)),
    "a function": (lambda x: F, {"output_shapes": lambda x: (*x.shape, 2)}, (3, 2)),
    "partly": (lambda x: F, {"output_shapes": (None,)}, (3,)),
    "assumed": (lambda x: F, {}, (3,)),
    "empty": (lambda x: F, {"output_shapes": (0,)}, (0,)),
}


@pytest.mark.parametrize(("tout", "options", "shape"), SHAPES.values(), ids=SHAPES)
def test_shapes_are_found_outside_jit_too(tout, options, shape, route):
    seen = []

    def body(x, out):
        seen.append((out.shape, out.dtype, out.flags.carray))
        out.fill(7)

    y = route(lambda x: py_func(body, [x], tout(x), out=True, **options), XS[0])
    close(y, np.full(shape, 7))
    assert seen == [(shape, np.float32, True)]


@every_numpy_api
def test_the_structure_is_that_of_tout(api, route):
    def body(x, out):
        out["a"][...] = x
        out["n"][0][...] = 3
        out["n"][1][::2] = True

    tout = {"a": jnp.bfloat16, "n": [jnp.int32(0), jax.ShapeDtypeStruct((4,), bool)]}
    y = route(lambda x: api(body, [x], tout, out=True), XS[0])
    close(y["a"].astype(F), XS[0])
    assert (int(y["n"][0]), y["n"][1].tolist()) == (3, [True, False, True, False])


@pytest.mark.parametrize("n", [3, LARGE])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "vmap"])
def test_what_is_not_filled_is_zero(n, batch, route):
    """Also where XLA's memory held something else just before."""
    op = lambda x: numpy_function(nothing, [x + 1], (F, F), out=True, copy=False)
    op = jax.vmap(op) if batch else op
    program = lambda x: jax.lax.scan(lambda c, _: ((c + 1) * 3 + op(c)[0], op(c * 2)[1].sum()), x, None, length=2)[1]
    assert route(program, jnp.ones((*batch, n))).tolist() == [0, 0]


def test_nothing_is_copied():
    seen = []

    def body(x, out):
        seen.extend(a.__array_interface__["data"][0] for a in (x, out))

    x = jnp.ones(LARGE)
    with jaxpyop.config.override(transport="auto"):
        y = jax.jit(lambda x: numpy_function(body, [x], F, out=True, copy=False))(x)
    assert seen == [x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]


RETURNS = {
    "out": (F, lambda x, out: np.negative(x, out=out)),
    "a ufunc": (F, np.negative),
    "a new tuple of them": ((F, F), lambda x, out: np.divmod(x, -1, out=out)),
}


@pytest.mark.parametrize(("tout", "func"), RETURNS.values(), ids=RETURNS)
def test_the_arrays_themselves_may_be_returned(tout, func, route):
    y = route(lambda x: numpy_function(func, [x], tout, out=True), XS)
    close(y[0] if isinstance(y, tuple) else y, -XS)


def test_the_decorator(route):
    @jaxpyop.py_func(Tout=F, out=True)
    def scaled(x, by, out):
        np.multiply(x, by, out=out)

    close(route(lambda x: scaled(x, by=2.0), XS), XS * 2)
    close(route(lambda x: contrib(scaled.__wrapped__, [x], F, kwargs={"by": 3.0}, out=True), XS), XS * 3)


# ------------------------------------------------------------------ other places


def on_one_thread():
    return cf.ThreadPoolExecutor(1, thread_name_prefix="mine")


@pytest.mark.parametrize("pool", [on_one_thread, InCaller], ids=["thread", "elsewhere"])
@pytest.mark.parametrize("method", ["sequential", "parallel", "expand_dims"])
def test_executors(pool, method, route):
    names = []

    def body(x, out):
        names.append(threading.current_thread().name)
        np.negative(x, out=out)

    with pool() as executor:
        op = lambda x: numpy_function(
            body, [x], F, out=True, executor=executor, vmap_method=method, output_shapes=lambda x: x.shape
        )
        close(route(op, XS[0]), -XS[0])
        close(route(jax.vmap(op), XS), -XS)
    assert pool is InCaller or set(names) == {"mine_0"}
    assert len(names) == (2 if method == "expand_dims" else 5)


@pytest.mark.parametrize("n", [3, LARGE])
def test_when(n, route):
    body = Counter(negative)
    op = lambda x, w: numpy_function(body, [x], F, out=True, when=w)
    xs, ws = jnp.ones((3, n)), jnp.array([True, False, True])
    close(route(jax.vmap(op), xs, ws)[:, 0], [-1, 0, -1])
    assert body.count == 2
    assert not route(op, xs[0], ws[1]).any()
    assert body.count == 2


@pytest.mark.parametrize("options", [{"stateful": True}, {"ordered": True}], ids=["stateful", "ordered"])
def test_effects(options, route):
    body = Counter(negative)
    close(
        route(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: numpy_function(body, [x], F, out=True, **options), x), XS),
        -XS,
    )
    assert body.count == 3


def cube(x, out):
    np.power(x, 3, out=out)


RULES = {
    "vjp=f": (jax.grad, cube, {"vjp": lambda i, o, c: 3 * o[0] / i[0] * c[0]}),
    "vjp=(fwd, bwd)": (jax.grad, cube, {"vjp": (lambda x: (x**3, x), lambda x, c: 3 * x**2 * c[0])}),
    "vjp='numerical'": (jax.grad, cube, {"vjp": "numerical"}),
    "jvp=f": (jax.jacfwd, cube, {"jvp": lambda i, o, t: 3 * i[0] ** 2 * t[0]}),
    "jvp='numerical'": (jax.jacfwd, cube, {"jvp": "numerical"}),
    "transpose=": (jax.grad, lambda x, out: np.multiply(x, 12, out=out), {"transpose": lambda c: 12 * c[0]}),
}


@pytest.mark.parametrize(("mode", "func", "rule"), RULES.values(), ids=RULES)
def test_derivatives(mode, func, rule, route):
    op = lambda x: numpy_function(func, [x], F, out=True, **rule)
    np.testing.assert_allclose(route(mode(op), 2.0), 12, rtol=1e-2)
    np.testing.assert_allclose(route(jax.vmap(mode(op)), jnp.full(3, 2.0)), [12] * 3, rtol=1e-2)


ON_FOUR = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
log = []
def body(x, out):
    log.append(x.tolist())
    np.negative(x[:-1], out=out[:-1])
def check(f, x, wanted, seen):
    del log[:]
    np.testing.assert_array_equal(jax.jit(f)(x), wanted)
    assert sorted(log) == seen, log
for transport, kind in (("auto", AxisType.Auto), ("callback", AxisType.Auto), ("auto", AxisType.Explicit)):
    jaxpyop.config.transport = transport
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
    for api in (jaxpyop.numpy_function, jaxpyop.py_func):
        op = lambda x: api(body, [x], jnp.float32, out=True)
        check(op, x, [0, -1, -2, -3, -4, -5, -6, 0], [list(range(8))])
        sharded = jax.shard_map(op, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        check(sharded, x, [0, 0, -2, 0, -4, 0, -6, 0], [[0, 1], [2, 3], [4, 5], [6, 7]])
"""


def test_on_four_devices():
    run_python(ON_FOUR, **on_devices(4))


# --------------------------------------------------------------------- bad input

KEPT = {"itself": lambda out: out, "a slice": lambda out: out[1:]}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("batch", [False, True], ids=["single", "vmap"])
@pytest.mark.parametrize("dtype", [F, jnp.bfloat16])
def test_keeping_it_in_a_program_warns(keep, batch, dtype, transport):
    kept = []

    def body(x, out):
        out[...] = x
        kept.append(keep(out))

    op = lambda x: numpy_function(body, [x], dtype, out=True, name="greedy")
    with pytest.warns(RuntimeWarning, match="'greedy': func kept out, which out=True lends for the call only"):
        jax.block_until_ready(jax.jit(jax.vmap(op) if batch else op)(XS))


def in_a_cycle(x, out):
    """An exception that is caught and named holds the frame, and with it the arrays."""
    out[...] = x
    try:
        raise KeyError
    except KeyError as error:
        caught = error  # noqa: F841


@pytest.mark.parametrize("n", [3, LARGE])
def test_an_array_that_only_garbage_holds_was_not_kept(n, route):
    op = lambda x: numpy_function(in_a_cycle, [x], F, out=True, copy=False)
    assert route(op, jnp.ones(n)).sum() == n
    assert route(jax.vmap(op), jnp.ones((2, n))).sum() == 2 * n


def test_what_a_program_lent_can_no_longer_be_written_to(transport):
    kept = []

    def body(x, out):
        out[...] = x
        kept.append(out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        op = lambda x: py_func(body, [x], F, out=True)
        results = [jax.block_until_ready(jax.jit(f)(x)) for f, x in ((op, XS), (jax.vmap(op), XS), (op, XS + 1))]
    for array in kept:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 99
    assert [float(y.max()) for y in results] == [11, 11, 12]


def test_what_a_direct_call_fills_may_be_kept():
    kept = []

    def body(x, out):
        out[...] = x
        kept.append(out)

    y = py_func(body, [XS], F, out=True)
    kept[0] += 1
    close(kept[0], XS + 1)
    close(y, XS)


def test_a_body_that_raises(route):
    def body(x, out):
        out[...] = x
        if x[0] > 0:
            raise KeyError("no")

    op = lambda x: numpy_function(body, [x], F, out=True)
    f = jax.jit(op) if route.jit else op
    with pytest.raises(KeyError) as caught:
        run(f, jnp.ones(LARGE))
    tb = caught.tb
    while tb.tb_next:
        tb = tb.tb_next
    assert tb.tb_frame.f_code.co_name == "body"
    # A debugger must not read memory that is XLA's again.
    assert route.jit != ("out" in tb.tb_frame.f_locals)
    close(f(jnp.zeros(3)), np.zeros(3))


BAD = {
    "another array": (lambda x, out: x, ValueError, r"func returned an array, and out=True .*write out\[\.\.\.\] = "),
    "one of two": (lambda x, out: out[:1], ValueError, "func returned an array, and out=True"),
    "no keyword": (lambda x: x, TypeError, "with 1 argument, .* and the keywords out, which it does not take"),
    "another shape": (lambda x, out: out.__setitem__(..., np.ones(5)), ValueError, "could not broadcast"),
}


@pytest.mark.parametrize(("func", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_functions(func, kind, text, route):
    with pytest.raises(kind, match=text):
        run(lambda x: route(lambda x: numpy_function(func, [x], F, out=True), x), XS)


MISUSED = {
    "no result": (lambda f: numpy_function(f, [1.0], None, out=True), ValueError, "Tout declares none"),
    "padded": (lambda f: numpy_function(f, [1.0], jaxpyop.padded(F, 3), out=True), ValueError, "padded results"),
    "a key": (lambda f: numpy_function(f, [1.0], jax.random.key(0), out=True), ValueError, "typed keys are not"),
    "py_function": (lambda f: py_function(f, [1.0], F, out=True), TypeError, "unexpected keyword argument 'out'"),
    "an array": (lambda f: py_func(f, [1.0], F, out=np.ones(1)), TypeError, r"out is array.*expected True or False"),
    "out is taken": (
        lambda f: contrib(f, [1.0], F, kwargs={"out": 1}, out=True),
        TypeError,
        "out=True passes the results by the keyword out",
    ),
    "no shape": (
        lambda f: py_func(f, [jnp.ones(2), jnp.ones(3)], F, out=True),
        ValueError,
        "shapes do not broadcast; give",
    ),
}


@pytest.mark.parametrize(("call", "kind", "text"), MISUSED.values(), ids=MISUSED)
def test_misuse(call, kind, text, route):
    with pytest.raises(kind, match=text):
        route(lambda: call(lambda *args, out: None))

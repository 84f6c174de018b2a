"""Values and numbers of runs under every transformation."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from util import NUMPY_APIS, numpy_function, py_func, py_function, run_python

import jaxpyop

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])
both_sides = pytest.mark.parametrize("api", [py_function, numpy_function])


def affine(x):
    return x * 2 + 1


class Body:
    """`affine`, counting its runs on values."""

    __name__ = "body"

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        if not isinstance(x, jax.core.Tracer):
            self.seen.append(np.array(x))
        return x * 2 + 1


# Each: what to do with an elementwise op, and how often its body then runs.
# The program takes X, three numbers.
PROGRAMS = {
    "itself": (lambda op: op, 1),
    "twice": (lambda op: lambda x: op(op(x)), 2),
    "jit": (jax.jit, 1),
    "jit of jit": (lambda op: jax.jit(lambda x: jax.jit(op)(x) + jax.jit(op)(-x)), 2),
    "scan": (lambda op: lambda x: lax.scan(lambda c, y: (op(c), op(y)), x[0], x), 6),
    "reverse scan": (lambda op: lambda x: lax.scan(lambda c, y: (op(c), c), x[0], x, reverse=True), 3),
    "unrolled scan": (lambda op: lambda x: lax.scan(lambda c, y: (op(c), c), x[0], x, unroll=2), 3),
    "while_loop": (lambda op: lambda x: lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, op(s[1])), (0, x)), 4),
    "while_loop's test": (lambda op: lambda x: lax.while_loop(lambda s: op(s)[2] < 9, lambda s: s + 1, x), 3),
    "fori_loop": (lambda op: lambda x: lax.fori_loop(0, 3, lambda i, x: op(x) + i, x), 3),
    "cond, taken": (lambda op: lambda x: lax.cond(x[2] > 0, op, lambda x: -x, x), 1),
    "cond, not taken": (lambda op: lambda x: lax.cond(x[2] < 0, op, lambda x: -x, x), 0),
    "switch": (lambda op: lambda x: lax.switch(jnp.int32(x[2]), [lambda x: x, lambda x: -x, op], x), 1),
    "map": (lambda op: lambda x: lax.map(op, x), 3),
    "checkpoint": (jax.checkpoint, 1),
    "associative_scan": (lambda op: lambda x: lax.associative_scan(lambda a, b: op(a) + b, x), None),
    "vmap": (jax.vmap, 3),
    "vmap of jit": (lambda op: jax.vmap(jax.jit(op)), 3),
    "vmap of vmap": (lambda op: lambda x: jax.vmap(jax.vmap(op))(jnp.stack([x, -x])), 6),
    "vmap, last axis": (lambda op: lambda x: jax.vmap(op, in_axes=1, out_axes=1)(jnp.stack([x, -x])), 3),
    "vmap of scan": (
        lambda op: lambda x: jax.vmap(lambda x: lax.scan(lambda c, y: (op(c), op(y)), 0.0, x))(jnp.stack([x, -x])),
        None,
    ),
    "scan of vmap": (lambda op: lambda x: lax.scan(lambda c, _: (jax.vmap(op)(c), None), x, None, length=2), 6),
    "vmap of cond": (lambda op: jax.vmap(lambda x: lax.cond(x > 0, op, lambda x: -x, x)), None),
    "vmap of while_loop": (
        lambda op: jax.vmap(lambda x: lax.while_loop(lambda x: x < 9, lambda x: op(x) + 1, x + 2)),
        None,
    ),
    "vmap of map": (lambda op: lambda x: jax.vmap(lambda x: lax.map(op, x))(jnp.stack([x, -x])), 6),
    "cond in scan": (
        lambda op: lambda x: lax.scan(lambda c, y: (lax.cond(y > 0, op, lambda x: -x, c), c), 1.0, x),
        2,
    ),
    "custom_vjp around": (lambda op: _custom_vjp(op), 1),
    "python loop": (lambda op: lambda x: [op(v) for v in x], 3),
    "dynamic index": (lambda op: lambda x: op(x)[jnp.argmax(x)], 1),
}


def _custom_vjp(op):
    f = jax.custom_vjp(op)
    f.defvjp(lambda x: (op(x), None), lambda _, ct: (ct,))
    return f


@pytest.mark.parametrize(("program", "runs"), PROGRAMS.values(), ids=PROGRAMS)
@both_sides
def test_values_and_runs(api, program, runs, route, checked):
    body = Body()
    got = route(program(lambda x: api(body, [x], F)), X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, program(affine)(X))
    if runs is not None:
        assert len(body.seen) == runs


COUNTED = {name: entry for name, entry in PROGRAMS.items() if entry[1] is not None}


@pytest.mark.parametrize(("program", "runs"), COUNTED.values(), ids=COUNTED)
def test_a_compiled_program_runs_the_body_each_time(program, runs, transport):
    body = Body()
    compiled = jax.jit(program(lambda x: numpy_function(body, [x], F))).lower(X).compile()
    assert not body.seen
    for n in range(1, 4):
        jax.block_until_ready(compiled(X))
        assert len(body.seen) == n * runs


def test_the_body_sees_real_values_at_run_time(transport):
    seen = []

    def body(x):
        seen.append(float(x))
        return x

    def program(x):
        return lax.fori_loop(0, 4, lambda i, x: py_function(body, [x], F, output_shapes=()) * 2, x)

    assert jax.jit(program)(1.0) == 16
    assert seen == [1, 2, 4, 8]


def test_print_shows_values(transport, capfd):
    def body(x):
        print("value", float(x))
        return x

    jax.block_until_ready(
        jax.jit(lambda x: lax.scan(lambda c, y: (c, py_function(body, [y], F, output_shapes=())), 0.0, x))(X)
    )
    assert capfd.readouterr().out == "value 0.5\nvalue -1.0\nvalue 2.0\n"


@both_sides
def test_a_constant_under_jit_is_staged(api, transport):
    """The current trace decides, not the inputs."""
    body = Body()
    f = jax.jit(lambda x: x + api(body, [1.0], F, output_shapes=()))
    compiled = f.lower(X).compile()
    assert not body.seen
    for n in (1, 2):
        np.testing.assert_allclose(compiled(X), X + 3)
        assert len(body.seen) == n


@both_sides
def test_abstract_evaluation_runs_nothing_on_values(api):
    body = Body()
    f = lambda x: api(body, [x], F)
    assert jax.eval_shape(f, X) == jax.ShapeDtypeStruct((3,), F)
    assert "python_call" in str(jax.make_jaxpr(f)(X))
    jax.jit(f).lower(X)
    assert not body.seen


# ----------------------------------------------------------------- direct calls


@both_sides
def test_a_direct_call_is_on_the_callers_thread_and_compiles_nothing(api):
    threads = []

    def body(x):
        threads.append(threading.get_ident())
        return np.asarray(x)

    x = jax.block_until_ready(X + 0)
    api(body, [x], F)
    with jax.log_compiles(), _no_compilation():
        for _ in range(3):
            api(lambda x: body(x), [x], F)  # a fresh lambda each time
    assert set(threads) == {threading.get_ident()}


class _no_compilation:  # noqa: N801
    def __enter__(self):
        import logging

        self.records = records = []

        class Handler(logging.Handler):
            def emit(self, record):
                records.append(record.getMessage())

        self.handler = Handler()
        logging.getLogger("jax").addHandler(self.handler)

    def __exit__(self, *exc):
        import logging

        logging.getLogger("jax").removeHandler(self.handler)
        assert not [r for r in self.records if "ompil" in r], self.records


def test_the_compilation_check_can_fail():
    with pytest.raises(AssertionError, match="ompil"), jax.log_compiles(), _no_compilation():
        jax.jit(lambda x: x * 3 + 17)(X)


@both_sides
def test_fresh_lambdas_under_a_direct_vmap_work(api):
    for k in range(3):
        np.testing.assert_allclose(jax.vmap(lambda x, k=k: api(lambda x: x + k, [x], F))(X), X + k)


# ------------------------------------------------------------------------- vmap

IN_AXES = {
    "both": ((0, 0), ((3, 2), (3, 2))),
    "first": ((0, None), ((3, 2), (2,))),
    "second": ((None, 0), ((2,), (3, 2))),
    "other axes": ((1, 0), ((2, 3), (3, 2))),
    "last axes": ((-1, -1), ((2, 3), (2, 3))),
}
METHODS = ["sequential", "expand_dims", "broadcast_all"]


def grid(shape, start=0.0):
    return jnp.asarray(np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape))


@pytest.mark.parametrize(("axes", "shapes"), IN_AXES.values(), ids=IN_AXES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("out_axes", [0, -1])
@both_sides
def test_vmap_methods_and_axes(api, method, axes, shapes, out_axes, route, checked):
    x, y = grid(shapes[0]), grid(shapes[1], 10.0)
    f = jax.vmap(lambda x, y: api(lambda x, y: x * y, [x, y], F, vmap_method=method), in_axes=axes, out_axes=out_axes)
    expected = jax.vmap(jnp.multiply, in_axes=axes, out_axes=out_axes)(x, y)
    np.testing.assert_allclose(route(f, x, y), expected)


def shapes_seen(op, vmapped, args):
    """The shapes that a body sees under `vmapped`, by an op(body, x, y)."""
    seen = []

    def body(x, y):
        seen.append((np.shape(x), np.shape(y)))
        return np.asarray(x) * np.asarray(y)

    out = vmapped(lambda x, y: op(body, x, y))(*args)
    return seen, np.asarray(out)


NESTS = {
    "vmap": (lambda f: jax.vmap(f), (4,), (4,)),
    "vmap, y unbatched": (lambda f: jax.vmap(f, (0, None)), (4,), ()),
    "vmap, x unbatched": (lambda f: jax.vmap(f, (None, 0)), (), (4,)),
    "nested": (lambda f: jax.vmap(jax.vmap(f)), (4, 2), (4, 2)),
    "nested, y unbatched outside": (lambda f: jax.vmap(jax.vmap(f), (0, None)), (4, 2), (2,)),
    "nested, y unbatched inside": (lambda f: jax.vmap(jax.vmap(f, (0, None))), (4, 2), (4,)),
    "outer product": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)), (4,), (2,)),
    "y unbatched in both": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (0, None)), (4, 2), ()),
    "three": (lambda f: jax.vmap(jax.vmap(jax.vmap(f, (0, None)), (None, 0)), (0, 0)), (3, 2), (3, 4)),
}


@pytest.mark.parametrize(("vmapped", "x_shape", "y_shape"), NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_methods_mean_what_they_mean_in_pure_callback(method, vmapped, x_shape, y_shape, jit, transport):
    args = grid(x_shape), grid(y_shape, 10.0)
    run = (lambda f: jax.jit(vmapped(f))) if jit else vmapped
    ours, value = shapes_seen(lambda body, x, y: numpy_function(body, [x, y], F, vmap_method=method), run, args)
    struct = jax.ShapeDtypeStruct((), F)
    theirs, wanted = shapes_seen(
        lambda body, x, y: jax.pure_callback(body, struct, x, y, vmap_method=method), run, args
    )
    np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(value, vmapped(jnp.multiply)(*args))
    if method == "sequential":
        assert set(ours) == {((), ())}
        assert len(ours) == value.size
    else:
        assert ours == theirs


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_sequential_runs_in_batch_order(jit, transport):
    seen = []

    def body(x, y):
        seen.append((float(x), float(y)))
        return x

    f = jax.vmap(jax.vmap(lambda x, y: py_func(body, [x, y], F), (None, 0)), (0, None))
    jax.block_until_ready((jax.jit(f) if jit else f)(jnp.arange(3.0), jnp.arange(2.0)))
    assert seen == [(i, j) for i in range(3) for j in range(2)]


@pytest.mark.parametrize(("vmapped", "x_shape", "y_shape"), NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"stateful": True}], ids=["stateless", "stateful"])
def test_one_host_call_for_the_whole_batch(method, vmapped, x_shape, y_shape, options, transport):
    f = jax.jit(vmapped(lambda x, y: numpy_function(np.multiply, [x, y], F, vmap_method=method, **options)))
    text = f.lower(grid(x_shape), grid(y_shape)).as_text()
    assert text.count("stablehlo.custom_call") == 1
    assert "while" not in text


def test_the_count_of_host_calls_counts():
    f = jax.jit(lambda x: numpy_function(np.sin, [x], F) + numpy_function(np.cos, [x], F))
    assert f.lower(X).as_text().count("stablehlo.custom_call") == 2


@pytest.mark.parametrize("shape", [(0,), (0, 3)], ids=str)
@pytest.mark.parametrize("method", METHODS)
@both_sides
def test_vmap_over_nothing(api, method, shape, route):
    out = route(jax.vmap(lambda x: api(lambda x: x * 2, [x], F, vmap_method=method)), jnp.zeros(shape))
    assert out.shape == shape
    assert out.dtype == np.float32


def test_vmap_without_batched_inputs_runs_once(route):
    body = Body()
    out = route(lambda x: jax.vmap(lambda _: numpy_function(body, [2.0], F, output_shapes=()))(x), X)
    np.testing.assert_array_equal(out, [5, 5, 5])
    assert len(body.seen) == 1


@both_sides
def test_vmap_of_several_results_and_pytrees(api, route):
    def body(tree, by):
        return {"sum": tree["a"].sum() * by, "parts": [tree["b"], tree["a"]]}

    tout = {"sum": F, "parts": [jnp.int32, F]}
    shapes = {"sum": (), "parts": [(), (2,)]}
    f = jax.vmap(
        lambda tree, by: api(body, [tree, by], tout, output_shapes=shapes),
        in_axes=({"a": 1, "b": None}, 0),
        out_axes={"sum": 0, "parts": [0, 1]},
    )
    out = route(f, {"a": grid((2, 3)), "b": jnp.int32(7)}, jnp.arange(3.0))
    np.testing.assert_array_equal(out["sum"], [0, 5, 14])
    np.testing.assert_array_equal(out["parts"][0], [7, 7, 7])
    np.testing.assert_array_equal(out["parts"][1], grid((2, 3)))


@both_sides
def test_vmap_with_static_inputs_and_no_result(api, route):
    seen = []
    f = jax.vmap(lambda x: api(lambda s, x: seen.append((s, float(x))), ["s", x], None))
    assert route(f, X) == []
    assert seen == [("s", 0.5), ("s", -1.0), ("s", 2.0)]


@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_an_error_in_a_batch_names_the_element(jit, transport):
    def body(x):
        if x < 0:
            raise ValueError("negative")
        return x

    f = jax.vmap(lambda x: numpy_function(body, [x], F))
    with pytest.raises(ValueError, match="negative") as caught, jaxpyop.reraise():
        jax.block_until_ready((jax.jit(f) if jit else f)(X))
    assert any("batch index 1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_block_of_the_wrong_shape_is_an_error(method, route):
    f = jax.vmap(lambda x: numpy_function(lambda x: x.sum(), [x], F, vmap_method=method, output_shapes=()))
    with pytest.raises(ValueError, match=r"shape \(\) where \(3,\)"), jaxpyop.reraise():
        route(f, X)


def test_pmap_and_collectives_inside_vmap(transport):
    f = jax.vmap(lambda x: numpy_function(np.negative, [lax.psum(x, "i")], F), axis_name="i")
    np.testing.assert_allclose(jax.jit(f)(X), [-1.5] * 3)


# ------------------------------------------------------------------ nested calls


@both_sides
def test_an_op_in_a_body(api, route):
    inner = lambda x: api(lambda x: x + 1, [x], F, output_shapes=np.shape(x))
    np.testing.assert_allclose(route(lambda x: api(lambda x: inner(x) * 2, [x], F), X), (X + 1) * 2)
    jitted = jax.jit(inner)
    np.testing.assert_allclose(
        route(lambda x: api(lambda x: np.asarray(jitted(x)) * 2, [x], F, output_shapes=(3,)), X), (X + 1) * 2
    )


def test_a_jitted_program_in_a_body_with_transformations(route):
    def body(x):
        return jax.grad(lambda x: (x**3).sum())(x) + jax.vmap(jnp.sin)(x)

    np.testing.assert_allclose(route(lambda x: py_function(body, [x], F), X), 3 * X**2 + jnp.sin(X), rtol=1e-6)


def test_a_program_traced_by_a_body(route):
    """Tracing inside a body leaves the traces around it alone."""

    def body(x):
        return np.asarray(jax.jit(lambda y: lax.scan(lambda c, v: (c + v, c), 0.0, y)[0])(jnp.asarray(x)))

    assert route(lambda x: numpy_function(body, [x], F, output_shapes=()), X) == 1.5


@pytest.mark.parametrize("name", sorted(NUMPY_APIS))
def test_every_numpy_api_under_the_main_transformations(name, transport):
    op = lambda x: NUMPY_APIS[name](affine, [x], F)
    np.testing.assert_allclose(jax.jit(op)(X), affine(X))
    np.testing.assert_allclose(jax.vmap(op)(X), affine(X))
    np.testing.assert_allclose(lax.map(op, X), affine(X))


def test_two_threads_share_a_compiled_program(transport):
    f = jax.jit(lambda x: numpy_function(affine, [x], F))
    f(X)
    errors = []

    def work(k):
        for i in range(50):
            if not np.allclose(f(X + k * i), affine(X + k * i)):
                errors.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors


def test_the_environment_of_the_caller(route):
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    def body(x):
        seen.append((variable.get(), jax.config.jax_enable_x64))
        return x

    token = variable.set("mine")
    try:
        route(lambda x: py_func(body, [x], F), X)
        with jax.enable_x64(True):
            route(lambda x: py_func(body, [x], F), X)
        assert seen == [("mine", False), ("mine", True)]
    finally:
        variable.reset(token)


def test_x64_inside_the_body(transport):
    def body(x):
        return np.asarray(jnp.asarray(np.float64(1) / 3) + 0)

    with jax.enable_x64(True):
        y = jax.jit(lambda x: py_func(body, [x], jnp.float64, output_shapes=()))(1.0)
        assert float(y) == 1 / 3
        z = jax.jit(lambda x: py_function(lambda x: x / 3, [x], jnp.float64))(1.0)
        assert float(z) == 1 / 3


def test_the_persistent_compilation_cache_holds_no_callable(tmp_path, transport):
    """A program of another process must not come back with that process's function."""
    code = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, sys
jax.config.update("jax_compilation_cache_dir", {cache!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jaxpyop.config.transport = {transport!r}
def body(x):
    return x * {by}
for api in (jaxpyop.numpy_function, jaxpyop.py_func):
    assert float(jax.jit(lambda x: api(body, [x], jnp.float32))(1.0)) == {by}
    for k in range(3):
        assert float(jax.jit(lambda x: api(lambda x: x * k, [x], jnp.float32))(1.0)) == k
"""
    for by in (2, 3):
        run_python(code.format(cache=str(tmp_path), transport=transport, by=by))


# ---------------------------------------------------------------- many devices

MANY_DEVICES = """
import jaxpyop, jax, jax.numpy as jnp, numpy as np, functools
from jax.sharding import PartitionSpec as P, NamedSharding, Mesh, AxisType
jaxpyop.config.transport = {transport!r}
F = jnp.float32
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.{kind},))
sharded = NamedSharding(mesh, P("d"))
x = jax.device_put(jnp.arange(8.0), sharded)
body = lambda x: x * 2 + 1
expected = np.arange(8.0) * 2 + 1
assert len(jax.devices()) == 4
"""

DEVICE_PROGRAMS = {
    "jit": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.jit(lambda x: api(body, [x], F))
    y = f(x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(y + 1, expected + 1)
    np.testing.assert_array_equal(f(x) + x, expected + np.arange(8.0))
    np.testing.assert_array_equal(jax.jit(lambda x: api(body, [x * 2], F) + x)(x), np.arange(8.0) * 5 + 1)
""",
    "direct": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    np.testing.assert_array_equal(api(body, [x], F), expected)
""",
    "vmap": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.vmap(lambda x: api(body, [x], F))
    np.testing.assert_array_equal(f(x), expected)
    np.testing.assert_array_equal(jax.jit(f)(x), expected)
""",
    "shard_map": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    shapes = []
    def body(x):
        if not isinstance(x, jax.core.Tracer):
            shapes.append(x.shape)
        return x * 2 + 1
    f = jax.shard_map(lambda x: api(body, [x], F), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    for g in (f, jax.jit(f)):
        del shapes[:]
        np.testing.assert_array_equal(g(x), expected)
        assert shapes == [(2,)] * 4, shapes
    # two inputs, one of them the same on every device; a result reduced
    f = jax.shard_map(lambda x, y: jax.lax.psum(api(lambda x, y: x.sum() * y, [x, y], F, output_shapes=()), "d"),
                      mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    assert float(jax.jit(f)(x, 2.0)) == 56
""",
    "shard_map of vmap and scan": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function):
    f = jax.shard_map(jax.vmap(lambda x: api(body, [x], F)), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_array_equal(jax.jit(f)(x), expected)
    f = jax.shard_map(lambda x: jax.lax.scan(lambda c, _: (api(body, [c], F), None), x, None, length=2)[0],
                      mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_array_equal(jax.jit(f)(x), expected * 2 + 1)
""",
    "gradients": """
op = lambda x: jaxpyop.py_function(lambda x: x ** 3, [x], F)
loss = lambda x: op(x).sum()
with jax.set_mesh(mesh):  # as JAX asks for a gradient of a sum over an explicit mesh
    np.testing.assert_allclose(jax.grad(loss)(x), 3 * np.arange(8.0) ** 2)
np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), 3 * np.arange(8.0) ** 2)
def sharded_loss(x, w):
    op = lambda x, w: jaxpyop.py_function(lambda x, w: (w * x ** 3).sum(), [x, w], F, output_shapes=())
    f = jax.shard_map(lambda x, w: jax.lax.psum(op(x, w), "d"), mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    return f(x, w)
gx, gw = jax.jit(jax.grad(sharded_loss, (0, 1)))(x, 2.0)
np.testing.assert_allclose(gx, 6 * np.arange(8.0) ** 2)
np.testing.assert_allclose(gw, (np.arange(8.0) ** 3).sum())
square = lambda x: jaxpyop.numpy_function(lambda x: x ** 2, [x], F, vjp=lambda i, o, c: 2 * i[0] * c[0])
np.testing.assert_allclose(jax.jit(jax.grad(lambda x: square(x).sum()))(x), 2 * np.arange(8.0))
f = jax.shard_map(square, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(x), 2 * np.arange(8.0))
""",
    "scan, cond": """
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.jit(lambda x: jax.lax.scan(lambda c, _: (api(body, [c], F), None), x, None, length=2)[0])
    np.testing.assert_array_equal(f(x), expected * 2 + 1)
    f = jax.jit(lambda x, p: jax.lax.cond(p, lambda x: api(body, [x], F), lambda x: x, x))
    np.testing.assert_array_equal(f(x, True), expected)
""",
    "errors": """
def bad(x):
    raise KeyError("mine")
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    f = jax.jit(lambda x: api(bad, [x], F, output_shapes=(8,)))
    for _ in range(3):
        try:
            with jaxpyop.reraise():
                jax.block_until_ready(f(x))
        except KeyError as error:
            assert error.args == ("mine",)
        else:
            raise AssertionError("no error")
    np.testing.assert_array_equal(jax.jit(lambda x: api(body, [x], F))(x), expected)
""",
    "large arrays": """
big = jax.device_put(jnp.ones((8, 100_000)), sharded)
for api in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func):
    np.testing.assert_array_equal(jax.jit(lambda x: api(body, [x], F))(big)[:, ::1000], 3.0)
""",
}


RUN_EACH = """
import traceback
failed = []
for name, program in PROGRAMS.items():
    try:
        exec(program, dict(globals()))
    except Exception:
        failed.append(f"{{name}}: {{traceback.format_exc()}}")
assert not failed, "\\n".join(failed)
"""


@pytest.mark.parametrize(("kind", "transport"), [("Auto", "auto"), ("Explicit", "auto"), ("Explicit", "callback")])
def test_on_four_devices(kind, transport):
    code = MANY_DEVICES + f"PROGRAMS = {DEVICE_PROGRAMS!r}".replace("{", "{{").replace("}", "}}") + RUN_EACH
    run_python(
        code.format(transport=transport, kind=kind), timeout=90, XLA_FLAGS="--xla_force_host_platform_device_count=4"
    )

"""`jaxpyop.jit` in place of `jax.jit`: what it takes, what it gives, and what it leaves whole."""

import gc
import inspect
import pathlib
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import jaxpyop
from tests.shared.functions import numpy_function, py_func, py_function
from tests.shared.tables import named, rows

F = jnp.float32
# The package's own folder, because a clone of this project may lie in a folder that is called jaxpyop too.
PACKAGE = pathlib.Path(jaxpyop.__file__).parent
X = jnp.array([0.5, -1.0, 2.0])


def double(x):
    """An op that is always cut, and works on every dtype."""
    return py_function(lambda x: x + x, [x], jax.ShapeDtypeStruct(x.shape, x.dtype))


def same(got, wanted):
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, wanted)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(*map(plain, (a, b))), got, wanted)


def plain(x):
    return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def numbers_in_loops(x):
    carried = jax.lax.fori_loop(0, 2, lambda i, c: c * 2, 1.0) * double(x)
    turns = jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, double(c[1]), c[2] * 2.0), (0, x, 1.0))
    no_turn = jax.lax.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 1, double(c[1])), (0, x))
    return carried, turns, no_turn, jax.lax.scan(lambda c, y: (double(c), (1.0, 2, y, 3j)), x, jnp.arange(2))


def in_checkpoint(x):
    loop = lambda x: jnp.sum(jax.lax.fori_loop(0, 2, lambda i, c: jax.checkpoint(double)(c) * c, x))
    return jax.checkpoint(lambda x: double(x) + 1)(x), jax.grad(loop)(x)


def conds(x):
    return [jax.lax.cond(p, lambda x: (1.0, double(x)), lambda x: (x[0], x), x) for p in (True, x[0] > 1)]


def rows_that_stop_apart(x):
    return jax.vmap(lambda x: jax.lax.while_loop(lambda c: c < 3, double, x))(jnp.abs(x) + 1)


DTYPES = (jnp.arange(3), jnp.ones(3, jnp.bfloat16), jnp.zeros((0, 3)))
PROGRAMS = {
    "several calls": (lambda x: double(double(x) * x) + double(jnp.sin(x)), (X,)),
    "trees": (lambda d: {"y": (double(d["x"]), d["n"] + 1)}, ({"x": X, "n": 2},)),
    "Python's numbers": (lambda x, n: (double(x * n), x + 1, n, 2.5), (2.0, 3)),
    "NumPy's arrays": (lambda x, n: (double(x), n * 2), (np.ones(3), np.float64(2.0))),
    "no argument": (lambda: double(jnp.arange(3.0)), ()),
    "no result": (lambda x: (py_func(lambda x: None, [x], None), None)[1], (X,)),
    "one result twice, and an input": (lambda x: (lambda y: (y, x, y, double(y), x))(x + 1), (X,)),
    "a body that returns its input": (lambda x: (py_function(lambda x: (x, x), [x], (F, F)), x), (X,)),
    "a constant array": (lambda x: double(x) * jnp.asarray(np.arange(3.0)) + double(jnp.asarray(X)), (X,)),
    "an inner jit": (lambda x: [jit(lambda y: double(y) + jnp.sum(y))(x) for jit in (jax.jit, jaxpyop.jit)], (X,)),
    "checkpoint": (in_checkpoint, (X,)),
    "a key": (lambda key: (double(jax.random.uniform(key)), jax.random.split(key)), (jax.random.key(1),)),
    "other dtypes": (lambda *args: jax.tree.map(double, args), DTYPES),
    "numbers in loops": (numbers_in_loops, (X,)),
    "a while under vmap": (rows_that_stop_apart, (X,)),
    "conds with one weakly typed branch": (conds, (X,)),
    "the tangent of an integer": (lambda x, zero: double(x), (X, np.zeros(3, jax.dtypes.float0))),
    "what nobody uses": (lambda x, y, z: (double(z), py_func(np.sin, [z], F), double(y))[2], (X, X + 1, X + 2)),
}


@pytest.mark.parametrize("loops", rows(["python", "compiled"], fast=["python"]))
@pytest.mark.parametrize(
    ("program", "args"), named(PROGRAMS, ["checkpoint", "a key", "other dtypes", "numbers in loops"])
)
def test_the_results_are_those_of_jit(program, args, loops):
    cut = jaxpyop.jit(program, loops=loops)
    wanted = jax.jit(program)(*args)
    same(cut(*args), wanted)
    same(again := cut(*args), wanted)
    assert jax.eval_shape(program, *args) == cut.eval_shape(*args)
    outs = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(again) if x.dtype == F and x.size]
    ins = [x.unsafe_buffer_pointer() for x in args if getattr(x, "dtype", None) == F and isinstance(x, jax.Array)]
    assert len({*outs, *ins}) == len(outs) + len(set(ins))


CUTS = {
    "side by side": (lambda x: double(x * 2) + double(x * 3), "segment Python Python segment"),
    "a chain": (lambda x: double(double(x) + 1) + double(5 * x), "segment Python Python segment Python segment"),
    "a loop": (lambda x: jax.lax.fori_loop(0, 2, lambda i, c: double(c), x), "whole"),
    "a stateless NumPy function": (lambda x: numpy_function(np.sin, [x], F) + 1, "whole"),
}


@pytest.mark.parametrize(("program", "kinds"), CUTS.values(), ids=CUTS)
def test_the_cuts(program, kinds):
    assert [line.split(":")[0] for line in jaxpyop.jit(program).explain(X).splitlines()] == kinds.split()


def test_a_body_waits_for_what_it_needs_alone():
    """The product is in the segment after the body, whatever the order in the program."""
    program = lambda x: (product := x @ x, double(x * 2), product + 1)[1:]
    text = jaxpyop.jit(program).explain(X).splitlines()
    assert text == ["segment: mul", "Python: lambda", "segment: dot_general, add"]


def test_beside_what_stays_a_callback_the_rest_is_cut():
    program = jaxpyop.jit(lambda x: double(jax.lax.fori_loop(0, 2, lambda i, c: double(c), x) + 1))
    assert program.explain(X).splitlines() == ["segment: scan, add", "Python: lambda"]
    same(program(X), 8 * X + 2)


def test_the_records_of_a_stateful_gradient_are_in_the_store():
    op = lambda x: py_function(lambda x: x**2, [x], F, stateful=True)
    grad = jaxpyop.jit(jax.grad(lambda x: op(op(op(x))).sum()))
    np.testing.assert_allclose(grad(X), 8 * X**7, rtol=1e-5)
    with (
        jaxpyop.config.override(max_record_bytes=1),
        pytest.raises(RuntimeError, match=r"the record of this step's forward pass is gone.*increase jaxpyop"),
    ):
        grad(X)


# ---------------------------------------------------------------------- arguments


def test_static_arguments_by_position_and_name():
    calls = []

    def program(x, n, *, flag="a"):
        calls.append((n, flag))
        return double(x) * n

    cut = jaxpyop.jit(program, static_argnames=("n", "flag"))
    assert [cut(X, 2)[0], cut(X, 2)[0], cut(X, n=2)[0], cut(X, 2.0)[0], cut(X, 2, flag="b")[0]] == [2] * 5
    assert {*map(repr, calls)} == {"(2, 'a')", "(2.0, 'a')", "(2, 'b')"}
    with pytest.raises(ValueError, match="hashable"):
        cut(X, [2])
    assert jaxpyop.jit(program, static_argnums=1)(X, 2)[0] == 2


def test_donated_arguments():
    program = lambda x, y: (double(y) * 2 + x, y)
    x, named, y = X + 0, X + 0, X + 1
    same(jaxpyop.jit(program, donate_argnums=0)(x, y), (4 * y + X, y))
    same(jaxpyop.jit(program, donate_argnames="x")(x=named, y=y), (4 * y + X, y))
    assert [a.is_deleted() for a in (x, named, y)] == [True, True, False]


def test_what_a_body_saw_or_returned_is_not_given_away():
    """A later segment is the last to read `y` and the body's results, and could have their memory for a result."""
    kept = []
    op = lambda x: py_function(lambda x: kept.append((x, x + 1)) or kept[-1][1], [x], F, output_shapes=(3,))
    cut = jaxpyop.jit(lambda x: (y := x * 2, op(y) + y * 3 + op(x))[1], donate_argnums=0)
    for k in range(3):
        same(cut(X + k), 9 * (X + k) + 2)
    same(kept, [(y, y + 1) for k in range(3) for y in (2 * (X + k), X + k)])


def test_what_a_body_returned_may_change_before_a_segment_reads_it():
    own = np.ones(1 << 17, np.float32)
    op = lambda f, x: py_func(f, [x], F, output_shapes=own.shape)

    @jaxpyop.jit
    def program(x):
        y = op(lambda x: own, x)
        z = op(lambda x: (own.fill(7), x)[1], y)
        return y * 2, z + 1, op(lambda x: x, z) - 1

    for _ in range(2):
        own[:] = 1
        same(program(jnp.zeros_like(own)), (jnp.full_like(own, 2), jnp.full_like(own, 2), jnp.zeros_like(own)))


def test_the_caller_may_change_a_numpy_array_that_a_body_kept():
    kept = []
    x = np.zeros(64, np.float32)
    jaxpyop.jit(lambda x: py_function(lambda x: (kept.append(x), x)[1], [x], F, output_shapes=(64,)))(x)
    x[:] = 7
    assert not np.asarray(kept[0]).any()


def test_wrong_arguments_are_errors_as_those_of_jax():
    with pytest.raises(TypeError, match="str"):
        jaxpyop.jit(lambda x: double(X))("a")
    for fun, options, said in (
        (3, {}, "fun is 3"),
        (double, {"loops": "both"}, "loops='both'"),
        (double, {"a": 3}, "'a'"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            jaxpyop.jit(fun, **options)


def test_as_a_decorator_and_a_method():
    class Model:
        @jaxpyop.jit(static_argnums=0)
        def again(self, x):
            """Runs it once more."""
            return double(x) * 3

    same(Model().again(X), 6 * X)
    assert Model.again.__doc__ == "Runs it once more."
    assert list(inspect.signature(Model.again).parameters) == ["self", "x"]


def test_the_methods_of_a_jitted_function():
    cut = jaxpyop.jit(double)
    assert "python_call" in str(cut.trace(X).jaxpr)
    same(cut.lower(X).compile()(X), 2 * X)
    assert cut.eval_shape(X) == jax.ShapeDtypeStruct((3,), F)
    assert "double" in repr(cut)
    same(pickle.loads(pickle.dumps(cut))(X), 2 * X)


# ---------------------------------------------------------- around it and inside


def test_effects_keep_the_order_of_the_program():
    log = []
    note = lambda x, name, **how: py_func(lambda x: (log.append(name), np.asarray(x))[1], [x], F, **how)
    theirs = lambda x, name: io_callback(lambda x: (log.append(name), x)[1], jax.typeof(X), x, ordered=True)

    @jaxpyop.jit
    def program(x):
        y = note(x, "a", ordered=True)
        theirs(x, "b")
        z = note(x + 1, "c", ordered=True)
        note(x, "d")
        theirs(x * 2, "e")
        note(x, "f", ordered=True)
        return y + z

    for _ in range(3):
        log.clear()
        same(program(X), 2 * X + 1)
        jax.effects_barrier()
        assert log == list("abcdef")


@pytest.mark.slow
def test_jaxs_own_print_comes_before_a_later_effect():
    log = []
    ours = lambda x: py_func(lambda x: log.append("ours"), [x], None)
    busy = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, x: jnp.sin(x @ x), x))
    program = jaxpyop.jit(lambda x, y: (jax.debug.callback(lambda y: log.append("jax"), y[0, 0]), ours(x), x)[2])
    for _ in range(4):
        program(X, busy(jnp.ones((300, 300))))  # its result is not there yet, so that the segment waits for it
    jax.effects_barrier()
    assert log == ["jax", "ours"] * 4


@pytest.mark.parametrize(("turns", "reverse"), rows([(0, False), (1, False), (3, False), (3, True)], fast=[(3, True)]))
def test_a_scan_from_python(turns, reverse):
    turn = lambda c, y: (double(c) * 0.5 + y, (c, y * 2, double(y)))
    program = lambda x, ys: jax.lax.scan(turn, x, ys, reverse=reverse)
    rows = jnp.arange(turns * 3.0).reshape(turns, 3)
    same(jaxpyop.jit(program, loops="python")(X, rows), jax.jit(program)(X, rows))


def came_from_jax(error):
    """Whether a program that was not cut raised the exception."""
    return isinstance(error.__context__, (jax.errors.JaxRuntimeError, ValueError))


def test_an_exception_that_comes_after_the_call_is_for_reraise():
    """JAX runs a program in the background where an input is still being computed."""
    squares = jax.jit(lambda a: jax.lax.fori_loop(0, 40, lambda i, a: a @ a / 300, a)[0])
    whole = jaxpyop.jit(lambda x: numpy_function(missing, [x], F))
    with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
        jax.block_until_ready(whole(squares(jnp.ones((300, 300)))))


@pytest.mark.parametrize("op", [py_function, numpy_function], ids=["cut", "whole"])
def test_an_exception_is_the_original_with_the_users_lines_alone(op):
    error = KeyError("mine")

    def body(x):
        # Without the frames of the time before.
        raise error.with_traceback(None)

    cut = jaxpyop.jit(lambda x: op(body, [x * 2], F, output_shapes=()) + 1)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine") as caught:
            cut(X)
        assert caught.value is error
        assert came_from_jax(error) == (op is numpy_function)
        assert caught.traceback[-1].name == "body"
        ours = [entry.path.name for entry in caught.traceback if entry.path.is_relative_to(PACKAGE)]
        assert ours in ([], ["jit.py"])


def test_a_rule_may_be_missing_where_it_is_not_used():
    op = lambda x: numpy_function(np.sin, [x], F)
    same(jaxpyop.jit(lambda x: jax.vjp(lambda x: op(x) + double(x), x)[0])(X), jnp.sin(X) + 2 * X)


# ---------------------------------------------------------------- JAX's settings


def test_each_setting_of_x64_has_its_program():
    cut = jaxpyop.jit(lambda x: double(x) / 3)
    for x64 in (False, True, False):
        with jax.enable_x64(x64):
            assert cut(1.0).dtype == (jnp.float64 if x64 else F)


def test_a_transfer_guard_forbids_those_of_arguments_alone():
    cut = jaxpyop.jit(lambda x: py_func(np.sin, [x + 1], F) + double(x))
    wanted = cut(X)
    with jax.transfer_guard("disallow"):
        same(cut(X), wanted)
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"):
            cut(np.asarray(X))


# ------------------------------------------------------------------ kept and freed


def test_nothing_is_traced_or_compiled_again():
    traces = []
    program = lambda x: (traces.append(None), double(x) + 1)[1]
    for k in range(3):
        jaxpyop.jit(program)(X + k)
    assert len(traces) == 1
    jaxpyop.jit(program)(jnp.ones(2))
    assert len(traces) == 2


@pytest.mark.slow
def test_clear_caches_traces_the_function_again():
    scale = 1.0
    cut, wanted = (jit(lambda x: double(x) * scale) for jit in (jaxpyop.jit, jax.jit))
    for clear in (lambda: None, jax.clear_caches):
        same(cut(X), wanted(X))
        scale += 1
        clear()
        same(cut(X), wanted(X))


@pytest.mark.slow
def test_intermediates_are_freed_as_the_program_goes_on():
    alive = []

    def body(x):
        gc.collect()
        alive.append(sum(a.nbytes >= 1 << 22 for a in jax.live_arrays()))
        return x

    op = lambda x: py_function(body, [x + 1], F)
    jaxpyop.jit(lambda x: op(op(op(op(x)))).sum())(jnp.zeros(1 << 20))
    assert max(alive) - alive[0] <= 1


# ------------------------------------------------------------------- what stays whole


def with_ref(x):
    ref = jax.new_ref(x)
    ref[...] = double(x)
    return ref[...]


def test_what_stays_whole_says_why():
    mesh, spec = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P("d")
    placed = jax.NamedSharding(mesh, spec)
    for program, options, why in [
        (double, {"out_shardings": placed}, "out_shardings given"),
        (jax.jit(double, in_shardings=placed), {}, "an inner jit"),
        (with_ref, {}, "a mutable array"),
        (jax.shard_map(double, mesh=mesh, in_specs=spec, out_specs=spec), {}, "calls no Python"),
    ]:
        cut = jaxpyop.jit(program, **options)
        assert re.match(f"whole: .*{why}", cut.explain(X))
        np.testing.assert_array_equal(cut(X), 2 * X)


def missing(x):
    if x[0] > 0:
        raise KeyError("mine")
    return x


def test_what_stays_whole_for_some_types_and_loops_is_cut_for_others():
    """As the exception of the function shows."""
    body = lambda x: py_function(missing, [x], F, output_shapes=x.shape)
    whole_for_two = jaxpyop.jit(lambda x: jnp.sin(x) if x.shape == (2,) else body(x))
    in_a_loop = lambda x: jax.lax.fori_loop(0, 2, lambda i, c: body(c), x)
    for _ in range(2):
        same(whole_for_two(X[:2]), jnp.sin(X[:2]))
    same(whole_for_two(-X), -X)  # As long as all programs stay whole, a new one runs whole once.
    for _ in range(2):
        same(whole_for_two(X[:2]), jnp.sin(X[:2]))
        for cut, is_whole in (
            (whole_for_two, False),
            (jaxpyop.jit(in_a_loop), True),
            (jaxpyop.jit(in_a_loop, loops="python"), False),
        ):
            with pytest.raises(KeyError, match="mine") as caught:
                cut(X)
            assert came_from_jax(caught.value) == is_whole

"""Values, and how often a body runs, under every transformation."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.shared.util import NUMPY_APIS, Body, both_sides, numpy_function, py_func, py_function, run_python

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


def affine(x):
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

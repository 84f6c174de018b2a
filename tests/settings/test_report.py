"""`jaxpyop.report()`: its numbers are those of counters in the functions, on every route."""

import concurrent.futures
import functools
import multiprocessing
import pathlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numerical
from tests.shared.checks import Counter, over_transport
from tests.shared.functions import numpy_function, py_function
from tests.shared.tables import rows

F = jnp.float32
X = jnp.arange(6.0)
COS = lambda inputs, outputs, cotangents: cotangents * np.cos(inputs[0])
POOL = concurrent.futures.ThreadPoolExecutor(2)


def counted(program):
    """The rows of a report about a program, by the names of the ops."""
    with jaxpyop.report() as report:
        jax.block_until_ready(program())
    return {row["op"]: row for row in report.rows()}


def numpy_op(func, rule=COS, name="sine", **options):
    return lambda x: numpy_function(func, [x], F(0), vjp=rule, name=name, **options)


def residual_op(func, rule, **options):
    fwd, bwd = lambda x: (func(x), x), lambda x, cotangents: rule([x], [], cotangents)
    return numpy_op(func, (fwd, bwd), **options)


def filling_op(func, rule):
    func.func = lambda x, out: np.sin(x, out=out)
    return numpy_op(func, rule, out=True)


def taped_op(func, rule, name="sine"):
    func.func = jnp.sin
    return lambda x: py_function(func, [x], F(0), name=name)


OPS = {
    "sequential": numpy_op,
    "parallel": functools.partial(numpy_op, vmap_method="parallel"),
    "block": functools.partial(numpy_op, vmap_method="expand_dims"),
    "ordered": functools.partial(numpy_op, ordered=True),
    "threads": functools.partial(numpy_op, executor=POOL, vmap_method="parallel"),
    "on_error": functools.partial(numpy_op, on_error="nan"),
    "when": lambda func, rule: lambda x: numpy_op(func, rule, when=x > 1.5)(x),
    "residuals": residual_op,
    "numerical": lambda func, rule: numpy_op(func, numerical()),
    "out": filling_op,
    "tape": taped_op,
}
PROGRAMS = {
    "direct": lambda f: f(2.0),
    "vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f)))(X),
    "twice": lambda f: jax.jit(lambda x: f(f(x)))(2.0),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 5)[0])(2.0),
    "cut grad": lambda f: jaxpyop.jit(lambda x: jax.grad(f)(x) * 2)(2.0),
}
ROWS = [(program, op) for program in PROGRAMS for op in OPS]
FAST = [row for row in ROWS if row[0] == "vmap of grad" or row[1] == "sequential"]


@pytest.mark.parametrize(("program", "op"), rows(ROWS, FAST))
def test_runs_are_those_of_counters(program, op):
    func, rule = Counter(np.sin), Counter(COS)
    row = counted(lambda: PROGRAMS[program](OPS[op](func, rule)))["sine"]
    assert (row["runs"], row["rules"], row["failures"]) == (func.count, rule.count, 0)
    assert row["elements"] >= row["calls"] >= 1
    assert row["bytes_in"] >= 4 <= row["bytes_out"]
    assert row["mean_seconds"] * row["runs"] == pytest.approx(row["function_seconds"])


ROUTES = {
    "direct": (lambda f: f(1.0), "direct", 1),
    "buffer": (lambda f: jax.jit(f)(1.0), "buffer", 1),
    "a batch": (lambda f: jax.jit(jax.vmap(f))(X), "buffer", 6),
    "a direct batch": (lambda f: jax.vmap(f)(X), "direct", 6),
    "cut": (lambda f: jaxpyop.jit(lambda x: f(x) * 2)(1.0), "cut", 1),
    "several": (lambda f: [jax.jit(f)(1.0), f(1.0)], "direct, buffer", 2),
}


@pytest.mark.parametrize(("program", "route", "elements"), ROUTES.values(), ids=ROUTES)
def test_routes_calls_elements_and_bytes(program, route, elements):
    half = lambda x: numpy_function(np.sin, [x], jnp.float16, stateful=route == "cut")
    row = counted(lambda: program(half))["sin"]
    assert (row["route"], row["calls"], row["elements"]) == (route, 1 + (route.count(",")), elements)
    assert (row["bytes_in"], row["bytes_out"]) == (4 * elements, 2 * elements)


def test_the_public_callback_a_traced_function_and_an_op_in_another():
    with over_transport("callback"):
        assert counted(lambda: jax.jit(numpy_op(np.sin))(1.0))["sine"]["route"] == "callback"
    row = counted(lambda: jax.jit(lambda x: py_function(jnp.sin, [x], F(0), mode="traced"))(1.0))["sin"]
    assert (row["route"], row["traces"], row["calls"], row["runs"]) == ("traced", 1, 0, 0)
    rows = counted(lambda: jaxpyop.py_function(numpy_op(np.sin), [1.0], F, name="outer"))
    assert {name: row["runs"] for name, row in rows.items()} == {"sine": 1, "outer": 1}


def test_what_happens_while_a_report_is_open_is_counted():
    """By each report, and of a program that was compiled before, too."""
    f = jax.jit(numpy_op(np.sin))
    f(1.0)
    first, second = jaxpyop.report(), jaxpyop.report()
    with first:
        numpy_function(np.cos, [1.0], F)
        f(1.0)
        second.__enter__()
        f(1.0)
    f(1.0)
    second.__exit__(None, None, None)
    f(1.0)
    calls = [{row["op"]: row["calls"] for row in report.rows()} for report in (first, second)]
    assert calls == [{"sine": 2, "cos": 1}, {"sine": 2}]


def test_a_report_is_opened_once_at_a_time():
    op = lambda: jaxpyop.numpy_function(np.negative, [1.0], jnp.float32(0), name="negated")
    with jaxpyop.report() as report:
        with pytest.raises(RuntimeError, match="open already"), report:
            pass
        op()
    with report:
        op()
    assert report.rows()[0]["calls"] == 2


def test_threads_and_effects_in_flight_are_counted():
    f = numpy_op(np.sin)
    effect = jax.jit(lambda x: numpy_function(np.sin, [x], F, stateful=True))
    with jaxpyop.report() as report:
        threads = [threading.Thread(target=lambda: [f(1.0) for _ in range(100)]) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for _ in range(5):
            effect(1.0)
    rows = {row["op"]: row for row in report.rows()}
    assert [rows["sine"][c] for c in ("calls", "runs", "bytes_in")] == [400, 400, 1600]
    assert rows["sin"]["runs"] == 5


def fails_for_two(x):
    if np.any(x == 2):
        raise KeyError("two")
    return np.asarray(x)


@pytest.mark.filterwarnings("ignore:.*on_error= filled")
@pytest.mark.parametrize(
    ("on_error", "method"),
    [
        ("raise", "sequential"),
        ("raise", "parallel"),
        ("raise", "expand_dims"),
        ("nan", "sequential"),
        ("nan", "parallel"),
    ],
)
def test_failures(method, on_error):
    for program in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        body, report = Counter(fails_for_two), jaxpyop.report()
        f = program(numpy_op(body, vmap_method=method, on_error=on_error))
        try:
            with report:
                jax.block_until_ready(f(X))
            assert on_error == "nan"
        except (KeyError, ValueError, jax.errors.JaxRuntimeError):
            assert on_error == "raise"
        (row,) = report.rows()
        assert (row["runs"], row["failures"]) == (body.count, 1)
        line = fails_for_two.__code__.co_firstlineno + 2
        assert row["first_failure"].startswith(f"KeyError: 'two' ({__file__}:{line})\n  inputs: args[0]=float32[")
        assert "sine: the first failure: KeyError: 'two'" in str(report)


def test_the_first_of_several_failures_is_shown():
    texts = iter(["one", "two"])

    def fails(x):
        raise KeyError(next(texts))

    with jaxpyop.report() as report:
        for _ in range(2):
            with pytest.raises(KeyError):
                numpy_op(fails)(F(1))
    (row,) = report.rows()
    assert row["failures"] == 2
    assert row["first_failure"].startswith("KeyError: 'one'")


def test_compilations_are_those_of_new_shapes():
    sliced = lambda x: jnp.sum(jnp.sin(x[: int(x[0])]) ** 2)
    program = jax.jit(lambda x: py_function(sliced, [x], F(0), name="sliced"))
    first = counted(lambda: program(jnp.full(9, 3.0)))["sliced"]
    assert first["compilations"] > 0 < first["compile_seconds"]
    assert counted(lambda: program(jnp.full(9, 3.0)))["sliced"]["compilations"] == 0
    assert counted(lambda: program(jnp.full(9, 4.0)))["sliced"]["compilations"] > 0


@pytest.mark.slow
def test_the_backward_pass_is_compiled_when_it_has_come_back():
    # No other test has arrays of this length, whose operations may be compiled by themselves before.
    x = jnp.ones(1483)
    body = lambda x: jnp.sin(x) * jnp.tanh(jnp.cos(x) + 3) if x[0] > 0 else x
    slope = jax.jit(jax.grad(lambda x: py_function(body, [x], x, name="branches").sum()))
    counts = [counted(lambda: slope(x))["branches"]["compilations"] for _ in range(8)]
    assert counts[0] > 0
    assert sum(counts[1:7]) == 1
    assert counts[7] == 0


def test_advice_about_cheap_elements():
    """It compares times, and a busy machine may stop a function for a while."""
    looping, block = (jax.vmap(numpy_op(np.negative, None, vmap_method=m)) for m in ("sequential", "expand_dims"))
    advice = lambda op: {counted(lambda: op(jnp.ones(1000)))["sine"]["advice"] for _ in range(20)}
    assert any("vmap_method='expand_dims' runs it once for the batch" in found for found in advice(looping))
    assert advice(block) == {""}


@pytest.mark.slow
def test_advice_about_compilations():
    growing = lambda x: jnp.cos(x[: int(x[0])]).sum()
    program = jax.jit(lambda x: py_function(growing, [x], F(0), name="growing"))
    row = counted(lambda: [program(jnp.full(40, float(n))) for n in range(2, 30)])["growing"]
    assert "compilations took more than half of the time" in row["advice"]


def test_the_table():
    with jaxpyop.report() as report:
        for _ in range(1000):
            numpy_function(np.sin, [1.0], F, name="<s>")
    head, row = str(report).splitlines()
    assert head.split("  ")[0] == "op"
    assert row.split()[:5] == ["<s>", "direct", "1000", "1000", "1000"]
    assert repr(report) == str(report)
    assert str(jaxpyop.report()).split() == ["op", "route", "calls"]


# -------------------------------------------------------------- other processes


def mark(path, text):
    """Write into a file, which is how a worker counts."""
    with open(path, "a", encoding="ascii") as file:
        file.write(text)


def sine_in_worker(path, x):
    mark(path, "." if x != 3 else "!")
    if x == 3:
        raise KeyError("three")
    return np.sin(x)


def cosine_in_worker(path, inputs, outputs, cotangents):
    mark(path, "r")
    return COS(inputs, outputs, cotangents)


# A program, the options of its op, and the inputs.
WORKERS = {
    "direct": (lambda f: f, {}, 1.0),
    "jit of vmap": (lambda f: jax.jit(jax.vmap(f)), {}, X[:3]),
    "parallel": (lambda f: jax.jit(jax.vmap(f)), {"vmap_method": "parallel"}, X[:3]),
    "vmap of grad": (lambda f: jax.jit(jax.vmap(jax.grad(f))), {}, X[:3]),
    "on_error": (lambda f: jax.jit(jax.vmap(f)), {"on_error": "nan"}, X),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*on_error= filled")
def test_in_worker_processes(tmp_path):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, (program, options, x) in WORKERS.items():
            path = pathlib.Path(tmp_path, name)
            func, rule = (functools.partial(g, str(path)) for g in (sine_in_worker, cosine_in_worker))
            row = counted(lambda: program(numpy_op(func, rule, executor=pool, **options))(x))["sine"]  # noqa: B023
            marks = path.read_text(encoding="ascii")
            found = row["runs"], row["rules"], row["failures"]
            assert found == (len(marks.replace("r", "")), marks.count("r"), marks.count("!")), name
            assert row["elements"] == row["calls"] * np.size(x)
            assert row["function_seconds"] > 0
        row = counted(
            lambda: jax.vmap(numpy_op(np.sin, None, executor=jaxpyop.Workers(pool, chunksize=1)))(jnp.ones(100))
        )["sine"]
        assert row["advice"].startswith("the way to the workers and back took")

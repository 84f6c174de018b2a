"""`jaxpyop.report()`: its numbers are those of counters in the functions, on every route."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import pathlib
import sys
import textwrap
import threading
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import Counter, run_python

F = jnp.float32
X = jnp.arange(6.0)
COS = lambda inputs, outputs, cotangents: cotangents[0] * np.cos(inputs[0])


# ------------------------------------------------------------------ equal to counters


def numpy_op(func, rule, **options):
    return lambda x, **k: jaxpyop.numpy_function(func, [x], F(0), name="sine", vjp=rule, **options, **k)


def conditional_op(func, rule, **options):
    return lambda x: jaxpyop.numpy_function(func, [x], F(0), name="sine", vjp=rule, when=x > 1.5, **options)


def residual_op(func, rule, name="sine", **options):
    fwd, bwd = lambda x: (func(x), x), lambda x, cotangents: rule([x], [], cotangents)
    return lambda x: jaxpyop.numpy_function(func, [x], F(0), name=name, vjp=(fwd, bwd), **options)


def numerical_op(func, rule, **options):
    return lambda x: jaxpyop.numpy_function(func, [x], F(0), name="sine", vjp="numerical", **options)


def taped_op(func, rule, **options):
    func.func = jnp.sin
    return lambda x: jaxpyop.py_function(func, [x], F(0), name="sine", **options)


OPS = {
    "sequential": (numpy_op, {}),
    "parallel": (numpy_op, {"vmap_method": "parallel"}),
    "block": (numpy_op, {"vmap_method": "expand_dims"}),
    "ordered": (numpy_op, {"ordered": True}),
    "threads": (numpy_op, {"executor": concurrent.futures.ThreadPoolExecutor(2), "vmap_method": "parallel"}),
    "on_error": (numpy_op, {"on_error": "nan"}),
    "when": (conditional_op, {}),
    "residuals": (residual_op, {}),
    "numerical": (numerical_op, {}),
    "tape": (taped_op, {}),
}
PROGRAMS = {
    "direct": lambda f: f(2.0),
    "jit": lambda f: jax.jit(f)(2.0),
    "twice": lambda f: jax.jit(lambda x: f(f(x)))(2.0),
    "vmap": lambda f: jax.vmap(f)(X),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f))(X),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 5)[0])(2.0),
    "grad": lambda f: jax.grad(f)(2.0),
    "jit of grad": lambda f: jax.jit(jax.grad(f))(2.0),
    "vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f)))(X),
    "jacrev": lambda f: jax.jit(jax.jacrev(lambda x: jax.vmap(f)(x)))(X[:3]),
    "cut": lambda f: jaxpyop.jit(lambda x: f(x) * 2)(2.0),
    "cut grad": lambda f: jaxpyop.jit(lambda x: jax.grad(f)(x) * 2)(2.0),
}


@pytest.mark.parametrize(("make", "options"), OPS.values(), ids=OPS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_equal_to_counters(program, make, options, transport):
    func, rule = Counter(np.sin), Counter(COS)
    with jaxpyop.report() as report:
        jax.block_until_ready(program(make(func, rule, **options)))
    (row,) = report.rows()
    assert (row["op"], row["runs"], row["rules"], row["failures"]) == ("sine", func.count, rule.count, 0)
    assert row["elements"] >= row["calls"] >= 1
    assert row["bytes_in"] >= 4 <= row["bytes_out"]
    assert row["mean_seconds"] * row["runs"] == pytest.approx(row["function_seconds"])


def differentiated_by_jvp(func, rule):
    op = lambda x: jaxpyop.numpy_function(func, [x], F, jvp=rule)
    return jax.jvp(op, (2.0,), (1.0,))


def differentiated_by_transpose(func, rule):
    func.func, rule.func = lambda x: 2 * x, lambda cotangents: 2 * cotangents[0]
    op = lambda x: jaxpyop.numpy_function(func, [x], F, transpose=rule)
    return jax.jit(jax.grad(lambda x: op(x) ** 2))(2.0)


def filled(func, rule):
    func.func = lambda x, out: np.sin(x, out=out)
    op = lambda x: jaxpyop.numpy_function(func, [x], F(0), vjp=rule, out=True)
    return jax.jit(jax.vmap(jax.grad(op)))(X)


def differentiated_twice(func, rule):
    func.func = jnp.sin
    op = lambda x: jaxpyop.py_function(func, [x], F(0))
    return jax.grad(jax.grad(op))(2.0)


def in_another_function(func, rule):
    op = lambda x: jaxpyop.numpy_function(func, [x], F, vjp=rule)
    return jax.jit(jax.grad(lambda x: jaxpyop.py_function(op, [x], F(0), name="outer")))(2.0)


OTHERS = (
    *(differentiated_by_jvp, differentiated_by_transpose, filled, differentiated_twice),
    in_another_function,
)


@pytest.mark.parametrize("program", OTHERS)
def test_other_ways_to_run(program):
    func, rule = Counter(np.sin), Counter(COS)
    with jaxpyop.report() as report:
        jax.block_until_ready(program(func, rule))
    rows = {row["op"]: row for row in report.rows()}
    assert (rows["counter"]["runs"], rows["counter"]["rules"]) == (func.count, rule.count)
    if program is in_another_function:
        assert rows["outer"]["runs"] == 1


ROUTES = {
    "direct": (lambda f: f(1.0), "direct", 1, (4, 4)),
    "buffer": (lambda f: jax.jit(f)(1.0), "buffer", 1, (4, 4)),
    "a batch": (lambda f: jax.jit(jax.vmap(f))(X), "buffer", 6, (24, 24)),
    "a direct batch": (lambda f: jax.vmap(f)(X), "direct", 6, (24, 24)),
    "cut": (lambda f: jaxpyop.jit(lambda x: f(x) * 2)(1.0), "cut", 1, (4, 4)),
}


@pytest.mark.parametrize(("program", "route", "elements", "nbytes"), ROUTES.values(), ids=ROUTES)
def test_route_elements_and_bytes(program, route, elements, nbytes):
    f = lambda x: jaxpyop.numpy_function(np.sin, [x], F, stateful=route == "cut")
    with jaxpyop.report() as report:
        jax.block_until_ready(program(f))
    (row,) = report.rows()
    assert (row["op"], row["route"], row["calls"], row["elements"]) == ("sin", route, 1, elements)
    assert (row["bytes_in"], row["bytes_out"]) == nbytes


def test_several_routes_and_ops():
    f = numpy_op(np.sin, COS)
    with jaxpyop.config.override(transport="callback"), jaxpyop.report() as report:
        jax.block_until_ready([jax.jit(f)(1.0), f(1.0), jaxpyop.numpy_function(np.cos, [1.0], F)])
    assert {row["op"]: row["route"] for row in report.rows()} == {"sine": "direct, callback", "cos": "direct"}


def test_a_program_that_was_compiled_before():
    program = jax.jit(numpy_op(np.sin, COS))
    jax.block_until_ready(program(1.0))
    with jaxpyop.report() as report:
        jax.block_until_ready([program(1.0), program(2.0)])
    jax.block_until_ready(program(3.0))
    assert report.rows()[0]["calls"] == 2


def test_a_traced_function_has_traces_and_no_calls():
    program = jax.jit(lambda x: jaxpyop.py_function(jnp.sin, [x], F(0), mode="traced"))
    with jaxpyop.report() as report:
        jax.block_until_ready([program(1.0), program(2.0)])
    (row,) = report.rows()
    assert (row["route"], row["traces"], row["calls"], row["runs"]) == ("traced", 1, 0, 0)


PROCESSES = {
    "four devices": """
        import jax, jax.numpy as jnp, numpy as np, jaxpyop
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        runs = []
        def sine(x):
            runs.append(1)
            return np.sin(x)
        x = jax.device_put(jnp.arange(8.0), NamedSharding(Mesh(np.array(jax.devices()), "i"), P("i")))
        f = lambda x: jaxpyop.numpy_function(sine, [x], jnp.float32)
        for program in (jax.jit(f), jax.jit(jax.vmap(f)), jaxpyop.jit(f)):
            runs.clear()
            with jaxpyop.report() as report:
                jax.block_until_ready(program(x))
            (row,) = report.rows()
            assert (row["runs"], row["calls"]) == (len(runs), 1), row
    """,
    "forked workers": """
        import concurrent.futures, multiprocessing, warnings
        import jax, jax.numpy as jnp, numpy as np, jaxpyop
        # JAX warns of the fork.
        warnings.simplefilter("ignore")
        fork = multiprocessing.get_context("fork")
        f = lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32, executor=pool)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=fork) as pool:
            for _ in range(2):
                with jaxpyop.report() as report:
                    jaxpyop.numpy_function(np.sin, [1.0], jnp.float32)
                    f(1.0), f(2.0)
                (row,) = report.rows()
                assert (row["runs"], row["calls"]) == (3, 3), row
    """,
}


@pytest.mark.parametrize("code", PROCESSES.values(), ids=PROCESSES)
def test_in_a_process(code):
    run_python(textwrap.dedent(code), XLA_FLAGS="--xla_force_host_platform_device_count=4")


# --------------------------------------------------------------------------- failures


class Fails:
    """Fails for 2, and counts how often it ran and how often it failed."""

    __name__ = "fails"

    def __init__(self):
        self.runs = self.failures = 0

    def __call__(self, x):
        self.runs += 1
        if np.any(x == 2):
            self.failures += 1
            raise KeyError("two")
        return np.asarray(x)


FAILING = {
    "direct": lambda f: f(2.0),
    "jit": lambda f: jax.jit(f)(2.0),
    "cut": lambda f: jaxpyop.jit(lambda x: f(x) * 2)(2.0),
    "vmap": lambda f: jax.vmap(f)(X),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f))(X),
    "scan": lambda f: jax.jit(lambda x: jax.lax.map(f, x))(X),
    "vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f)))(X),
}
METHODS = ("sequential", "parallel", "expand_dims")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("program", FAILING.values(), ids=FAILING)
def test_failures_that_are_raised(program, method, transport):
    body = Fails()
    f = lambda x: jaxpyop.numpy_function(body, [x], F, vjp=COS, vmap_method=method)
    report = jaxpyop.report()
    with pytest.raises(Exception, match="two"), report:
        jax.block_until_ready(program(f))
    (row,) = report.rows()
    assert (row["runs"], row["failures"]) == (body.runs, 1)
    assert row["first_failure"].startswith("KeyError: 'two'\n  inputs: x=float32[")
    assert "fails: the first failure: KeyError: 'two'" in str(report)


@pytest.mark.filterwarnings("ignore:.*on_error= filled")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("program", FAILING.values(), ids=FAILING)
def test_failures_that_are_filled(program, method):
    body = Fails()
    f = lambda x: jaxpyop.numpy_function(body, [x], F(0), vjp=COS, vmap_method=method, on_error="nan")
    with jaxpyop.report() as report:
        jax.block_until_ready(program(f))
    (row,) = report.rows()
    # A block that failed runs again, element by element.
    assert row["failures"] == 1
    assert row["runs"] == body.runs
    assert row["first_failure"].startswith("KeyError: 'two'\n  inputs: x=float32[")


def test_a_rule_that_fails():
    def rule(inputs, outputs, cotangents):
        raise KeyError("rule")

    report = jaxpyop.report()
    with pytest.raises(KeyError, match="rule"), report:
        jax.grad(numpy_op(np.sin, rule))(1.0)
    (row,) = report.rows()
    assert (row["calls"], row["runs"], row["rules"], row["failures"]) == (2, 1, 1, 1)


# ---------------------------------------------------------------------------- workers


def sine_in_worker(path, x):
    """Write a mark into a file, which is how a worker counts."""
    with open(path, "a", encoding="ascii") as file:
        file.write("." if x != 3 else "!")
    if x == 3:
        raise KeyError("three")
    return np.sin(x)


def cosine_in_worker(path, inputs, outputs, cotangents):
    with open(path, "a", encoding="ascii") as file:
        file.write("r")
    return COS(inputs, outputs, cotangents)


# A program, the options of its op, and the inputs.
WORKERS = {
    "direct": (lambda f: f, {}, 1.0),
    "jit of vmap": (lambda f: jax.jit(jax.vmap(f)), {}, X[:3]),
    "parallel": (lambda f: jax.jit(jax.vmap(f)), {"vmap_method": "parallel"}, X[:3]),
    "vmap of grad": (lambda f: jax.jit(jax.vmap(jax.grad(f))), {}, X[:3]),
    "on_error": (lambda f: jax.jit(jax.vmap(f)), {"on_error": "nan"}, X),
    "raised": (lambda f: jax.jit(jax.vmap(lambda x: f(x, when=x > 1.5))), {}, X),
}


@pytest.mark.filterwarnings("ignore:.*on_error= filled")
def test_worker_processes(tmp_path):
    def row_and_marks(name):
        program, options, x = WORKERS[name]
        path = pathlib.Path(tmp_path, name)
        func, rule = (functools.partial(g, str(path)) for g in (sine_in_worker, cosine_in_worker))
        op = lambda x, **when: jaxpyop.numpy_function(func, [x], F(0), vjp=rule, executor=pool, **options, **when)
        raises = pytest.raises(jax.errors.JaxRuntimeError, match="three") if name == "raised" else nullcontext()
        with raises, jaxpyop.report() as report:
            jax.block_until_ready(program(op)(x))
        (row,) = report.rows()
        marks = path.read_text(encoding="ascii")
        assert (row["calls"], row["elements"]) == (1 + ("r" in marks), row["calls"] * np.size(x))
        return row, marks

    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in WORKERS:
            row, marks = row_and_marks(name)
            found = row["runs"], row["rules"], row["failures"]
            assert found == (len(marks.replace("r", "")), marks.count("r"), marks.count("!")), name
            assert row["function_seconds"] > 0


# ---------------------------------------------------------------------------- records


@pytest.fixture
def no_records():
    """Other tests leave records, which a bound pushes out."""
    jaxpyop.clear_records()


def test_records(transport, no_records):
    f = lambda x: jaxpyop.py_function(lambda x: x**2, [x], F(0), name=f"square {transport}")
    with (
        jaxpyop.config.override(max_records=2),
        jaxpyop.report() as report,
        pytest.warns(RuntimeWarning, match="pushed out"),
    ):
        jax.block_until_ready(jax.jit(jax.grad(lambda x: f(x) + f(x + 1) + f(x + 2) + f(x + 3)))(1.0))
    (row,) = report.rows()
    # The function ran again for the two records that were pushed out.
    assert [row[c] for c in ("records", "pushed_out", "recomputed", "runs")] == [4, 2, 2, 6]
    assert "2 records were pushed out: increase max_record_bytes" in str(report)


def test_residuals_are_records(no_records):
    # The warning comes once for each name of an op.
    f = residual_op(np.sin, COS, name="sine whose records are pushed out")
    with (
        jaxpyop.config.override(max_records=1),
        jaxpyop.report() as report,
        pytest.warns(RuntimeWarning, match="pushed out"),
    ):
        jax.block_until_ready(jax.jit(jax.grad(lambda x: f(x) + f(x + 1)))(1.0))
    (row,) = report.rows()
    assert [row[c] for c in ("records", "pushed_out", "recomputed", "runs")] == [2, 1, 1, 3]


# ---------------------------------------------------------------------------- reports


def test_reports_count_what_happens_while_they_are_open():
    f = numpy_op(np.sin, COS)
    first, second = jaxpyop.report(), jaxpyop.report()
    with first:
        jaxpyop.numpy_function(np.cos, [1.0], F)
        f(1.0)
        second.__enter__()
        f(1.0)
    f(1.0)
    second.__exit__(None, None, None)
    f(1.0)
    calls = [{row["op"]: row["calls"] for row in report.rows()} for report in (first, second)]
    assert calls == [{"sine": 2, "cos": 1}, {"sine": 2}]


def test_many_runs_are_added_up():
    with jaxpyop.report() as report:
        for _ in range(25):
            jaxpyop.numpy_function(np.sin, [1.0], F)
        jax.vmap(numpy_op(np.sin, COS))(jnp.arange(25.0))
    rows = {row["op"]: row for row in report.rows()}
    assert [rows["sin"][c] for c in ("calls", "runs", "bytes_in")] == [25, 25, 100]
    assert [rows["sine"][c] for c in ("calls", "runs", "elements")] == [1, 25, 25]


def test_threads():
    f = numpy_op(np.sin, COS)
    run = lambda: [f(1.0) for _ in range(200)]
    with jaxpyop.report() as report:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [report.rows()[0][c] for c in ("calls", "runs")] == [800, 800]


def test_effects_in_flight_are_waited_for():
    f = jax.jit(lambda x: jaxpyop.numpy_function(np.sin, [x], F, stateful=True))
    with jaxpyop.report() as report:
        for _ in range(5):
            f(1.0)
    assert report.rows()[0]["runs"] == 5


def test_advice_and_tables():
    f = lambda x: jaxpyop.numpy_function(np.sin, [x], F, name="<s>")
    with jaxpyop.report() as report:
        for _ in range(1000):
            f(1.0)
    advice = "<s>: 1000 calls of one element: vmap and vmap_method='expand_dims' make one call of many"
    head, row, said = str(report).splitlines()
    assert head.split("  ")[0] == "op"
    assert row.split()[:5] == ["<s>", "direct", "1000", "1000", "1000"]
    assert said == advice
    assert repr(report) == str(report)
    assert str(jaxpyop.report()).split() == ["op", "route", "calls"]


# ------------------------------------------------------------------------ what it costs


def calls_of(program):
    """How many Python functions a program calls."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        program()
    finally:
        sys.setprofile(None)
    return count


def test_nothing_is_called_without_a_report():
    f = jaxpyop.numpy_function(Tout=F)(np.sin)
    f(1.0)
    before = calls_of(lambda: f(1.0))
    with jaxpyop.report():
        within = calls_of(lambda: f(1.0))
    assert calls_of(lambda: f(1.0)) == before
    # The times of the function and of the call, and the sizes of the inputs and of the results.
    assert before < within <= before + 20

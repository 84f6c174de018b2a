"""The benchmark: that every case runs, and that the table says what was measured. No timing is tested."""

import dataclasses
import io
import json
import time

import jax
import numpy as np
import pytest

from jaxpyop.__main__ import main
from jaxpyop._cli import bench, cases
from jaxpyop._cli.cases import Case, Group


def sleeping(name, seconds):
    return Case(name, lambda: time.sleep(seconds), calls=1)


FAKE = Group("a group", [sleeping("ours", 0.002), sleeping("theirs", 0.004), sleeping("quick", 0.0)], samples=4)


@pytest.mark.parametrize("number", range(len(cases.GROUPS)))
def test_every_case_runs(number):
    group = cases.GROUPS[number]()
    first, *others = group.cases
    value = first.run()
    for case in others:
        case.run()
    jax.block_until_ready(value)
    rows = bench.measure(dataclasses.replace(group, cases=[dataclasses.replace(first, calls=1)], samples=2))
    assert [row.case for row in rows] == [first.name]


AGREEING = [
    "float32[1] under jit",
    "the same, stateful",
    "the same, ordered",
    "ordered, 200",
    "direct call",
    "log-Huber",
]


@pytest.mark.parametrize("title", AGREEING)
def test_the_cases_of_a_group_compute_the_same(title):
    groups = [group for make in cases.GROUPS if (group := make()).title.startswith(title)]
    assert groups
    for group in groups:
        want = np.asarray(group.cases[0].run())
        for case in group.cases[1:]:
            np.testing.assert_allclose(np.asarray(case.run()), want, rtol=1e-6)


def test_a_run_takes_its_own_times():
    run = Group("a run", [], take_times=lambda: {"late": [2.0, 2.0, 4.0], "early": [1.0, 1.0, 1.0]})
    late, early = bench.measure(run)
    assert (late.case, late.median, late.ratio) == ("late", 2.0, None)
    assert (early.case, early.median, early.ratio) == ("early", 1.0, 2.0)


def test_long_runs(monkeypatch):
    monkeypatch.setattr(cases.runs, "STEPS", 310)
    monkeypatch.setattr(cases.runs, "LATE", slice(300, 310))
    rows = bench.measure(cases.runs.training_run())
    assert [row.case for row in rows] == ["py_function, step 3000", "py_function, step 200", "jax.grad, step 3000"]
    assert all(row.median > 0 for row in rows)
    monkeypatch.setattr(cases.runs, "DEVICES", cases.runs.DEVICES.replace("300", "3"))
    rows = bench.measure(cases.runs.several_devices())
    assert [row.case for row in rows] == ["numpy_function", "jax.pure_callback"]
    memory = cases.runs.memory_run()
    assert int(memory.title.split()[-2]) < 16
    for case in (*memory.cases, *cases.runs.process_pool().cases):
        jax.block_until_ready(case.run())


@pytest.mark.parametrize("asked", [[], ["--long"]], ids=["short", "long"])
def test_what_takes_long_is_asked_for(asked, monkeypatch, capsys):
    monkeypatch.setattr(bench, "GROUPS", [lambda: FAKE])
    monkeypatch.setattr(bench, "LONG", [lambda: dataclasses.replace(FAKE, title="a long one")])
    main(["bench", *asked])
    assert ("a long one" in capsys.readouterr().out) is bool(asked)


def test_measure():
    rows = bench.measure(FAKE)
    assert [row.case for row in rows] == ["ours", "theirs", "quick"]
    assert rows[0].ratio is None
    assert all(row.low <= row.median <= row.high for row in rows)
    assert rows[1].median >= 4000  # microseconds
    assert rows[1].ratio == rows[0].median / rows[1].median


def test_the_table(monkeypatch, capsys):
    monkeypatch.setattr(bench, "GROUPS", [lambda: FAKE])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("jaxpyop ")
    assert next(line.split()[-1] for line in lines if " ms " in line) == "ours"
    assert lines[-1] == "Not installed, and therefore not in the table: tensorflow, torch."
    assert all(line == line.rstrip() for line in lines)


def test_the_table_fits_100_columns():
    titles = [(group.title, case.name) for make in cases.GROUPS for group in [make()] for case in group.cases]
    titles += [("other frameworks, float32[1]", "torch custom_op, eager")]
    for time_taken in (0.0, 9.876, 987.6, 9876.0, 987600.0, 98760000.0):
        rows = [bench.Row(title, case, time_taken, time_taken, time_taken, 0.0123) for title, case in titles]
        assert max(map(len, bench.table("", rows))) <= 100


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (bench.Row("g", "c", 9.876, 1.0, 100.0, 0.01234), "9.88 us  1.00 to 100 us   0.012"),
        (bench.Row("g", "c", 9876.0, 9000.0, 12345.0, None), "9.88 ms  9.00 to 12.3 ms  ours"),
        (bench.Row("g", "c", 999.0, 99.96, 12345.0, 0.5), "999 us  100 to 12345 us  0.50"),
        (bench.Row("g", "c", 2e6, 1e6, 3e6, 12.0), "2.00 s  1.00 to 3.00 s  12"),
        (bench.Row("g", "c", 0.0, 0.0, 0.5, 1.0), "0.00 us 0.00 to 0.500 us 1.0"),
    ],
    ids=["us", "ms", "wide", "s", "zero"],
)
def test_a_line(row, shown):
    assert bench._line("a title", row).split() == ["a", "title", "c", *shown.split()]


def test_json(monkeypatch, capsys):
    monkeypatch.setattr(bench, "GROUPS", [lambda: FAKE])
    assert main(["bench", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert jax.__version__ in found["about"]
    assert [row["case"] for row in found["rows"]] == ["ours", "theirs", "quick"]


def test_a_group_with_nothing_to_compare_is_left_out(monkeypatch):
    alone = dataclasses.replace(FAKE, cases=FAKE.cases[:1])
    monkeypatch.setattr(bench, "GROUPS", [lambda: alone])
    assert list(bench.run()) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_the_progress_bar_is_for_terminals(terminal, monkeypatch):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(bench, "GROUPS", [lambda: FAKE] * 2)
    list(bench.run())
    said = stderr.getvalue()
    assert ("1/2  a group" in said) is terminal
    assert said.endswith("\n") is terminal

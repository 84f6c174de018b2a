"""The measurements: that every case runs, and that the table says what was measured. No timing is tested."""

import dataclasses
import io
import json
import subprocess
import threading
import time

import jax
import numpy as np
import pytest

import jaxpyop
from tests.bench import against, cases, files_entered, lines, measure
from tests.bench.__main__ import main
from tests.bench.cases import QUICK, SUBJECTS, Case, Group


def sleeping(name, seconds):
    return Case(name, lambda: time.sleep(seconds), calls=1)


FAKE = Group("a group", [sleeping("ours", 0.002), sleeping("theirs", 0.004), sleeping("quick", 0.0)], samples=4)


MAKERS = [(subject, make) for subject in QUICK for make in SUBJECTS[subject]]


@pytest.fixture
def fake(monkeypatch):
    """One group in place of all."""
    monkeypatch.setattr(measure, "SUBJECTS", {subject: [] for subject in SUBJECTS} | {"calls": [lambda: FAKE]})


@pytest.mark.parametrize("number", range(len(MAKERS)), ids=lambda number: f"{MAKERS[number][0]}-{number}")
def test_every_case_runs(number):
    group = MAKERS[number][1]()
    first, *others = group.cases
    value = first.run()
    for case in others:
        case.run()
    jax.block_until_ready(value)
    rows = measure.measure(dataclasses.replace(group, cases=[dataclasses.replace(first, calls=1)], samples=2))
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
    groups = [group for _, make in MAKERS if (group := make()).title.startswith(title)]
    assert groups
    for group in groups:
        want = np.asarray(group.cases[0].run())
        for case in group.cases[1:]:
            np.testing.assert_allclose(np.asarray(case.run()), want, rtol=1e-6)


def test_a_run_takes_its_own_times():
    run = Group("a run", [], take_times=lambda: {"late": [2.0, 2.0, 4.0], "early": [1.0, 1.0, 1.0]})
    late, early = measure.measure(run)
    assert (late.case, late.median, late.ratio) == ("late", 2.0, None)
    assert (early.case, early.median, early.ratio) == ("early", 1.0, 2.0)


def test_long_runs(monkeypatch):
    monkeypatch.setattr(cases.runs, "STEPS", 310)
    monkeypatch.setattr(cases.runs, "LATE", slice(300, 310))
    rows = measure.measure(cases.runs.training_run())
    assert [row.case for row in rows] == ["py_function, step 3000", "py_function, step 200", "jax.grad, step 3000"]
    assert all(row.median > 0 for row in rows)
    monkeypatch.setattr(cases.runs, "DEVICES", cases.runs.DEVICES.replace("300", "3"))
    rows = measure.measure(cases.runs.several_devices())
    assert [row.case for row in rows] == ["numpy_function", "jax.pure_callback"]
    memory = cases.runs.memory_run()
    assert int(memory.title.split()[-2]) < 16
    for case in (*memory.cases, *cases.runs.process_pool().cases):
        jax.block_until_ready(case.run())


def test_what_takes_long_is_asked_for():
    assert set(SUBJECTS) - set(QUICK) == {"runs"}


def test_only_the_subjects_that_are_named(fake, capsys):
    main(["cut", "--json"])
    assert json.loads(capsys.readouterr().out)["rows"] == []
    main(["cut", "calls", "--json"])
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 3


def test_an_unknown_subject(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["cuts"])
    assert "cuts: not one of calls, cut, " in capsys.readouterr().err


def test_measure():
    rows = measure.measure(FAKE)
    assert [row.case for row in rows] == ["ours", "theirs", "quick"]
    assert rows[0].ratio is None
    assert all(row.low <= row.median <= row.high for row in rows)
    assert rows[1].median >= 4000  # microseconds
    assert rows[1].ratio == rows[0].median / rows[1].median


def test_the_table(fake, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("jaxpyop ")
    assert next(line.split()[-1] for line in lines if " ms " in line) == "ours"
    assert lines[-1] == "Not installed, and therefore not in the table: tensorflow, torch."
    assert all(line == line.rstrip() for line in lines)


def test_the_table_fits_100_columns():
    titles = [(group.title, case.name) for _, make in MAKERS for group in [make()] for case in group.cases]
    titles += [("other frameworks, float32[1]", "torch custom_op, eager")]
    for time_taken in (0.0, 9.876, 987.6, 9876.0, 987600.0, 98760000.0):
        rows = [measure.Row(title, case, time_taken, time_taken, time_taken, 0.0123) for title, case in titles]
        assert max(map(len, measure.table("", rows))) <= 100


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (measure.Row("g", "c", 9.876, 1.0, 100.0, 0.01234), "9.88 us  1.00 to 100 us   0.012"),
        (measure.Row("g", "c", 9876.0, 9000.0, 12345.0, None), "9.88 ms  9.00 to 12.3 ms  ours"),
        (measure.Row("g", "c", 999.0, 99.96, 12345.0, 0.5), "999 us  100 to 12345 us  0.50"),
        (measure.Row("g", "c", 2e6, 1e6, 3e6, 12.0), "2.00 s  1.00 to 3.00 s  12"),
        (measure.Row("g", "c", 0.0, 0.0, 0.5, 1.0), "0.00 us 0.00 to 0.500 us 1.0"),
    ],
    ids=["us", "ms", "wide", "s", "zero"],
)
def test_a_line(row, shown):
    assert measure._line("a title", row).split() == ["a", "title", "c", *shown.split()]


def test_json(fake, capsys):
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert jax.__version__ in found["about"]
    assert [row["case"] for row in found["rows"]] == ["ours", "theirs", "quick"]


def test_a_group_with_nothing_to_compare_is_left_out(monkeypatch):
    alone = dataclasses.replace(FAKE, cases=FAKE.cases[:1])
    monkeypatch.setattr(measure, "SUBJECTS", {"alone": [lambda: alone]})
    assert list(measure.run(["alone"])) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_the_progress_bar_is_for_terminals(terminal, monkeypatch):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(measure, "SUBJECTS", {"two": [lambda: FAKE] * 2})
    list(measure.run(["two"]))
    said = stderr.getvalue()
    assert ("1/2  a group" in said) is terminal
    assert said.endswith("\n") is terminal


# ------------------------------------------------------------- another checkout


def test_another_checkout_takes_turns_with_this_one(monkeypatch, capsys, tmp_path):
    runs = []

    def rows(checkout, subject):
        runs.append((checkout, subject))
        # This checkout is slower, and so was the machine, but only in "cut".
        slow, busy = (2.0 if checkout == against.HERE else 1.0), subject == "cut" and checkout == against.HERE
        theirs = 3.0 * (1 + busy)
        return [
            {"group": subject, "case": "ours", "median": slow, "ratio": None},
            {"group": subject, "case": "theirs", "median": theirs, "ratio": slow / theirs},
            {"group": f"run {len(runs)}", "case": "ours", "median": 1.0, "ratio": None},
        ]

    monkeypatch.setattr(against, "rows", rows)
    assert main(["calls", "cut", "--against", str(tmp_path), "--rounds", "2"]) == 0
    turns = [tmp_path, against.HERE, against.HERE, tmp_path]
    assert runs == [(checkout, subject) for subject in ("calls", "cut") for checkout in turns]
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    table = ["2.00 2.00 calls: ours", "1.00 calls: theirs", "2.00 1.00 cut: ours", "2.00 cut: theirs", ""]
    assert printed[4:9] == table
    assert printed[9:] == [
        "1 of 2 groups take more than 1.15 of the time beside the other cases",
        "2.00 2.00 calls: ours",
    ]


def test_another_checkout_is_what_runs(tmp_path):
    package = tmp_path / "jaxpyop"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the other one')")
    with pytest.raises(subprocess.CalledProcessError, match=r"tests\.bench"):
        against.rows(tmp_path, "traced")


# ------------------------------------------------------------------------ counts


def test_functions_are_counted_on_every_thread():
    if not files_entered.COUNTS_ALL_THREADS:
        pytest.skip("sys.monitoring is in Python 3.12 and newer")
    with files_entered.entered() as found:
        thread = threading.Thread(target=jaxpyop.clear_records)
        thread.start()
        thread.join()
    assert "clear_records" in {code.co_name for code in found}


def test_the_table_of_files():
    found = {name.strip(): {code.co_name for code in codes} for name, codes, _ in files_entered.table()}
    assert found["together"] > found["its first run"] > set()
    assert all(found.values())


def test_lines_of_code(tmp_path, capsys):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "a.py").write_text('"""Doc."""\n\n# Why.\nx = 1\n')
    (tmp_path / "room" / "b.py").write_text("y = [\n    2,\n]\n")
    (tmp_path / "c.py").write_text("z = 1\n")
    assert lines.packages(tmp_path) == {"room": (4, 2), "c.py": (1, 1)}
    lines.main(tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["5", "3", "all"]

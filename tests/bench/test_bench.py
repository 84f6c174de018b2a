"""The measurements: that every case runs, and that the table says what was measured. No time is tested."""

from __future__ import annotations

import json
import time

import jax
import numpy as np
import pytest

from tests.bench import files_entered, lines, measure
from tests.bench.__main__ import main
from tests.bench.cases import QUICK, SUBJECTS, Case, Group

MAKERS = [(subject, make) for subject in QUICK for make in SUBJECTS[subject]]


def sleeping(name, seconds):
    return Case(name, lambda: time.sleep(seconds), calls=1)


FAKE = Group("a group", [sleeping("ours", 0.002), sleeping("theirs", 0.004)], samples=4)


@pytest.fixture
def fake(monkeypatch):
    """One group in place of all."""
    monkeypatch.setattr(measure, "SUBJECTS", {subject: [] for subject in SUBJECTS} | {"calls": [lambda: FAKE]})


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MAKERS)), ids=lambda number: f"{MAKERS[number][0]}-{number}")
def test_every_case_runs(number):
    for case in MAKERS[number][1]().cases:
        jax.block_until_ready(case.run())


@pytest.mark.slow
@pytest.mark.parametrize("title", ["float32[1] under jit", "the same, stateful", "the same, ordered", "log-Huber"])
def test_the_cases_of_a_group_compute_the_same(title):
    groups = [group for _, make in MAKERS if (group := make()).title.startswith(title)]
    assert groups
    for group in groups:
        wanted, *others = (np.asarray(case.run()) for case in group.cases)
        for other in others:
            np.testing.assert_allclose(other, wanted, rtol=1e-6)


def test_measured_times():
    ours, theirs = measure.measure(FAKE)
    assert (ours.case, ours.ratio) == ("ours", None)
    assert theirs.low <= theirs.median <= theirs.high
    assert theirs.median >= 4000  # microseconds
    assert theirs.ratio == ours.median / theirs.median


def test_the_table_and_its_json(fake, capsys):
    assert main(["calls"]) == 0
    assert any(line.split()[-1] == "ours" for line in capsys.readouterr().out.splitlines() if line.strip())
    assert main(["cut", "calls", "--json"]) == 0
    assert [row["case"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["ours", "theirs"]


def test_an_unknown_subject_is_named(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["cuts"])
    assert "cuts: not one of calls, cut, " in capsys.readouterr().err


@pytest.mark.slow
def test_the_table_of_files_entered():
    found = {name.strip(): {code.co_name for code in codes} for name, codes, _ in files_entered.table()}
    assert found["together"] > found["its first run"] > set()
    assert all(found.values())


def test_lines_of_code(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.py").write_text('"""Doc."""\n\n# Why.\nx = 1\n')
    (tmp_path / "b.py").write_text("y = [\n    2,\n]\n")
    assert lines.packages(tmp_path) == {"folder": (1, 1), "b.py": (3, 1)}

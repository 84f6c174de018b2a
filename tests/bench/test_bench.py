"""The measurements: that every case runs, and that the table says what was measured. No time is tested."""

import json
import time

import jax
import numpy as np
import pytest

from tests.bench import files_entered, lines, measure
from tests.bench.__main__ import main
from tests.bench.cases import QUICK, SUBJECTS
from tests.bench.cases.case import Case, Group

FAKE = Group("a group", [Case("ours", lambda: time.sleep(0.002), 1), Case("theirs", lambda: time.sleep(0.004), 1)], 4)
COMPUTE_THE_SAME = ("float32[1] under jit", "the same, stateful", "the same, ordered", "log-Huber")


@pytest.mark.slow
@pytest.mark.parametrize("subject", QUICK)
def test_every_case_runs(subject):
    for make in SUBJECTS[subject]:
        group = make()
        wanted, *others = [jax.block_until_ready(case.run()) for case in group.cases]
        if group.title.startswith(COMPUTE_THE_SAME):
            for other in others:
                np.testing.assert_allclose(np.asarray(other), np.asarray(wanted), rtol=1e-6)


def test_measured_times():
    ours, theirs = measure.measure(FAKE)
    assert (ours.case, ours.ratio) == ("ours", None)
    assert theirs.low <= theirs.median <= theirs.high
    assert theirs.median >= 4000  # microseconds
    assert theirs.ratio == ours.median / theirs.median


def test_the_table_and_its_json(monkeypatch, capsys):
    monkeypatch.setattr(measure, "SUBJECTS", {"cut": [], "calls": [lambda: FAKE]})
    assert main(["calls"]) == 0
    assert any(line.split()[-1] == "ours" for line in capsys.readouterr().out.splitlines() if line.strip())
    assert main(["cut", "calls", "--json"]) == 0
    assert [row["case"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["ours", "theirs"]


def test_an_unknown_subject_is_named(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["cuts"])
    assert "cuts: not one of calls, cut, " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(
    not files_entered.COUNTS, reason="sys.monitoring, which counts calls on all threads, came with Python 3.12"
)
def test_the_table_of_files_entered():
    found = {name.strip(): {code.co_name for code in codes} for name, codes, _ in files_entered.table()}
    assert found["together"] > found["its first run"] > set()
    assert all(found.values())


def test_lines_of_code(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.py").write_text('"""Doc."""\n\n# Why.\nx = 1\n')
    (tmp_path / "b.py").write_text("y = [\n    2,\n]\n")
    assert lines.packages(tmp_path) == {"folder": (1, 1), "b.py": (3, 1)}

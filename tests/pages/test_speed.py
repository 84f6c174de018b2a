"""All figures on speed come from one run: `docs/speed.json`, as `docs/speed.py` writes it into the pages."""

import json
import pathlib

import pytest

from tests.bench.cases import QUICK, SUBJECTS
from tests.shared.util import load

DOCS = pathlib.Path(__file__).parents[2] / "docs"
speed = load(DOCS / "speed.py")
RUN = speed.Run()
WRITE = "python docs/speed.py writes it again"


@pytest.mark.parametrize("page", speed.PAGES, ids=lambda page: page.name)
def test_the_figures_on_a_page_are_those_of_the_run(page):
    text = page.read_text(encoding="utf-8")
    assert text == speed.filled(text, RUN), WRITE
    assert text.count("<!-- speed: ") == 2 * len(speed.BLOCK.findall(text)) > 0


def test_the_picture_is_that_of_the_run():
    assert (DOCS / "speed.svg").read_text(encoding="utf-8") == speed.picture(RUN), WRITE


def test_every_comparison_is_a_group_of_bench():
    quick = [make() for subject in QUICK for make in SUBJECTS[subject]]
    groups = {group.title: {case.name for case in group.cases} for group in quick}
    for _, title, others in speed.COMPARED:
        assert others[0] in groups[title]


@pytest.mark.parametrize(
    ("time", "shown"),
    [(0.0, "0.0 µs"), (9.94, "9.9 µs"), (9.96, "10 µs"), (461.0, "461 µs"), (2490.0, "2.5 ms"), (2e6, "2.0 s")],
)
def test_how_a_time_is_shown(time, shown):
    assert speed.shown(time) == shown


def test_a_page_that_differs_is_found(tmp_path):
    rows = [row | {"median": row["median"] * 2} for row in RUN.rows]
    (tmp_path / "other.json").write_text(json.dumps({"about": RUN.about, "rows": rows}))
    other = speed.Run(tmp_path / "other.json")
    for page in speed.PAGES:
        text = page.read_text(encoding="utf-8")
        assert speed.filled(text, other) != text
        assert speed.filled(speed.filled(text, other), RUN) == text

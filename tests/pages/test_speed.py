"""All figures on speed come from one run: `docs/speed.json`, as `docs/speed.py` writes it into the pages."""

import pytest

from tests.pages.pages import ROOT, load_script

speed = load_script(ROOT / "docs" / "speed.py")
RUN = speed.Run()


@pytest.mark.parametrize("page", speed.PAGES, ids=lambda page: page.name)
def test_the_figures_on_a_page_are_those_of_the_run(page):
    text = page.read_text(encoding="utf-8")
    assert text == speed.filled(text, RUN), "python docs/speed.py writes it again"
    assert text.count("<!-- speed: ") == 2 * len(speed.BLOCK.findall(text)) > 0


def test_the_table_is_that_of_the_run():
    assert (ROOT / "docs" / "speed.csv").read_text(encoding="utf-8") == speed.table(RUN)


def test_the_picture_is_that_of_the_run():
    assert (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8") == speed.picture(RUN)

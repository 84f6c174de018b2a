"""Every link from page to page leads somewhere, and the files of the package that a page names are there."""

import pkgutil
import posixpath
import re

import pytest

from tests.pages.pages import PAGES, ROOT, without_fences

LINK = re.compile(r"\]\((?!https:|mailto:)(?P<file>[^()#\s]*)#?(?P<anchor>[^()\s]*)\)")
# A file of the package, with the name in it that stands behind it in the table of caches.
SOURCE = re.compile(r"(?<![\w/])(_[a-z]+/[\w/]+\.py)(?:`: `(\w+)`)?")
SOURCES = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in ROOT.glob("jaxpyop/**/*.py")}


def anchors_of(text):
    """The anchors of the headings, as GitHub and Sphinx name them."""
    headings = re.findall(r"^##* (.*)$", without_fences(text), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def links_of(text):
    return [(found["file"], found["anchor"]) for found in LINK.finditer(without_fences(text))]


def dead_links(page, text, pages):
    """The links and the names on a page that lead to no file, or to a heading that no page has."""
    for file, anchor in links_of(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), file)) if file else page
        if not (target in pages or (ROOT / target).exists()):
            yield file
        elif anchor and anchor not in anchors_of(pages.get(target, "")):
            yield f"{file}#{anchor}"
    yield from (file + name for file, name in SOURCE.findall(text) if name not in SOURCES.get(f"jaxpyop/{file}", ()))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert list(dead_links(page, PAGES[page], PAGES)) == []


@pytest.mark.parametrize("page", PAGES)
def test_an_anchor_is_one_heading(page):
    linked = {anchor for _, anchor in links_of("".join(PAGES.values())) if anchor}
    anchors = [anchor for anchor in anchors_of(PAGES[page]) if anchor in linked]
    assert len(anchors) == len(set(anchors))


def test_the_bounds_in_the_table_of_caches():
    row = re.compile(r"^\| `(.*)\.py`: `(.*)` \|.*\| (\d+)\b[^|]*least recently used", re.MULTILINE)
    for module, names, bound in row.findall(PAGES["docs/caches.md"]):
        for name in names.split("`, `"):
            found = pkgutil.resolve_name(f"jaxpyop.{module.replace('/', '.')}:{name}")
            assert found.cache_info().maxsize == int(bound), name


def test_the_first_page_of_the_guide_links_to_every_page():
    """A reader of the repository has no sidebar."""
    start = "docs/guide/start.md"
    linked = {posixpath.normpath(posixpath.join("docs/guide", file)) for file, _ in links_of(PAGES[start])}
    assert {page for page in PAGES if page.startswith("docs/")} - linked == {"docs/index.md", start}

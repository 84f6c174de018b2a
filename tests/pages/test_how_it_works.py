"""The page "how it works" and its picture fit the source: every path and every name on the page exists."""

import pathlib
import re

import pytest

import jaxpyop
from tests.pages.test_examples import FENCE, PAGES
from tests.shared.util import load

SOURCE = pathlib.Path(jaxpyop.__file__).parent
ROOT = SOURCE.parent
PAGE = PAGES["docs/how_it_works.md"]
FILES = [path for folder in ("jaxpyop", "tests") for path in (ROOT / folder).rglob("*.py")]
CODE = "".join(path.read_text(encoding="utf-8") for path in FILES)
PATH = re.compile(r"[\w.]+(?:/[\w.]+)*(?:\.py|/)")
PICTURES = "".join(fence["text"] for fence in FENCE.finditer(PAGE) if fence["language"] == "text")


def spans(text):
    """The pieces of code in a text."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def paths(text):
    """The files and folders of ours that a text names."""
    named = [span for span in spans(text) if PATH.fullmatch(span)]
    return [name for name in named if not name.startswith("jax/")]


def names(text):
    """The names of ours in a text: words of code that are not paths."""
    return [span for span in spans(text) if re.fullmatch(r"\w+", span)]


def exists(path):
    return (SOURCE / path).exists() or (ROOT / path).exists()


@pytest.mark.parametrize("path", sorted(set(paths(PAGE))))
def test_a_path_on_the_page_exists(path):
    assert exists(path)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b_\w+(?:/\w+)*(?:\.py|/)", PICTURES))))
def test_a_path_in_the_way_of_a_call_exists(path):
    assert exists(path)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\b[A-Z]\w+\.\w+\b", PICTURES))))
def test_a_method_in_the_way_of_a_call_exists(name):
    owner, method = name.split(".")
    assert re.search(rf"^class {owner}\b(?:(?!^class ).*\n)*?    def {method}\b", CODE, re.MULTILINE)


RECIPES = re.findall(r"^## (Recipe: .*)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("title", "recipe"), RECIPES, ids=[title for title, _ in RECIPES])
def test_the_names_in_a_recipe_are_in_the_code(title, recipe):
    assert [name for name in names(recipe) if not re.search(rf"\b{name}\b", CODE)] == []


def test_there_are_recipes():
    assert len(RECIPES) >= 8


def test_every_room_is_on_the_page():
    rooms = [path.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")]
    missing = [str(room.parent) for room in rooms if f"`{room.parent}/`" not in PAGE]
    assert set(missing) == {"."}


def test_the_picture_is_that_of_the_package():
    drawn = load(ROOT / "docs" / "rooms.py").draw()
    assert (ROOT / "docs" / "rooms.svg").read_text(encoding="utf-8") == drawn, "python docs/rooms.py draws it again"


@pytest.mark.parametrize(
    ("text", "found"),
    [("`_op/`", ["_op/"]), ("`_tape/ops.py` and `x`", ["_tape/ops.py"]), ("`jax/_src/pjit.py`", []), ("`f(x)`", [])],
)
def test_paths_are_found(text, found):
    assert paths(text) == found

"""Every message of jaxpyop on the page on troubleshooting is one that the package can raise or warn with."""

import ast
import functools
import pathlib
import re

import pytest

import jaxpyop
from tests.pages.test_examples import PAGES

SOURCE = pathlib.Path(jaxpyop.__file__).parent


@functools.cache
def texts():
    """All strings of the package. Where a value is filled in there is an ellipsis."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")]
    return [
        text_of(node) for tree in trees for node in ast.walk(tree) if isinstance(node, (ast.Constant, ast.JoinedStr))
    ]


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node.value, str) else ""


def messages():
    section = PAGES["docs/guide/troubleshooting.md"].split("\n## Messages from jaxpyop\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("message", messages())
def test_a_message_on_the_page_is_in_the_package(message):
    assert any(message in text for text in texts())


def test_the_search_itself():
    assert not any("a message that nobody has " + "written" in text for text in texts())
    assert text_of(ast.parse("f'a {b} c' 'd'").body[0].value) == "a … cd"

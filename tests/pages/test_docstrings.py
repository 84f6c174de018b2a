"""Every public name is documented, in full, and is in the reference.

The rules are in `docs/docstrings.py`, which the build of the reference asks, too.
"""

import re

import pytest

import jaxpyop
from tests.pages.pages import ROOT, load_script

docstrings = load_script(ROOT / "docs" / "docstrings.py")
PUBLIC = docstrings.public_names(jaxpyop)
REFERENCE = (ROOT / "docs" / "reference.rst").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings(name):
    owner = PUBLIC.get(name.rpartition(".")[0])
    assert docstrings.problems(name, PUBLIC[name], docstrings.own_doc(owner) or "") == []


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has(name):
    shown = name.rpartition(".")[0] if docstrings.is_value(PUBLIC[name]) else name
    assert re.search(rf"(?<![\w.]){re.escape(shown)}(?![\w.])", REFERENCE)


def test_the_reference_has_nothing_else():
    directives = re.findall(r"^\.\. auto\w+:: ([\w.]+)", REFERENCE, re.MULTILINE)
    assert directives
    assert set(directives) <= set(PUBLIC)

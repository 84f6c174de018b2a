"""Every public name is documented, in full, and is in the reference.

The rules are in `docs/docstrings.py`, which the build of the reference asks, too.
"""

import inspect
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


def complete(x, *rest):
    """Add, as JAX does.

    Args:
        x: a number.
        *rest: more of them.

    Returns:
        The sum.

    Raises:
        TypeError: no numbers.

    Example:
        >>> complete(1, 2)
        3
    """
    return sum(rest, x)


def changed(old, new):
    def function(x, *rest):
        pass

    function.__doc__ = inspect.cleandoc(complete.__doc__).replace(old, new)  # Python 3.13 cleans it by itself
    return function


@pytest.mark.parametrize(
    ("function", "flaw"),
    [
        (changed("x: a number.", ""), "nothing in Args on 'x'"),
        (changed("x: a", "y: a"), "'y' in Args, which it has not"),
        (changed("Returns:", "Gives:"), "no Returns"),
        (changed("Raises:", "Errors:"), "no Raises"),
        (changed(">>> ", ""), "no Example"),
        (changed("JAX", "a pocket calculator"), "no source"),
    ],
    ids=["an argument left out", "an unknown argument", "no returns", "no raises", "no example", "no source"],
)
def test_flaws_are_found(function, flaw):
    assert docstrings.problems("complete", complete) == []
    assert flaw in "; ".join(docstrings.problems("m.thing", function))

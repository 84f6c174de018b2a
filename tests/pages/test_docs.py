"""Every public name is documented, in full, and is in the reference.

The names and the rules are in `docs/docstrings.py`, which the build of the reference asks too.
"""

import importlib
import inspect
import pathlib
import re
import subprocess
import sys
import textwrap
import types

import pytest

import jaxpyop
from tests.shared.util import ROOT, load

DOCS = pathlib.Path(__file__).parents[2] / "docs"


docstrings = load(DOCS / "docstrings.py")
PUBLIC = docstrings.public_names(jaxpyop)
REFERENCE = "".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.rst")))


def owner_of(name):
    return PUBLIC.get(name.rpartition(".")[0])


def test_the_public_names():
    assert set(PUBLIC) == {
        *("jaxpyop", "jaxpyop.py_function", "jaxpyop.numpy_function", "jaxpyop.py_func", "jaxpyop.reraise"),
        *("jaxpyop.config", "jaxpyop.config.mode", "jaxpyop.config.transport", "jaxpyop.config.override"),
        *("jaxpyop.config.max_records", "jaxpyop.config.max_record_bytes", "jaxpyop.config.max_scratch_bytes"),
        *("jaxpyop.config.constants", "jaxpyop.compat"),
        *("jaxpyop.compat.v1", "jaxpyop.compat.v1.py_function", "jaxpyop.compat.v1.numpy_function"),
        *("jaxpyop.compat.v1.py_func", "jaxpyop.compat.v2", "jaxpyop.compat.v2.py_function"),
        *("jaxpyop.compat.v2.numpy_function", "jaxpyop.contrib", "jaxpyop.contrib.framework"),
        *("jaxpyop.contrib.framework.py_func", "jaxpyop.padded"),
        *("jaxpyop.clear_records", "jaxpyop.jit", "jaxpyop.report"),
        *("jaxpyop.export", "jaxpyop.load", "jaxpyop.register"),
    }


def test_no_imported_module_is_a_public_name():
    for module in [thing for thing in PUBLIC.values() if isinstance(thing, types.ModuleType)]:
        seen = [thing for _, thing in docstrings.public_attributes(module) if isinstance(thing, types.ModuleType)]
        assert all(thing in PUBLIC.values() for thing in seen), module


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings(name):
    assert docstrings.problems(name, PUBLIC[name], docstrings.own_doc(owner_of(name)) or "") == []


def is_in(reference, name, thing):
    """A name by itself; the values of an object come with the object."""
    shown = name.rpartition(".")[0] if docstrings.is_value(thing) else name
    return re.search(rf"(?<![\w.]){re.escape(shown)}(?![\w.])", reference)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has(name):
    assert is_in(REFERENCE, name, PUBLIC[name])


def test_the_reference_has_nothing_else():
    directives = re.findall(r"^\.\. auto\w+:: ([\w.]+)", REFERENCE, re.MULTILINE)
    assert directives
    assert set(directives) <= set(PUBLIC)


# --------------------------------------------------------------- the checker itself


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

    doc = inspect.cleandoc(complete.__doc__)  # Python 3.13 does so by itself
    assert old in doc
    function.__doc__ = doc.replace(old, new)
    return function


def undocumented(x):
    pass


class Undocumented:
    """A thing like JAX's.

    Attributes:
        gone: no longer there.

    Raises:
        ValueError: never.

    Example:
        >>> 1
        1
    """

    there = 1

    def method(self, x):
        pass


FLAWS = {
    "undocumented": (undocumented, "no docstring"),
    "unknown-parameter": (changed("x: a", "y: a"), "'y' in Args, which it has not"),
    "parameter-left-out": (changed("x: a number.", ""), "nothing in Args on 'x'"),
    "parameter-without-a-word": (changed("x: a number.", "x:"), "nothing in Args on 'x'"),
    "order-of-parameters": (
        changed("x: a number.\n    *rest: more of them.", "*rest: more.\n    x: one."),
        "another order",
    ),
    "no-returns": (changed("Returns:", "Gives:"), "no Returns"),
    "empty-returns": (changed("    The sum.\n", ""), "no Returns"),
    "no-raises": (changed("Raises:", "Errors:"), "no Raises"),
    "no-example": (changed(">>> ", ""), "no Example"),
    "no-source": (changed("JAX", "a pocket calculator"), "no source"),
    "attributes": (Undocumented(), "nothing in Attributes on 'there'; has 'gone' in Attributes, which it has not"),
    "method": (Undocumented().method, "no docstring"),
    "module": (types.ModuleType("m"), "no docstring"),
    "value": (1, "not among its owner's Attributes"),
}


def test_a_complete_docstring_has_no_flaws():
    assert docstrings.problems("complete", complete) == []


@pytest.mark.parametrize("flaw", FLAWS)
def test_flaws_are_found(flaw):
    thing, text = FLAWS[flaw]
    assert text in "; ".join(docstrings.problems("m.thing", thing))


def test_public_names_are_found_by_themselves(tmp_path, monkeypatch):
    package = tmp_path / "documented_package"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("import os\nclass C:\n    value = 1\n    def method(self): ...\nthing = C()\n")
    (package / "_private.py").write_text("def function(): ...\n")
    (package / "sub" / "__init__.py").write_text("")
    (package / "sub" / "deep.py").write_text("from documented_package._private import function\n_hidden = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = docstrings.public_names(importlib.import_module("documented_package"))
    expected = ["", ".C", ".C.method", ".C.value", ".thing", ".thing.method", ".thing.value"]
    expected += [".sub", ".sub.deep", ".sub.deep.function"]
    assert set(found) == {f"documented_package{name}" for name in expected}


@pytest.mark.parametrize(
    ("name", "there"),
    [("jaxpyop.py_function", True), ("jaxpyop.py_func", False), ("py_function", False), ("jaxpyop.py", False)],
)
def test_a_name_is_found_whole(name, there):
    assert bool(is_in(".. autofunction:: jaxpyop.py_function\n", name, undocumented)) is there


# ------------------------------------------------------------------------- the build

FINE = '''
    """A module, as JAX has."""

    def function(x):
        """Return `x`; see :func:`jaxpyop.reraise`.

        Args:
            x: as for :func:`jax.jit`.

        Returns:
            `x`.

        Raises:
            TypeError: never.

        Example:
            >>> 1
            1
        """
'''
BUILDS = {
    "fine": ("", "", None),
    "broken-reference": (":func:`jaxpyop.reraise`", ":func:`jaxpyop.raise_again`", "target not found"),
    "broken-reference-to-a-parameter-type": ("def function(x)", "def function(x: 'Nothing')", "target not found"),
    "unknown-parameter": ("x: as", "y: as", "has 'y' in Args, which it has not"),
    "bad-markup": ("`x`.\n", "``x`.\n", "start-string without end-string"),
}


@pytest.mark.parametrize("case", BUILDS)
def test_the_build_ends_with_an_error_of(case, tmp_path):
    old, new, said = BUILDS[case]
    (tmp_path / "sample.py").write_text(textwrap.dedent(FINE.replace(old, new, 1)))
    page = "Sample\n======\n\n.. automodule:: sample\n   :members:\n\n.. autoclass:: jaxpyop.reraise\n"
    (tmp_path / "index.rst").write_text(page)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {ROOT!r}]; from sphinx.cmd.build import main; "
    needed = "extensions=sphinx.ext.autodoc,sphinx.ext.napoleon"  # loading that for notebooks takes seconds
    options = ["-n", "-W", "--keep-going", "-q", "-b", "dummy", "-c", str(DOCS), "-D", needed]
    options += [str(tmp_path), str(tmp_path / "out")]
    command = [sys.executable, "-c", f"{code}sys.exit(main({options!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if said is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode != 0
        assert said in done.stderr

"""Build the documentation: ``python -m sphinx -n -W --keep-going docs OUTPUT``.

Needs the extra ``docs``, and no network: names of other packages are shown, not linked. The notebooks are
shown as they are saved; nothing is run. They lie beside this folder, so the build copies them to
``docs/notebooks``, which git ignores. Links are written for the files as they lie in the repository;
those that lead out of this folder are turned here.
"""

import pathlib
import re
import shutil
import sys

from sphinx.util import logging

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import docstrings

import jaxpyop

HERE = pathlib.Path(__file__).parent

project = "jaxpyop"
author = "the jaxpyop authors"
release = version = jaxpyop.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
exclude_patterns = ["__pycache__", "**.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"jaxpyop {release}"
html_show_copyright = False
default_role = "code"  # `x` in a docstring is the argument x

maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"

nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"(Pool|Casting|Mode|VmapMethod|Vjp|Jvp|Transpose|Unpack|typing\.\w+|jaxpyop\._\w+(\.\w+)*)"),
    ("py:(func|class|exc)", r"(jax|concurrent\.futures|collections\.abc)(\.\w+)+"),
]


def check(app, what, name, thing, options, lines):
    """Warn of a docstring that does not fit its object, which ends the build."""
    for problem in docstrings.problems(name, thing):
        logging.getLogger("docstrings").warning("%s %s", name, problem, location=name)


def copy_notebooks(app, config):
    """Bring the notebooks, and the picture among them, into the folder that Sphinx reads."""
    if pathlib.Path(app.srcdir) == HERE:  # the tests build other folders with this file
        shutil.rmtree(HERE / "notebooks", ignore_errors=True)
        shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", ignore=shutil.ignore_patterns("*.py", ".*"))


def from_the_readme(app, path, parent, content):
    """README.md lies one folder up: `docs/guide/speed.md` is `guide/speed.md` here."""
    content[0] = content[0].replace("](docs/", "](")


def to_the_notebooks(app, docname, content):
    """The notebooks' folder lies in this one while it is built, and not beside it."""
    content[0] = re.sub(r"\]\(((?:\.\./)*)\.\./notebooks/", r"](\1notebooks/", content[0])


def setup(app):
    """Check every docstring that is rendered; have all pages and their links in place."""
    app.connect("autodoc-process-docstring", check)
    app.connect("config-inited", copy_notebooks)
    app.connect("include-read", from_the_readme)
    app.connect("source-read", to_the_notebooks)

"""Build the reference: ``python -m sphinx -n -W --keep-going .docs OUTPUT``.

Needs the extra ``docs``, and no network: names of other packages are shown, not linked.
"""

import pathlib
import sys

from sphinx.util import logging

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import docstrings

import jaxpyop

project = "jaxpyop"
author = "the jaxpyop authors"
release = version = jaxpyop.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
exclude_patterns = ["__pycache__"]
html_theme = "furo"
html_title = f"jaxpyop {release}"
html_show_copyright = False
default_role = "code"  # `x` in a docstring is the argument x

maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
myst_heading_anchors = 3

nitpicky = True
nitpick_ignore_regex = [("py:(func|class|exc)", r"(jax|concurrent\.futures|collections\.abc)(\.\w+)+")]


def check(app, what, name, thing, options, lines):
    """Warn of a docstring that does not fit its object, which ends the build."""
    for problem in docstrings.problems(name, thing):
        logging.getLogger("docstrings").warning("%s %s", name, problem, location=name)


def setup(app):
    """Check every docstring that is rendered."""
    app.connect("autodoc-process-docstring", check)

"""Build the documentation: ``python -m sphinx -n -W --keep-going docs OUTPUT``.

The build needs the extra ``docs``, and no network. With the environment variable JAXPYOP_DOCS_ONLINE it fetches the
inventories of JAX, NumPy and Python, which are kept in ``docs/inventories``. Names of packages whose inventory is not
there are shown without links. The notebooks are shown as they are saved, and nothing is run. The build copies them from
the folder beside this one to ``docs/notebooks``. Git ignores both folders. Links are written for the repository; this
file adapts those that leave the folder ``docs``.
"""

import os
import pathlib
import re
import shutil
import sys
import urllib.request

from docutils import nodes
from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import docstrings

import jaxpyop

HERE = pathlib.Path(__file__).parent

project = "jaxpyop"
author = "the jaxpyop authors"
release = version = jaxpyop.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"]
extensions += ["myst_nb", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["__pycache__", "**.ipynb_checkpoints", "jupyter_execute"]
html_theme = "furo"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_logo = html_favicon = "_static/logo.svg"
html_title = f"jaxpyop {release}"
copybutton_exclude = ".linenos, .gp, .go"  # a prompt and its output are not copied
html_show_copyright = False
default_role = "code"  # `x` in a docstring is the argument x

maximum_signature_line_length = 80
autodoc_typehints = "none"  # the descriptions say what an argument may be
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "colon_fence"]
nb_execution_mode = "off"

nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"(Pool|Casting|Mode|VmapMethod|Vjp|Jvp|Hvp|Step|Transpose)"),
    ("py:class", r"(os\.PathLike|Unpack|typing\.\w+|jaxpyop\._\w+(\.\w+)*)"),
    ("py:(func|class|exc|mod)", r"(jax|concurrent\.futures|collections\.abc)(\.\w+)+"),
    ("py:obj", ".*"),  # those that `link_names` tries
]

INVENTORIES = {
    "jax": "https://docs.jax.dev/en/latest/",
    "numpy": "https://numpy.org/doc/stable/",
    "python": "https://docs.python.org/3/",
}


def inventories():
    """Return those of the inventories that are at hand, for intersphinx."""
    files = {name: HERE / "inventories" / f"{name}.inv" for name in INVENTORIES}
    for name, file in files.items():
        if "JAXPYOP_DOCS_ONLINE" in os.environ and not file.exists():
            try:
                with urllib.request.urlopen(f"{INVENTORIES[name]}objects.inv", timeout=10) as answer:
                    content = answer.read()
            except OSError as error:
                logging.getLogger("inventories").info("no links to %s: %s", INVENTORIES[name], error)
                continue
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
    return {name: (INVENTORIES[name], str(file)) for name, file in files.items() if file.exists()}


intersphinx_mapping = inventories()


def check(app, what, name, thing, options, lines):
    """Warns about a docstring that does not fit its object. With -W this ends the build."""
    for problem in docstrings.problems(name, thing):
        logging.getLogger("docstrings").warning("%s %s", name, problem, location=name)


def copy_notebooks(app, config):
    """Copies the notebooks into the folder that Sphinx reads."""
    if pathlib.Path(app.srcdir) == HERE:  # the tests build other folders with this file
        shutil.rmtree(HERE / "notebooks", ignore_errors=True)
        shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", ignore=shutil.ignore_patterns("*.py", ".*"))


def from_the_readme(app, path, parent, content):
    """Adapts the links of README.md and CONTRIBUTING.md, which lie one folder up."""
    content[0] = with_admonitions(content[0]).replace("](docs/", "](").replace("](CHANGELOG.md)", "](changelog.md)")
    content[0] = content[0].replace("](CONTRIBUTING.md)", "](contributing.md)")
    content[0] = content[0].replace("[Apache-2.0](LICENSE)", "Apache-2.0")


ALERT = re.compile(r"^> \[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\n((?:>.*\n?)+)", re.MULTILINE)


def with_admonitions(text):
    """Returns a page with Sphinx's form of GitHub's alerts, ``> [!NOTE]``."""
    inside = lambda body: re.sub(r"^> ?", "", body, flags=re.MULTILINE).rstrip("\n")
    return ALERT.sub(lambda found: f":::{{{found[1].lower()}}}\n{inside(found[2])}\n:::\n", text)


def adapt_source(app, docname, content):
    """Adapts links to the notebooks, which lie in this folder during the build, and sets drawings apart from output."""
    content[0] = with_admonitions(content[0])
    table = r"```{csv-table}\n:file: \1\n:header-rows: 1\n:align: left\n```"
    content[0] = re.sub(r"<!-- table: (\S+) -->", table, content[0])
    content[0] = re.sub(r"\]\(((?:\.\./)*)\.\./notebooks/", r"](\1notebooks/", content[0])
    content[0] = re.sub(r"(<!-- picture: .* -->\n```)text", r"\1none", content[0])


def forget_overloads(app):
    """Lets autodoc show the signature at run time, which lists all options, instead of `**options` in the overloads."""
    analyzer = ModuleAnalyzer.for_module("jaxpyop._api")
    analyzer.analyze()
    analyzer.overloads.clear()


def readable(app, what, name, thing, options, signature, returned):
    """Writes `...` for an argument that has no default but may be left out."""
    return (signature and signature.replace("'<not given>'", "...")), returned


# A name with a package in front of it, as code on a page.
NAME = re.compile(r"(jaxpyop|jax|jnp|numpy|np|concurrent)((?:\.\w+)+)(?:\(\))?")
PACKAGES = {"jnp": "jax.numpy", "np": "numpy"}


def link_names(app, doctree):
    """Makes links of names such as `jax.jit` in code, where the reference or an inventory has them."""
    for literal in list(doctree.findall(nodes.literal)):
        found = NAME.fullmatch(literal.astext())
        inside = (nodes.reference, nodes.title, addnodes.pending_xref)
        if found and not isinstance(literal.parent, inside) and "xref" not in literal["classes"]:
            target = PACKAGES.get(found[1], found[1]) + found[2]
            link = addnodes.pending_xref("", reftype="obj", refdomain="py", reftarget=target, refwarn=False)
            literal.replace_self(link)
            link += literal


def remove_outputs(app, exception):
    """Removes the outputs of the notebooks that myst_nb writes beside the output folder. The pages have their own."""
    shutil.rmtree(pathlib.Path(app.outdir).parent / "jupyter_execute", ignore_errors=True)


def setup(app):
    """Connects the functions above to the build."""
    app.connect("autodoc-process-docstring", check)
    app.connect("config-inited", copy_notebooks)
    app.connect("builder-inited", forget_overloads)
    app.connect("autodoc-process-signature", readable)
    app.connect("build-finished", remove_outputs)
    app.connect("include-read", from_the_readme)
    app.connect("source-read", adapt_source)
    app.connect("doctree-read", link_names)

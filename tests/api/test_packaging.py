"""What the package promises before anything is called: metadata, imports, names."""

import ast
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import jaxpyop

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = pathlib.Path(jaxpyop.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# --------------------------------------------------------------------- metadata


def test_the_version_has_one_source():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "jaxpyop/__init__.py"
    found = [path.name for path in SOURCE.rglob("*.py") if re.search(r"^__version__ =", path.read_text(), re.MULTILINE)]
    assert found == ["__init__.py"]


def test_the_changelog_begins_with_the_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == jaxpyop.__version__


def test_dependencies():
    names = {re.match(r"[\w-]+", requirement).group() for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"jax", "jaxlib", "numpy"}


def test_types_are_shipped():
    assert (SOURCE / "py.typed").is_file()
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["jaxpyop"]


def test_the_installed_distribution():
    """It has every file of this checkout, or, installed with `-e`, the checkout itself."""
    distribution = importlib.metadata.distribution("jaxpyop")
    assert distribution.version == jaxpyop.__version__
    paths = [file for file in distribution.files if file.suffix == ".pth"]
    if paths:
        assert [file.read_text().strip() for file in paths] == [str(SOURCE.parent)]
    else:
        here = {str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*.py")}
        assert here | {"jaxpyop/py.typed"} <= {str(file) for file in distribution.files}


# ---------------------------------------------------------------------- imports

IMPORT = """
import json, sys
import jax, numpy, jax.experimental.buffer_callback
before = list(sys.modules)
import jaxpyop
after = list(sys.modules)
from jaxpyop import _jaxcore
backends = [_jaxcore.backends_are_initialized()]
jax.devices()
print(json.dumps([before, after, [*backends, _jaxcore.backends_are_initialized()]]))
"""


@pytest.fixture(scope="module")
def importing():
    """The modules before and after, and whether there are backends: then, and when somebody has asked for them."""
    command = [sys.executable, "-W", "error", "-c", IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_brings_nothing_but_jax_and_the_standard_library(importing):
    before, after, _ = importing
    there, now = ({name.partition(".")[0] for name in names} for names in (before, after))
    assert now - there - set(sys.stdlib_module_names) == {"jaxpyop"}


def test_import_leaves_the_command_line_and_process_pools_alone(importing):
    before, after, _ = importing
    assert "jaxpyop._op" in after
    unwanted = {"jaxpyop.__main__", "jaxpyop._cli", "concurrent.futures.process", "argparse"}
    assert unwanted & (set(after) - set(before)) == set()


def test_import_makes_no_backend(importing):
    assert importing[2] == [False, True]


BELOW = ("jax.core", "jax.extend", "jax.interpreters", "jax._src")


def below_the_surface(code):
    """Every use of JAX below its documented surface, as `line: name`."""
    names = {}
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found = [ast.unparse(node)]
        else:
            continue
        names.update({f"{node.lineno}: {n}": n for n in found})
    return sorted(shown for shown, name in names.items() if name.startswith(BELOW))


def test_only_jaxcore_goes_below_the_surface_of_jax():
    files = {path for path in SOURCE.rglob("*.py") if path.parent.name != "_jaxcore"}
    found = {path.name: below_the_surface(path.read_text(encoding="utf-8")) for path in files}
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import jax.core",
        "import jax._src.core as c",
        "from jax import core",
        "from jax.extend import linear_util",
        "from jax._src.core import Trace",
        "import jax\nx = jax.interpreters.mlir.lower_fun",
    ],
)
def test_the_scan_itself(code):
    assert below_the_surface(code)
    assert not below_the_surface("import jax\nfrom jax.experimental import io_callback\nx = jax.lax.scan")


# ------------------------------------------------------------------------ names


def test_aliases():
    v1, v2 = jaxpyop.compat.v1, jaxpyop.compat.v2
    assert v1.py_func is jaxpyop.py_func
    assert v1.py_function is v2.py_function is jaxpyop.py_function
    assert v1.numpy_function is v2.numpy_function is jaxpyop.numpy_function


def test_every_module_states_its_idea():
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path

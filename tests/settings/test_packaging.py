"""What the package promises before anything is called: its metadata, and what its import brings and leaves alone."""

import json
import pathlib
import re
import sys
import tomllib

import pytest

import jaxpyop
from tests.shared.processes import run_python

ROOT = pathlib.Path(__file__).parents[2]


def test_the_version_has_one_source():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == jaxpyop.__version__
    names = {re.match(r"[\w-]+", requirement).group() for requirement in project["project"]["dependencies"]}
    assert names == {"jax", "jaxlib", "numpy"}


def test_the_public_names():
    public = {name for name in dir(jaxpyop) if not name.startswith("_")}
    ops = {"py_function", "numpy_function", "py_func", "compat", "contrib", "padded", "static", "map_batches"}
    others = {"jit", "export", "load", "register", "config", "report", "reraise", "clear_records"}
    assert public == ops | others | {"explain_traced", "numerical", "Workers"}


@pytest.mark.slow
def test_what_the_import_brings():
    """The standard library and JAX, neither the command line nor process pools, and no backend."""
    code = (
        "import json, sys, jax, numpy, jax.experimental.buffer_callback\nbefore = set(sys.modules)\nimport jaxpyop\n"
        "after = set(sys.modules)\nfrom jax._src import xla_bridge\n"
        "print(json.dumps([[*(after - before)], xla_bridge.backends_are_initialized()]))"
    )
    brought, backends = json.loads(run_python(code, PYTHONWARNINGS="error").stdout)
    assert not backends
    assert {name.partition(".")[0] for name in brought} - set(sys.stdlib_module_names) <= {"jax", "jaxpyop"}
    assert not {"jaxpyop.__main__", "jaxpyop._cli", "concurrent.futures.process", "argparse"} & set(brought)

"""The notebooks as they are saved: run from top to bottom, with outputs, without traces of a machine.

`pytest --nbmake notebooks` runs them, which needs the extra `notebooks`.
"""

import ast
import json
import re
import sys
import tomllib

import pytest

from tests.pages.pages import ROOT

FOLDER = ROOT / "notebooks"
NOTEBOOKS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.ipynb"))}
PATHS = re.compile(
    r"(?<![\w.)/])/(?:home|root|tmp|work|Users|usr|opt|var|private)/|[A-Z]:\\|ipykernel_\d|site-packages"
)
# The packages that are imported by another name than that of their distribution.
MODULES = {"scikit-fem": "skfem", "dask": "distributed"}

every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text_of(output):
    """All text of an output, without pictures."""
    data = [text for kind, text in output.get("data", {}).items() if not kind.startswith("image/")]
    parts = [output.get("text", ""), output.get("traceback", ""), *data]
    return "".join("".join(part) if isinstance(part, list) else str(part) for part in parts)


@every_notebook
def test_it_was_run_from_top_to_bottom(name):
    counts = [cell["execution_count"] for cell in code_cells(NOTEBOOKS[name])]
    assert counts == list(range(1, len(counts) + 1))


@every_notebook
def test_its_outputs_show_no_warning_no_path_and_no_error_that_is_not_meant(name):
    for cell in code_cells(NOTEBOOKS[name]):
        for output in cell["outputs"]:
            assert output.get("name") != "stderr", cell["id"]
            assert output["output_type"] != "error" or "raises-exception" in cell["metadata"].get("tags", []), cell[
                "id"
            ]
            assert not PATHS.search(text_of(output)), cell["id"]


@every_notebook
def test_it_imports_nothing_but_the_extra(name):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    distributions = [re.match(r"[\w-]+", line)[0] for line in extras["notebooks"]]
    allowed = {MODULES.get(each, each) for each in distributions} | {"jax", "numpy", "jaxpyop", "IPython"}
    code = "\n".join("".join(line for line in cell["source"] if line[0] != "%") for cell in code_cells(NOTEBOOKS[name]))
    nodes = list(ast.walk(ast.parse(code)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in imported} <= allowed | sys.stdlib_module_names


@every_notebook
def test_its_links_lead_somewhere(name):
    cells = [cell for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "markdown"]
    text = "".join("".join(cell["source"]) for cell in cells)
    assert all((FOLDER / link).exists() for link in re.findall(r"\]\(([^)#:]+)\)", text))

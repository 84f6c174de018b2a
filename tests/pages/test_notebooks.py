"""The notebooks as they are saved: run from top to bottom, with outputs, without traces of a machine.

That they run is for `pytest --nbmake notebooks`, which needs the extra `notebooks`; this reads the files only.
"""

from __future__ import annotations

import ast
import base64
import contextvars
import json
import pathlib
import re
import sys
import tomllib

import pytest

from jaxpyop._host.host_call import _without_cell

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = (
    "1_quickstart",
    "2_gradients",
    "3_training_step",
    "4_debugging",
    "5_scaling",
    "6_reinforcement_learning",
    "7_inverse_problem",
    "8_markov_chain",
    "9_mutable_state",
    "10_data_loader",
    "11_cluster",
    "12_traced_or_eager",
)
LARGEST = 400_000  # bytes
PACKAGE = {"jax", "numpy", "jaxpyop"}
WITH_IPYKERNEL = {"IPython"}  # which depends on it
MODULES = {"scikit-fem": "skfem", "dask": "distributed"}
PATHS = re.compile(
    r"(?<![\w.)/])/(?:home|root|tmp|work|Users|usr|opt|var|private)/|[A-Z]:\\|ipykernel_\d|site-packages"
)
PNG = b"\x89PNG\r\n\x1a\n"


def is_code(cell):
    return cell["cell_type"] == "code"


def outputs_of(notebook):
    return [output for cell in notebook["cells"] if is_code(cell) for output in cell["outputs"]]


def pictures_of(notebook):
    return [base64.b64decode(o["data"]["image/png"]) for o in outputs_of(notebook) if "image/png" in o.get("data", {})]


def texts_of(output):
    """All text of an output; pictures aside."""
    data = {kind: value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")}
    for value in (output.get("text"), *data.values(), output.get("traceback")):
        if value is not None:
            yield value if isinstance(value, str) else "".join(map(str, value))


def imports_of(notebook):
    """The top-level names of the packages that the code imports."""
    for cell in filter(is_code, notebook["cells"]):
        code = "".join(line for line in cell["source"] if not line.startswith("%"))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module.partition(".")[0]


def problems(notebook, allowed):
    """What is wrong with a saved notebook, in words."""
    cells = notebook["cells"]
    code = [cell for cell in cells if is_code(cell)]
    ids = [cell.get("id", "") for cell in cells]
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        yield "not nbformat 4.5"
    if notebook["metadata"] != {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }:
        yield "metadata of a machine"
    if len(set(ids)) != len(ids) or not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in ids):
        yield "cell ids"
    if any(set(cell["metadata"]) - {"tags"} for cell in cells):
        yield "metadata of cells"
    if cells[0]["cell_type"] != "markdown" or not cells[0]["source"][0].startswith("# "):
        yield "no title"
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        yield "not run from top to bottom"
    for cell in code:
        kinds = {output["output_type"] for output in cell["outputs"]}
        if "error" in kinds and "raises-exception" not in cell["metadata"].get("tags", []):
            yield f"an error in {cell['id']}"
        if any(output.get("name") == "stderr" for output in cell["outputs"]):
            yield f"a warning in {cell['id']}"
    if not outputs_of(notebook):
        yield "no outputs"
    if not any(picture.startswith(PNG) for picture in pictures_of(notebook)):
        yield "no picture"
    for text in (text for output in outputs_of(notebook) for text in texts_of(output)):
        if found := PATHS.search(text):
            yield f"a path: {found[0]}"
    if unknown := set(imports_of(notebook)) - sys.stdlib_module_names - allowed:
        yield f"imports {sorted(unknown)}"


def read(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def extra(name):
    with open(ROOT / "pyproject.toml", "rb") as file:
        lines = tomllib.load(file)["project"]["optional-dependencies"][name]
    names = [re.match(r"[\w-]+", line)[0] for line in lines]
    return {MODULES.get(name, name) for name in names}


def test_every_notebook_is_checked():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_as_saved(name):
    assert list(problems(read(name), PACKAGE | WITH_IPYKERNEL | extra("notebooks"))) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_small(name):
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST


@pytest.mark.parametrize("name", NAMES)
def test_links_between_notebooks_lead_somewhere(name):
    text = "".join(line for cell in read(name)["cells"] if not is_code(cell) for line in cell["source"])
    assert all((FOLDER / link).exists() for link in re.findall(r"\]\(([^)#:]+)\)", text))


def sample():
    """A good notebook, by hand."""
    data = {"image/png": base64.b64encode(PNG).decode(), "text/plain": ["<Figure>"]}
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
        {"output_type": "display_data", "data": data, "metadata": {}},
    ]
    code = {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": 1, "outputs": outputs}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "cells": [
            {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# Title"]},
            code | {"source": ["%run x\n", "import os, jax.numpy"]},
        ],
    }


def set_at(*path):
    """A change of the sample: the last of `path` at the place that the others name."""
    *way, key, value = path

    def change(notebook):
        for step in way:
            notebook = notebook[step]
        notebook[key] = value

    return change


OUTPUTS = ("cells", 1, "outputs")
CHANGES = {
    "version": (set_at("nbformat_minor", 4), "not nbformat 4.5"),
    "metadata": (set_at("metadata", "language_info", "version", "3.12.1"), "metadata of a machine"),
    "ids": (set_at("cells", 1, "id", "a"), "cell ids"),
    "timing": (set_at("cells", 1, "metadata", "execution", {}), "metadata of cells"),
    "title": (set_at("cells", 0, "source", ["Title"]), "no title"),
    "order": (set_at("cells", 1, "execution_count", 2), "not run from top to bottom"),
    "not run": (set_at("cells", 1, "execution_count", None), "not run from top to bottom"),
    "error": (set_at(*OUTPUTS, 0, {"output_type": "error", "traceback": []}), "an error in b"),
    "warning": (set_at(*OUTPUTS, 0, "name", "stderr"), "a warning in b"),
    "picture": (set_at(*OUTPUTS, 1, "data", {"text/plain": ["1"]}), "no picture"),
    "path": (set_at(*OUTPUTS, 0, "text", ["in ", "/home/me/x.py"]), "a path: /home/"),
    "kernel": (set_at(*OUTPUTS, 1, "data", "text/plain", ["ipykernel_12/3.py"]), "a path: ipykernel_1"),
    "import": (set_at("cells", 1, "source", ["import jax, pandas"]), "imports ['pandas']"),
}


def test_the_sample_is_good():
    assert list(problems(sample(), PACKAGE)) == []


@pytest.mark.parametrize("name", CHANGES)
def test_the_check_itself(name):
    change, said = CHANGES[name]
    notebook = sample()
    change(notebook)
    assert said in list(problems(notebook, PACKAGE))


def test_an_error_on_a_tagged_cell_is_meant():
    notebook = sample()
    notebook["cells"][1]["outputs"][0] = {"output_type": "error", "traceback": ["x"]}
    notebook["cells"][1]["metadata"] = {"tags": ["raises-exception"]}
    assert list(problems(notebook, PACKAGE)) == []


# ipykernel 7 keeps in context variables which cell an output belongs to. A body on XLA's threads, in the
# context of the cell that traced the program, printed into that cell, where the output was lost.


def context_of(**values):
    context = contextvars.Context()
    for name, value in values.items():
        context.run(contextvars.ContextVar(name).set, value)
    return context


def test_a_program_does_not_print_into_the_cell_that_traced_it():
    context = _without_cell(context_of(parent_header=1, shell_parent=2, shell_parent_ident=3, user=4))
    assert {variable.name: value for variable, value in context.items()} == {"user": 4}


def test_outside_a_notebook_the_context_stays_as_it_is():
    context = context_of(user=4)
    assert _without_cell(context) is context

"""Run the notebooks and save their outputs, without the parts that differ from run to run.

`python notebooks/regenerate.py` runs all of them, and `python notebooks/regenerate.py 2_gradients` runs one. It needs
the extra `notebooks`. If a cell raises or warns, nothing is saved.
"""

import os
import pathlib
import sys
import time

import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run(notebook):
    """Executes all cells in place."""
    NotebookClient(notebook, timeout=120, record_timing=False, coalesce_streams=True).execute(cwd=str(FOLDER))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise RuntimeError(f"a cell warns:\n{output.text}")


def clean(notebook):
    """Removes versions, times, and ids of the run, which nobody reads."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k == "tags"})
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})


def main(names):
    """Runs the notebooks with these names, or all."""
    # The notebooks are written for a CPU.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        start = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        run(notebook)
        clean(notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - start:.1f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])

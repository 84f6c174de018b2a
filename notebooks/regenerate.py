"""Run the notebooks and save their outputs, without what differs from run to run.

`python notebooks/regenerate.py` runs all of them, `python notebooks/regenerate.py 2_gradients` one.
It needs the extra `notebooks`. Nothing is saved when a cell raises or warns.
"""

import base64
import os
import pathlib
import sys
import time

import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parent
PICTURES = {"2_gradients": "log_huber.png"}  # the notebook's first picture, for README.md
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run(notebook):
    """Execute all cells in place."""
    NotebookClient(notebook, timeout=120, record_timing=False, coalesce_streams=True).execute(cwd=str(FOLDER))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise RuntimeError(f"a cell warns:\n{output.text}")


def clean(notebook):
    """Leave out what nobody reads: versions, times, ids of the run."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k == "tags"})
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})


def first_picture(notebook):
    """The bytes of the first PNG among the outputs."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return base64.b64decode(
        next(output.data["image/png"] for output in outputs if "image/png" in output.get("data", {}))
    )


def main(names):
    """Run the notebooks with these names, or all."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # a CPU is what the notebooks are written for
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        start = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        run(notebook)
        clean(notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        if path.stem in PICTURES:
            (FOLDER / PICTURES[path.stem]).write_bytes(first_picture(notebook))
        print(f"{path.name}: {time.perf_counter() - start:.1f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])

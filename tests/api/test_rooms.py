"""The folders of the package are its architecture: who imports whom, read from the imports themselves.

A room is a folder, and the larger rooms have rooms of their own. A room is entered by its `__init__.py` alone, and
imports run downwards; see the page "how it works".
"""

import ast
import pathlib

import pytest

import jaxpyop

SOURCE = pathlib.Path(jaxpyop.__file__).parent
GROUND = {"_config", "_functions", "_jaxcore"}
# What each room, or file beside the rooms, may import. A room that is not listed imports nothing of ours.
BELOW = {
    "_jaxcore": {"_config"},
    "_host": GROUND,
    "_tape": GROUND,
    "_traced": GROUND,
    "_op": GROUND | {"_host", "_tape", "_traced"},
    "_cut": GROUND | {"_host", "_op"},
    "_saved": GROUND | {"_host", "_op", "_cut"},
    "_keywords": {"_config", "_host", "_op"},
    "_api": {"_cut", "_op", "_keywords"},
    "compat": {"_api"},
    "contrib": {"_api", "_op", "_keywords"},
    "__init__": GROUND | {"_api", "_host", "_saved", "compat", "contrib"},
    "_cli": GROUND | {"_host", "_op", "__init__"},
    "__main__": {"_cli", "__init__"},
}
# The same inside the larger rooms.
INSIDE = {
    "_op": {
        "values": set(),
        "request": {"values"},
        "body": {"values", "request"},
        "primitive": {"values", "request", "body"},
        "derivatives": {"values", "request", "body", "primitive"},
        "traced": {"values", "request", "body"},
        "calls": {"values", "request", "body", "primitive", "derivatives", "traced"},
    },
    "_host": {
        "host_call": set(),
        "memory": set(),
        "show": set(),
        "errors": {"show"},
        "metrics": {"errors", "host_call", "show"},
        "pools": {"errors", "host_call", "metrics"},
        "guard": {"host_call", "pools", "show"},
        "run_batch": {"errors", "host_call", "pools"},
        "host": {"errors", "guard", "host_call", "memory", "metrics", "run_batch"},
    },
    "_cut": {
        "inline": set(),
        "partition": {"inline"},
        "host_steps": {"inline"},
        "plan": {"host_steps", "inline", "partition"},
        "jit": {"inline", "plan"},
    },
}


def imports(code):
    """What `code` imports of ours, as the parts of each module's name after the package's."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "jaxpyop":
            names = [f"jaxpyop.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            names = [str(node.module)]
        else:
            continue
        yield from (tuple(name.split(".")[1:]) for name in names if name.partition(".")[0] == "jaxpyop")


def trespasses(path, code):
    """The imports of the file at `path`, in the package, that it may not have."""
    parts = pathlib.PurePath(path).with_suffix("").parts
    for target in imports(code):
        here, there = parts[0], target[0] if target else "__init__"
        if there != here:
            below, depth = BELOW.get(here, set()), 1
        elif here in INSIDE and len(target) > 1 and target[1] != parts[1]:
            # The facade of a large room imports from all rooms within it.
            inside = INSIDE[here]
            below, depth = set(inside) if parts[1] == "__init__" else inside[parts[1]], 2
            there = target[1]
        else:
            continue
        if there not in below:
            yield f"{path} imports {'.'.join(target[:depth]) or there}, which is not below it"
        elif (there.startswith("_") and len(target) > depth) or (depth == 2 and len(target) > depth):
            yield f"{path} imports {'.'.join(target)}, past the __init__ of {'.'.join(target[:depth])}"


def test_arrows_run_downwards_and_rooms_are_entered_by_the_door():
    files = sorted(SOURCE.rglob("*.py"))
    found = [t for f in files for t in trespasses(str(f.relative_to(SOURCE)), f.read_text(encoding="utf-8"))]
    assert found == []


def names_in(folder):
    return {p.stem for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}


def test_every_room_is_known():
    assert names_in(SOURCE) == set(BELOW) | GROUND
    for room, inside in INSIDE.items():
        assert names_in(SOURCE / room) == set(inside) | {"__init__"}


def test_no_room_is_below_itself():
    for rooms in (BELOW, *INSIDE.values()):
        seen = set()
        while len(seen) < len(rooms):
            ready = {room for room, below in rooms.items() if room not in seen and not (below & set(rooms)) - seen}
            assert ready, f"a circle among {set(rooms) - seen}"
            seen |= ready


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("_tape/tape.py", "from jaxpyop._host import Host", "_tape/tape.py imports _host, which is not below it"),
        ("_host/errors.py", "import jaxpyop._op", "_host/errors.py imports _op, which is not below it"),
        ("_config.py", "from jaxpyop import _jaxcore", "_config.py imports _jaxcore, which is not below it"),
        (
            "_op/calls.py",
            "def f():\n    from jaxpyop._tape.tape import record",
            "_op/calls.py imports _tape.tape, past the __init__ of _tape",
        ),
        (
            "_op/values/tout.py",
            "from jaxpyop._op.body import UserBody",
            "_op/values/tout.py imports _op.body, which is not below it",
        ),
        (
            "_op/calls.py",
            "from jaxpyop._op.body.user import UserBody",
            "_op/calls.py imports _op.body.user, past the __init__ of _op.body",
        ),
        ("_op/body/tangents.py", "from jaxpyop._op.body.user import UserBody", None),
        ("_op/calls.py", "from jaxpyop._op.body import UserBody", None),
        ("_api.py", "from jaxpyop._op import apply_or_decorate", None),
        ("_tape/recording.py", "from jaxpyop._tape.operations import Operation\nimport jax", None),
    ],
)
def test_the_check_itself(path, code, said):
    assert list(trespasses(path, code)) == ([said] if said else [])


LINES = 400
STATEMENTS = 40
FILES = 14


def test_no_folder_no_file_and_no_function_is_long():
    long = [str(folder) for folder in SOURCE.rglob("*") if folder.is_dir() and len(list(folder.glob("*.py"))) > FILES]
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > LINES:
            long.append(path.name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and body[-1].end_lineno - body[0].lineno >= STATEMENTS:
                    long.append(f"{path.name}: {node.name}")
    assert long == []

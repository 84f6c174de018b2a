"""The folders of the package are its architecture: who imports whom, read from the imports themselves.

A room is entered by its `__init__.py` alone, and imports run downwards; see the page "how it works".
"""

import ast
import pathlib

import pytest

import jaxpyop

SOURCE = pathlib.Path(jaxpyop.__file__).parent
GROUND = {"_config", "_jaxcore", "_traces", "_unusable"}
BELOW = {  # what each may import; what is not listed imports nothing of ours
    "_traces": {"_jaxcore"},
    "_unusable": {"_jaxcore"},
    "_host": GROUND,
    "_tape": GROUND,
    "_paths": GROUND,
    "_op": GROUND | {"_host", "_tape", "_paths"},
    "_api": {"_op"},
    "_contrib": {"_op"},
    "compat": {"_api"},
    "contrib": {"_contrib"},
    "__init__": GROUND | {"_api", "_host", "compat", "contrib"},
    "_cli": GROUND | {"_host", "_op", "__init__"},
    "__main__": {"_cli"},
}


def room_of(parts):
    """The room, or the file beside the rooms, that a path or a module's name lies in."""
    return parts[0] if parts else "__init__"


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
    here = room_of(parts)
    for target in imports(code):
        there = room_of(target)
        if there == here:
            continue
        if there not in BELOW.get(here, set()):
            yield f"{path} imports {there}, which is not below it"
        elif there.startswith("_") and len(target) > 1:
            yield f"{path} imports {'.'.join(target)}, past the __init__ of {there}"


def test_arrows_run_downwards_and_rooms_are_entered_by_the_door():
    files = sorted(SOURCE.rglob("*.py"))
    found = [t for f in files for t in trespasses(str(f.relative_to(SOURCE)), f.read_text(encoding="utf-8"))]
    assert found == []


def test_every_room_is_known():
    here = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert here == set(BELOW) | GROUND


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
        ("_api.py", "from jaxpyop._op import apply", None),
        ("_tape/walk.py", "from jaxpyop import _jaxcore\nfrom jaxpyop._tape.ops import Operation\nimport jax", None),
    ],
)
def test_the_check_itself(path, code, said):
    assert list(trespasses(path, code)) == ([said] if said else [])


LINES = 400
STATEMENTS = 40


def test_no_file_and_no_function_is_long():
    long = []
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

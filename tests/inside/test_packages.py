"""The imports between the packages are the architecture: who uses whom, and that nothing is long.

A package uses only packages below it, and is entered through its `__init__`. The same holds for the packages inside a
package, whose order is not written down here: their imports must have no circle.
"""

import ast
import functools
import graphlib
import itertools
import pathlib
import re

import pytest

import jaxpyop

pytestmark = pytest.mark.slow
SOURCE = pathlib.Path(jaxpyop.__file__).parent
# From the top to the bottom. Packages of one line do not know each other.
LAYERS = "__main__ / _cli / __init__ / compat contrib / _api / _batches / _saved _keywords / _cut"
LAYERS += " / _op / _values / _host _tape _traced _native / _jaxcore _functions"
LAYERS += " / _dtypes _sharding / _frames _config _settings _refusal"
HEIGHT = {name: -k for k, names in enumerate(LAYERS.split("/")) for name in names.split()}
FILES = sorted(SOURCE.rglob("*.py"))
LISTING = pathlib.Path(__file__).parents[2].joinpath("docs/how_it_works.md").read_text("utf-8")


@functools.cache
def parsed(code):
    return [*ast.walk(ast.parse(code))]


def imports(code):
    """What the code imports, as the parts of the names of modules."""
    for node in parsed(code):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in ("jaxpyop", "jax"):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield tuple(str(node.module).split(".")) if not node.level else (".",)


def is_package(*parts):
    return (SOURCE.joinpath(*parts) / "__init__.py").exists()


def trespasses(path, code):
    """The imports of a file of the package that it may not have."""
    here = pathlib.PurePath(path).with_suffix("").parts
    for name in imports(code):
        there = name[1:]
        if name[0] == ".":
            yield f"{path}: a relative import"
        if name[0] != "jaxpyop":
            continue
        if not there or there[0] not in HEIGHT:  # a public name of the package
            there = ("__init__",)
        shared = next((k for k, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), len(there))
        if shared == 0 and HEIGHT[there[0]] >= HEIGHT[here[0]]:
            yield f"{path} imports {there[0]}, which is not below it"
        past = [there[:k] for k in range(shared + 1, len(there)) if there[0].startswith("_") and is_package(*there[:k])]
        if past:
            yield f"{path} imports {'.'.join(there)}, past the __init__ of {'.'.join(past[0])}"


def test_a_package_uses_packages_below_it_through_their_init():
    assert {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or is_package(p.name)} == set(HEIGHT)
    assert [t for f in FILES for t in trespasses(str(f.relative_to(SOURCE)), f.read_text(encoding="utf-8"))] == []


def test_the_page_lists_them_from_the_top_to_the_bottom():
    rows = re.findall(r"^ (\S.*?)  ", LISTING.partition("<!-- picture: the packages")[2].partition("\n```\n")[0], re.M)
    listed = [[pathlib.PurePath(name).stem for name in row.split(", ")] for row in rows]
    assert sorted(itertools.chain(*listed)) == sorted(HEIGHT.keys() - {"__init__"})
    lowest, highest = ([bound(HEIGHT[name] for name in row) for row in listed] for bound in (min, max))
    assert all(above >= below for above, below in zip(lowest, highest[1:], strict=False))


PACKAGES = [file.parent for file in FILES if file.name == "__init__.py" and file.parent != SOURCE]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_files_and_packages_inside_a_package_have_an_order(package):
    inside = package.relative_to(SOURCE.parent).parts
    graph = {}
    for file in package.rglob("*.py"):
        unit, *_ = file.relative_to(package).with_suffix("").parts
        names = [n for n in imports(file.read_text(encoding="utf-8")) if n[:-1][: len(inside)] == inside]
        graph.setdefault(unit, set()).update({n[len(inside)] for n in names} - {unit})
    graph.pop("__init__")  # it imports from all of them
    assert set(graphlib.TopologicalSorter(graph).static_order()) >= graph.keys()


def test_no_folder_no_file_and_no_function_is_long():
    """And every file says what it is for."""
    for file in FILES:
        code = file.read_text(encoding="utf-8")
        assert ast.get_docstring(parsed(code)[0]), file
        assert code.count("\n") <= 400, file
        assert len([*file.parent.glob("*.py")]) <= 14, file.parent
        for node in parsed(code):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                assert not body or body[-1].end_lineno - body[0].lineno < 40, f"{file}: {node.name}"

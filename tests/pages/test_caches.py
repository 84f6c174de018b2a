"""Every cache and every other container of the process is in the table of the page "how it works"."""

import ast
import pathlib
import re

import pytest

import jaxpyop
from tests.pages.test_examples import PAGES

SOURCE = pathlib.Path(jaxpyop.__file__).parent
# The command line lives as long as a command.
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if "_cli" not in path.parts]
CACHES = {"cache", "lru_cache"}
CONTAINERS = {"dict", "list", "set", "OrderedDict", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "Counter"}
CONTAINERS |= {"defaultdict", "deque"}


def name_of(node):
    """The last name of a function or class, as it is called: `OrderedDict` of `collections.OrderedDict[int, str]`."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "attr", getattr(node, "id", ""))


def makes_one(value, classes):
    """Whether a value is, or contains, an empty container or an object of one of the classes."""
    if isinstance(value, (ast.Dict, ast.List)) and not ast.unparse(value).strip("{}[]"):
        return True
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(name_of(call) in CONTAINERS | classes and not isinstance(call.func, ast.Call) for call in calls)


def classes_with_containers(trees):
    """The names of classes of which each object has a container of its own."""
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        made = [part.value for part in ast.walk(node) if isinstance(part, (ast.Assign, ast.AnnAssign)) and part.value]
        if any(makes_one(value, set()) for value in made):
            found.add(node.name)
    return found


def containers(tree, classes):
    """The names in a module that belong to the process: cached functions, and containers at its top level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and CACHES & {name_of(decorator) for decorator in node.decorator_list}:
            yield node.name
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and makes_one(node.value, classes):
            yield ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def found():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    classes = classes_with_containers(trees.values())
    return {(path.relative_to(SOURCE).as_posix(), name) for path in FILES for name in containers(trees[path], classes)}


def in_the_table():
    section = PAGES["docs/how_it_works.md"].split("\n## Caches\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([\w/]+\.py)`: `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", section, re.MULTILINE))


def test_every_container_is_in_the_table():
    assert found() - in_the_table() == set()


def test_the_table_has_nothing_else():
    assert in_the_table() - found() == set()


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("@functools.cache\ndef f(): pass", ["f"]),
        ("@lru_cache(maxsize=3)\ndef f(): pass", ["f"]),
        ("_x: dict[int, int] = {}", ["_x"]),
        ("_x = weakref.WeakKeyDictionary()", ["_x"]),
        ("_x = tuple(weakref.WeakSet() for _ in range(3))", ["_x"]),
        ("_x = Store[int](first=1)", ["_x"]),
        ("_x = {'a': 1}\n_y = Other()\ndef f():\n    x = {}", []),
    ],
)
def test_the_search_itself(code, names):
    store = ast.parse("class Store:\n    def __init__(self):\n        self.all = {}\nclass Other: pass")
    assert list(containers(ast.parse(code), classes_with_containers([store]))) == names

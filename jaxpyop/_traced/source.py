"""The syntax tree of a function, and which names are its own."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from jaxpyop._traced.values import Refused

Node = ast.FunctionDef | ast.Lambda


@functools.cache
def local_names(node: Node) -> frozenset[str]:
    """The names that are local to a function."""
    names, declared = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}, set[str]()
    for statement in node.body if isinstance(node.body, list) else [node.body]:
        for n in _own_nodes(statement):
            if isinstance(n, (ast.FunctionDef, ast.ClassDef)):
                names.add(n.name)
            elif isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)):
                raise Refused("a generator or a coroutine is not in the language", "return a list")
            elif isinstance(n, (ast.Nonlocal, ast.Global)):
                declared.update(n.names)
            elif isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                names.add(n.id)
            elif isinstance(n, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and n.name:
                names.add(n.name)
            elif isinstance(n, ast.Import | ast.ImportFrom):
                names.update(a.asname or a.name.split(".")[0] for a in n.names)
    return frozenset(names - declared)


def _own_nodes(n: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are in a function itself, and not in a function or a comprehension in it."""
    if isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        # Of a comprehension, only a walrus assigns to a variable of the function.
        yield from (x.target for x in ast.walk(n) if isinstance(x, ast.NamedExpr))
        return
    yield n
    for child in () if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.Lambda)) else ast.iter_child_nodes(n):
        yield from _own_nodes(child)


def source_of(f: types.FunctionType) -> Node:
    """The syntax tree of a function, found by its code. (Of the function, `inspect` would follow `__wrapped__`.)"""
    return _source_of(f.__code__, f.__qualname__)


@functools.lru_cache(maxsize=4096)
def _source_of(code: types.CodeType, name: str) -> Node:
    refused = Refused(f"the source of {name} cannot be found", "define it in a file or a notebook cell")
    refused.where = (code.co_filename, code.co_firstlineno)
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, IndexError):
        raise refused from None
    node = _parsed("".join(lines), code, name)
    if node is None:
        raise refused
    ast.increment_lineno(node, first - 1)
    return node


def _parsed(text: str, code: types.CodeType, name: str) -> Node | None:
    text = textwrap.dedent(text)
    # A lambda may be a part of a statement that is not whole.
    stripped = text.strip().rstrip(",")
    attempts = (
        [text] if code.co_name != "<lambda>" else [text, stripped, f"({stripped})", f"f({stripped}", f"{{{stripped}}}"]
    )
    for attempt in (*attempts, *([stripped[stripped.find("lambda") :].rstrip(")],}: ")] if len(attempts) > 1 else [])):
        try:
            tree = ast.parse(attempt)
        except SyntaxError:
            continue
        break
    else:
        return None
    if code.co_name != "<lambda>":
        node = tree.body[0] if tree.body else None
        if isinstance(node, ast.AsyncFunctionDef):
            raise Refused("an async function is not in the language")
        return node if isinstance(node, ast.FunctionDef) and _fits(node, code) else None
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and _fits(n, code)]
    if len({ast.dump(n) for n in found}) > 1:
        raise Refused(f"{name} cannot be told from another lambda in its line", "write one a line")
    return found[0] if found else None


def _fits(node: Node, code: types.CodeType) -> bool:
    """Whether a function of this source has this code. The file may have changed since it was imported.

    What is compared does not depend on which names are global, which the tree alone does not tell.
    """
    copy = ast.parse(ast.unparse(node)).body[0]
    if isinstance(copy, ast.FunctionDef):
        if copy.name != code.co_name:
            return False
        copy.decorator_list = []
        if any(isinstance(n, ast.Assert) for n in ast.walk(copy)):
            return True  # pytest compiles another text
    own = next(
        (c for c in compile(ast.Module([copy], []), "?", "exec").co_consts if isinstance(c, types.CodeType)), None
    )
    return own is not None and _summary(own) == _summary(code)


def _summary(code: types.CodeType) -> Any:
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars} - {"__class__"}
    args = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    nested = [_summary(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    consts = sorted(repr(c) for c in code.co_consts if not isinstance(c, (types.CodeType, tuple, frozenset, str)))
    return args, names, consts, nested


def contains_return(statements: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for s in statements for n in ast.walk(s))

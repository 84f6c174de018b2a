"""The syntax tree of a function, and which names are its own."""

from __future__ import annotations

import ast
import functools
import linecache
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
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    nodes = _functions_in(text).get(code.co_firstlineno, [])
    kind = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef
    found = [n for n in nodes if isinstance(n, kind) and _fits(n, code)]
    if len({ast.dump(n) for n in found}) != 1:
        what = "cannot be found" if not found else "cannot be told from that of another one in its line"
        refused = Refused(f"the source of {name} {what}", "define it in a file or a notebook cell, one a line")
        refused.where = (code.co_filename, code.co_firstlineno)
        raise refused
    return found[0]


@functools.lru_cache(maxsize=64)
def _functions_in(text: str) -> dict[int, list[Node]]:
    """The functions of a file by their first lines. That of a function with decorators is the line of the first one."""
    functions: dict[int, list[Node]] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return functions
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.Lambda)):
            decorators = n.decorator_list if isinstance(n, ast.FunctionDef) else []
            functions.setdefault(min(x.lineno for x in (n, *decorators)), []).append(n)
    return functions


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
    # The variables that it closes over are those of a function around it.
    text = "".join(f"    {name} = None\n" for name in code.co_freevars)
    outer = ast.parse(f"def outer():\n{text}    pass")
    outer.body[0].body.append(copy)  # type: ignore[attr-defined]
    own: Any = compile(ast.fix_missing_locations(outer), "?", "exec")
    for _ in range(2):
        own = next((c for c in own.co_consts if isinstance(c, types.CodeType)), None)
    return own is not None and _summary(own) == _summary(code)


def _summary(code: types.CodeType) -> Any:
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars} - {"__class__"}
    args = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    nested = [_summary(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    consts = sorted(repr(c) for c in code.co_consts if not isinstance(c, (types.CodeType, tuple, frozenset, str)))
    return args, names, consts, nested


def contains_return(statements: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for s in statements for n in ast.walk(s))

"""Prepares the syntax tree of a function for AutoGraph: refuses or replaces syntax that AutoGraph would misread.

`match`, classes, and `:=` in a condition are refused. Annotations, the `else` of a loop, the private names of a class,
and `is` are replaced.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import types
from typing import Any

from jaxpyop._functions import names_in


class ConversionError(Exception):
    """Raised if a function cannot be rewritten. The text gives the reason, and what to write instead."""


def malt(name: str) -> Any:
    """Returns a module of AutoGraph. The modules have no type annotations, so the result is `Any`."""
    return importlib.import_module(f"malt.{name}")


# AutoGraph turns these parts of a node into functions. A name that is assigned in such a part would become local there.
_PARTS = {"While": ("test",), "BoolOp": ("values",), "IfExp": ("body", "orelse")}

# What a rewritten function has in another way.
_OF_FUNCTIONS = {"__code__", "__closure__", "__qualname__"}


def simplified(tree: Any, private: dict[str, str]) -> Any:
    """Returns the tree of a function without syntax that AutoGraph does not know.

    Args:
        tree: the tree of the function.
        private: what `private_names` returned for the function.
    """
    _check_statements(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            node.attr = private.get(node.attr, node.attr)
    return _WithoutElse(tree).visit(_WithoutTypes().visit(tree))


def private_names(code: types.CodeType) -> dict[str, str]:
    """Returns the private names in a method, and how Python has mangled them: ``__rate`` to ``_TheClass__rate``."""
    found = (re.fullmatch(r"_[^_]\w*?(__\w*?)", name) for name in names_in(code))
    return {match[1]: match[0] for match in found if match and not match[1].endswith("__")}


def _check_statements(tree: ast.AST) -> None:
    """Raises `ConversionError` for syntax that AutoGraph would rewrite into something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            raise ConversionError("it has a `match`: write `if` and `elif`")
        if isinstance(node, ast.Try) and node.orelse and _leaves(node.body):
            raise ConversionError("it has a `break` or `continue` that skips an `else`: write an `if` after the `try`")
        if isinstance(node, ast.Attribute) and node.attr in _OF_FUNCTIONS:
            raise ConversionError(f"it asks for the `{node.attr}` of a function, which rewriting changes")
        if _asks_identity(node):
            raise ConversionError("it asks whether something `is True` or `is False`: write `if x`")
        if isinstance(node, ast.ClassDef):
            raise ConversionError("it has a class in it: write the class outside of the function")
        parts = [getattr(node, name) for name in _PARTS.get(type(node).__name__, ())]
        inner = [x for part in parts for top in (part if isinstance(part, list) else [part]) for x in ast.walk(top)]
        if any(isinstance(x, ast.NamedExpr) for x in inner):
            raise ConversionError("it has a `:=` in a condition: assign before the loop, and at its end")


def _leaves(statements: list[ast.stmt]) -> bool:
    """Tells whether a `break` or a `continue` may end these statements. One of a loop in them may count, too."""
    return any(isinstance(x, (ast.Break, ast.Continue)) for statement in statements for x in ast.walk(statement))


def _asks_identity(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
        return False
    return any(isinstance(x, ast.Constant) and isinstance(x.value, bool) for x in (node.left, *node.comparators))


def _with_origin(old: ast.AST, new: Any) -> Any:
    """Gives a new statement or expression, and all nodes in it, the position of an old one in the source."""
    anno = malt("pyct.anno")
    for node in ast.walk(new):
        anno.copyanno(old, node, anno.Basic.ORIGIN)
        ast.copy_location(node, old)
    return new


class _WithoutTypes(ast.NodeTransformer):
    """Turns `x: float = 1` into `x = 1`, and `x is y` into a call of `operators.is_`.

    AutoGraph makes the body of a loop a function, and declares its variables `nonlocal`. Python allows no annotations
    for such names.
    """

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        is_special = any(isinstance(x, (ast.Is, ast.IsNot, ast.NamedExpr)) for x in ast.walk(node))
        if len(node.ops) > 1 and is_special:
            raise ConversionError("it has an `is` or a `:=` in a chain of comparisons: write two, with `and`")
        has_none = any(isinstance(x, ast.Constant) and x.value is None for x in sides)
        if has_none or not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return node
        call = ast.Call(ast.Attribute(ast.Name("ag__", ast.Load()), "is_", ast.Load()), sides, [])
        return _with_origin(node, call if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), call))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        new = ast.Assign([node.target], node.value) if node.value else ast.Pass()
        anno = malt("pyct.anno")
        anno.copyanno(node, new, anno.Basic.ORIGIN)
        return ast.copy_location(new, node)


class _WithoutElse(ast.NodeTransformer):
    """Turns the `else` of a loop into an `if` after it. Its condition is a variable that a `break` sets to False."""

    def __init__(self, tree: ast.AST) -> None:
        self._names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        if not node.orelse:
            return node
        name = next(n for k in itertools.count() if (n := f"completed_{k}") not in self._names)
        self._names.add(name)
        assigned = lambda value: ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))
        first = _with_origin(node, assigned(True))
        last = _with_origin(node, ast.If(ast.Name(name, ast.Load()), [ast.Pass()], []))
        last.body, node.orelse = node.orelse, []  # pyright: ignore[reportAttributeAccessIssue]
        marked = _MarkedBreaks(lambda old: _with_origin(old, assigned(False)))
        node.body = [x for statement in node.body for x in marked.all_of(statement)]
        return [first, node, last]

    def visit_While(self, node: Any) -> Any:
        return self.visit_For(node)


class _MarkedBreaks(ast.NodeTransformer):
    """Puts a statement before each `break` that ends the outermost loop."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def all_of(self, statement: ast.stmt) -> list[ast.stmt]:
        found = self.visit(statement)
        return found if isinstance(found, list) else [found]

    def visit_Break(self, node: ast.Break) -> Any:
        return [self._make(node), node]

    def visit_For(self, node: Any) -> Any:
        # A `break` in the body of an inner loop ends the inner loop. A `break` in its `else` ends the outer loop.
        node.orelse = [x for statement in node.orelse for x in self.all_of(statement)]
        return node

    def visit_While(self, node: Any) -> Any:
        return self.visit_For(node)

    def visit_FunctionDef(self, node: Any) -> Any:
        return node

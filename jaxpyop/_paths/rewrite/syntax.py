"""The syntax that is checked or simplified before AutoGraph rewrites a function: `match`, `:=`, annotations."""

from __future__ import annotations

import ast
import importlib
from typing import Any


class ConversionError(Exception):
    """A function cannot be rewritten. The text says why, and what to do."""


def malt(name: str) -> Any:
    """Returns a module of AutoGraph's, which has no types."""
    return importlib.import_module(f"malt.{name}")


# AutoGraph makes functions of these parts, so a name that is assigned in them is not one of the function around them.
_PARTS = {"While": ("test",), "BoolOp": ("values",), "IfExp": ("body", "orelse")}


def check_statements(tree: ast.AST) -> None:
    """Raises `ConversionError` for syntax that AutoGraph would rewrite into something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            raise ConversionError("it has a `match`: write `if` and `elif`")
        parts = [getattr(node, name) for name in _PARTS.get(type(node).__name__, ())]
        inner = [x for part in parts for top in (part if isinstance(part, list) else [part]) for x in ast.walk(top)]
        if any(isinstance(x, ast.NamedExpr) for x in inner):
            raise ConversionError("it has a `:=` in a condition: assign before the loop, and at its end")


class WithoutTypes(ast.NodeTransformer):
    """Makes `x = 1` of `x: float = 1`.

    The names of a loop become `nonlocal` in a function, and cannot have annotations there.
    """

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        new = ast.Assign([node.target], node.value) if node.value else ast.Pass()
        anno = malt("pyct.anno")
        anno.copyanno(node, new, anno.Basic.ORIGIN)
        return ast.copy_location(new, node)

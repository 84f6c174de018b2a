"""What the test of an `if` or a loop says about the numbers in it."""

from __future__ import annotations

import ast
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxpyop._traced.functions import Functions
from jaxpyop._traced.numbers import COMPARE
from jaxpyop._traced.values import UNDEF, Num, Obj, Union, bounds, is_scalar, kind_of

_INVERSE: dict[type, type] = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt}
_INVERSE |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_FLIPPED: dict[type, type] = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
# What may be evaluated once more, because it can neither change anything nor raise.
_PURE = (ast.Name, ast.Constant, ast.UnaryOp, ast.USub, ast.Load)


class Ranges(Functions):
    """Narrows variables by tests."""

    def refine(self, test: ast.expr, truth: bool, env: Obj, before: dict[str, Any] | None = None) -> None:
        """Notes that a test had this result. A variable that changed since `before` the test is left alone."""
        if before is None and any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(test)):
            return
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.refine(test.operand, not truth, env, before)
        elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == truth:
            for v in test.values:
                self.refine(v, truth, env, before)
        elif isinstance(test, ast.Name):
            self._narrow(test, ast.NotEq if truth else ast.Eq, 0, env, before, sure=False)
        elif isinstance(test, ast.Compare) and (truth or len(test.ops) == 1):
            sides = [test.left, *test.comparators]
            for left, op, right in zip(sides, test.ops, sides[1:]):
                self._compared(left, type(op), right, truth, env, before)

    def _compared(self, left: ast.expr, op: type, right: ast.expr, truth: bool, env: Obj, before: Any) -> None:
        if op in (ast.Is, ast.IsNot):
            if isinstance(left, ast.Name) and isinstance(right, (ast.Constant, ast.Name)):
                self._narrow_union(left.id, self.eval(right, env), (op is ast.Is) == truth, env, before)
            return
        if op not in _INVERSE:
            return
        op = op if truth else _INVERSE[op]
        for name, other, how in ((left, right, op), (right, left, _FLIPPED.get(op, op))):
            if isinstance(name, ast.Name) and all(isinstance(n, _PURE) for n in ast.walk(other)):
                value = self.eval(other, env)
                if is_scalar(value):
                    # `not a < b` says nothing of NaN, and a float with a range is not NaN.
                    self._narrow(name, how, value, env, before, sure=truth)

    def _variable(self, name: str, env: Obj, before: Any) -> Any:
        v = env.slots.get(name, UNDEF)
        unchanged = before is None or before.get(name) is v
        return v if name in env.slots["$names"] and unchanged else UNDEF

    def _narrow_union(self, name: str, c: Any, same: bool, env: Obj, before: Any) -> None:
        v = self._variable(name, env, before)
        keep = [i for i, a in enumerate(v.alts) if (a is c) == same] if isinstance(v, Union) else []
        if len(keep) == 1:
            self.write(env, name, v.alts[keep[0]])
        elif keep and len(keep) < len(v.alts):
            table = np.array([keep.index(i) if i in keep else 0 for i in range(len(v.alts))], np.int32)
            self.write(env, name, Union(jnp.asarray(table)[v.tag], [v.alts[i] for i in keep]))

    def _narrow(self, node: ast.Name, op: type, c: Any, env: Obj, before: Any, sure: bool) -> None:
        v = self._variable(node.id, env, before)
        if not isinstance(v, Num) or v.kind not in "if":
            return None
        alts = None if v.alts is None or isinstance(c, Num) else tuple(a for a in v.alts if COMPARE[op](a, c))
        if v.kind == "f" and (v.lo is None or v.hi is None or v.nan) and alts is None and not sure:
            return None
        (lo, hi), (least, most) = bounds(v), bounds(c)
        # Below an integer is at most the one before. A float that bounds an integer is rounded inwards.
        if v.kind == "i":
            least, most = (x if math.isinf(x) else f(x) for x, f in ((least, math.ceil), (most, math.floor)))
        step = int(v.kind == "i" and kind_of(c) in "bi")
        if op is ast.Gt:
            lo = max(lo, least + step)
        elif op is ast.GtE:
            lo = max(lo, least)
        elif op is ast.Lt:
            hi = min(hi, most - step)
        elif op is ast.LtE:
            hi = min(hi, most)
        elif op is ast.Eq and v.kind == "i" and type(c) is int:
            return self.write(env, node.id, c)
        elif op is ast.NotEq and v.kind == "i" and type(c) is int:
            lo, hi = lo + (lo == c), hi - (hi == c)
        if (lo, hi, alts) != (*bounds(v), v.alts) and lo <= hi:
            ends = (None if math.isinf(x) else x for x in (lo, hi))
            self.write(env, node.id, Num(v.kind, v.val, *ends, alts or None))

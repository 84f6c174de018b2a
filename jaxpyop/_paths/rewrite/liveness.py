"""Corrections of AutoGraph's analysis: which variables a statement hands on, and in what time that is found out.

AutoGraph takes a lambda to be called where it is written, and leaves a variable that it takes to be read no more as it
is. So here a lambda reads its variables as long as it exists, and each variable that a statement assigns is handed to
the statement: those that are read afterwards first. The others are dropped, so that a read which was overlooked is
refused (`variables.Dropped`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from jaxpyop._paths.rewrite.other_statements import malt


@contextlib.contextmanager
def corrected_analysis() -> Iterator[None]:
    """Has AutoGraph's analysis be as it should. The caller holds a lock."""
    visitor, analyzer, transformer = (
        malt("pyct.cfg").GraphVisitor,
        malt("pyct.static_analysis.liveness").Analyzer,
        malt("converters.control_flow").ControlFlowTransformer,
    )
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (visitor, "_visit_internal", _walk),
            (analyzer, "lamba_check", lambda *_: False),
            (transformer, "_get_block_basic_vars", lambda _, modified, *__: _simple(modified)),
            (transformer, "_get_block_vars", functools.partialmethod(_block_vars)),
            (transformer, "_create_loop_options", lambda _, node: _options(node)),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _walk(visitor: Any, mode: Any) -> None:
    """Visits the statements of a graph until nothing changes, with each statement in the queue once.

    The queue of diastatic-malt 2.15 takes a statement again for each change before it. With `if`s in a row the number
    doubles at each, and an analysis of forty does not end. The result is the same.
    """
    forward = mode.name == "FORWARD"
    waiting = dict.fromkeys([visitor.graph.entry] if forward else visitor.graph.exit)
    seen: set[Any] = set()
    while waiting:
        node = next(iter(waiting))
        del waiting[node]
        seen.add(node)
        changed = visitor.visit_node(node)
        for following in node.next if forward else node.prev:
            if changed or following not in seen:
                waiting.setdefault(following)


def _simple(names: Any) -> frozenset[Any]:
    return frozenset(name for name in names if not name.is_composite())


def _block_vars(transformer: Any, node: Any, modified: Any) -> tuple[list[Any], tuple[Any, ...], int]:
    """Returns the variables of a statement, those without a value before it, and how many are read after it.

    A variable that a loop reads in its next iteration is read after an iteration.
    """
    anno, static = malt("pyct.anno"), malt("pyct.anno").Static
    before, after = (anno.getanno(node, key) for key in (static.LIVE_VARS_IN, static.LIVE_VARS_OUT))
    function = transformer.state[malt("converters.control_flow")._Function].scope
    read = after | function.nonlocals | function.globals | (before if isinstance(node, (ast.For, ast.While)) else set())
    simple = _simple(modified)
    composite = transformer._get_block_composite_vars(modified, before)
    names = sorted(simple | composite, key=lambda v: (v in simple and v not in read, v))
    undefined = simple - anno.getanno(node, static.DEFINED_VARS_IN) - function.globals - function.nonlocals
    live = sum(v not in simple or v in read for v in names)
    anno.setanno(node, "live", live)
    return names, tuple(undefined), live


def _options(node: Any) -> ast.Dict:
    live = malt("pyct.anno").getanno(node, "live")
    augmented = {ast.unparse(x.target) for x in ast.walk(node) if isinstance(x, ast.AugAssign)}
    names = ast.Tuple([ast.Constant(name) for name in sorted(augmented)], ast.Load())
    return ast.Dict(keys=[ast.Constant("live"), ast.Constant("augmented")], values=[ast.Constant(live), names])

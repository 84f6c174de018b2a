"""Corrections of AutoGraph's liveness analysis: which variables are read after a statement, and how fast this is found.

AutoGraph assumes that a lambda is called where it is written. If it then finds that a variable is not read any more, it
leaves it out of a statement, and the variable keeps an old value. So two things are different here. First, a lambda
counts as a reader of its variables as long as it exists. Second, a statement gets every variable that it assigns: first
those that are read afterwards, then the others. The others are dropped after the statement, so that a read which the
analysis overlooked is refused (`variables.Dropped`).
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
    """Replaces parts of AutoGraph's analysis inside a `with` block. The caller must hold a lock."""
    visitor, analyzer, transformer, logical = (
        malt("pyct.cfg").GraphVisitor,
        malt("pyct.static_analysis.liveness").Analyzer,
        malt("converters.control_flow").ControlFlowTransformer,
        malt("converters.logical_expressions").LogicalExpressionTransformer,
    )
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (visitor, "_visit_internal", _walk),
            (analyzer, "lamba_check", lambda *_: False),
            (transformer, "_get_block_basic_vars", lambda _, modified, *__: _plain_names(modified)),
            (transformer, "_get_block_vars", functools.partialmethod(_block_vars)),
            (transformer, "_create_loop_options", lambda _, node: _options(node)),
            (logical, "visit_Compare", _compare),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _walk(visitor: Any, mode: Any) -> None:
    """Visits the statements of a control flow graph until nothing changes. A statement is in the queue at most once.

    In diastatic-malt 2.15 the queue may hold a statement many times, once for each change before it. After each `if` of
    a row the number of entries doubles, so the analysis of forty of them does not end. The result is the same here.
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


def _plain_names(names: Any) -> frozenset[Any]:
    return frozenset(name for name in names if not name.is_composite())


def _block_vars(transformer: Any, node: Any, modified: Any) -> tuple[list[Any], tuple[Any, ...], int]:
    """Returns the variables of a statement, those that may have no value before it, and how many are read after it.

    What a loop reads in its next iteration counts as read after the statement.
    """
    anno, static = malt("pyct.anno"), malt("pyct.anno").Static
    before, after = (anno.getanno(node, key) for key in (static.LIVE_VARS_IN, static.LIVE_VARS_OUT))
    function = transformer.state[malt("converters.control_flow")._Function].scope
    read = after | function.nonlocals | function.globals | (before if isinstance(node, (ast.For, ast.While)) else set())
    simple = _plain_names(modified)
    composite = transformer._get_block_composite_vars(modified, before)
    names = sorted(simple | composite, key=lambda v: (v in simple and v not in read, v))
    undefined = simple - anno.getanno(node, static.DEFINED_VARS_IN) - function.globals - function.nonlocals
    live = sum(v not in simple or v in read for v in names)
    anno.setanno(node, "live", live)
    return names, tuple(undefined), live


def _compare(transformer: Any, node: Any) -> Any:
    """Rewrites comparisons. AutoGraph turns `a < b < c` into `a < b and b < c`, which would evaluate `b` twice."""
    node = transformer.generic_visit(node)

    def rest(left: Any, pairs: Any, depth: int) -> Any:
        (op, right), *later = pairs
        if not later:
            return transformer._process_binop(op, left, right)
        held = ast.Name(f"ag__{depth}", ast.Load())
        parts = (transformer._process_binop(op, left, held), rest(held, later, depth + 1))
        return _let(held.id, right, transformer._as_binary_function("ag__.and_", *map(transformer._as_lambda, parts)))

    pairs = list(zip(node.ops, node.comparators, strict=True))
    if len(pairs) == 1:
        return rest(node.left, pairs, 0)
    return _let("ag__left", node.left, rest(ast.Name("ag__left", ast.Load()), pairs, 0))


def _let(name: str, value: Any, body: Any) -> ast.Call:
    """Returns an expression for `body`, in which the value has this name."""
    return ast.Call(ast.Lambda(ast.arguments([], [ast.arg(name)], None, [], [], None, []), body), [value], [])


def _options(node: Any) -> ast.Dict:
    live = malt("pyct.anno").getanno(node, "live")
    augmented = {ast.unparse(x.target) for x in ast.walk(node) if isinstance(x, ast.AugAssign)}
    names = ast.Tuple([ast.Constant(name) for name in sorted(augmented)], ast.Load())
    return ast.Dict(keys=[ast.Constant("live"), ast.Constant("augmented")], values=[ast.Constant(live), names])

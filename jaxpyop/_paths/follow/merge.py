"""Merging: one program for the two sides of a decision.

`join` makes a ``cond`` whose branches hold only what differs. What both sides do in the same way (the same primitives,
parameters and dataflow) follows once, after the ``cond``. So sequential ``if`` statements cost one ``cond`` each,
however many paths there are. If a side does nothing but decide again, the two decisions become one, and equal sides are
shared: ``elif``, ``and`` and ``or`` make one flat switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.program import Atom, Block, Branch, Equation, Item, Value, free_values, has_effects

# Passing one more value out of a `cond` is worth this many equations in both of its branches. With a smaller number,
# `x * x` and `m * m * (...)` would share their last multiplication.
_VALUE_COST = 4

# The parameters of custom_jvp_call and custom_vjp_call that hold callables.
RULES = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees"})

# A predicate made of these, on scalars, may be computed even if an earlier test decides.
_CHEAP = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "abs", "neg", "add", "sub", "mul"}
    | {"convert_element_type", "slice", "squeeze", "reshape"}
)


class _Boundary:
    """The pairs of atoms that the common ending of two blocks uses.

    A pair (a, b) feeds one operand of the ending: a after the first block, b after the second. If they are the same
    atom, or if the items that give them were merged into the ending too, nothing has to be passed. Otherwise the `cond`
    returns one of them.
    """

    def __init__(self) -> None:
        self.pairs: dict[tuple[int, int], tuple[Atom, Atom]] = {}
        self._partners: dict[int, set[int]] = {}

    def use(self, pairs: Iterable[tuple[Atom, Atom]]) -> None:
        for a, b in pairs:
            self._partners.setdefault(id(a), set()).add(id(b))
            self._partners.setdefault(id(b), set()).add(id(a))
            if a is not b:
                self.pairs[id(a), id(b)] = (a, b)

    def absorb(self, a: Item, b: Item) -> bool:
        """Moves two matching items into the common ending, and tells whether that was possible.

        It is possible if the ending uses their results only in pairs: a result of one item in one place of one block,
        and the same result of the other item in that place of the other block.
        """
        for x, y in zip(a.outs, b.outs, strict=True):
            uses = self._partners.get(id(x), set()) <= {id(y)}, self._partners.get(id(y), set()) <= {id(x)}
            if not all(uses):
                return False
        for x, y in zip(a.outs, b.outs, strict=True):
            self.pairs.pop((id(x), id(y)), None)
        return True


def join(pred: Atom, yes: Block, no: Block) -> Block:
    """Makes one block of a decision: a `Branch`, and then the common ending of both sides.

    Equations are matched from the end. Of all lengths of the common ending, the one with the smallest program is taken.
    """
    boundary = _Boundary()
    boundary.use(zip(yes.outs, no.outs, strict=True))
    saved, shared = 0, 0
    pairs, cost = dict(boundary.pairs), _VALUE_COST * len(boundary.pairs)
    endings = zip(reversed(yes.items), reversed(no.items), strict=False)
    for length, (a, b) in enumerate(endings, start=1):
        inputs = match(a, b)
        if inputs is None or not boundary.absorb(a, b):
            break
        boundary.use(inputs)
        saved += a.size
        new_cost = _VALUE_COST * len(boundary.pairs) - saved
        if new_cost <= cost:
            shared, pairs, cost = length, dict(boundary.pairs), new_cost
    return _assemble(pred, yes, no, shared, pairs)


def _assemble(pred: Atom, yes: Block, no: Block, shared: int, pairs: dict[Any, tuple[Atom, Atom]]) -> Block:
    cut_yes, cut_no = len(yes.items) - shared, len(no.items) - shared
    selected = {key: Value(a.aval) for key, (a, _) in pairs.items()}

    def rename(a: Atom, b: Atom) -> Atom:
        return selected.get((id(a), id(b)), a)

    head_yes = Block(yes.items[:cut_yes], [a for a, _ in pairs.values()])
    head_no = Block(no.items[:cut_no], [b for _, b in pairs.values()])
    items: list[Item] = []
    if pairs or has_effects(head_yes) or has_effects(head_no):
        items += _branch(pred, head_yes, head_no, [*selected.values()])
    tails = zip(yes.items[cut_yes:], no.items[cut_no:], strict=True)
    items += [_rebuild(a, b, rename) for a, b in tails]
    return Block(items, list(map(rename, yes.outs, no.outs)))


def _branch(pred: Atom, yes: Block, no: Block, outs: list[Value]) -> list[Item]:
    """Returns the decision, after the predicates of a decision that it absorbs from a side."""
    for truth, first, second in ((True, yes, no), (False, no, yes)):
        found = _lone_decision(second)
        if found is not None:
            before, rest, sides = found
            tests = [(pred, truth), *rest.tests]
            # `a and b` has the else part at two places.
            same = [i for i, side in enumerate(sides) if _equal(first, side)]
            sides = sides if same else [*sides, first]
            targets = [same[0] if same else len(sides) - 1, *rest.targets]
            return [*before, Branch(tests, targets, sides, outs)]
    return [Branch([(pred, True)], [0, 1], [yes, no], outs)]


def _lone_decision(block: Block) -> tuple[Sequence[Item], Branch, list[Block]] | None:
    """Splits a block that only tests and branches: the items before its branch, the branch, and the sides.

    None for any other block. What is computed for the tests must serve the tests alone. Predicates have no derivative,
    so computing them where they are not needed cannot make a gradient NaN.
    """
    if not block.items or not isinstance(block.items[-1], Branch):
        return None
    *before, last = block.items
    assert isinstance(last, Branch)
    if not all(isinstance(op, Equation) and _is_cheap(op) for op in before):
        return None
    kept = {id(out): k for k, out in enumerate(last.outs)}

    def side(part: Block) -> Block:
        outs = [part.outs[kept[id(o)]] if id(o) in kept else o for o in block.outs]
        return Block(part.items, outs)

    sides = list(map(side, last.sides))
    computed = {id(value) for op in before for value in op.outs}
    used = (id(value) for part in sides for value in free_values(part))
    return None if computed.intersection(used) else (before, last, sides)


def _is_cheap(op: Equation) -> bool:
    return op.eqn is not None and op.eqn.primitive.name in _CHEAP and all(value.aval.size == 1 for value in op.outs)


def _equal(a: Block, b: Block) -> bool:
    pairs = _match_blocks(a, b)
    return pairs is not None and all(x is y for x, y in pairs)


def match(a: Item, b: Item) -> list[tuple[Atom, Atom]] | None:
    """Returns the pairs of inputs that have to be equal for two items to do the same. None if they never do."""
    if isinstance(a, Equation) and isinstance(b, Equation):
        if not _same_equation(a, b):
            return None
        pairs = list(zip(a.ins, b.ins, strict=True))
        return pairs if all(x.aval == y.aval for x, y in pairs) else None
    if not (isinstance(a, Branch) and isinstance(b, Branch)):
        return None
    truths = [[truth for _, truth in branch.tests] for branch in (a, b)]
    if truths[0] != truths[1] or a.targets != b.targets or len(a.outs) != len(b.outs):
        return None
    pairs = [(x, y) for (x, _), (y, _) in zip(a.tests, b.tests, strict=True)]
    for x, y in zip(a.sides, b.sides, strict=True):
        found = _match_blocks(x, y)
        if found is None:
            return None
        pairs += found
    return pairs


def _match_blocks(a: Block, b: Block) -> list[tuple[Atom, Atom]] | None:
    """Returns the pairs of free atoms that have to be equal for two blocks to do the same. None if they never do."""
    if len(a.items) != len(b.items) or len(a.outs) != len(b.outs):
        return None
    pairs: list[tuple[Atom, Atom]] = []
    inner: set[tuple[int, int]] = set()
    for x, y in zip(a.items, b.items, strict=True):
        found = match(x, y)
        if found is None:
            return None
        pairs += found
        inner.update(zip(map(id, x.outs), map(id, y.outs), strict=True))
    pairs += zip(a.outs, b.outs, strict=True)
    if any(x.aval != y.aval for x, y in pairs):
        return None
    left, right = {x for x, _ in inner}, {y for _, y in inner}
    outside = [pair for pair in pairs if (id(pair[0]), id(pair[1])) not in inner]
    if any(id(x) in left or id(y) in right for x, y in outside):
        return None
    return outside


def _rebuild(a: Item, b: Item, rename: Callable[[Atom, Atom], Atom]) -> Item:
    """Returns the item `a` with its inputs renamed, given its partner `b`."""
    if isinstance(a, Equation):
        assert isinstance(b, Equation)
        return Equation(a.eqn, list(map(rename, a.ins, b.ins)), a.outs, a.origin)
    assert isinstance(b, Branch)
    sides = [_rebuild_block(x, y, rename) for x, y in zip(a.sides, b.sides, strict=True)]
    tests = zip(a.tests, b.tests, strict=True)
    return Branch([(rename(x, y), t) for (x, t), (y, _) in tests], a.targets, sides, a.outs)


def _rebuild_block(a: Block, b: Block, rename: Callable[[Atom, Atom], Atom]) -> Block:
    items = [_rebuild(x, y, rename) for x, y in zip(a.items, b.items, strict=True)]
    return Block(items, list(map(rename, a.outs, b.outs)))


def _same_equation(a: Equation, b: Equation) -> bool:
    if len(a.ins) != len(b.ins) or [v.aval for v in a.outs] != [v.aval for v in b.outs]:
        return False
    if a.eqn is None or b.eqn is None:
        # Casts differ by the avals of their results only.
        return a.eqn is b.eqn
    if a.eqn.primitive is not b.eqn.primitive or a.eqn.ctx != b.eqn.ctx:
        return False
    # JAX wraps the rules of a custom derivative anew in every run: the user's functions are compared instead.
    hidden = RULES if a.origin is not None and core.is_same(a.origin, b.origin) else ()
    return core.is_same(*({k: v for k, v in op.eqn.params.items() if k not in hidden} for op in (a, b)))

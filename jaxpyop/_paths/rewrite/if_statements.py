"""`if` statements, conditional expressions, `and`, `or` and `not` on traced values.

Both ways of an `if` are recorded where it stands, and meet again right after it. What the two leave in a variable
becomes a result of a `lax.cond`. If one program cannot hold both (two functions, two shapes, a name that only one way
binds), the `if` is decided as in a body that was not rewritten: each path is followed to the end of the block that it
is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import (
    PYTHON,
    PathError,
    PathTracer,
    as_array,
    common_sort,
    common_type,
    hull,
    predicate,
    sort_of,
    with_bounds,
    with_sort,
)
from jaxpyop._paths.rewrite.context import context, is_traced, noted_number, snapshot_of, staged
from jaxpyop._paths.rewrite.values import cast, is_mergeable, is_value
from jaxpyop._paths.rewrite.variables import Flattened, Recording, Undefined, UnmergeableError, Variables, is_same_leaf
from jaxpyop._paths.snapshot import ABSENT, Snapshot

Block = Callable[[], None]
# Makes the content of a variable from the results of the `cond`.
Plan = Callable[[Sequence[Any]], Any]


def choose(condition: Any, yes: Block, no: Block, variables: Variables, watched: Sequence[Any] = ()) -> None:
    """Runs an `if` on a traced value. `watched` are the user's functions in it, if these are not `yes` and `no`."""
    watched = watched or (yes, no)
    snapshot, key, unmergeable = snapshot_of(*watched), watched[0].__code__, context().unmergeable
    # An `if` that is followed decides the others that ask the same value.
    is_decided = isinstance(condition, PathTracer) and condition.has_answer()
    try:
        if key in unmergeable or variables.undefined_part or is_decided or snapshot.iterators:
            raise UnmergeableError
        pred = predicate(condition)
        after = _merged(_Merge(condition, pred, _record_ways(yes, no, variables, snapshot)), variables)
        variables.restore()
        if snapshot.put_back() is not None:
            raise UnmergeableError
    except UnmergeableError:
        unmergeable.add(key)
        snapshot.put_back()
        variables.restore()
        (yes if bool(condition) else no)()
    except BaseException:
        snapshot.put_back()
        variables.restore()
        raise
    else:
        variables.set_live(after)


def _record_ways(yes: Block, no: Block, variables: Variables, snapshot: Snapshot) -> list[Recording]:
    changed: list[str] = []

    def run(block: Block) -> Sequence[Any]:
        variables.restore()
        if (name := snapshot.put_back()) is not None:
            changed.append(name)
        block()
        return variables.get()[: variables.live]

    ways = [Recording(lambda block=block: run(block)) for block in (yes, no)]
    if changed:
        raise UnmergeableError
    return ways


def _merged(merge: _Merge, variables: Variables) -> list[Any]:
    """Adds the `cond` to the program, and returns the variables that are read after the `if`.

    Raises:
        UnmergeableError: one program cannot hold both ways.
    """
    pairs = zip(*(way.variables for way in merge.ways), variables.names[: variables.live], strict=True)
    plans = [merge.variable(yes, no, name) for yes, no, name in pairs]
    outs = merge.emit()
    return [plan(outs) for plan in plans]


# Stands for a value that a function returns, on the way that does not come to its ``return``.
_ZEROS: Any = object()


class _Merge:
    """Collects the results that a `cond` has to have."""

    def __init__(self, condition: Any, pred: Any, ways: Sequence[Recording]) -> None:
        self.condition = condition
        self.pred = pred
        self.ways = ways
        # For each result: its index on each way, where None stands for zeros; its shape; its dtype, and whether weak.
        self.results: list[tuple[list[int | None], Any, tuple[Any, bool]]] = []

    def variable(self, yes: Flattened, no: Flattened, name: str) -> Plan:
        if name.startswith("retval_"):
            yes, no = _with_zeros(yes, no), _with_zeros(no, yes)
        if yes.tree != no.tree:
            raise UnmergeableError
        pairs = zip(yes.leaves, no.leaves, strict=True)
        leaves = [self._leaf(pair, (yes.first + k, no.first + k)) for k, pair in enumerate(pairs)]
        return lambda outs: jax.tree.unflatten(yes.tree, [leaf(outs) for leaf in leaves])

    def _leaf(self, pair: Sequence[Any], places: Sequence[int]) -> Plan:
        a, b = pair
        if is_same_leaf(a, b):
            return lambda outs: a
        if not all(leaf is _ZEROS or is_value(leaf) for leaf in pair):
            raise UnmergeableError
        if a is True and _is_negation(self.condition, b):
            # This is `if not done: done = True`: afterwards it is True either way.
            return lambda outs: True
        indices = [None if x is _ZEROS else w.outs[p] for x, w, p in zip(pair, self.ways, places, strict=True)]
        avals = [w.closed.out_avals[i] for w, i in zip(self.ways, indices, strict=True) if i is not None]
        target = common_type(avals)
        if target is None or any(aval.shape != avals[0].shape for aval in avals):
            raise UnmergeableError
        ways = [(w, p) for x, w, p in zip(pair, self.ways, places, strict=True) if x is not _ZEROS]
        known = [(w.types[p], w.sorts[p]) for w, p in ways]
        if not is_mergeable(known[0][0], known[-1][0]):
            raise UnmergeableError
        place, sort = len(self.results), common_sort([sort for _, sort in known])
        bounds = hull([w.bounds[p] for w, p in ways])
        self.results.append((indices, avals[0].shape, target))
        kinds = frozenset().union(*(w.kinds[p] for w, p in ways))
        return lambda outs: noted_number(with_bounds(with_sort(outs[place], sort), bounds), kinds)

    def emit(self) -> list[Any]:
        has_effects = any(way.closed.effects for way in self.ways)
        if not self.results and not has_effects:
            return []
        (yes, yes_consts), (no, no_consts) = (core.opened(way.closed) for way in self.ways)
        operands = core.cast_to_common_axes([*yes_consts, *no_consts])
        split = len(yes_consts)
        take_yes = lambda *consts: self._cast(core.run_jaxpr(yes, *consts[:split]), 0)
        take_no = lambda *consts: self._cast(core.run_jaxpr(no, *consts[split:]), 1)
        if has_effects:
            # JAX's own function knows how to order effects, or refuses them.
            return jax.lax.cond(self.pred, take_yes, take_no, *operands)
        return core.run_cond(
            self.pred, core.make_jaxpr(take_yes, operands), core.make_jaxpr(take_no, operands), operands
        )

    def _cast(self, outs: Sequence[Any], way: int) -> list[Any]:
        return [
            cast(jnp.zeros(shape, target[0]) if (i := indices[way]) is None else outs[i], *target)
            for indices, shape, target in self.results
        ]


def _with_zeros(variable: Flattened, other: Flattened) -> Flattened:
    """Gives the result of a function that has not returned the structure of the result on the other way."""
    if not variable.not_returned or other.undefined or not all(map(is_value, other.leaves)):
        return variable
    return Flattened(other.tree, [_ZEROS] * len(other.leaves), variable.first)


# ------------------------------------------------------------ conditions


def not_(x: Any) -> Any:
    if not is_traced(x):
        return not x
    out = with_sort(jax.lax.bitwise_not(as_array(predicate(x))), PYTHON)
    context().negations[id(out)] = (out, x)
    return out


def _is_negation(condition: Any, x: Any) -> bool:
    out, negated = context().negations.get(id(condition), (None, None))
    return out is condition and negated is x


def if_exp(condition: Any, yes: Callable[[], Any], no: Callable[[], Any], _text: str = "") -> Any:
    """Evaluates a conditional expression."""
    if not is_traced(condition):
        return yes() if condition else no()
    value: Any = Undefined("the value")

    def write(values: Sequence[Any]) -> None:
        nonlocal value
        (value,) = values

    variables = Variables(("value",), lambda: (value,), write, 1)
    choose(condition, lambda: write((yes(),)), lambda: write((no(),)), variables, watched=(yes, no))
    return value


def and_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    a = first()
    if not is_traced(a):
        return a and second()
    b = _operand(second)
    if b is ABSENT:
        return second() if a else a
    if _is_bool(a) and _is_bool(b):
        return with_sort(as_array(a) & as_array(b), common_sort([sort_of(a), sort_of(b)]))
    return if_exp(a, lambda: b, lambda: a)


def or_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    a = first()
    if not is_traced(a):
        return a or second()
    b = _operand(second)
    if b is ABSENT:
        return a if a else second()
    if _is_bool(a) and _is_bool(b):
        return with_sort(as_array(a) | as_array(b), common_sort([sort_of(a), sort_of(b)]))
    return if_exp(a, lambda: a, lambda: b)


def _operand(second: Callable[[], Any]) -> Any:
    """Evaluates the second operand of `and` or `or`, which Python may leave out. ABSENT if it must not run then."""
    snapshot = snapshot_of(second)
    if snapshot.iterators:
        return ABSENT
    try:
        with staged():
            value = second()
    except PathError:
        raise
    except Exception:
        snapshot.put_back()
        return ABSENT
    return value if snapshot.put_back() is None else ABSENT


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool) or (is_traced(x) and x.dtype == bool and x.ndim == 0)

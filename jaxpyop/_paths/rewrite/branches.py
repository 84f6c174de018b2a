"""`if` on a value: both ways are recorded where it stands, and meet again right after it.

What the two leave in a variable becomes a result of a `lax.cond`. Where one program cannot hold both (two functions,
two shapes, a name that only one binds), the `if` is decided as in a body that was not rewritten: each path is followed
to the end of the block that it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import PathTracer
from jaxpyop._paths.rewrite.state import (
    Recorded,
    Shape,
    Snapshot,
    Undefined,
    UndefinedReturnValue,
    UnmergeableError,
    Variables,
    cast,
    following,
    is_traced,
    is_value,
    joined,
    same,
)

Block = Callable[[], None]


def predicate(x: Any) -> Any:
    """A traced condition as a boolean scalar."""
    if x.size != 1:
        bool(x)  # JAX says what to write instead
    if x.ndim:
        x = jax.lax.reshape(x, ())
    return x if x.dtype == bool else x != 0


def choose(condition: Any, yes: Block, no: Block, variables: Variables, watched: Sequence[Any] = ()) -> None:
    """Run an `if` on a traced value; `watched` are the user's functions in it, where these are not `yes` and `no`."""
    snapshot = Snapshot(*(watched or (yes, no)))
    key = (watched or (yes,))[0].__code__
    known = following().unmergeable
    try:
        if key in known or variables.has_holes or _is_decided(condition):
            raise UnmergeableError
        after = _merged(predicate(condition), condition, _ways(yes, no, variables), variables)
        variables.restore()
        if snapshot.changed() is not None:
            raise UnmergeableError
    except UnmergeableError:
        known.add(key)
        snapshot.changed()
        variables.restore()
        (yes if bool(condition) else no)()
    except BaseException:
        snapshot.changed()
        variables.restore()
        raise
    else:
        variables.set(after)


def _is_decided(condition: Any) -> bool:
    """Whether this path has an answer already: one `if` that is followed decides those that ask the same."""
    return isinstance(condition, PathTracer) and condition.has_answer()


def _ways(yes: Block, no: Block, variables: Variables) -> list[Recorded]:
    def run(block: Block) -> Sequence[Any]:
        variables.restore()
        block()
        return variables.get()[: variables.live]

    return [Recorded(lambda block=block: run(block)) for block in (yes, no)]


def _merged(pred: Any, condition: Any, ways: Sequence[Recorded], variables: Variables) -> list[Any]:
    """The variables after an `if`.

    Raises:
        UnmergeableError: one program cannot hold both.
    """
    merge = _Merge(ways)
    pairs = zip(*(way.shapes for way in ways), variables.names[: variables.live], strict=True)
    plans = [merge.variable(yes, no, name, condition) for yes, no, name in pairs]
    outs = merge.emit(pred)
    values = [plan(outs) for plan in plans]
    return [*values, *variables.before[len(values) :]]  # what is not read afterwards may be anything


class _Merge:
    """The results that a `cond` has to have."""

    def __init__(self, ways: Sequence[Recorded]) -> None:
        self.ways = ways
        self.avals = [way.closed.out_avals for way in ways]
        self.rows: list[tuple[list[Any], Any, bool]] = []  # per way an index or a function; dtype; weak

    def variable(self, yes: Shape, no: Shape, name: str, condition: Any) -> Callable[[Sequence[Any]], Any]:
        if name.startswith("retval_"):
            yes, no = _fill(yes, no), _fill(no, yes)
        if yes.tree != no.tree:
            raise UnmergeableError
        leaves = [
            self._leaf([a, b], [(yes, k), (no, k)], condition)
            for k, (a, b) in enumerate(zip(yes.leaves, no.leaves, strict=True))
        ]
        return lambda outs: jax.tree.unflatten(yes.tree, [leaf(outs) for leaf in leaves])

    def _leaf(self, pair: Sequence[Any], at: Any, condition: Any) -> Callable[[Sequence[Any]], Any]:
        a, b = pair
        if same(a, b):
            return lambda outs: a
        if not (is_value(a) or isinstance(a, _Zeros)) or not (is_value(b) or isinstance(b, _Zeros)):
            raise UnmergeableError
        if a is True and _is_negation(condition, b):
            return lambda outs: True  # `if not done: done = True`
        return self._result(pair, at)

    def _result(self, pair: Sequence[Any], at: Any) -> Callable[[Sequence[Any]], Any]:
        sources = [
            leaf if isinstance(leaf, _Zeros) else way.outs[shape.first + k]
            for leaf, way, (shape, k) in zip(pair, self.ways, at, strict=True)
        ]
        known = [avals[s] for avals, s in zip(self.avals, sources, strict=True) if isinstance(s, int)]
        if len({aval.shape for aval in known}) > 1:
            raise UnmergeableError
        try:
            dtype, weak = joined(known)
        except TypeError:
            raise UnmergeableError from None
        for s in sources:
            if isinstance(s, _Zeros):
                s.like = known[0]
        self.rows.append((sources, dtype, weak))
        place = len(self.rows) - 1
        return lambda outs: outs[place]

    def emit(self, pred: Any) -> list[Any]:
        opened = [core.opened(way.closed) for way in self.ways]
        if not self.rows and not any(way.closed.effects for way in self.ways):
            return []
        split = len(opened[0][1])
        operands = core.cast_to_common_axes([*opened[0][1], *opened[1][1]])

        def side(which: int) -> Callable[..., list[Any]]:
            def run(*consts: Any) -> list[Any]:
                own = consts[split:] if which else consts[:split]
                outs = core.run_jaxpr(opened[which][0], *own)
                return [_value(sources[which], outs, dtype, weak) for sources, dtype, weak in self.rows]

            return run

        if any(way.closed.effects for way in self.ways):  # which JAX's own knows how to order, or refuses
            return jax.lax.cond(pred, side(0), side(1), *operands)
        return core.run_cond(pred, core.record(side(0), operands), core.record(side(1), operands), operands)


def _value(source: Any, outs: Sequence[Any], dtype: Any, weak: bool) -> Any:
    return cast(jnp.zeros(source.like.shape, dtype) if isinstance(source, _Zeros) else outs[source], dtype, weak)


class _Zeros:
    """Stands for the result of a function that has not returned yet."""

    like: Any


def _fill(shape: Shape, other: Shape) -> Shape:
    if not (shape.undefined and isinstance(shape.leaves[0], UndefinedReturnValue)) or other.undefined:
        return shape
    if not all(map(is_value, other.leaves)):
        return shape
    return Shape(other.tree, [_Zeros() for _ in other.leaves], shape.first)


# ------------------------------------------------------------ conditions


def not_(x: Any) -> Any:
    if not is_traced(x):
        return not x
    out = jax.lax.bitwise_not(predicate(x))
    following().negations[id(out)] = (out, x)
    return out


def _is_negation(condition: Any, x: Any) -> bool:
    out, negated = following().negations.get(id(condition), (None, None))
    return out is condition and negated is x


def if_exp(condition: Any, yes: Callable[[], Any], no: Callable[[], Any], _text: str = "") -> Any:
    """A conditional expression."""
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
    b = second()
    if _is_bool(a) and _is_bool(b):
        return (a & b) if is_traced(b) else b and a
    return if_exp(a, lambda: b, lambda: a)


def or_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    a = first()
    if not is_traced(a):
        return a or second()
    b = second()
    if _is_bool(a) and _is_bool(b):
        return (a | b) if is_traced(b) else b or a
    return if_exp(a, lambda: a, lambda: b)


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool) or (is_traced(x) and x.dtype == bool and x.ndim == 0)

"""`while` and `for` on values: what they assign becomes the state of a loop in the program.

A turn is recorded once, with a value for each thing that the loop assigns; the types of these are those in which the
values before the loop and after a turn both fit. A loop whose condition is a Python value is run by Python, turn by
turn, until its condition is traced (as after a ``break`` on a value).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import calling_line
from jaxpyop._paths.loop import bind_jaxprs
from jaxpyop._paths.rewrite.branches import and_, choose, predicate
from jaxpyop._paths.rewrite.state import (
    Recorded,
    Shape,
    Snapshot,
    Undefined,
    UndefinedReturnValue,
    UnmergeableError,
    Variables,
    attempt,
    cast,
    following,
    is_traced,
    is_value,
    joined,
    leaves_of,
    refuse,
    same,
    shapes_of,
    weakened,
)
from jaxpyop._paths.rewrite.weak_types import strengthened

UNROLLED = 16  # turns of a `for` over Python values that may end early on a value

_WRITE = 'write it with jax.lax.while_loop, split the body into several traced ops, or write mode="eager"'


def run_while(test: Callable[[], Any], body: Callable[[], None], variables: Callable[[], Variables]) -> None:
    while True:
        go = test()
        if is_traced(go):
            _Staged(test, body, variables(), following().max_steps).run()
            return
        if not go:
            return
        body()


def run_for(
    items: Any, test: Callable[[], Any] | None, body: Callable[[Any], None], variables: Callable[[], Variables]
) -> None:
    if isinstance(items, TracedRange):
        _counted(items, test, body, variables(), following().max_steps)
        return
    rest = iter(items)
    for number, item in enumerate(rest):
        go = test() if test else True
        if is_traced(go):
            assert test is not None
            if not _in_one_loop(items, number, test, body, variables):
                _unrolled([item, *rest], test, body, variables)
            return
        if not go:
            return
        body(item)


def _unrolled(items: Iterable[Any], test: Any, body: Callable[[Any], None], variables: Any) -> None:
    for item in items:
        go = test()
        if is_traced(go):
            choose(go, lambda item=item: body(item), lambda: None, variables(), watched=(body, test))
        elif go:
            body(item)


def _in_one_loop(items: Any, number: int, test: Any, body: Any, variables: Any) -> bool:
    """Make one loop of the rest of a long `for` that ends on a value, if that can be."""
    if not isinstance(items, (range, jax.Array)) or len(items) - number <= UNROLLED:
        return False
    rest = len(items) - number
    if isinstance(items, range):
        counted, turn = TracedRange(*(int(n) for n in (items[number], items.stop, items.step))), body
    else:
        counted, turn = TracedRange(number, len(items), 1), lambda k: body(items[k])
    return attempt(lambda: _counted(counted, test, turn, variables(), rest, watched=body))


# ---------------------------------------------------------------------- ranges


class TracedRange:
    """A `range` of values."""

    def __init__(self, *limits: Any) -> None:
        start, stop, step = limits if len(limits) == 3 else (*limits, 1) if len(limits) == 2 else (0, *limits, 1)
        for limit in (start, stop, step):
            if not (isinstance(limit, (int, np.integer)) or _is_integer_scalar(limit)):
                what = jax.typeof(limit).str_short() if is_value(limit) else repr(limit)
                raise TypeError(f"range() takes integers, got {what}; write range(n.astype(int))")
        if not is_traced(step) and not step:
            raise ValueError("range() arg 3 must not be zero")
        self.start, self.stop, self.step = start, stop, step

    def __iter__(self) -> Iterator[Any]:
        self._refuse("is used where Python needs its numbers")

    def __len__(self) -> int:
        self._refuse("has no length that Python could know")

    def _refuse(self, why: str) -> NoReturn:
        advice = f"write a plain `for i in range(n):` loop, jnp.arange with a fixed length, or {_WRITE}"
        refuse(f"a range of a traced number {why}", advice, calling_line(sys._getframe(2)))

    def goes_on(self, i: Any) -> Any:
        if not is_traced(self.step):
            return i < self.stop if self.step > 0 else i > self.stop
        return jnp.where(self.step > 0, i < self.stop, i > self.stop)


def _is_integer_scalar(x: Any) -> bool:
    return isinstance(x, jax.Array) and x.ndim == 0 and bool(jax.dtypes.issubdtype(x.dtype, np.integer))


def _counted(
    items: TracedRange, test: Any, body: Callable[[Any], None], outer: Variables, bound: int | None, watched: Any = None
) -> None:
    """Run a `for` over a range with its counter as one more variable."""
    i: Any = items.start
    if is_traced(items.stop) and not is_traced(i) and items.stop.dtype != jnp.int32:
        i = jnp.asarray(i, items.stop.dtype)  # a counter that can reach the end

    def write(values: Sequence[Any]) -> None:
        nonlocal i
        outer.set(values[:-1])
        i = values[-1]

    def turn() -> None:
        nonlocal i
        body(i)
        i = i + items.step

    def goes_on() -> Any:
        return and_(lambda: items.goes_on(i), test) if test else items.goes_on(i)

    names = (*outer.names, "the counter")
    variables = Variables(names, lambda: (*outer.get(), i), write, len(names))
    _Staged(goes_on, turn, variables, bound, watched or body).run()


# ---------------------------------------------------------------------- loops


@dataclasses.dataclass(eq=False)
class _Staged:
    """A loop in the making.

    Attributes:
        test: whether to go on, of the variables as they are.
        body: one turn.
        variables: what the loop assigns.
        bound: how many turns there can be at most, where that is known.
        watched: the user's function in `body`, if that is ours.
    """

    test: Callable[[], Any]
    body: Callable[[], None]
    variables: Variables
    bound: int | None
    watched: Any = None

    def run(self) -> None:
        self.place = calling_line(sys._getframe(1))
        self.before = list(self.variables.before)
        self._look()
        if self.variables.has_holes:
            name = next(n for n, v in zip(self.variables.names, self.variables.before) if isinstance(v, Undefined))
            self._refuse(f"`{name}` gets its first value inside of a loop on values", "give it one before the loop")
        snapshot = Snapshot(self.watched or self.body, self.test)
        try:
            turn = self._settled(snapshot)
            test = self._record(lambda: [predicate(self._asked())])
        finally:
            snapshot.changed()
            self.variables.restore()
        place = ": ".join(filter(None, (following().title, f"{self.place[0]}:{self.place[1]}")))
        outs = bind_jaxprs(test.closed, turn, self._inits(), self.bound, place)
        self.variables.set(self._values(outs))

    def _look(self) -> None:
        self.shapes = shapes_of(self.before)
        self.inits = leaves_of(self.shapes)
        self.kinds = [_kind(leaf) for leaf in self.inits]

    def _asked(self) -> Any:
        go = self.test()
        return go if is_traced(go) else jnp.asarray(bool(go))

    def _settled(self, snapshot: Snapshot) -> Any:
        """Record a turn until the types of its results are those that it takes."""
        while True:  # each round widens a type, or is the last
            turn = self._record(self._turn)
            self.variables.restore()
            if (grown := snapshot.changed()) is not None:
                self._refuse(
                    f"`{grown}` is changed in place inside of a loop on values, which happens once, while tracing",
                    "make an array of a fixed length before the loop, and write x = x.at[i].set(value) in it",
                )
            while not self._adjust(turn):
                if not self._strengthen(turn):
                    break
            else:
                return self._cast(turn)

    def _strengthen(self, turn: Recorded) -> bool:
        """Make a turn one of the variables as they are now, if that can be had without recording it again."""
        kinds = [kind for kind in self.kinds if kind]
        if len(kinds) != len(turn.kinds) or any(
            (a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(kinds, turn.kinds, strict=True)
        ):
            return False
        marks = [old.weak and not new.weak for old, new in zip(turn.kinds, kinds, strict=True)]
        closed = strengthened(turn.closed, marks, self._structs())
        if closed is None:
            return False
        turn.closed, turn.kinds = closed, kinds
        return True

    def _turn(self) -> Sequence[Any]:
        self.body()
        return self.variables.get()

    def _record(self, block: Callable[[], Sequence[Any]]) -> Recorded:
        def run(*xs: Any) -> Sequence[Any]:
            self.variables.set(self._values(xs))
            return block()

        try:
            recorded = Recorded(run, self._structs())
            recorded.kinds = [kind for kind in self.kinds if kind]
            return recorded
        except UnmergeableError:
            self._refuse("a turn of a loop on values leaves different things on its different paths", _WRITE)

    def _structs(self) -> list[Any]:
        return [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in self.kinds if kind]

    def _values(self, xs: Sequence[Any]) -> list[Any]:
        """The variables, of the values that the program has for them."""
        rest = iter(xs)
        leaves = [
            leaf if kind is None else weakened(next(rest)) if kind.weak else next(rest)
            for leaf, kind in zip(self.inits, self.kinds, strict=True)
        ]
        return [jax.tree.unflatten(s.tree, leaves[s.first : s.first + len(s.leaves)]) for s in self.shapes]

    def _inits(self) -> list[Any]:
        pairs = zip(self.inits, self.kinds, strict=True)
        return [jax.lax.convert_element_type(leaf, kind.dtype) for leaf, kind in pairs if kind]

    def _adjust(self, turn: Recorded) -> bool:
        """Whether the variables have after a turn the types that they had before; widens them to have."""
        if self._returns(turn):
            return False
        settled = True
        for name, old, new in zip(self.variables.names, self.shapes, turn.shapes, strict=True):
            self._check_structure(name, old, new)
            for k in range(len(old.leaves)):
                settled = self._adjust_leaf(name, old, new, k, turn) and settled
        return settled

    def _returns(self, turn: Recorded) -> bool:
        """Whether there is a ``return`` in the loop whose result has no room yet; makes it."""
        found = False
        for k, (old, new) in enumerate(zip(self.shapes, turn.shapes, strict=True)):
            if old.undefined and isinstance(old.leaves[0], UndefinedReturnValue) and not new.undefined:
                outs = turn.outs[new.first : new.first + len(new.leaves)]
                leaves = [
                    leaf if out is None else _zero(turn.closed.out_avals[out])
                    for leaf, out in zip(new.leaves, outs, strict=True)
                ]
                self.before[k] = jax.tree.unflatten(new.tree, leaves)
                found = True
        if found:
            self._look()
        return found

    def _check_structure(self, name: str, old: Shape, new: Shape) -> None:
        if old.undefined and not new.undefined:
            self._refuse(f"`{name}` gets its first value inside of a loop on values", "give it one before the loop")
        if old.tree != new.tree:
            self._refuse(
                f"`{name}` is {_shown(old)} before a turn of a loop on values, and {_shown(new)} after it",
                "make an array of a fixed length before the loop, and write x = x.at[i].set(value) in it",
            )

    def _adjust_leaf(self, name: str, old: Shape, new: Shape, k: int, turn: Recorded) -> bool:
        at = old.first + k
        kind, out = self.kinds[at], turn.outs[at]
        if kind is None or out is None:
            if kind is None and out is None and same(old.leaves[k], new.leaves[k]):
                return True
            what = type(new.leaves[k] if kind else old.leaves[k]).__name__
            self._refuse(
                f"`{name}` holds a {what} in a loop on values, and another thing after a turn",
                "a loop in the program carries arrays and numbers only",
            )
        aval = turn.closed.out_avals[out]
        if aval.shape != kind.shape:
            self._refuse(
                f"`{name}` has the shape {kind.shape} before a turn of a loop on values, and {aval.shape} after it",
                "give it its final shape before the loop",
            )
        try:
            dtype, weak = joined([kind.aval, aval])
        except TypeError:
            self._refuse(f"`{name}` is {kind.aval.str_short()} before a turn, {aval.str_short()} after it", "cast it")
        if (dtype, weak) == (kind.dtype, kind.weak):
            return True
        self.kinds[at] = _Kind(kind.shape, dtype, weak)
        return False

    def _cast(self, turn: Recorded) -> Any:
        """A turn whose results have the dtypes of its inputs."""
        kinds = [kind for kind in self.kinds if kind]
        if all(a.dtype == k.dtype for a, k in zip(turn.closed.out_avals, kinds, strict=True)):
            return turn.closed
        jaxpr, consts = core.opened(turn.closed)

        def run(*xs: Any) -> list[Any]:
            outs = core.run_jaxpr(jaxpr, *consts, *xs)
            return [cast(out, kind.dtype, False) for out, kind in zip(outs, kinds, strict=True)]

        return core.record(run, self._structs())

    def _refuse(self, reason: str, advice: str) -> NoReturn:
        refuse(reason, advice, self.place)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The type of one value of the state."""

    shape: tuple[int, ...]
    dtype: Any
    weak: bool

    @property
    def aval(self) -> Any:
        return core.ShapedArray(self.shape, self.dtype, weak_type=self.weak)


def _kind(leaf: Any) -> _Kind | None:
    if not is_value(leaf):
        return None
    aval = jax.typeof(leaf)
    return _Kind(aval.shape, aval.dtype, aval.weak_type)


def _zero(aval: Any) -> Any:
    zero = np.zeros(aval.shape, aval.dtype)
    return zero.item() if aval.weak_type and not aval.shape else zero


def _shown(shape: Shape) -> str:
    value = jax.tree.unflatten(shape.tree, shape.leaves)
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return "undefined" if isinstance(value, Undefined) else f"a {type(value).__name__}"

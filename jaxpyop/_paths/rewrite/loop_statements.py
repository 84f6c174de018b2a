"""`while` and `for` on traced values: what they assign becomes the state of a loop in the program.

One iteration is recorded, with a traced value for each array or number that the loop assigns. Its type is chosen so
that it fits both the value before the loop and the value after an iteration. As long as the condition of a loop is a
Python value, Python runs the loop. The condition may become traced later, for example after a ``break`` on a traced
value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import (
    bool_kind_of,
    bounds_in,
    bounds_of,
    common_bool_kind,
    common_type,
    predicate,
    range_after,
    range_before,
    with_bounds,
)
from jaxpyop._paths.loop import bind_jaxprs
from jaxpyop._paths.rewrite.context import attempt, context, is_traced, note_rebuilt, refuse, snapshot_of
from jaxpyop._paths.rewrite.if_statements import and_, choose
from jaxpyop._paths.rewrite.ranges import WRITE, TracedRange
from jaxpyop._paths.rewrite.values import cast, is_mergeable, is_value, is_wide, type_of, with_type, zero_like
from jaxpyop._paths.rewrite.variables import (
    Flattened,
    Recording,
    Undefined,
    UnmergeableError,
    Variables,
    containers_in,
    flattened,
    is_same_leaf,
    leaves_of,
)
from jaxpyop._paths.rewrite.weak_types import with_full_types

# A `for` over Python values that may end early on a traced value is unrolled, if at most so many values are left.
UNROLLED = 16

_LISTED = "write list(...) around the iterator, and loop over that"
_FIXED_LENGTH = "make an array of a fixed length before the loop, and write x = x.at[i].set(value) in it"


def run_while(test: Callable[[], Any], body: Callable[[], None], variables: Callable[[], Variables]) -> None:
    while not is_traced(go := test()):
        if not go:
            return
        body()
    context().whiles += 1
    _LoopBuilder(test, body, _read(variables, test, body), context().max_steps).run()


def run_for(
    items: Any, test: Callable[[], Any] | None, body: Callable[[Any], None], variables: Callable[[], Variables]
) -> None:
    if isinstance(items, TracedRange):
        _run_counted(items, test, body, _read(variables, test, body), context().max_steps)
        return
    rest = iter(items)
    for number, item in enumerate(rest):
        go = test() if test else True
        if is_traced(go):
            assert test is not None
            if rest is items and id(items) not in context().unnamed:
                refuse(
                    "a loop over an iterator may end on a traced value, and the rest of it may be read later", _LISTED
                )
            if not _run_rest_as_loop(items, number, test, body, variables):
                _unroll(itertools.chain([item], rest), test, body, variables)
            return
        if not go:
            return
        body(item)


def _read(make: Callable[[], Variables], *watched: Any) -> Variables:
    """Reads the variables of a loop on values. The program also sets them if the loop has no iteration."""
    snapshot = snapshot_of(*filter(None, watched))
    variables = make()
    variables.restore()
    if (name := snapshot.put_back()) is not None:
        part = variables.undefined_part
        _refuse_undefined(f"`{part}`" if part else f"a part of `{name}`")
    return variables


def _refuse_undefined(what: str) -> NoReturn:
    refuse(f"{what} gets its first value inside of a loop on values", "give it one before the loop")


def _unroll(items: Iterable[Any], test: Any, body: Callable[[Any], None], variables: Any) -> None:
    for item in items:
        go = test()
        if is_traced(go):
            choose(go, lambda item=item: body(item), lambda: None, variables, watched=(body, test))
        elif go:
            body(item)


def _run_rest_as_loop(items: Any, number: int, test: Any, body: Any, variables: Any) -> bool:
    """Tries to turn the rest of a long `for` that may end on a traced value into one loop. Tells whether it could."""
    if not isinstance(items, (range, jax.Array)) or len(items) - number <= UNROLLED:
        return False
    rest = len(items) - number
    if isinstance(items, range):
        counted, iteration = TracedRange(*(int(n) for n in (items[number], items.stop, items.step))), body
    else:
        counted, iteration = TracedRange(number, len(items), 1), lambda k: body(items[k])
    return attempt(lambda: _run_counted(counted, test, iteration, _read(variables, test, body), rest, watched=body))


def _run_counted(
    items: TracedRange, test: Any, body: Callable[[Any], None], outer: Variables, bound: int | None, watched: Any = None
) -> None:
    """Runs a `for` over a range. Its counter is one more variable of the loop."""
    i: Any = items.start

    def write(values: Sequence[Any]) -> None:
        nonlocal i
        outer.set(values[:-1])
        i = values[-1]

    def iteration() -> None:
        nonlocal i
        body(with_bounds(i, items.bounds))
        i = items.after(i)

    def goes_on() -> Any:
        return and_(lambda: items.goes_on(i), test) if test else items.goes_on(i)

    outer = outer.alive()
    names = (*outer.names, "the counter")
    variables = Variables(names, lambda: (*outer.get(), i), write, len(names), outer.augmented)
    _LoopBuilder(goes_on, iteration, variables, bound, watched or body, items.iterations).run()


# ---------------------------------------------------------------------- loops


class _LoopBuilder:
    """Records one loop, and adds it to the program.

    Args:
        test: tells whether the loop goes on, from what the variables hold.
        body: runs one iteration.
        variables: the variables that the loop assigns.
        bound: the greatest number of iterations that the user allows, which a backward pass needs; None without one.
        watched: the user's function that `body` calls, if `body` is not the user's function itself.
        iterations: the greatest number of iterations that a `range` can make; None if that is not known.
    """

    def __init__(
        self,
        test: Any,
        body: Any,
        variables: Variables,
        bound: int | None,
        watched: Any = None,
        iterations: int | None = None,
    ) -> None:
        self.test, self.body, self.variables, self.bound = test, body, variables.alive(), bound
        self.watched = watched or body
        self.iterations = iterations

    def run(self) -> None:
        self._flatten(self.variables.before)
        if (name := self.variables.changed_in_place) is not None:
            what = f"`{name}` is a NumPy array that is changed in place inside of a loop on values"
            refuse(what, f"make it an array of JAX's before the loop: {name} = jnp.asarray({name})")
        self.snapshot = snapshot_of(self.watched, self.test)
        for name, what in self.snapshot.not_restored:
            what = f"`{name}` is {what} once, while tracing, inside of a loop on values"
            refuse(what, "use it before the loop, and make a list or an array of what it gives")
        try:
            iteration = self._settled()
            test = self._record(lambda: [predicate(self._asked())])
            self.variables.restore()
            self._put_back()
        finally:
            self.snapshot.put_back()
            self.variables.restore()
        filename, line = core.users_line()
        title = f"{context().title}: " if context().title else ""
        state = [jax.lax.convert_element_type(x, t.dtype) for x, t in zip(self.leaves, self.types, strict=True) if t]
        outs = bind_jaxprs(test.closed, iteration, state, self.bound, f"{title}{filename}:{line}")
        # If the loop goes on until a variable is true, the variable is true afterwards.
        if (k := _negated_input(test.closed)) is not None and not isinstance(outs[k], bool):
            outs = [*outs[:k], True, *outs[k + 1 :]]
        self.variables.set(self._contents(outs))

    def _flatten(self, values: Sequence[Any]) -> None:
        """Sets the state of the loop: the leaves of the variables, and the types of the leaves that are values."""
        self.flat = flattened(values)
        for name, variable in zip(self.variables.names, self.flat, strict=True):
            note_rebuilt(name, variable.containers)
        self.leaves = leaves_of(self.flat)
        self.types = [_array_type_of(leaf) if is_value(leaf) else None for leaf in self.leaves]
        self.bool_kinds = list(map(bool_kind_of, self.leaves))
        self.ranges = [range_before(bounds_of(leaf)) for leaf in self.leaves]

    def _asked(self) -> Any:
        go = self.test()
        return go if is_traced(go) else jnp.asarray(bool(go))

    def _put_back(self) -> None:
        if (name := self.snapshot.put_back()) is not None:
            what = f"`{name}` is changed in place inside of a loop on values, which happens once, while tracing"
            refuse(what, _FIXED_LENGTH)

    def _settled(self) -> Any:
        """Records an iteration until its results have the types of its inputs. Returns its closed jaxpr."""
        # Each round widens at least one type, except for the last round, so the loop ends.
        while True:
            iteration = self._record(self._iteration)
            self.variables.restore()
            self._put_back()
            while not self._adjust(iteration):
                if not self._adapt(iteration):
                    break
            else:
                return self._cast(iteration)

    def _iteration(self) -> Sequence[Any]:
        self.body()
        return self.variables.get()

    def _record(self, block: Callable[[], Sequence[Any]]) -> Recording:
        def run(*xs: Any) -> Sequence[Any]:
            self.variables.restore()
            self._put_back()
            self.variables.set(self._contents(xs))
            return block()

        try:
            recording = Recording(run, self._structs())
        except UnmergeableError:
            refuse("what a variable holds after an iteration differs by path, and one program cannot hold it", WRITE)
        recording.input_types, recording.input_kinds_and_ranges = self._state_types(), [*self.bool_kinds, *self.ranges]
        return recording

    def _state_types(self) -> list[Any]:
        return [aval for aval in self.types if aval]

    def _structs(self) -> list[Any]:
        return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self._state_types()]

    def _bounds(self) -> list[Any]:
        return [None if place is None else bounds_in(place, self.iterations) for place in self.ranges]

    def _contents(self, xs: Sequence[Any]) -> list[Any]:
        """Returns the contents of the variables for these values of the state."""
        rest = iter(xs)
        leaves = [
            leaf if aval is None else with_bounds(with_type(next(rest), aval, leaf, kind), bounds)
            for leaf, aval, kind, bounds in zip(self.leaves, self.types, self.bool_kinds, self._bounds(), strict=True)
        ]
        contents = [f.tree.filled(leaves[f.first : f.first + len(f.leaves)]) for f in self.flat]
        for name, new in zip(self.variables.names, contents, strict=True):
            note_rebuilt(name, containers_in(new))
        return contents

    def _adjust(self, iteration: Recording) -> bool:
        """Tells whether the results of an iteration fit the types of the state. If not, it widens these types."""
        if self._make_room_for_return(iteration):
            return False
        settled = True
        for name, old, new in zip(self.variables.names, self.flat, iteration.variables, strict=True):
            self._check_structure(name, old, new)
            for k in range(len(old.leaves)):
                settled = self._adjust_leaf(name, old, new, k, iteration) and settled
        return settled

    def _make_room_for_return(self, iteration: Recording) -> bool:
        """Adds the result of a ``return`` in the loop to the state. Tells whether it was not in the state before."""
        values = [f.content for f in self.flat]
        found = False
        for k, (old, new) in enumerate(zip(self.flat, iteration.variables, strict=True)):
            if old.not_returned and not new.undefined:
                outs = iteration.outs[new.first : new.first + len(new.leaves)]
                pairs = zip(new.leaves, outs, strict=True)
                avals = iteration.closed.out_avals
                leaves = [leaf if out is None else zero_like(avals[out], leaf) for leaf, out in pairs]
                values[k] = new.tree.filled(leaves)
                found = True
        if found:
            self._flatten(values)
        return found

    def _check_structure(self, name: str, old: Flattened, new: Flattened) -> None:
        if old.undefined and not new.undefined:
            _refuse_undefined(f"`{name}`")
        if old.tree != new.tree:
            what = f"`{name}` is {_shown(old)} before an iteration of a loop on values, and {_shown(new)} after it"
            refuse(what, _FIXED_LENGTH)

    def _adjust_leaf(self, name: str, old: Flattened, new: Flattened, k: int, iteration: Recording) -> bool:
        at = old.first + k
        before, out = self.types[at], iteration.outs[at]
        if before is None or out is None:
            if before is None and out is None and is_same_leaf(old.leaves[k], new.leaves[k]):
                return True
            what = type((new if before else old).leaves[k]).__name__
            reason = f"`{name}` holds a {what} in a loop on values, and something else after an iteration"
            refuse(reason, "a loop in the program carries arrays and numbers only")
        after = iteration.closed.out_avals[out]
        if after.shape != before.shape:
            what = f"`{name}` has the shape {before.shape} before an iteration of a loop on values, and "
            refuse(f"{what}{after.shape} after it", "give it its final shape before the loop")
        target = common_type([before, after])
        bool_kind = common_bool_kind([self.bool_kinds[at], iteration.bool_kinds[at]])
        if not self._fits(at, iteration.types[at]):
            target = None
        if target is None:
            types = f"{before.str_short()} before an iteration of a loop on values, and {after.str_short()} after it"
            refuse(f"`{name}` is {types}", "cast it")
        place = range_after(iteration.bounds[at], self.ranges[at], self.iterations)
        if target == (before.dtype, before.weak_type) and bool_kind == self.bool_kinds[at] and place == self.ranges[at]:
            return True
        self.bool_kinds[at], self.ranges[at] = bool_kind, place
        self.types[at] = core.ShapedArray(before.shape, target[0], weak_type=target[1])
        return False

    def _fits(self, at: int, after: Any) -> bool:
        """Tells whether one variable of the program can hold both the value before the loop and one of this type."""
        leaf, before = self.leaves[at], type_of(self.leaves[at])
        if is_mergeable(before, after):
            return True
        if isinstance(leaf, (int, float)) and jax.dtypes.issubdtype(after.dtype, np.inexact):
            return float(np.asarray(leaf, after.dtype)) == leaf
        # The number before the loop may also become a floating or a wider number in an iteration.
        is_float = jax.dtypes.issubdtype(before.dtype, np.floating)
        return is_wide(after.dtype) and (is_float or is_wide(before.dtype))

    def _adapt(self, iteration: Recording) -> bool:
        """Tries to adapt a recorded iteration to wider types of the state. Tells whether it could."""
        if [*self.bool_kinds, *self.ranges] != iteration.input_kinds_and_ranges:
            return False
        types = self._state_types()
        shapes = [[(a.shape, a.dtype) for a in avals] for avals in (types, iteration.input_types)]
        if shapes[0] != shapes[1]:
            return False
        changed = [old.weak_type and not new.weak_type for old, new in zip(iteration.input_types, types, strict=True)]
        closed = with_full_types(iteration.closed, changed, self._structs())
        if closed is None:
            return False
        iteration.closed, iteration.input_types = closed, types
        return True

    def _cast(self, iteration: Recording) -> Any:
        """Returns the iteration as a closed jaxpr whose results are cast to the dtypes of its inputs."""
        dtypes = [aval.dtype for aval in self._state_types()]
        if [aval.dtype for aval in iteration.closed.out_avals] == dtypes:
            return iteration.closed

        def run(*xs: Any) -> list[Any]:
            return [cast(x, dtype, False) for x, dtype in zip(core.run_closed(iteration.closed, *xs), dtypes)]

        return core.make_jaxpr(run, self._structs())


def _negated_input(closed: Any) -> int | None:
    """Returns the index of the input whose negation a condition is, None if the condition is anything else."""
    jaxpr, consts = core.opened(closed)
    made = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if len(eqn.outvars) == 1}
    found, negations = jaxpr.outvars[0], 0
    while not isinstance(found, core.Literal) and (eqn := made.get(found)) is not None:
        if eqn.primitive.name not in ("not", "convert_element_type") or eqn.invars[0].aval.dtype != bool:
            return None
        negations += eqn.primitive.name == "not"
        found = eqn.invars[0]
    inputs = jaxpr.invars[len(consts) :]
    return inputs.index(found) if negations % 2 and found in inputs else None


def _array_type_of(leaf: Any) -> Any:
    aval = jax.typeof(leaf)
    return core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _shown(variable: Flattened) -> str:
    content = variable.content
    if isinstance(content, (list, tuple, dict)):
        return f"a {type(content).__name__} of {len(content)}"
    if isinstance(content, Undefined) or content is None:
        return "None" if content is None else "undefined"
    return jax.typeof(content).str_short() if is_value(content) else f"a {type(content).__name__}"

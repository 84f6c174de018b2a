"""`if` statements, conditional expressions, `and`, `or` and `not` on traced values.

Both branches of an `if` are recorded, and merged right after it: what they leave in a variable becomes a result of a
`lax.cond`. In some cases one program cannot hold both contents of a variable: two functions, two shapes, or a name that
only one branch binds. Such an `if` is followed path by path, as in a body that was not rewritten: the block that the
`if` is in is run to its end once for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import (
    PYTHON,
    PathError,
    PathTracer,
    as_array,
    bool_kind_of,
    common_bool_kind,
    common_type,
    hull,
    predicate,
    with_bool_kind,
    with_bounds,
)
from jaxpyop._paths.rewrite.context import context, is_traced, note_rebuilt, noted_number, refuse, snapshot_of, staged
from jaxpyop._paths.rewrite.values import cast, is_mergeable, is_value, with_origin
from jaxpyop._paths.rewrite.variables import (
    Flattened,
    Recording,
    Undefined,
    UnmergeableError,
    Variables,
    containers_in,
    is_same_leaf,
)
from jaxpyop._paths.snapshot import ABSENT, Snapshot

Block = Callable[[], None]
# A function that makes the content of a variable from the results of the `cond`.
Plan = Callable[[Sequence[Any]], Any]


def choose(
    condition: Any, yes: Block, no: Block, make_variables: Callable[[], Variables], watched: Sequence[Any] = ()
) -> None:
    """Runs an `if` on a traced value.

    Args:
        condition: the traced value.
        yes: runs the branch for True.
        no: runs the branch for False.
        make_variables: reads the variables that the branches assign.
        watched: the functions of the user that the branches call, if `yes` and `no` are not such functions themselves.
    """
    watched = watched or (yes, no)
    snapshot, key, unmergeable = snapshot_of(*watched), watched[0].__code__, context().unmergeable
    # Reading a variable may change something: an entry of a `defaultdict` is made.
    variables = make_variables()
    # If an `if` on the same value is being followed path by path, its answer also decides this one.
    is_decided = isinstance(condition, PathTracer) and condition.has_answer()
    try:
        if key in unmergeable or variables.undefined_part or is_decided or snapshot.not_restored:
            raise UnmergeableError
        pred = predicate(condition)
        after = _merged(_Merge(condition, pred, _record_branches(yes, no, variables, snapshot), snapshot), variables)
        variables.restore()
        if snapshot.put_back() is not None:
            raise UnmergeableError
    except UnmergeableError:
        unmergeable.add(key)
        # `restore` comes first. It also sets an entry or an attribute that did not exist, and `put_back` deletes that.
        variables.restore()
        snapshot.put_back()
        (yes if bool(condition) else no)()
    except BaseException:
        variables.restore()
        snapshot.put_back()
        raise
    else:
        variables.set_live(after)


def _record_branches(yes: Block, no: Block, variables: Variables, snapshot: Snapshot) -> list[Recording]:
    changed: list[str] = []

    def run(block: Block) -> Sequence[Any]:
        variables.restore()
        if (name := snapshot.put_back()) is not None:
            changed.append(name)
        block()
        return variables.get()[: variables.live]

    branches = [Recording(lambda block=block: run(block)) for block in (yes, no)]
    if changed:
        raise UnmergeableError
    return branches


def _merged(merge: _Merge, variables: Variables) -> list[Any]:
    """Adds the `cond` to the program, and returns the variables that are read after the `if`.

    Raises:
        UnmergeableError: one program cannot hold what both branches leave in the variables.
    """
    pairs = zip(*(branch.variables for branch in merge.branches), variables.names[: variables.live], strict=True)
    plans = [merge.variable(yes, no, name) for yes, no, name in pairs]
    outs = merge.emit()
    return [plan(outs) for plan in plans]


# On a branch that does not come to a ``return``, this takes the place of the value that the other branch returns.
_ZEROS: Any = object()


class _Merge:
    """Collects the results that a `cond` has to have."""

    def __init__(self, condition: Any, pred: Any, branches: Sequence[Recording], snapshot: Snapshot) -> None:
        self.condition = condition
        self.pred = pred
        self.branches = branches
        self.snapshot = snapshot
        # For each result of the `cond`: its index among the outputs of either branch (None for zeros), its shape, and
        # its dtype together with whether the dtype is weak.
        self.results: list[tuple[list[int | None], Any, tuple[Any, bool]]] = []

    def variable(self, yes: Flattened, no: Flattened, name: str) -> Plan:
        if name.startswith("retval_"):
            yes, no = _with_zeros(yes, no), _with_zeros(no, yes)
        if yes.value is no.value:
            return lambda outs: yes.value
        if yes.tree != no.tree:
            raise UnmergeableError
        pairs = zip(yes.leaves, no.leaves, strict=True)
        leaves = [self._leaf(pair, (yes.first + k, no.first + k)) for k, pair in enumerate(pairs)]
        # A new list is as good as the one that a branch made, unless something else holds that one.
        old = [x for side in (yes, no) for x in (*side.shared, *filter(self.snapshot.holds, side.containers))]

        def plan(outs: Sequence[Any]) -> Any:
            content = yes.tree.filled([leaf(outs) for leaf in leaves])
            if old:
                note_rebuilt(name, [*old, *containers_in(content)])
            return content

        return plan

    def _leaf(self, pair: Sequence[Any], places: Sequence[int]) -> Plan:
        a, b = pair
        if is_same_leaf(a, b):
            return lambda outs: a
        # NumPy computes in 64 bits, and has numbers and arrays of its own: one path is as good as the other.
        is_numpy = all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in pair)
        if is_numpy or not all(leaf is _ZEROS or is_value(leaf) for leaf in pair):
            raise UnmergeableError
        if a is True and _is_negation(self.condition, b):
            # The statement is `if not done: done = True`. Afterwards, `done` is True in both cases.
            return lambda outs: True
        indices = [None if x is _ZEROS else w.outs[p] for x, w, p in zip(pair, self.branches, places, strict=True)]
        avals = [w.closed.out_avals[i] for w, i in zip(self.branches, indices, strict=True) if i is not None]
        target = common_type(avals)
        if target is None or any(aval.shape != avals[0].shape for aval in avals):
            raise UnmergeableError
        branches = [(w, p) for x, w, p in zip(pair, self.branches, places, strict=True) if x is not _ZEROS]
        known = [(w.types[p], w.bool_kinds[p]) for w, p in branches]
        if not is_mergeable(known[0][0], known[-1][0]):
            raise UnmergeableError
        place, bool_kind = len(self.results), common_bool_kind([kind for _, kind in known])
        bounds = hull([w.bounds[p] for w, p in branches])
        self.results.append((indices, avals[0].shape, target))
        path_types = frozenset().union(*(w.path_types[p] for w, p in branches))
        return lambda outs: noted_number(
            with_bounds(with_bool_kind(with_origin(outs[place], a, b), bool_kind), bounds), path_types
        )

    def emit(self) -> list[Any]:
        has_effects = any(branch.closed.effects for branch in self.branches)
        if not self.results and not has_effects:
            return []
        (yes, yes_consts), (no, no_consts) = (core.opened(branch.closed) for branch in self.branches)
        operands = core.cast_to_common_axes([*yes_consts, *no_consts])
        split = len(yes_consts)
        take_yes = lambda *consts: self._cast(core.run_jaxpr(yes, *consts[:split]), 0)
        take_no = lambda *consts: self._cast(core.run_jaxpr(no, *consts[split:]), 1)
        if has_effects:
            # With effects, JAX's own function is used. It keeps effects in order, or refuses them.
            return jax.lax.cond(self.pred, take_yes, take_no, *operands)
        return core.run_cond(
            self.pred, core.make_jaxpr(take_yes, operands), core.make_jaxpr(take_no, operands), operands
        )

    def _cast(self, outs: Sequence[Any], branch: int) -> list[Any]:
        return [
            cast(jnp.zeros(shape, target[0]) if (i := indices[branch]) is None else outs[i], *target)
            for indices, shape, target in self.results
        ]


def _with_zeros(variable: Flattened, other: Flattened) -> Flattened:
    """Fills in zeros for the result of a function on a branch without ``return``, if the other branch returns one.

    The zeros are never returned: a later ``return`` replaces them, or the function is refused (`FunctionScope.ret`).
    """
    if not variable.not_returned or other.undefined or not all(map(is_value, other.leaves)):
        return variable
    return Flattened(other.tree, [_ZEROS] * len(other.leaves), variable.first)


# ------------------------------------------------------------ conditions


def not_(x: Any) -> Any:
    if not is_traced(x):
        return not x
    out = with_bool_kind(jax.lax.bitwise_not(as_array(predicate(x))), PYTHON)
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
    choose(condition, lambda: write((yes(),)), lambda: write((no(),)), lambda: variables, watched=(yes, no))
    return value


def and_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    a = first()
    if not is_traced(a):
        return a and second()
    b = _operand(second)
    if b is ABSENT:
        return second() if a else a
    if _is_bool(a) and _is_bool(b):
        return with_bool_kind(as_array(a) & as_array(b), common_bool_kind([bool_kind_of(a), bool_kind_of(b)]))
    # The second operand is evaluated again, inside of the branch. Outside, its derivative would count even where Python
    # skips it, and there it may be NaN.
    return if_exp(a, second, lambda: a)


def or_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    a = first()
    if not is_traced(a):
        return a or second()
    b = _operand(second)
    if b is ABSENT:
        return a if a else second()
    if _is_bool(a) and _is_bool(b):
        return with_bool_kind(as_array(a) | as_array(b), common_bool_kind([bool_kind_of(a), bool_kind_of(b)]))
    return if_exp(a, lambda: a, second)


def _operand(second: Callable[[], Any]) -> Any:
    """Evaluates the second operand of `and` or `or` although Python might skip it.

    Returns ABSENT if running it makes a difference, because it raises an error, changes something, or calls what has an
    effect when the program runs.
    """
    snapshot, whiles = snapshot_of(second), context().whiles
    if snapshot.not_restored:
        return ABSENT
    try:
        # What is recorded here is not part of the program.
        has_effects = bool(Recording(lambda: [second()]).closed.effects)
        snapshot.put_back()
        with staged():
            value = ABSENT if has_effects else second()
    except PathError:
        raise
    except Exception:
        snapshot.put_back()
        return ABSENT
    if context().whiles > whiles:
        what = "the second operand of `and` or `or` has a loop, which might run without an end where Python skips it"
        refuse(what, "write an `if` on the first operand around it")
    return value if snapshot.put_back() is None else ABSENT


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool) or (is_traced(x) and x.dtype == bool and x.ndim == 0)

"""The variables that a statement assigns, and the recording of a block of code that assigns them.

To record a block, its variables are set, the block is called, and its variables are read. An array or a number in a
variable becomes a value of the program. Anything else has to be the same on all paths through the block.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._paths.follow import bool_kind_of, bounds_of, common_bool_kind, hull, record_paths, types_of
from jaxpyop._paths.rewrite.context import marking_errors, refuse, staged
from jaxpyop._paths.rewrite.values import is_mergeable, is_same_object, is_value, type_of
from jaxpyop._paths.snapshot import contents_of, is_same


class Undefined:
    """A variable that has no value yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> Any:
        raise UnboundLocalError(f"cannot access local variable {self.name!r} where it is not associated with a value")


class UndefinedReturnValue(Undefined):
    """The result of a function that has not come to a ``return`` yet."""

    def __init__(self) -> None:
        super().__init__("the result")


class Dropped(Undefined):
    """The content of a variable after a statement on traced values, if the analysis found no later read of it."""

    def read(self) -> Any:
        refuse(
            f"`{self.name}` is read after a statement on traced values that assigns it, and jaxpyop did not see that",
            "pass it to the function that reads it as an argument",
        )


class UnmergeableError(Exception):
    """Raised if the branches of an `if`, or the paths of a block, leave in a variable what one program cannot hold."""


@dataclasses.dataclass(eq=False)
class Variables:
    """The variables of one statement.

    Attributes:
        names: the names of the variables. A name may also be an attribute or an entry, such as ``self.x`` or ``x[0]``.
        get: reads all variables.
        set: sets all variables.
        live: how many of them are read after the statement. These come first.
        augmented: the names that ``+=`` and similar operators change, perhaps in place.
        before: the values of the variables before the statement.
    """

    names: Sequence[str]
    get: Callable[[], tuple[Any, ...]]
    set: Callable[[Sequence[Any]], None]
    live: int
    augmented: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.before = self.get()
        self._dropped = [Dropped(name) for name in self.names[self.live :]]

    def restore(self) -> None:
        self.set(self.before)

    def set_live(self, values: Sequence[Any]) -> None:
        """Sets the variables that are read after the statement, and drops the others."""
        self.set([*values, *self._dropped])

    def alive(self) -> Variables:
        """Drops the variables that are not read after the statement, and returns the others."""
        count = self.live
        self.set_live(self.before[:count])
        return Variables(self.names[:count], lambda: self.get()[:count], self.set_live, count, self.augmented)

    @property
    def changed_in_place(self) -> str | None:
        """The name of a NumPy array that the statement may change in place. Other variables may hold the same array."""
        pairs = zip(self.names, self.before, strict=True)
        return next((n for n, v in pairs if n in self.augmented and isinstance(v, np.ndarray) and v.ndim), None)

    @property
    def undefined_part(self) -> str | None:
        """The name of an attribute or an entry that does not exist yet, if the statement would make one."""
        pairs = zip(self.names, self.before, strict=True)
        return next((n for n, v in pairs if isinstance(v, Undefined) and ("." in n or "[" in n)), None)


def is_leaf(x: Any) -> bool:
    """Tells whether an object is not taken apart, because it holds more than JAX puts together again."""
    if isinstance(x, (list, tuple, dict, type(None))) or is_value(x) or isinstance(x, Undefined):
        return False
    children, structure = jax.tree.flatten(x, is_leaf=lambda y: y is not x)
    if len(children) == 1 and children[0] is x:
        return True
    again = contents_of(jax.tree.unflatten(structure, children))
    return not all(map(is_same, contents_of(x), again))


def containers_in(content: Any) -> list[Any]:
    """Returns the lists, dicts and other containers, but no tuples, that JAX takes apart, from the outside in."""
    found: list[Any] = []

    def look(x: Any) -> bool:
        if is_leaf(x):
            return True
        if not (isinstance(x, (tuple, type(None))) or is_value(x) or jax.tree_util.all_leaves([x])):
            found.append(x)
        return False

    jax.tree.leaves(content, is_leaf=look)
    return found


@dataclasses.dataclass(frozen=True)
class Tree:
    """A structure of JAX's, and the order of the keys of each dict in it, which JAX forgets."""

    structure: Any
    orders: Sequence[Sequence[Any]] = ()

    def filled(self, leaves: Sequence[Any]) -> Any:
        content = jax.tree.unflatten(self.structure, leaves)
        for held, keys in zip(_dicts(containers_in(content)), self.orders, strict=True):
            for key in keys:
                held[key] = held.pop(key)
        return content


def _dicts(containers: Sequence[Any]) -> list[Any]:
    return [x for x in containers if isinstance(x, dict)]


@dataclasses.dataclass(eq=False)
class Flattened:
    """The content of a variable as a tree of leaves.

    Attributes:
        tree: its structure.
        leaves: its leaves.
        first: the index of its first leaf in the list of the leaves of all variables.
        value: the content itself. If it depends on the path, this is an object that nothing else holds.
        containers: the lists and dicts in it.
        shared: those that are in several places of these variables.
    """

    tree: Tree
    leaves: list[Any]
    first: int
    value: Any = dataclasses.field(default_factory=object)
    containers: list[Any] = dataclasses.field(default_factory=list)
    shared: list[Any] = dataclasses.field(default_factory=list)

    @property
    def undefined(self) -> bool:
        return len(self.leaves) == 1 and isinstance(self.leaves[0], Undefined)

    @property
    def not_returned(self) -> bool:
        return len(self.leaves) == 1 and isinstance(self.leaves[0], UndefinedReturnValue)

    @property
    def content(self) -> Any:
        return self.tree.filled(self.leaves)


def flattened(values: Sequence[Any]) -> list[Flattened]:
    found: list[Flattened] = []
    first = 0
    for value in values:
        leaves, structure = jax.tree.flatten(value, is_leaf=is_leaf)
        containers = containers_in(value)
        tree = Tree(structure, [list(x) for x in _dicts(containers)])
        found.append(Flattened(tree, leaves, first, value, containers))
        first += len(leaves)
    counts = collections.Counter(id(x) for variable in found for x in variable.containers)
    for variable in found:
        variable.shared = [x for x in variable.containers if counts[id(x)] > 1]
    return found


def leaves_of(variables: Sequence[Flattened]) -> list[Any]:
    return [leaf for variable in variables for leaf in variable.leaves]


def is_same_leaf(a: Any, b: Any) -> bool:
    """Tells whether the leaves of two branches or paths are the same, so that the program need not choose."""
    return is_same_object(a, b) or (isinstance(a, Undefined) and isinstance(b, Undefined))


class Recording:
    """The recording of a block: its program, and what its variables hold afterwards.

    Attributes:
        closed: the closed jaxpr, with a result for each leaf that is a value.
        variables: what the variables hold, as leaves.
        outs: for each leaf the index of its result, or None if the leaf is not a value.
        types: for each leaf its type on the first path, or None if the leaf is not a value.
        bool_kinds: for each leaf whether a bool there counts as Python's, as an array's, or differently on each path.
        path_types: for each leaf the set of types that it has on all paths (see `number_types.Types`).
        bounds: for each leaf its bounds if it is a Python number, and otherwise None.
        input_types: the types of the inputs. Only the recordings of a loop have inputs.
        input_kinds_and_ranges: the `bool_kinds` of the leaves of a loop's state, and then their ranges (see
            `range_before`).
    """

    input_types: Sequence[Any] = ()
    input_kinds_and_ranges: Sequence[Any] = ()

    def __init__(self, block: Callable[..., Sequence[Any]], args: Sequence[Any] = ()) -> None:
        runs: list[list[Flattened]] = []
        bool_kinds: list[list[str]] = []
        bounds: list[list[Any]] = []
        path_types: list[list[Any]] = []
        avals: list[list[Any]] = []

        def run(*xs: Any) -> list[Any]:
            runs.append(flattened(block(*xs)))
            leaves = leaves_of(runs[-1])
            bool_kinds.append(list(map(bool_kind_of, leaves)))
            bounds.append(list(map(bounds_of, leaves)))
            path_types.append([types_of(leaf) if is_value(leaf) else frozenset() for leaf in leaves])
            avals.append([type_of(leaf) if is_value(leaf) else None for leaf in leaves])
            return list(filter(is_value, leaves))

        with staged(), marking_errors():
            self.closed = record_paths(run, args)
        self.variables = runs[0]
        for other, types in zip(runs[1:], avals[1:], strict=True):
            self._check_path(other)
            if any(a and b and not is_mergeable(a, b) for a, b in zip(avals[0], types, strict=True)):
                raise UnmergeableError
        indices = iter(range(len(self.closed.out_avals)))
        self.bool_kinds = [common_bool_kind(column) for column in zip(*bool_kinds, strict=True)]
        self.bounds = [hull(column) for column in zip(*bounds, strict=True)]
        self.path_types = [frozenset().union(*column) for column in zip(*path_types, strict=True)]
        self.types = avals[0]
        self.outs = [next(indices) if is_value(leaf) else None for leaf in leaves_of(self.variables)]

    def _check_path(self, other: Sequence[Flattened]) -> None:
        """Compares the leaves with the leaves of another path of the block.

        Raises:
            UnmergeableError: a leaf differs, and is not a value.
        """
        for mine, its in zip(self.variables, other, strict=True):
            if mine.tree != its.tree:
                raise UnmergeableError
            if mine.value is not its.value:
                mine.value = object()
            mine.containers += its.containers
            mine.shared += its.shared
            for k, (a, b) in enumerate(zip(mine.leaves, its.leaves, strict=True)):
                if not is_same_leaf(a, b):
                    if not (is_value(a) and is_value(b)):
                        raise UnmergeableError
                    # The paths left different values here. A new array marks the place: it counts as a value of the
                    # program, not as a Python number, and it is identical to no other leaf.
                    mine.leaves[k] = np.zeros(())

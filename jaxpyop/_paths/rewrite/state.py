"""What a statement of a converted body assigns, before it and on each of its ways.

A statement is run to be recorded: its variables are set, its block is called, its variables are read. What is an
array, or a number, becomes a value of the program; what is not has to be the same whichever way is taken. `Snapshot`
finds lists that a block changed in place, which happened once, while tracing, and not in the program.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import NeedsPathsError, PathError, PathTrace, Place, common_type, record_block


class Undefined:
    """A variable that has no value yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> Any:
        raise UnboundLocalError(f"cannot access local variable {self.name!r} where it is not associated with a value")


class UndefinedReturnValue(Undefined):
    """What a function returns before a ``return``."""

    def __init__(self) -> None:
        super().__init__("the result")


@dataclasses.dataclass(eq=False)
class Following:
    """What one trace of a body has to know wherever its parts are.

    Attributes:
        home: the body's package, whose functions are rewritten wherever they are installed.
        max_steps: the user's bound of turns.
        title: how errors name the body.
        negations: traced conditions by the id of their negation, with that.
        unmergeable: the code of `if`s that have to be decided path by path.
        unconverted: why functions of the user's could not be rewritten.
    """

    home: str
    max_steps: int | None
    title: str = ""
    negations: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    unmergeable: set[Any] = dataclasses.field(default_factory=set)
    unconverted: list[str] = dataclasses.field(default_factory=list)


_following: contextvars.ContextVar[Following] = contextvars.ContextVar("following")
following = _following.get


def is_followed() -> bool:
    """False where rewritten code runs on values: a callback that the body defines."""
    return _following.get(None) is not None


@contextlib.contextmanager
def following_as(what: Following) -> Iterator[None]:
    token = _following.set(what)
    try:
        yield
    finally:
        _following.reset(token)


class UnmergeableError(Exception):
    """The two ways of an `if` leave what one program cannot hold in one variable."""


@dataclasses.dataclass(eq=False)
class Variables:
    """The variables of one statement: AutoGraph's names for them, and how to read and to set them."""

    names: Sequence[str]
    get: Callable[[], tuple[Any, ...]]
    set: Callable[[Sequence[Any]], None]
    live: int  # how many of them, from the first, are read afterwards

    def __post_init__(self) -> None:
        self.before = self.get()

    def restore(self) -> None:
        self.set(self.before)

    @property
    def has_holes(self) -> bool:
        """Whether an attribute or an entry would be made that was not there."""
        pairs = zip(self.names, self.before, strict=True)
        return any(isinstance(v, Undefined) and ("." in n or "[" in n) for n, v in pairs)


def is_value(x: Any) -> bool:
    """Whether the program can hold it."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype != object and x.dtype.kind not in "USOV"
    return isinstance(x, (jax.Array, bool, int, float, complex))


def is_traced(x: Any) -> bool:
    return isinstance(x, core.Tracer) and is_followed()


def is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex))


@dataclasses.dataclass(eq=False)
class Shape:
    """What a variable holds on one way: its structure, and its leaves, a value's as an index into the results."""

    tree: Any
    leaves: list[Any]
    first: int  # the first leaf among those of all variables

    @property
    def undefined(self) -> bool:
        return len(self.leaves) == 1 and isinstance(self.leaves[0], Undefined)


def shapes_of(values: Sequence[Any]) -> list[Shape]:
    found: list[Shape] = []
    first = 0
    for value in values:
        leaves, tree = jax.tree.flatten(value)
        found.append(Shape(tree, leaves, first))
        first += len(leaves)
    return found


def leaves_of(shapes: Sequence[Shape]) -> list[Any]:
    return [leaf for shape in shapes for leaf in shape.leaves]


def same(a: Any, b: Any) -> bool:
    """Whether two leaves that are no values of the program are one."""
    if a is b:
        return True
    if is_number(a) or isinstance(a, (str, bytes)):
        return type(a) is type(b) and a == b
    return isinstance(a, Undefined) and isinstance(b, Undefined)


class Recorded:
    """A block, run and recorded: its program, and what its variables hold afterwards.

    Attributes:
        closed: the closed jaxpr, with a result for each leaf that is a value.
        shapes: of the variables.
        outs: for each leaf the index of its result, or None.
        kinds: of a turn of a loop: the types of its inputs.
    """

    kinds: Sequence[Any] = ()

    def __init__(self, block: Callable[..., Sequence[Any]], args: Sequence[Any] = ()) -> None:
        runs: list[list[Shape]] = []

        def run(*xs: Any) -> list[Any]:
            shapes = shapes_of(block(*xs))
            runs.append(shapes)
            return [leaf for leaf in leaves_of(shapes) if is_value(leaf)]

        with marking_errors():
            self.closed = record_block(run, args)
        self.shapes = runs[0]
        for other in runs[1:]:
            self._meet(other)
        indices = iter(range(len(self.closed.out_avals)))
        self.outs = [next(indices) if is_value(leaf) else None for leaf in leaves_of(self.shapes)]

    def _meet(self, other: Sequence[Shape]) -> None:
        """Keep of the leaves what another path of the block has, too."""
        for mine, its in zip(self.shapes, other, strict=True):
            if mine.tree != its.tree:
                raise UnmergeableError
            for k, (a, b) in enumerate(zip(mine.leaves, its.leaves, strict=True)):
                if is_value(a) != is_value(b) or not (is_value(a) or same(a, b)):
                    raise UnmergeableError
                if is_value(a) and not same(a, b):
                    mine.leaves[k] = _VARIES


_VARIES = np.zeros(())  # stands for a leaf that is a value, and no number


@contextlib.contextmanager
def marking_errors() -> Iterator[None]:
    """Have the run around remember a refusal, which the body might swallow."""
    try:
        yield
    except PathError as error:
        if isinstance(trace := core.current_trace(), PathTrace):
            trace.run.error = error
        raise


def refuse(reason: str, advice: str, place: Place) -> NoReturn:
    with marking_errors():
        raise PathError(reason, *place, advice)


def attempt(action: Callable[[], None]) -> bool:
    """Whether it could be followed; if not, it is as if it had not been tried."""
    try:
        action()
    except NeedsPathsError:
        raise
    except PathError:
        if isinstance(trace := core.current_trace(), PathTrace):
            trace.run.error = None
        return False
    return True


def cast(x: Any, dtype: Any, weak: bool) -> Any:
    """A value of this dtype, which gives way to others where it is weak."""
    x = jax.lax.convert_element_type(x, dtype)
    return weakened(x) if weak else x


def weakened(x: Any) -> Any:
    return jax.lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def joined(avals: Sequence[Any]) -> tuple[Any, bool]:
    """The dtype in which all fit, and whether it is weak.

    Raises:
        TypeError: there is none, as of a key and a number.
    """
    target = common_type(avals)
    return (avals[0].dtype, avals[0].weak_type) if target is None else (target, False)


# ------------------------------------------------------- changes in place

_CONTAINERS = (list, dict, set)
_LOOKED_AT = 2000  # objects; a body that closes over more is taken at its word


class Snapshot:
    """The lists, dicts, sets and attributes that some functions can reach, as they are now."""

    def __init__(self, *functions: Any) -> None:
        self._seen: dict[int, tuple[str, Any, Any]] = {}
        for function in functions:
            for name, value in _reachable(function):
                self._look(name, value, 4)

    def _look(self, name: str, value: Any, depth: int) -> None:
        if depth == 0 or id(value) in self._seen or len(self._seen) > _LOOKED_AT:
            return
        content = _content(value)
        if content is None:
            return
        if not isinstance(value, tuple):
            self._seen[id(value)] = (name, value, content)
        for part in content.values() if isinstance(content, dict) else content:
            self._look(name, part, depth - 1)

    def changed(self) -> str | None:
        """The name of the first that was changed since; all are put back."""
        found = None
        for name, value, content in self._seen.values():
            if not _same_content(_content(value), content):
                _put_back(value, content)
                found = found or name
        return found


def _reachable(function: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(function, types.FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for name in function.__code__.co_names:
        if isinstance(value := function.__globals__.get(name), _CONTAINERS):
            yield name, value


def _content(value: Any) -> Any:
    """A copy of what a container or an object of the user's holds; None of what holds nothing that could change."""
    if isinstance(value, (list, set, tuple)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (type, types.ModuleType, types.FunctionType, core.Tracer, jax.Array, np.ndarray)):
        return None
    held = getattr(value, "__dict__", None)
    return dict(held) if isinstance(held, dict) else None


def _same_content(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(x is y for x, y in zip(a.values(), b.values(), strict=True))
    return all(x is y for x, y in zip(a, b, strict=True))


def _put_back(value: Any, content: Any) -> None:
    if isinstance(value, list):
        value[:] = content
        return
    if not isinstance(value, (dict, set)):
        value = value.__dict__
    value.clear()
    value.update(content)

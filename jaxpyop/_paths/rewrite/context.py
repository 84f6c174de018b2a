"""The state of the trace of one body, which all its rewritten statements share, and how a statement is refused."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import NeedsPathsError, PathError, PathTrace, PathTracer, Types, refused_call
from jaxpyop._paths.snapshot import Snapshot, contents_of, is_known, is_same, root_of


@dataclasses.dataclass(eq=False)
class TraceContext:
    """One trace of a body.

    Attributes:
        home: the body's package. Its functions are rewritten even if the package is installed.
        max_steps: how many iterations of each loop the user allows for a backward pass.
        title: how errors name the body.
        negations: for the `id` of a negated condition, the negated condition itself and the condition before `not`.
        unmergeable: the code objects of `if`s whose branches one program cannot hold. They are followed path by path.
        unnamed: iterators by their `id` that are in no variable, so that only the `for` over them can read them.
        rebuilt: lists and dicts that the program made anew when it merged paths, so that variables that share one in
            Python may hold copies here: the variable, the list, its contents, and the user's line.
        staged: how many statements on traced values are being recorded now, nested in each other.
        whiles: how many `while`s on values have been recorded.
    """

    home: str
    max_steps: int | None
    title: str = ""
    negations: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    unmergeable: set[Any] = dataclasses.field(default_factory=set)
    unnamed: dict[int, Any] = dataclasses.field(default_factory=dict)
    rebuilt: list[tuple[str, Any, list[Any], core.SourceLine]] = dataclasses.field(default_factory=list)
    staged: int = 0
    whiles: int = 0


_context: contextvars.ContextVar[TraceContext] = contextvars.ContextVar("trace_context")
context = _context.get


def is_tracing() -> bool:
    """Tells whether a body is being traced. Rewritten code may also run on concrete values, in a callback of a body."""
    return _context.get(None) is not None


def is_traced(x: Any) -> bool:
    """Tells whether a value is known only when the program runs, so that Python cannot decide an `if` on it now."""
    return isinstance(x, core.Tracer) and is_tracing()


def noted_number(x: Any, types: Types) -> Any:
    """Notes the types of a scalar that stands for a Python number on one path, and has another type on another path."""
    if isinstance(x, PathTracer) and len(types) > 1 and not x.ndim:
        x.number_types = types
    return x


@contextlib.contextmanager
def staged() -> Iterator[None]:
    """Surrounds a block that is recorded once, although the program may run it several times or not at all."""
    context().staged += 1
    try:
        yield
    finally:
        context().staged -= 1


def note_rebuilt(name: str, containers: Sequence[Any]) -> None:
    """Notes lists and dicts that were made anew when paths were merged. They must not be changed in place any more."""
    context().rebuilt.extend((name, x, contents_of(x), core.users_line()) for x in containers)


def is_rebuilt(x: Any) -> bool:
    return any(x is found for _, found, _, _ in context().rebuilt)


def check_rebuilt() -> None:
    """Refuses a body that has changed such a list or dict: in Python, other variables may hold it, too."""
    for name, found, contents, line in context().rebuilt:
        if not all(map(is_same, contents_of(found), contents)):
            reason = f"`{name}` is assigned by a statement on values, and what it holds is changed in place afterwards"
            with marking_errors():
                raise PathError(reason, *line, f"change a copy of it, made by {type(found).__name__}(...)")


def snapshot_of(*functions: Any) -> Snapshot:
    """Returns a snapshot of everything that these functions of the body can reach and change."""
    return Snapshot(map(root_of, functions), context().home)


@contextlib.contextmanager
def tracing_in(trace_context: TraceContext) -> Iterator[None]:
    token = _context.set(trace_context)
    try:
        yield
    finally:
        _context.reset(token)


def check_call(function: Any) -> None:
    """Refuses a call that the program may skip or repeat, if it is not known whether the function has an effect."""
    trace = core.current_trace()
    is_conditional = context().staged or (isinstance(trace, PathTrace) and trace.run.taken)
    if is_conditional and not is_known(function, context().home):
        with marking_errors():
            raise refused_call(getattr(function, "__qualname__", type(function).__name__), core.users_line())


@contextlib.contextmanager
def marking_errors() -> Iterator[None]:
    """Notes a refusal in the run around this block, because the body might catch and drop the exception."""
    try:
        yield
    except PathError as error:
        if isinstance(trace := core.current_trace(), PathTrace):
            trace.run.error = error
        raise


def refuse(reason: str, advice: str) -> NoReturn:
    """Refuses the statement at the user's current line."""
    with marking_errors():
        raise PathError(reason, *core.users_line(), advice)


def attempt(action: Callable[[], None]) -> bool:
    """Runs an action, and tells whether it was not refused. A refusal is forgotten."""
    try:
        action()
    except NeedsPathsError:
        raise
    except PathError:
        if isinstance(trace := core.current_trace(), PathTrace):
            trace.run.error = None
        return False
    return True

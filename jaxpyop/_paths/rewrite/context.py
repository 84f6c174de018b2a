"""What the trace of one body has to know wherever its rewritten statements are, and how these refuse."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import NeedsPathsError, PathError, PathTrace, PathTracer, Types, refused_call
from jaxpyop._paths.snapshot import Snapshot, is_known, root_of


@dataclasses.dataclass(eq=False)
class TraceContext:
    """One trace of a body.

    Attributes:
        home: the body's package. Its functions are rewritten even if it is installed.
        max_steps: how many iterations of each loop the user allows for a backward pass.
        title: how errors name the body.
        negations: traced conditions by the `id` of their negation, together with the negation.
        unmergeable: the code of `if`s that have to be decided path by path.
        unnamed: iterators by their `id` that nothing but a `for` can read, as they are in no variable.
        staged: how many statements on traced values are being recorded, one inside of the other.
    """

    home: str
    max_steps: int | None
    title: str = ""
    negations: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    unmergeable: set[Any] = dataclasses.field(default_factory=set)
    unnamed: dict[int, Any] = dataclasses.field(default_factory=dict)
    staged: int = 0


_context: contextvars.ContextVar[TraceContext] = contextvars.ContextVar("trace_context")
context = _context.get


def is_tracing() -> bool:
    """Tells whether a body is being traced. Rewritten code may also run on values, in a callback of the body's."""
    return _context.get(None) is not None


def is_traced(x: Any) -> bool:
    """Tells whether a value decides nothing for Python, but something for the program that is being traced."""
    return isinstance(x, core.Tracer) and is_tracing()


def noted_number(x: Any, types: Types) -> Any:
    """Notes the types of a traced value that is a Python number on one path, and of another type on another."""
    if isinstance(x, PathTracer) and len(types) > 1 and not x.ndim:
        x.number_types = types
    return x


@contextlib.contextmanager
def staged() -> Iterator[None]:
    """Surrounds a block that runs once, for a statement that may run it several times or not at all."""
    context().staged += 1
    try:
        yield
    finally:
        context().staged -= 1


def snapshot_of(*functions: Any) -> Snapshot:
    """Returns a snapshot of what some functions of the body can reach."""
    return Snapshot(map(root_of, functions), context().home)


@contextlib.contextmanager
def tracing_in(trace_context: TraceContext) -> Iterator[None]:
    token = _context.set(trace_context)
    try:
        yield
    finally:
        _context.reset(token)


def check_call(function: Any) -> None:
    """Refuses a call on a condition of traced values, if it is not known whether the function has an effect."""
    trace = core.current_trace()
    is_conditional = context().staged or (isinstance(trace, PathTrace) and trace.run.taken)
    if is_conditional and not is_known(function, context().home):
        with marking_errors():
            raise refused_call(getattr(function, "__qualname__", type(function).__name__), core.users_line())


@contextlib.contextmanager
def marking_errors() -> Iterator[None]:
    """Has the run around this block remember a refusal, which the body might swallow."""
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
    """Tells whether an action could be followed. If not, it is as if it had not been tried."""
    try:
        action()
    except NeedsPathsError:
        raise
    except PathError:
        if isinstance(trace := core.current_trace(), PathTrace):
            trace.run.error = None
        return False
    return True

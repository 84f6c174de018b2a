"""The runs of a body: one along each path, on tracers that know shapes and dtypes only.

A `bool` of a tracer is the one thing that ``if``, ``and``, ``or``, ``not``, ``min`` and ``while`` ask of a value. It is
answered from a list of decisions. A new question is first answered True, and later runs try the other answers. One run
records one path, as a straight line of equations.

`infer_shapes` needs one path that completes. `trace_paths` records all of them, and makes `lax.cond`s of the tree that
they form. Nothing is staged before all paths are known. So no signal has to stop the body early, which a body with a
bare ``except:`` could swallow.

Each path runs the body again. A body that changes an object outside it, or reads one that changes, cannot be followed.
A body whose equations differ between two runs with the same decisions is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.errors import RAISING, LostDerivativeError, NeedsPathsError, PathError, SlowPathsError
from jaxpyop._paths.follow.program import evaluate
from jaxpyop._paths.follow.tracer import MAX_PATHS, PathRun, call_traced, too_many_paths
from jaxpyop._paths.follow.tree import NondeterministicError, PathTree, common_type

# How many paths `infer_shapes` tries, and for how long.
_SHAPE_PATHS = 64
_SHAPE_SECONDS = 5.0


def _record(func: Callable[..., Any], args: Sequence[Any], run: PathRun) -> Any:
    """Records one path as a closed jaxpr.

    Raises:
        PathError: the path raises, asks for a value or exceeds a bound.
    """
    try:
        recorded = core.make_jaxpr(lambda *xs: call_traced(func, xs, run), args)
    except Exception as error:
        if run.error is not None:
            raise run.error from None
        if isinstance(error, (PathError, LostDerivativeError)):
            # A PathError is about a part of the body that is followed on its own.
            raise
        raise _raised(error) from error
    if run.error is not None:
        # The body swallowed the exception, so its result means nothing.
        raise run.error.with_traceback(None)
    return recorded


def _raised(error: Exception) -> PathError:
    line = core.raising_line(error)
    if isinstance(error, RecursionError):
        reason = "the body calls itself on a condition of values, which has no end while it is traced"
        return PathError(reason, *line)
    text = (str(error).splitlines() or [""])[0]
    by_user = core.is_users_file(core.raising_file(error) or core.PACKAGE)
    return PathError(f"a path raises {type(error).__name__}: {text}", *line, *([RAISING] if by_user else []))


def _next_preset(taken: Sequence[bool]) -> list[bool] | None:
    """Returns the decisions of the next path, depth first and True first. None after the last path."""
    preset = list(taken)
    while preset and not preset[-1]:
        preset.pop()
    return [*preset[:-1], False] if preset else None


def infer_shapes(func: Callable[..., Any], args: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """Finds the shapes and dtypes of the results along one path that completes.

    Nothing is computed, no effect happens and nothing is added to the program that is being traced. Only the Python
    code of the body runs.

    Args:
        func: takes and returns flat sequences of values.
        args: arrays, tracers or `jax.ShapeDtypeStruct`s.

    Returns:
        One `jax.ShapeDtypeStruct` (with `weak_type`) per result.

    Raises:
        PathError: no path completes without asking for a value. The reason given is that of the first path.
        SlowPathsError: no path completed in time.
    """
    structs = [core.struct_of(x) for x in args]
    deadline = time.monotonic() + _SHAPE_SECONDS
    why: list[tuple[str, str, int]] = []
    for run in _attempts(deadline, why):
        try:
            return [core.struct_of(aval) for aval in _record(func, structs, run).out_avals]
        except PathError as error:
            # The exception itself is not kept, for its frames hold tracers.
            why.append((error.reason, error.filename, error.lineno))
    kind = SlowPathsError if time.monotonic() > deadline else PathError
    raise kind(*why[0], "give output_shapes=")


def _attempts(deadline: float, why: Sequence[tuple[str, str, int]]) -> Iterator[PathRun]:
    """Yields runs to try, one after the other. The caller appends to `why` the reason for which the last one failed.

    If two runs fail at the same line, the cause is most likely outside of every `if`, and no more are tried. Therefore
    the first two are those that have least in common.
    """
    yield (first := PathRun((), _SHAPE_PATHS, deadline, folds=True))
    if not first.taken or time.monotonic() > deadline:
        return
    yield PathRun((), _SHAPE_PATHS, deadline, folds=True, otherwise=False)
    preset = _next_preset(first.taken)
    while preset is not None and time.monotonic() < deadline and len({failed[1:] for failed in why}) == len(why):
        yield (run := PathRun(preset, _SHAPE_PATHS, deadline, folds=True))
        preset = _next_preset(run.taken) if len(why) < _SHAPE_PATHS else None


def trace_paths(func: Callable[..., Any], args: Sequence[Any], *, max_paths: int = MAX_PATHS) -> list[Any]:
    """Runs a body under the current trace, with its `if`s as `lax.cond`s.

    Args:
        func: takes and returns flat sequences of values.
        args: JAX values: arrays, or tracers of the caller's transformations.
        max_paths: more paths are refused.

    Returns:
        The results, as values of the current trace. Results that differ between paths in dtype or weak type only have
        the promoted dtype.

    Raises:
        PathError: the body cannot be followed, or its paths return different shapes or numbers of results.
    """
    tree = _explore(func, args, max_paths)
    try:
        return evaluate(tree.block(), dict(zip(map(id, tree.args or ()), args, strict=True)))
    except RecursionError:
        # JAX takes some dozen Python frames for each level.
        raise PathError("the decisions of the body are nested too deeply", *core.users_line()) from None


def record_one_path(func: Callable[..., Any], args: Sequence[Any], run: PathRun | None = None) -> Any:
    """Records a function with one path as a closed jaxpr. `NeedsPathsError` is raised if there are more."""
    return _record(func, args, run or PathRun(one_path=True, follow=trace_paths))


def record_paths(func: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Records a function as a closed jaxpr, along all its paths if it has several.

    Args:
        func: takes and returns flat sequences of values; may close over values of the current trace.
        args: arrays, tracers or `jax.ShapeDtypeStruct`s.

    Raises:
        PathError: the function cannot be followed.
    """
    run = PathRun(one_path=True, follow=trace_paths)
    try:
        return record_one_path(func, args, run)
    except NeedsPathsError as error:
        if error is not run.error:
            # An enclosing recording raised this, about a value of its own. Only that recording can follow both answers.
            raise
    return core.make_jaxpr(lambda *xs: trace_paths(func, xs), args)


def _explore(func: Callable[..., Any], args: Sequence[Any], max_paths: int) -> PathTree:
    tree = PathTree()
    preset: list[bool] | None = []
    first: _Path | None = None
    while preset is not None:
        run = PathRun(preset, max_paths, follow=trace_paths)
        recorded = _record(func, args, run)
        try:
            avals = tree.add(recorded, run.taken, run.origins)
        except NondeterministicError:
            place = run.lines[-1] if run.lines else core.NOWHERE
            raise PathError("two runs of the body differ (it must not depend on outside state)", *place) from None
        first = first or (run.taken, avals)
        _check_results(func, args, first, (run.taken, avals))
        # For each True so far, the path with False is still to come.
        if len(tree.leaves) + sum(run.taken) > max_paths:
            raise PathError(too_many_paths(max_paths), *run.lines[-1])
        preset = _next_preset(run.taken)
    return tree


# The decisions of a path, and the avals of its results.
_Path = tuple[Sequence[bool], Sequence[Any]]


def _check_results(func: Callable[..., Any], args: Sequence[Any], first: _Path, other: _Path) -> None:
    problem = _difference(first[1], other[1])
    if problem is None:
        return
    places = [_returning_line(func, args, decisions) for decisions, _ in (first, other)]
    here, there = (f"{filename}:{lineno}" for filename, lineno in places)
    raise PathError(f"paths return different results, {problem}: return at {here} and {there}", *places[1])


def _difference(first: Sequence[Any], other: Sequence[Any]) -> str | None:
    if len(first) != len(other):
        return f"{len(first)} and {len(other)} of them"
    for a, b in zip(first, other, strict=True):
        if a.shape != b.shape or common_type([a, b]) is None:
            return f"{a.str_short()} and {b.str_short()}"
    return None


def _returning_line(func: Callable[..., Any], args: Sequence[Any], decisions: Sequence[bool]) -> core.SourceLine:
    """Returns where the user's outermost function returns on a path. The path is run once more to find it."""
    watched, line = core.watching_returns(func)
    _record(watched, args, PathRun(decisions, follow=trace_paths))
    return line()

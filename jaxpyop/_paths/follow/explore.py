"""Follow a Python body path by path without running it on values.

The body runs on tracers that know shapes and dtypes only. A `bool(tracer)`, the
one thing that ``if``, ``and``, ``or``, ``not``, ``min`` and ``while`` ask of a
value, is answered from a list of decisions: a new question is first answered
True, and the other answers are tried in later runs. One run records one path as
a straight line of equations.

`infer_shapes` needs one path that completes. `trace_paths` records all of them
and makes `lax.cond`s of the tree that they form (`tree`, `merge`). Nothing is
staged before all paths are known, so no signal has to stop the body early,
which a body with a bare ``except:`` could swallow.

The recording itself is JAX's, as in `jax.make_jaxpr`, and the tracers here
are a thin layer above its tracers. So effects, constants, PRNG keys, control flow
primitives and the rules of custom derivatives are recorded as under `jax.jit`.

Each path runs the body again. A body that mutates an object from outside it, or
that reads one that changes, is outside what can be followed; a body whose
equations differ between two runs with the same decisions is refused.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import jax

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.block import evaluate
from jaxpyop._paths.follow.trace import (
    MAX_PATHS,
    NOWHERE,
    RAISING,
    NeedsPathsError,
    PathError,
    Place,
    Run,
    SlowPathsError,
    call_traced,
    calling_line,
    is_raised_by_user,
    is_users,
    raising_line,
    too_many_paths,
)
from jaxpyop._paths.follow.tree import NondeterministicError, PathTree, have_common_type

SHAPE_PATHS = 64  # attempts of `infer_shapes`

_SHAPE_SECONDS = 5.0  # for all attempts to find one completing path


def _record(func: Callable[..., Any], args: Sequence[Any], run: Run) -> Any:
    """The closed jaxpr of one path.

    Raises:
        PathError: the path raises, asks for a value or exceeds a bound.
    """

    def body(*xs: Any) -> list[Any]:
        return call_traced(func, xs, run)

    try:
        recorded = core.record(body, args)
    except Exception as error:
        if run.error is not None:
            raise run.error from None
        if isinstance(error, PathError):  # of a part of the body, which was followed on its own
            raise
        if isinstance(error, RecursionError):
            reason = "the body calls itself on a condition of values, which has no end while it is traced"
            raise PathError(reason, *raising_line(error)) from error
        text = (str(error).splitlines() or [""])[0]
        reason = f"a path raises {type(error).__name__}: {text}"
        advice = [RAISING] if is_raised_by_user(error) else []
        raise PathError(reason, *raising_line(error), *advice) from error
    if run.error is not None:  # the body swallowed it: its result means nothing
        raise run.error.with_traceback(None)
    return recorded


def _next_preset(taken: Sequence[bool]) -> list[bool] | None:
    """The decisions of the next path in depth-first order, True first."""
    preset = list(taken)
    while preset and not preset[-1]:
        preset.pop()
    return [*preset[:-1], False] if preset else None


def infer_shapes(
    func: Callable[..., Any], args: Sequence[Any], *, max_paths: int = SHAPE_PATHS
) -> list[jax.ShapeDtypeStruct]:
    """Find the results' shapes and dtypes along one path that completes.

    Nothing is computed, no effect happens and nothing is added to the program
    that is being traced. Only Python code of the body runs.

    Args:
        func: takes and returns flat sequences of values.
        args: arrays, tracers or `jax.ShapeDtypeStruct`s.
        max_paths: how many paths to try.

    Returns:
        One `jax.ShapeDtypeStruct` (with `weak_type`) per result.

    Raises:
        PathError: no path completes without asking for a value. The reason is
            that of the first path. A `SlowPathsError`, where one might have in more time.
    """
    specs = [_spec(x) for x in args]
    deadline = time.monotonic() + _SHAPE_SECONDS
    why: list[tuple[str, str, int]] = []
    for run in _attempts(max_paths, deadline, why):
        try:
            return [_spec(aval) for aval in _record(func, specs, run).out_avals]
        except PathError as error:  # not kept: its frames hold tracers
            why.append((error.reason, error.filename, error.lineno))
    kind = SlowPathsError if time.monotonic() > deadline else PathError
    raise kind(*why[0], "give output_shapes=")


def _attempts(max_paths: int, deadline: float, why: Sequence[tuple[str, str, int]]) -> Iterator[Run]:
    """Runs to try one after the other; `why` has, by the next, what the last one failed for.

    Where a second one ends at the same line, so do all, as far as can be told: what stands in the way is not inside
    an `if`. So the first two are those that have least in common.
    """
    yield (first := Run((), max_paths, deadline, folds=True))
    if not first.taken or time.monotonic() > deadline:
        return
    yield Run((), max_paths, deadline, folds=True, otherwise=False)
    preset = _next_preset(first.taken)
    while preset is not None and time.monotonic() < deadline and len({failed[1:] for failed in why}) == len(why):
        yield (run := Run(preset, max_paths, deadline, folds=True))
        preset = _next_preset(run.taken) if len(why) < max_paths else None


def _spec(x: Any) -> jax.ShapeDtypeStruct:
    aval = x if hasattr(x, "shape") and hasattr(x, "dtype") else jax.typeof(x)
    weak = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


def trace_paths(func: Callable[..., Any], args: Sequence[Any], *, max_paths: int = MAX_PATHS) -> list[Any]:
    """Run a body under the current trace with its `if`s as `lax.cond`s.

    Args:
        func: takes and returns flat sequences of values.
        args: JAX values: arrays, or tracers of the caller's transformations.
        max_paths: more paths are refused.

    Returns:
        The results, as values of the current trace. Where paths differ in dtype
        or weak type only, the results have the promoted dtype.

    Raises:
        PathError: the body cannot be followed, or its paths return different
            shapes or numbers of results.
    """
    tree = _explore(func, args, max_paths)
    block = tree.block()
    env = dict(zip(map(id, tree.args or ()), args, strict=True))
    try:
        return evaluate(block, env)
    except RecursionError:  # some dozen Python frames of JAX's for each level
        place = calling_line(sys._getframe(1))
        reason = "the decisions of the body are nested too deeply"
        raise PathError(reason, *place) from None


def record_straight(func: Callable[..., Any], args: Sequence[Any], run: Run | None = None) -> Any:
    """The closed jaxpr of a function that has one path only; of others `NeedsPathsError` is raised."""
    return _record(func, args, run or Run(straight=True, follow=trace_paths))


def record_block(func: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The closed jaxpr of a function, with its paths followed where it has several.

    Args:
        func: takes and returns flat sequences of values; may close over values of the current trace.
        args: arrays, tracers or `jax.ShapeDtypeStruct`s.

    Raises:
        PathError: the function cannot be followed.
    """
    run = Run(straight=True, follow=trace_paths)
    try:
        return record_straight(func, args, run)
    except NeedsPathsError as error:
        if error is not run.error:  # it is about a value of the code around this
            raise
    return core.record(lambda *xs: trace_paths(func, xs), args)


def _explore(func: Callable[..., Any], args: Sequence[Any], max_paths: int) -> PathTree:
    tree = PathTree()
    preset: list[bool] | None = []
    first: tuple[list[bool], list[Any]] | None = None
    while preset is not None:
        run = Run(preset, max_paths, follow=trace_paths)
        recorded = _record(func, args, run)
        try:
            avals = tree.add(recorded, run.taken, run.origins)
        except NondeterministicError:
            place = run.lines[-1] if run.lines else NOWHERE
            reason = "two runs of the body differ (it must not depend on outside state)"
            raise PathError(reason, *place) from None
        first = first or (run.taken, avals)
        _check_results(func, args, first, (run.taken, avals))
        # Every True so far has a path with False still to come.
        if len(tree.leaves) + sum(run.taken) > max_paths:
            raise PathError(too_many_paths(max_paths), *run.lines[-1])
        preset = _next_preset(run.taken)
    return tree


Path = tuple[Sequence[bool], Sequence[Any]]  # decisions and the results' avals


def _check_results(func: Callable[..., Any], args: Sequence[Any], first: Path, path: Path) -> None:
    problem = _difference(first[1], path[1])
    if problem is None:
        return
    places = [_returning_line(func, args, decisions) for decisions, _ in (first, path)]
    one, other = (f"{filename}:{lineno}" for filename, lineno in places)
    reason = f"paths return different results, {problem}: return at {one} and {other}"
    raise PathError(reason, *places[1])


def _difference(first: Sequence[Any], other: Sequence[Any]) -> str | None:
    if len(first) != len(other):
        return f"{len(first)} and {len(other)} of them"
    for a, b in zip(first, other, strict=True):
        if a.shape != b.shape or not have_common_type([a, b]):
            return f"{a.str_short()} and {b.str_short()}"
    return None


def _returning_line(func: Callable[..., Any], args: Sequence[Any], decisions: Sequence[bool]) -> Place:
    """Where the user's outermost function returns on this path.

    Runs the path once more under `sys.setprofile`: its last return event from
    the user's code is the one.
    """
    place = NOWHERE

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal place
        if event == "return" and is_users(frame.f_code.co_filename):
            place = (frame.f_code.co_filename, frame.f_lineno)

    def watched(*xs: Any) -> Any:
        previous = sys.getprofile()
        sys.setprofile(watch)
        try:
            return func(*xs)
        finally:
            sys.setprofile(previous)

    _record(watched, args, Run(decisions, follow=trace_paths))
    return place

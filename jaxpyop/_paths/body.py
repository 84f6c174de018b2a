"""The three ways of tracing a body into the program. Each is taken only if those before it do not suffice.

A body whose conditions are all Python's is recorded as it is. A body that asks for values is rewritten, if that is
possible, so that its `if`s meet again where they end and its loops are loops (`rewrite`). Otherwise its paths are
followed (`follow`), which needs nothing but the function.
"""

from __future__ import annotations

import dis
import inspect
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jaxpyop import _jaxcore as core
from jaxpyop._functions import codes_in, without_partials
from jaxpyop._paths import rewrite
from jaxpyop._paths.follow import PathError, record_one_path, record_paths, refused_call, trace_paths
from jaxpyop._paths.snapshot import MOST_OBJECTS, Snapshot, root_of

Call = Callable[..., Sequence[Any]]

# The code of functions that asked for a value before. They are not recorded as they are again.
_asking: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def trace_body(
    function: Any,
    use: Call,
    args: Sequence[Any],
    max_steps: int | None = None,
    title: str = "",
    held: Sequence[Any] = (),
    calls_unknown: bool = True,
) -> list[Any]:
    """Runs a body under the current trace, with its `if`s as `lax.cond`s and its loops on values as loops.

    Args:
        function: the user's.
        use: takes a function that stands for the user's, and `args`; returns the results, flat.
        args: JAX values: arrays, or tracers of the caller's transformations.
        max_steps: how many iterations of each loop on values a backward pass may keep.
        title: how errors name the body.
        held: what the inputs hold besides `args`.
        calls_unknown: whether the body may call functions of which it is not known what they do.

    Returns:
        The results, as values of the current trace.

    Raises:
        PathError: the body cannot be followed.
    """
    if core.PORTABLE:
        reason = f"mode='traced' is not possible on public JAX alone ({core.WHY_PORTABLE})"
        raise PathError(reason, *_line_of(function, ""), 'write mode="eager"')
    home = rewrite.package_of(_function_of(function))
    outside = Snapshot([root_of(function), *(("an input", x) for x in held)], home)
    _check_outside(function, outside, calls_unknown)

    changed: list[str] = []

    def put_back() -> None:
        if (name := outside.put_back()) is not None:
            changed.append(name)

    def use_anew(function: Any, *xs: Any) -> Sequence[Any]:
        # A body may run several times, and each run has to find what the first one found.
        put_back()
        return use(function, *xs)

    try:
        outs = _trace(function, use_anew, args, rewrite.TraceContext(home, max_steps, title), outside)
    finally:
        put_back()
    if changed:
        name = changed[0]
        reason = f"`{name}` is changed, which would happen once, while JAX traces, and not in each call"
        advice = 'return the new value, make it in the function, or write mode="eager" and stateful=True'
        raise PathError(reason, *_line_of(function, name), advice)
    return outs


def _trace(
    function: Any, use: Call, args: Sequence[Any], trace_context: rewrite.TraceContext, outside: Snapshot
) -> list[Any]:
    code = getattr(_function_of(function), "__code__", None)
    if code not in _asking:
        try:
            recorded = record_one_path(lambda *xs: use(function, *xs), args)
        except PathError:
            if code is not None and rewrite.is_installed():
                _asking.add(code)
        else:
            return core.run_closed(recorded, *args)
    try:
        rewritten = _rewritten(function)
    except rewrite.ConversionError as error:
        _check_calls(function, outside)
        return _trace_paths(function, use, args, str(error))
    with rewrite.tracing_in(trace_context):
        try:
            recorded = record_paths(lambda *xs: use(rewritten, *xs), args)
        except PathError as error:
            refused = error
        else:
            return core.run_closed(recorded, *args)
    if refused.final or outside.unknown:
        raise refused
    try:
        return trace_paths(lambda *xs: use(function, *xs), args)
    except PathError:
        raise refused from refused.__cause__


def _check_outside(function: Any, outside: Snapshot, calls_unknown: bool) -> None:
    """Raises `PathError` for a body that reads what cannot be put back, or what differs from call to call."""
    if outside.not_restored:
        name, what = outside.not_restored[0]
        reason = f"`{name}` is {what} once, while JAX traces, and not in each call"
        raise PathError(reason, *_line_of(function, name), _PASS_IN)
    if outside.outside:
        name = outside.outside[0]
        reason = f"`{name}` gives a time, random numbers, or something else from outside, which would be asked for once"
        raise PathError(f"{reason}, while JAX traces, and not in each call", *_line_of(function, name), _PASS_IN)
    if outside.unknown and not calls_unknown:
        name = outside.unknown[0]
        reason = f"`{name}` is a function of a library, and whether it does the same in each call is not known"
        raise PathError(reason, *_line_of(function, name), 'write mode="traced" if it does')
    if outside.too_many:
        reason = f"the function can reach more than {MOST_OBJECTS} objects, and whether it changes one cannot be told"
        raise PathError(reason, *_line_of(function, ""), _PASS_IN)


def _check_calls(function: Any, outside: Snapshot) -> None:
    """Raises `PathError` for a body whose paths are run one by one, and that calls what may have an effect."""
    if outside.unknown:
        raise refused_call(outside.unknown[0], _line_of(function, outside.unknown[0]))


_PASS_IN = (
    "pass in what it gives as an input, import a module at the top of the file, or "
    'write mode="eager" to call the body at run time instead'
)


def _line_of(function: Any, name: str) -> core.SourceLine:
    """Returns the first line of the function that mentions a name, or else its first line."""
    code = getattr(_function_of(function), "__code__", None)
    if code is None:
        code = getattr(inspect.getattr_static(_function_of(function), "__call__", None), "__code__", None)
    if code is None:
        return core.NOWHERE
    line = code.co_firstlineno
    names = set(name.split("."))
    for part in codes_in(code):
        for instruction in dis.get_instructions(part):
            line = (instruction.positions and instruction.positions.lineno) or line
            if instruction.argval in names and isinstance(instruction.argval, str):
                return code.co_filename, line
    return code.co_filename, code.co_firstlineno


def _trace_paths(function: Any, use: Call, args: Sequence[Any], why: str) -> list[Any]:
    """Follows the paths of a function that cannot be rewritten. Says why it cannot, if that would help.

    It would help with loops, with too many paths (a rewritten `if` is one operation and makes no second path), and with
    `float(x)` and `int(x)`, which a rewritten function computes with.
    """
    try:
        return trace_paths(lambda *xs: use(function, *xs), args)
    except PathError as error:
        if not any(word in error.reason for word in ("loop", "more than", "float(x)", "int(x)")):
            raise
        refused = PathError(error.reason, error.filename, error.lineno, f"{why}; or {error.advice}")
        refused.remedy = why
        raise refused from error.__cause__


def _function_of(function: Any) -> Any:
    """Returns the Python function or method inside of partials, or the class of another callable."""
    function = without_partials(function)
    return function if isinstance(function, (types.FunctionType, types.MethodType)) else type(function)


def _rewritten(function: Any) -> Any:
    """Returns a function that calls the user's as it is rewritten.

    Raises:
        ConversionError: it cannot be rewritten.
    """
    plain = getattr(_function_of(function), "__func__", _function_of(function))
    if rewrite.is_convertible(plain, rewrite.package_of(plain)):
        rewrite.converted(plain, rewrite.OPERATORS)
    return lambda *args, **kwargs: rewrite.run(function, args, kwargs)

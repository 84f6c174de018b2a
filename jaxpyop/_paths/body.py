"""The whole way of a body into the program, by the least that it needs.

A body whose conditions are all Python's is recorded as it is. One that asks values is rewritten, if that can be had,
so that its `if`s meet again where they end and its loops are loops (`convert`, `operators`). Else its paths are
followed (`follow`), which needs nothing but the function.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow import PathError, record_block, record_straight, trace_paths
from jaxpyop._paths.rewrite import (
    OPERATORS,
    ConversionError,
    Following,
    call,
    converted,
    following_as,
    is_convertible,
    is_installed,
    package_of,
)

Call = Callable[..., Sequence[Any]]


def trace_body(
    function: Any, use: Call, args: Sequence[Any], max_steps: int | None = None, title: str = ""
) -> list[Any]:
    """Run a body under the current trace, its `if`s as `lax.cond` and its loops on values as loops.

    Args:
        function: the user's.
        use: takes a function that stands for the user's, and `args`; returns the results, flat.
        args: JAX values: arrays, or tracers of the caller's transformations.
        max_steps: how many turns of each loop on values a backward pass may keep.
        title: how errors name the body.

    Returns:
        The results, as values of the current trace.

    Raises:
        PathError: the body cannot be followed.
    """
    code = getattr(_plain(function), "__code__", None)
    context = Following(package_of(_plain(function)), max_steps, title)
    if code in _asking:
        return _trace_decisions(function, use, args, context)
    try:
        recorded = record_straight(lambda *xs: use(function, *xs), args)
    except PathError:
        if code is not None and is_installed():
            _asking.add(code)
        return _trace_decisions(function, use, args, context)
    return _evaluate(recorded, args)


# The functions that asked for a value once: to record them as they are is not tried again.
_asking: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def _trace_decisions(function: Any, use: Call, args: Sequence[Any], context: Following) -> list[Any]:
    try:
        rewritten = _rewritten(function)
    except ConversionError as error:
        return _trace_paths(function, use, args, str(error))
    with following_as(context):
        try:
            recorded = record_block(lambda *xs: use(rewritten, *xs), args)
        except PathError as error:
            refused = error
        else:
            return _evaluate(recorded, args)
    try:
        return trace_paths(lambda *xs: use(function, *xs), args)
    except PathError:
        raise refused from refused.__cause__


def _trace_paths(function: Any, use: Call, args: Sequence[Any], why: str) -> list[Any]:
    try:
        return trace_paths(lambda *xs: use(function, *xs), args)
    except PathError as error:
        if "loop" not in error.reason:
            raise
        refused = PathError(error.reason, error.filename, error.lineno, f"{why}; or {error.advice}")
        refused.remedy = why
        raise refused from error.__cause__


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function if isinstance(function, (types.FunctionType, types.MethodType)) else type(function)


def _rewritten(function: Any) -> Any:
    """The function, to be called as rewritten.

    Raises:
        ConversionError: it cannot be.
    """
    plain = _plain(function)
    plain = getattr(plain, "__func__", plain)
    if isinstance(plain, types.FunctionType) and is_convertible(plain, package_of(plain)):
        converted(plain, OPERATORS)
    return lambda *args, **kwargs: call(function, args, kwargs)


def _evaluate(recorded: Any, args: Sequence[Any]) -> list[Any]:
    jaxpr, consts = core.opened(recorded)
    return core.run_jaxpr(jaxpr, *consts, *args)

"""The three ways of tracing a body into the program. Each is taken only if those before it do not suffice.

A body whose conditions are all Python's is recorded as it is. A body that asks for values is rewritten, if that is
possible, so that its `if`s meet again where they end and its loops are loops (`rewrite`). Otherwise its paths are
followed (`follow`), which needs nothing but the function.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jaxpyop import _jaxcore as core
from jaxpyop._functions import without_partials
from jaxpyop._paths import rewrite
from jaxpyop._paths.follow import PathError, record_one_path, record_paths, trace_paths

Call = Callable[..., Sequence[Any]]

# The code of functions that asked for a value before. They are not recorded as they are again.
_asking: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def trace_body(
    function: Any, use: Call, args: Sequence[Any], max_steps: int | None = None, title: str = ""
) -> list[Any]:
    """Runs a body under the current trace, with its `if`s as `lax.cond`s and its loops on values as loops.

    Args:
        function: the user's.
        use: takes a function that stands for the user's, and `args`; returns the results, flat.
        args: JAX values: arrays, or tracers of the caller's transformations.
        max_steps: how many iterations of each loop on values a backward pass may keep.
        title: how errors name the body.

    Returns:
        The results, as values of the current trace.

    Raises:
        PathError: the body cannot be followed.
    """
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
        return _trace_paths(function, use, args, str(error))
    with rewrite.tracing_in(rewrite.TraceContext(rewrite.package_of(_function_of(function)), max_steps, title)):
        try:
            recorded = record_paths(lambda *xs: use(rewritten, *xs), args)
        except PathError as error:
            refused = error
        else:
            return core.run_closed(recorded, *args)
    try:
        return trace_paths(lambda *xs: use(function, *xs), args)
    except PathError:
        raise refused from refused.__cause__


def _trace_paths(function: Any, use: Call, args: Sequence[Any], why: str) -> list[Any]:
    """Follows the paths of a function that cannot be rewritten. Says why it cannot, if its loops would need that."""
    try:
        return trace_paths(lambda *xs: use(function, *xs), args)
    except PathError as error:
        if "loop" not in error.reason:
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
    return lambda *args, **kwargs: rewrite.call(function, args, kwargs)

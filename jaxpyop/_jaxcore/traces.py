"""Traces: which one is current, whether a value's is still open, a base for our own; values of no use; and tangents."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._jaxcore.changes import make
from jaxpyop._jaxcore.private import EVAL_TRACE as EVAL_TRACE
from jaxpyop._jaxcore.private import TOP_AXES, private
from jaxpyop._jaxcore.public import ShapedArray, Trace, Tracer, ad

_trace_ctx = private.trace_ctx


def set_current_trace(trace: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes a trace the current one for a block."""
    return private.set_current_trace(trace)


def current_trace() -> Any:
    """Returns the innermost trace, which `jnp.add(1, 2)` would be handed to."""
    # The evaluating trace is None if JAX does not tell it, because its values are arrays, which have no trace.
    return getattr(jax.lax.full((), 0), "_trace", None) if _trace_ctx is None else _trace_ctx.trace


def at_top_level() -> bool:
    """Tells whether no transformation is active and no axis has a name, as in a new thread."""
    return is_eager() if _trace_ctx is None else bool(_trace_ctx.is_top_level())


def without_axes() -> contextlib.AbstractContextManager[None]:
    """Hides the axis names that an eager `vmap` has bound, for code that does not run inside that `vmap`."""
    return contextlib.nullcontext() if _trace_ctx is None or _trace_ctx.axis_env is TOP_AXES else _without_axes()


@contextlib.contextmanager
def _without_axes() -> Iterator[None]:
    names = _trace_ctx.axis_env
    _trace_ctx.set_axis_env(TOP_AXES)
    try:
        yield
    finally:
        _trace_ctx.set_axis_env(names)


def is_eager() -> bool:
    """Tells whether no transformation is active, so that operations run at once."""
    return current_trace() is EVAL_TRACE


def is_in_a_program() -> bool:
    """Tells whether this code is traced into a program. It is, for all that is known, if JAX does not tell."""
    return _trace_ctx is None or "DynamicJaxprTrace" in _kinds_of_traces()


def may_leave_out() -> bool:
    """Tells whether this code is traced into a program inside a transformation for derivatives.

    Such a program leaves out what its derivatives do not need. It is so, for all that is known, if JAX does not tell.
    """
    return is_in_a_program() and (_trace_ctx is None or not _OF_DERIVATIVES.isdisjoint(_kinds_of_traces()))


def _kinds_of_traces() -> set[str]:
    kinds: set[str] = set()
    trace = current_trace()
    while trace is not None:
        kinds.add(type(trace).__name__)
        trace = getattr(trace, "parent_trace", None)
    return kinds


_OF_DERIVATIVES = {"JVPTrace", "LinearizeTrace"}


def eval_context() -> contextlib.AbstractContextManager[Any]:
    """Evaluates the operations of a block at once, whatever transformation is active."""
    return jax.ensure_compile_time_eval()


def is_live(x: Any) -> bool:
    """Tells whether a value is traced by a transformation that may still run.

    A body that keeps its inputs may keep tracers of earlier runs. The traces of this package say when they are over;
    the traces of `jit` do not (JAX 0.10 to 0.12). A tracer of the evaluating trace is an array like any other.
    """
    # A tracer's trace has no public name up to JAX 0.12.
    return isinstance(x, Tracer) and x._trace is not EVAL_TRACE and bool(x._trace.is_valid()) and x._trace not in _over


# The traces in which functions ran for the shapes of their results, and which are over.
_over: weakref.WeakSet[Any] = weakref.WeakSet()


def shapes_of_run(run: Callable[..., Any], structs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Runs a function on types, which may keep its inputs: they are not live afterwards.

    Returns:
        The types of its results, or None if it raised; and the traced values of other code that it used.
    """
    traces: list[Any] = []

    def noted(*arrays: Any) -> Any:
        traces.append(current_trace())
        # JAX reads the source of the whole stack for each exception that leaves a function of its own, which would take
        # a quarter of the time that an op with an `if` on a value takes.
        with contextlib.suppress(Exception):
            return run(*arrays)

    try:
        closed, shapes = jax.make_jaxpr(noted, return_shape=True)(*structs)
        return shapes, [value for value in closed.consts if isinstance(value, Tracer)]
    finally:
        _over.update(traces)


def settings_of_traces() -> Any:
    """Returns the values of all settings under which JAX may trace a function differently, as its own caches do.

    If JAX does not tell them, no two answers are equal.
    """
    return object() if private.trace_context is None else private.trace_context()


def clear_with_jax(cache: Any) -> None:
    """Has `jax.clear_caches()` call the `cache_clear` of an object as long as it is alive."""
    if private.register_cache is not None:
        private.register_cache(cache, "jaxpyop")


# ---------------------------------------------------- traces that share an identity


class _Identity:
    """The object that JAX's caches know a trace by."""


# The identities that no open trace has. The last one given back is the next one lent.
_free_identities: list[_Identity] = []


class RecurringTrace(Trace):
    """A trace that JAX's caches take for an earlier one.

    The key of the C++ cache of jitted functions holds a weak reference to the current trace (JAX 0.10 to 0.12). A new
    trace for each recording would miss that cache each time, and would leave an entry that nothing matches again. So
    a trace borrows its identity, and gives it back when it is closed. There are never more identities than traces
    that are open at once, in all threads together. The identity of JAX's evaluating trace is not lent: JAX marks a
    function as slow when it misses the cache under a trace of ours, and ordinary calls would then find that mark.

    A tracer still belongs to the trace that made it, which is invalid once it is closed.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            identity = _free_identities.pop()
        except IndexError:
            identity = _Identity()
        self._identity = identity
        self._weakref = weakref.ref(identity)

    def close(self) -> None:
        """Ends the trace, once: its tracers are invalid, and the next trace gets its identity."""
        self.invalidate()
        _free_identities.append(self._identity)


# -------------------------------------------------------------- unusable values


class _UnusableTrace(Trace):
    """The trace of one unusable value. JAX asks of each operand of an operation whether its trace is still valid."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.error = error

    def is_valid(self) -> bool:
        raise self.error()


class Unusable(Tracer):
    """A value that cannot be computed, which is an error only where something uses it.

    It stands for the tangents of a function without a forward mode. JAX computes every tangent that may be needed, and
    outside of `jit` nothing drops the tangents that are not. See also `rules`, for jitted functions.

    Args:
        shape: its shape.
        dtype: its dtype.
        error: makes the exception to raise.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, error: Callable[[], Exception]) -> None:
        make("tangents")
        super().__init__(_UnusableTrace(error), ShapedArray(tuple(shape), np.dtype(dtype)))

    def error(self) -> Exception:
        """Makes the exception to raise where the value is needed."""
        return self._trace.error()

    def __repr__(self) -> str:
        # A debugger, a log or the print of a dict does not use the value.
        return f"<unusable {self.aval}: {self.error()}>"

    __str__ = __repr__

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error()

    full_lower = __array__ = __bool__ = __int__ = __float__ = __complex__ = __index__ = __iter__ = _refuse
    __dlpack__ = __format__ = _refuse
    block_until_ready = item = tolist = tobytes = copy_to_host_async = _refuse


# ------------------------------------------------------------------------ tangents


def is_zero(vector: Any) -> bool:
    """Tells whether a tangent or cotangent is known to be zero: a symbolic zero, or a float0 of an integer or bool."""
    return type(vector) is ad.Zero or getattr(vector, "dtype", None) == jax.dtypes.float0


def replaced(values: Sequence[Any], positions: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    """Returns `values` as a list, with `replacements` at `positions`."""
    full = list(values)
    for i, value in zip(positions, replacements, strict=True):
        full[i] = value
    return full


def tangent_aval(x: Any) -> Any:
    """Returns the type of a value's tangents."""
    # Every aval has this method (JAX 0.10 to 0.12).
    return jax.typeof(x).to_tangent_aval()

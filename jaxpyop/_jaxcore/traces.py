"""Traces: which one is current, whether a value's trace is still open, and a base for the traces of this package."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.core
import jax.extend.core as _extend
from jax._src import config as _jax_config
from jax._src import core as _core

# On JAX 0.12 this class cannot be subscripted.
Trace = jax.core.Trace
Tracer = jax.core.Tracer
eval_context = jax.core.eval_context
# `with set_current_trace(trace):`, since JAX 0.10.
set_current_trace = _extend.set_current_trace


def current_trace() -> Any:
    """Returns the innermost trace, which `jnp.add(1, 2)` would be handed to."""
    # JAX has ignored the argument since 0.4.36.
    return _extend.find_top_trace(())


def _find_eval_trace() -> Any:
    with eval_context():
        return current_trace()


EVAL_TRACE = _find_eval_trace()


def is_eager() -> bool:
    """Tells whether no transformation is active, so that operations run at once."""
    return current_trace() is EVAL_TRACE


def at_top_level() -> bool:
    """Tells whether no transformation is active and no axis has a name, as in a new thread."""
    # There is no public name for this up to JAX 0.12.
    return bool(_core.trace_ctx.is_top_level())


_UNCHANGED = contextlib.nullcontext()


def without_axes() -> contextlib.AbstractContextManager[None]:
    """Hides the axis names that an eager `vmap` has bound, for code that does not run inside that `vmap`."""
    return _UNCHANGED if _core.trace_ctx.axis_env is _core.top_axis_env else _without_axes()


@contextlib.contextmanager
def _without_axes() -> Iterator[None]:
    # There is no public name for the axis environment up to JAX 0.12.
    names = _core.trace_ctx.axis_env
    _core.trace_ctx.set_axis_env(_core.top_axis_env)
    try:
        yield
    finally:
        _core.trace_ctx.set_axis_env(names)


def is_live(x: Any) -> bool:
    """Tells whether a value is traced by a transformation that may still run.

    A body that keeps its inputs may keep tracers of earlier runs. The traces of this package say when they are over;
    the traces of `jit` do not (JAX 0.10 to 0.12).
    """
    # A tracer's trace has no public name up to JAX 0.12.
    return isinstance(x, Tracer) and bool(x._trace.is_valid())


def x64_enabled() -> bool:
    """Tells whether JAX has 64-bit types here and now."""
    # JAX adds its options to `jax.config` at run time.
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def settings_of_traces() -> tuple[Any, ...]:
    """Returns the values of all settings under which JAX may trace a function differently.

    JAX's own caches have them in their keys. There is no public name for them up to JAX 0.12.
    """
    return _jax_config.trace_context()


# ---------------------------------------------------- traces that share an identity


class _Identity:
    """The object that JAX's caches know a trace by."""

    __slots__ = ("__weakref__", "ref")

    def __init__(self) -> None:
        self.ref = weakref.ref(self)


# The identities that no open trace has. The last one given back is the next one lent.
_free_identities: list[_Identity] = []


class KnownTrace(Trace):
    """A trace that JAX's caches take for an earlier one.

    The key of the C++ cache of jitted functions holds a weak reference to the current trace (JAX 0.10 to 0.12). A new
    trace for each recording would miss that cache each time, and would leave an entry that nothing matches again. So
    a trace borrows its identity, and gives it back when it is closed. There are never more identities than traces
    that are open at once, in all threads together. The identity of the evaluating trace would not do: JAX marks a
    function as slow when it misses the cache under a trace of another kind, and plain calls would then find that mark.

    A tracer still belongs to the trace that made it, which is invalid once it is closed.
    """

    __slots__ = ("_identity",)

    def __init__(self) -> None:
        super().__init__()
        try:
            identity = _free_identities.pop()
        except IndexError:
            identity = _Identity()
        self._identity: _Identity | None = identity
        # This attribute has no public name up to JAX 0.12.
        self._weakref = identity.ref

    def close(self) -> None:
        """Ends the trace: its tracers are invalid, and the next trace gets its identity."""
        self.invalidate()
        identity, self._identity = self._identity, None
        if identity is not None:
            _free_identities.append(identity)

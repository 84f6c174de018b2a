"""Traces: which one is current, whether a value's trace is still open, and a base for the traces of this package."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxpyop._jaxcore.capabilities import Trace, Tracer, has, parts_of, using

# JAX makes the attributes of this object at run time, so type checkers do not know them.
jax_config: Any = jax.config

_UNCHANGED = contextlib.nullcontext()

# Whether a trace of this package can be the current one.
HAS_OWN_TRACES = has("own_traces")
# `with set_current_trace(trace):`, and the trace that evaluates.
set_current_trace, _find_top_trace, EVAL_TRACE = parts_of("own_traces", 3)


def current_trace() -> Any:
    """Returns the innermost trace, which `jnp.add(1, 2)` would be handed to."""
    if _find_top_trace is None:
        # The evaluating trace gives an array, and other traces give their tracers.
        return getattr(jax.lax.full((), 0), "_trace", None)
    # JAX has ignored the argument since 0.4.36.
    return _find_top_trace(())


def eval_context() -> contextlib.AbstractContextManager[Any]:
    """Evaluates the operations of a block at once, whatever transformation is active."""
    return set_current_trace(EVAL_TRACE) if HAS_OWN_TRACES else jax.ensure_compile_time_eval()


def is_eager() -> bool:
    """Tells whether no transformation is active, so that operations run at once."""
    return current_trace() is EVAL_TRACE


if found := using("named_axes"):
    _trace_ctx, _top_axis_env = found

    def at_top_level() -> bool:
        """Tells whether no transformation is active and no axis has a name, as in a new thread."""
        return bool(_trace_ctx.is_top_level())

    def without_axes() -> contextlib.AbstractContextManager[None]:
        """Hides the axis names that an eager `vmap` has bound, for code that does not run inside that `vmap`."""
        return _UNCHANGED if _trace_ctx.axis_env is _top_axis_env else _without_axes()

    @contextlib.contextmanager
    def _without_axes() -> Iterator[None]:
        names = _trace_ctx.axis_env
        _trace_ctx.set_axis_env(_top_axis_env)
        try:
            yield
        finally:
            _trace_ctx.set_axis_env(names)

else:
    at_top_level = is_eager

    def without_axes() -> contextlib.AbstractContextManager[None]:
        """Does nothing, because the names of axes cannot be hidden."""
        return _UNCHANGED


def is_live(x: Any) -> bool:
    """Tells whether a value is traced by a transformation that may still run.

    A body that keeps its inputs may keep tracers of earlier runs. The traces of this package say when they are over;
    the traces of `jit` do not (JAX 0.10 to 0.12). A tracer of the evaluating trace is an array like any other.
    """
    # A tracer's trace has no public name up to JAX 0.12.
    return isinstance(x, Tracer) and x._trace is not EVAL_TRACE and bool(x._trace.is_valid())


def x64_enabled() -> bool:
    """Tells whether JAX has 64-bit types here and now."""
    return bool(jax_config.jax_enable_x64)


def with_wide_types(is_wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Gives a block 64-bit types if it needs them, and otherwise changes nothing."""
    return jax.enable_x64(True) if is_wide else _UNCHANGED


def settings_of_traces() -> Any:
    """Returns the values of all settings under which JAX may trace a function differently.

    JAX's own caches have them in their keys. If they are not known, no two answers are equal.
    """
    return _trace_context()


# object() is equal to nothing else.
_trace_context = using("settings_of_traces") or object


def evaluates_by_itself() -> bool:
    """Tells whether each operation has to be evaluated by itself: it is checked for NaN, or nothing is compiled."""
    return bool(jax_config.jax_debug_nans or jax_config.jax_debug_infs or jax_config.jax_disable_jit)


_setting_names, _setting_by_name, _unset, _register_cache = parts_of("lazy_tape", 4)


@contextlib.contextmanager
def under_settings(settings: Sequence[Any]) -> Iterator[None]:
    """Runs a block under other values of `settings_of_traces()`, in this thread."""
    changed: list[tuple[Any, Any]] = []
    try:
        for name, value, now in zip(_setting_names(), settings, settings_of_traces(), strict=True):
            if value != now and (setting := _setting_by_name.get(name)) is not None:
                changed.append((setting, setting.swap_local(value)))
                _tell(setting, value)
        yield
    finally:
        for setting, value in reversed(changed):
            setting.set_local(value)
            _tell(setting, None if value is _unset else value)


def _tell(setting: Any, value: Any) -> None:
    # JAX's C++ code keeps a copy of some settings.
    if (hook := getattr(setting, "_update_thread_local_hook", None)) is not None:
        hook(value)


class _Clearing:
    """What JAX asks of a cache that it clears."""

    def __init__(self, clear: Callable[[], None]) -> None:
        self.cache_clear = clear

    def cache_info(self) -> None:
        """Nothing is counted."""

    def cache_keys(self) -> list[Any]:
        return []


# JAX holds them weakly.
_cleared: list[_Clearing] = []


def clear_with_jax(clear: Callable[[], None]) -> None:
    """Has `jax.clear_caches()` call a function."""
    if _register_cache is not None:
        _cleared.append(_Clearing(clear))
        _register_cache(_cleared[-1], "jaxpyop")


# ---------------------------------------------------- traces that share an identity


class _Identity:
    """The object that JAX's caches know a trace by."""

    __slots__ = ("__weakref__", "ref")

    def __init__(self) -> None:
        self.ref = weakref.ref(self)


_HAS_IDENTITY = has("trace_identity")
# The identities that no open trace has. The last one given back is the next one lent.
_free_identities: list[_Identity] = []


class KnownTrace(Trace):
    """A trace that JAX's caches take for an earlier one.

    The key of the C++ cache of jitted functions holds a weak reference to the current trace (JAX 0.10 to 0.12). A new
    trace for each recording would miss that cache each time, and would leave an entry that nothing matches again. So
    a trace borrows its identity, and gives it back when it is closed. There are never more identities than traces
    that are open at once, in all threads together. The identity of JAX's evaluating trace is not lent: JAX marks a
    function as slow when it misses the cache under a trace of ours, and ordinary calls would then find that mark.

    A tracer still belongs to the trace that made it, which is invalid once it is closed.
    """

    __slots__ = ("_identity",)

    def __init__(self) -> None:
        super().__init__()
        self._identity: _Identity | None = None
        if not _HAS_IDENTITY:
            return
        try:
            identity = _free_identities.pop()
        except IndexError:
            identity = _Identity()
        self._identity = identity
        self._weakref = identity.ref

    def close(self) -> None:
        """Ends the trace: its tracers are invalid, and the next trace gets its identity."""
        self.invalidate()
        identity, self._identity = self._identity, None
        if identity is not None:
            _free_identities.append(identity)

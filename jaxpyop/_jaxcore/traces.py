"""Traces of ours that JAX's caches take for one another, from step to step."""

from __future__ import annotations

import weakref

from jaxpyop import _jaxcore


class _Identity:
    """What JAX takes a trace for: see `KnownTrace`."""

    __slots__ = ("__weakref__", "ref")

    def __init__(self) -> None:
        self.ref = weakref.ref(self)


_free_identities: list[_Identity] = []  # the last one given back is the next one lent


class KnownTrace(_jaxcore.Trace):
    """A trace that JAX's caches take for an earlier one.

    The C++ cache of jitted functions has a weak reference to the current trace in its key (0.10 to 0.12). A new one
    for each recording misses the cache each time, and leaves an entry behind that nothing will ever match. So traces
    borrow what they are known by, and give it back when they are closed: there are never more than traces open at
    once, whichever the threads and however deep. Not that of the evaluating trace: what misses the cache under a
    trace that is no evaluating one is marked as slow, which plain calls would find from then on.

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
        self._weakref = identity.ref  # no public name up to 0.12

    def close(self) -> None:
        """End the trace: its tracers are dead, and its identity is the next one's."""
        self.invalidate()
        identity, self._identity = self._identity, None
        if identity is not None:
            _free_identities.append(identity)

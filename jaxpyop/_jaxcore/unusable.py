"""A value that cannot be computed, which is an error only where something uses it.

It stands for the tangents of a function without a forward mode: JAX computes every tangent that could be wanted, and
outside `jit` nothing drops those that are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore


class _UnusableTrace(_jaxcore.Trace):
    """The trace of one unusable value: every operation asks whether it is still valid (0.10 to 0.12)."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.error = error

    def is_valid(self) -> bool:
        if sys._getframe(1).f_locals.get("self") is _jaxcore.jit_p:
            return True  # which need not use all of its arguments: see `Unusable.full_lower`
        raise self.error()


class Unusable(_jaxcore.Tracer):
    """A result that cannot be computed, which is an error only where something uses it.

    Args:
        shape: its shape.
        dtype: its dtype.
        error: makes the exception to raise.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, error: Callable[[], Exception]) -> None:
        super().__init__(_UnusableTrace(error), _jaxcore.ShapedArray(tuple(shape), np.dtype(dtype)))

    def full_lower(self) -> Any:
        """What a primitive that is evaluated gets (0.10 to 0.12): zeros, where a jitted function does not use it."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "process_primitive":
            frame = frame.f_back
        asked = {} if frame is None else frame.f_locals
        if asked.get("primitive") is _jaxcore.jit_p and not _uses(asked["params"]["jaxpr"], asked["args"], self):
            return np.zeros(jax.typeof(self).shape, jax.typeof(self).dtype)
        raise self._trace.error()

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self._trace.error()

    __array__ = __bool__ = __int__ = __float__ = __complex__ = __index__ = __iter__ = __dlpack__ = _refuse
    __repr__ = __str__ = __format__ = _refuse
    block_until_ready = item = tolist = tobytes = copy_to_host_async = _refuse


def _uses(jaxpr: Any, args: Sequence[Any], value: Any) -> bool:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # a ClosedJaxpr until 0.11
    needed = _jaxcore.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1]
    return any(a is value and needs for a, needs in zip(args, needed))

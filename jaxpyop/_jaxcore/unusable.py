"""A value that cannot be computed, which is an error only where something uses it.

It stands for the tangents of a function without a forward mode. JAX computes every tangent that may be needed, and
outside of `jit` nothing drops the tangents that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._jaxcore.capabilities import ShapedArray, Trace, Tracer, using
from jaxpyop._jaxcore.jaxprs import jaxpr_of, without_dead_code
from jaxpyop._jaxcore.primitives import jit_p

# Who asks for a value. If that cannot be known, every operation that takes the value is an error.
_binding_primitive, _evaluation = using("unused_tangents") or (lambda: None, dict[str, Any])


class _UnusableTrace(Trace):
    """The trace of one unusable value. Every operation asks whether it is still valid (JAX 0.10 to 0.12)."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.error = error

    def is_valid(self) -> bool:
        # A jitted function need not use all of its arguments: see `Unusable.full_lower`.
        if _binding_primitive() is jit_p:
            return True
        raise self.error()


class Unusable(Tracer):
    """A result that cannot be computed, which is an error only where something uses it.

    Args:
        shape: its shape.
        dtype: its dtype.
        error: makes the exception to raise.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, error: Callable[[], Exception]) -> None:
        super().__init__(_UnusableTrace(error), ShapedArray(tuple(shape), np.dtype(dtype)))

    def full_lower(self) -> Any:
        """Returns what an evaluated primitive gets for the value (JAX 0.10 to 0.12).

        A jitted function that does not use it gets zeros.
        """
        asked = _evaluation()
        if asked.get("primitive") is jit_p and not _uses(asked["params"]["jaxpr"], asked["args"], self):
            return np.zeros(jax.typeof(self).shape, jax.typeof(self).dtype)
        raise self._trace.error()

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self._trace.error()

    __array__ = __bool__ = __int__ = __float__ = __complex__ = __index__ = __iter__ = __dlpack__ = _refuse
    __repr__ = __str__ = __format__ = _refuse
    block_until_ready = item = tolist = tobytes = copy_to_host_async = _refuse


def _uses(jaxpr: Any, args: Sequence[Any], value: Any) -> bool:
    needed = without_dead_code(jaxpr_of(jaxpr))[1]
    return any(a is value and needs for a, needs in zip(args, needed))

"""Finds the inputs of a segment at which its derivative stops: no cotangent of a result reaches them.

JAX knows symbolically which cotangents are zero. `jax.export` does not: it differentiates a segment as a whole, with
arrays of zeros in their place. Zero times infinity is NaN, so the inputs that JAX knows to have no cotangent get a
`stop_gradient` before the segment is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore


def find_stops(function: Callable[..., Any], reads: Sequence[Any], makes: Sequence[Any]) -> list[int]:
    """Return the numbers of the inputs through which no derivative of the results goes.

    Args:
        function: the segment, which takes arrays and returns a list of arrays.
        reads: the types of its inputs.
        makes: the types of its results.
    """
    inexact = [k for k, aval in enumerate(reads) if _jaxcore.is_inexact(aval)]
    if not all(map(_jaxcore.is_inexact, makes)):
        return inexact

    def backward(inputs: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        varied = lambda *xs: function(*_jaxcore.replaced(inputs, inexact, xs))
        return jax.vjp(varied, *(inputs[k] for k in inexact))[1](list(cotangents))

    structs = [[jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals] for avals in (reads, makes)]
    try:
        jaxpr, _ = _jaxcore.opened(jax.make_jaxpr(backward)(*structs))
    except Exception:
        # The segment has no derivative. `jax.export` will raise the error.
        return []

    def depends(number: int) -> bool:
        used = [k == number for k in range(len(inexact))]
        return any(_jaxcore.without_dead_code(jaxpr, used)[1][-len(makes) :])

    return [k for number, k in enumerate(inexact) if not depends(number)]


def stopped(function: Callable[..., Any], stops: Sequence[int]) -> Callable[..., Any]:
    """Return the function with a `stop_gradient` at the inputs with these numbers."""
    if not stops:
        return function
    return lambda *xs: function(*(jax.lax.stop_gradient(x) if k in stops else x for k, x in enumerate(xs)))

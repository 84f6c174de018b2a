"""Pulls cotangents back through one function of arrays, and pushes tangents forward through it.

JAX's own `jax.vjp` and `jax.jvp` do both. They are asked only for the outputs that are needed, with respect to the
inputs that are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore

# A function from all inputs to all outputs.
Outputs = Callable[[Sequence[Any]], Sequence[Any]]


def _restricted(
    function: Outputs, outnums: Sequence[int], argnums: Sequence[int], args: Sequence[Any]
) -> Callable[..., list[Any]]:
    # The derivatives of all other outputs are symbolic zeros, which cost nothing: where only the s of an svd is used,
    # its U and V are not differentiated.
    def restricted(*primals: Any) -> list[Any]:
        outputs = function(_jaxcore.replaced(args, argnums, primals))
        return [outputs[j] for j in outnums]

    return restricted


def pull(
    function: Outputs, outnums: Sequence[int], argnums: Sequence[int], args: Sequence[Any], cotangents: Sequence[Any]
) -> Sequence[Any]:
    """Returns the cotangents of the inputs `argnums` for these cotangents of the outputs `outnums`."""
    restricted = _restricted(function, outnums, argnums, args)
    _, back = jax.vjp(restricted, *(args[i] for i in argnums))
    return back(list(cotangents))


def push(
    function: Outputs, outnums: Sequence[int], argnums: Sequence[int], args: Sequence[Any], tangents: Sequence[Any]
) -> Sequence[Any]:
    """Returns the tangents of the outputs `outnums` for these tangents of the inputs `argnums`."""
    restricted = _restricted(function, outnums, argnums, args)
    return jax.jvp(restricted, [args[i] for i in argnums], list(tangents))[1]

"""Derivatives of one function of arrays: a vector pulled back, or pushed forward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Outputs = Callable[[Sequence[Any]], Sequence[Any]]  # from all inputs to all outputs


@functools.cache
def is_differentiable(dtype: Any) -> bool:
    """Whether values of this dtype have tangents."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def zeros(like: Any) -> jax.Array:
    """Zeros of the shape and dtype of `like`."""
    return jnp.zeros(like.shape, like.dtype)


def filled(values: Sequence[Any], positions: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    """`values` as a list, with others at some positions."""
    full = list(values)
    for i, value in zip(positions, replacements, strict=True):
        full[i] = value
    return full


def _restricted(
    function: Outputs, wanted: Sequence[int], diff: Sequence[int], args: Sequence[Any]
) -> Callable[..., list[Any]]:
    # Only these outputs are asked for, so that the others' derivatives are
    # symbolic zeros: an svd's U and V are not differentiated for s alone.
    def restricted(*primals: Any) -> list[Any]:
        outputs = function(filled(args, diff, primals))
        return [outputs[j] for j in wanted]

    return restricted


def pull(
    function: Outputs, wanted: Sequence[int], diff: Sequence[int], args: Sequence[Any], cotangents: Sequence[Any]
) -> Sequence[Any]:
    """The cotangents of the `diff` inputs from those of the `wanted` outputs."""
    restricted = _restricted(function, wanted, diff, args)
    _, back = jax.vjp(restricted, *(args[i] for i in diff))
    return back(list(cotangents))


def push(
    function: Outputs, wanted: Sequence[int], diff: Sequence[int], args: Sequence[Any], tangents: Sequence[Any]
) -> Sequence[Any]:
    """The tangents of the `wanted` outputs from those of the `diff` inputs."""
    restricted = _restricted(function, wanted, diff, args)
    return jax.jvp(restricted, [args[i] for i in diff], list(tangents))[1]

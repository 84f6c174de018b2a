"""How a function is recorded on a JAX that lacks what the tape needs: it runs under `jax.vjp`.

Its values are then traced, so a function that asks for one is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore
from jaxpyop._tape.comparable import comparable_arrays, without_addresses
from jaxpyop._tape.linear import Linear, linearize

# What JAX raises where a traced value is asked for.
_ASKED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


class RecordOfVjp:
    """One run of a function under `jax.vjp`, with the methods of `Record`."""

    def __init__(self, linear: Linear, argnums: Sequence[int], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Keeps the derivative, and the types of inputs and outputs."""
        self._linear = linear
        self._argnums = argnums
        self._in_avals = list(map(jax.typeof, inputs))
        self._out_avals = list(map(jax.typeof, outputs))
        self.nbytes = sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[Any]:
        """Returns the arrays that this record keeps alive, each once."""
        return list({id(x): x for x in self._linear.arrays() if isinstance(x, jax.Array)}.values())

    def comparable(self) -> tuple[str, list[Any]]:
        """What decides the derivative, as in `Record`."""
        return without_addresses(self._linear.text()), comparable_arrays(self._linear.arrays())

    def pullback(self, cotangents: Sequence[Any]) -> list[Any]:
        """Reverse mode, as in `Record`."""
        cotangents = checked("cotangent", "output", cotangents, self._out_avals)
        outnums = [j for j, ct in enumerate(cotangents) if ct is not None]
        nothing: list[Any] = [None] * len(self._in_avals)
        if not outnums or not self._argnums:
            return nothing
        return _jaxcore.replaced(nothing, self._argnums, self._linear.pull(outnums, [cotangents[j] for j in outnums]))

    def pushforward(self, tangents: Sequence[Any]) -> list[Any]:
        """Forward mode, as in `Record`."""
        tangents = checked("tangent", "input", tangents, self._in_avals)
        nonzero = {i: t for i in self._argnums if (t := tangents[i]) is not None}
        outnums = [j for j, aval in enumerate(self._out_avals) if _jaxcore.is_inexact(aval)]
        nothing: list[Any] = [None] * len(self._out_avals)
        return _jaxcore.replaced(nothing, outnums, self._linear.push(outnums, nonzero)) if nonzero else nothing


def checked(name: str, what: str, vectors: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Returns cotangents or tangents as arrays, checked against the values that they belong to."""
    if len(vectors) != len(avals):
        raise ValueError(f"got {len(vectors)} {name}s for {len(avals)} {what}s: give one per {what}, None for zero")
    arrays = list(vectors)
    for i, (vector, aval) in enumerate(zip(vectors, avals)):
        if vector is None:
            continue
        if not _jaxcore.is_inexact(aval):
            raise TypeError(f"{what} {i} is of dtype {aval.dtype}: its {name} must be None")
        if not isinstance(vector, jax.Array):
            vector = jnp.asarray(vector, aval.dtype)
        if vector.shape != aval.shape or vector.dtype != aval.dtype:
            raise ValueError(
                f"{what} {i} is {aval.dtype}{list(aval.shape)}, but its {name} is "
                f"{vector.dtype}{list(vector.shape)}: they must be alike"
            )
        arrays[i] = _jaxcore.shard_as(vector, aval)
    return arrays


def record_by_vjp(
    func: Callable[..., Sequence[Any]], inputs: Sequence[Any], perturbed: Sequence[bool] | None, title: str
) -> tuple[list[Any], RecordOfVjp]:
    """Runs `func(*inputs)` once, as `record` does, and keeps its derivative.

    Raises:
        TypeError: the function asks for a value that is differentiated.
    """
    argnums = [i for i, x in enumerate(inputs) if _jaxcore.is_inexact(x) and (perturbed is None or perturbed[i])]

    def call(*args: Any) -> list[Any]:
        return [x if isinstance(x, jax.Array) else _jaxcore.with_transfers(jnp.asarray, x) for x in func(*args)]

    try:
        outputs, linear = linearize(call, argnums, inputs, forward=False)
    except _ASKED as error:
        raise TypeError(
            f"{title}: it asks for the value of what is differentiated, which takes the capability own_traces of JAX. "
            f"JAX {jax.__version__} does not have it, or JAXPYOP_WITHOUT turns it off. Write jnp.where or jax.lax.cond "
            f"instead, or give the op a vjp="
        ) from error
    linear.keep_values()
    return outputs, RecordOfVjp(linear, argnums, inputs, outputs)

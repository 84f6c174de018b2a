"""Calls that are linearised when they are recorded, and never evaluated again.

So is what would be noticed if it ran in the backward pass too (side effects,
Python functions), and what has rules that belong to one call (a user's
`custom_jvp` and `custom_vjp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxpyop._tape.vjp import filled, is_differentiable, zeros


class Linear:
    """The derivative of one call, at its values.

    Attributes:
        forward: whether the map kept is that of the tangents, else that of the
            cotangents. The other is its transpose, and runs nothing again.
    """

    def __init__(
        self, derivative: Callable[..., Any], forward: bool, inputs: dict[int, Any], outputs: dict[int, Any]
    ) -> None:
        """Keep a derivative, and the types of the inputs and outputs that it is of, by position."""
        self._derivative = derivative
        self.forward = forward
        self._inputs = {i: _like(v) for i, v in inputs.items()}
        self._outputs = {j: _like(o) for j, o in outputs.items()}

    def pull(self, wanted: Sequence[int], cotangents: Sequence[Any]) -> Sequence[Any]:
        """The inputs' cotangents from those of the `wanted` outputs."""
        given = dict(zip(wanted, cotangents, strict=True))
        full = [given[j] if j in given else zeros(like) for j, like in self._outputs.items()]
        if self.forward:
            return jax.linear_transpose(self._derivative, *self._inputs.values())(full)
        return self._derivative(full)

    def push(self, wanted: Sequence[int], tangents: dict[int, Any]) -> list[Any]:
        """The tangents of the `wanted` outputs from those of inputs."""
        full = tuple(tangents[i] if i in tangents else zeros(like) for i, like in self._inputs.items())
        if self.forward:
            outputs = self._derivative(*full)
        else:
            outputs = self._transposed(full)
        found = dict(zip(self._outputs, outputs, strict=True))
        return [found[j] for j in wanted]

    def _transposed(self, tangents: Sequence[Any]) -> Sequence[Any]:
        try:
            return jax.linear_transpose(self._derivative, list(self._outputs.values()))(tangents)[0]
        except Exception as error:
            raise TypeError(
                "forward mode needs the transpose of a custom_vjp function's backward pass, which is not linear; "
                "put jax.jit around the derivative, which drops tangents that nobody needs, or use jax.jacrev twice"
            ) from error

    def arrays(self) -> list[Any]:
        """The arrays that the derivative keeps alive."""
        return jax.tree.leaves(self._derivative)


def _like(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def linearise(
    function: Callable[..., Sequence[Any]], diff: Sequence[int], args: Sequence[Any], forward: bool
) -> tuple[list[Any], Linear]:
    """Call `function(*args)` once, under the current trace.

    Args:
        function: returns a sequence of arrays.
        diff: the positions of the arguments to differentiate in.
        args: all arguments.
        forward: which derivative to keep: that of the tangents, which
            `custom_vjp` does not have, or that of the cotangents, which a
            Python function's cannot be found from.

    Returns:
        Its outputs, and its derivative.
    """

    def split(*primals: Any) -> tuple[list[Any], list[Any]]:
        outputs = function(*filled(args, diff, primals))
        flags = [is_differentiable(o.dtype) for o in outputs]
        floats = [o for o, flag in zip(outputs, flags, strict=True) if flag]
        return floats, [None if flag else o for o, flag in zip(outputs, flags, strict=True)]

    primals = [args[i] for i in diff]
    transform = jax.linearize if forward else jax.vjp
    floats, derivative, rest = transform(split, *primals, has_aux=True)
    positions = [j for j, o in enumerate(rest) if o is None]
    inputs, outputs = dict(zip(diff, primals, strict=True)), dict(zip(positions, floats, strict=True))
    return filled(rest, positions, floats), Linear(derivative, forward, inputs, outputs)

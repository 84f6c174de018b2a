"""Calls that are linearized when they are recorded, and never evaluated again.

These are the calls that would be noticed if they ran in the backward pass too (side effects, Python functions), and
the calls whose rules belong to one call (a user's `custom_jvp` and `custom_vjp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._jaxcore import is_inexact, replaced, zeros


class Linear:
    """The derivative of one call, at its values.

    Attributes:
        forward: whether the derivative maps tangents of inputs to tangents of outputs. Otherwise it maps cotangents of
            outputs to cotangents of inputs. Either map is made by transposing the other. Nothing runs again for it.
    """

    def __init__(
        self, derivative: Callable[..., Any], forward: bool, inputs: dict[int, Any], outputs: dict[int, Any]
    ) -> None:
        """Keeps a derivative, and the types of its inputs and outputs by position."""
        self._derivative = derivative
        self.forward = forward
        self._inputs = {i: _like(v) for i, v in inputs.items()}
        self._outputs = {j: _like(o) for j, o in outputs.items()}

    def pull(self, outnums: Sequence[int], cotangents: Sequence[Any]) -> Sequence[Any]:
        """Returns the inputs' cotangents for these cotangents of the outputs `outnums`."""
        nonzero = dict(zip(outnums, cotangents, strict=True))
        full = [nonzero[j] if j in nonzero else zeros(like) for j, like in self._outputs.items()]
        if self.forward:
            return jax.linear_transpose(self._derivative, *self._inputs.values())(full)
        return self._derivative(full)

    def push(self, outnums: Sequence[int], tangents: dict[int, Any]) -> list[Any]:
        """Returns the tangents of the outputs `outnums` for these tangents of inputs, by position."""
        full = tuple(tangents[i] if i in tangents else zeros(like) for i, like in self._inputs.items())
        outputs = self._derivative(*full) if self.forward else self._transposed(full)
        found = dict(zip(self._outputs, outputs, strict=True))
        return [found[j] for j in outnums]

    def _transposed(self, tangents: Sequence[Any]) -> Sequence[Any]:
        try:
            return jax.linear_transpose(self._derivative, list(self._outputs.values()))(tangents)[0]
        except Exception as error:
            raise TypeError(
                "forward mode needs the transpose of a custom_vjp function's backward pass, which is not linear; "
                "put jax.jit around the derivative, which drops unused tangents, or use jax.jacrev twice"
            ) from error

    def text(self) -> str:
        """Returns the calls of the derivative, printed."""
        return str(jax.tree.structure(self._derivative))

    def keep_values(self) -> None:
        """Copies the NumPy arrays that the derivative reads, because the function may change them later."""
        self._derivative = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, self._derivative)

    def arrays(self) -> list[Any]:
        """Returns the arrays that the derivative keeps alive."""
        return jax.tree.leaves(self._derivative)


def _like(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def linearize(
    function: Callable[..., Sequence[Any]], argnums: Sequence[int], args: Sequence[Any], forward: bool
) -> tuple[list[Any], Linear]:
    """Calls `function(*args)` once, under the current trace.

    Args:
        function: returns a sequence of arrays.
        argnums: the positions of the arguments to differentiate in.
        args: all arguments.
        forward: whether to keep the map of tangents, else the map of cotangents. A `custom_vjp` function has only the
            map of cotangents. For a Python function the map of tangents is kept, because its map of cotangents cannot
            be transposed.

    Returns:
        The outputs of the function, and its derivative.
    """

    def split(*primals: Any) -> tuple[list[Any], list[Any]]:
        outputs = function(*replaced(args, argnums, primals))
        return [o for o in outputs if is_inexact(o)], [None if is_inexact(o) else o for o in outputs]

    primals = [args[i] for i in argnums]
    transform = jax.linearize if forward else jax.vjp
    floats, derivative, rest = transform(split, *primals, has_aux=True)
    outnums = [j for j, o in enumerate(rest) if o is None]
    inputs, outputs = dict(zip(argnums, primals, strict=True)), dict(zip(outnums, floats, strict=True))
    return replaced(rest, outnums, floats), Linear(derivative, forward, inputs, outputs)

"""`transpose=f`: functions that are linear in their floating inputs.

Such a function is its own derivative, and the user gives its transpose, whose
transpose is the function again: derivatives of every order are these two.
Both take the inputs that are not floating first, then what they are linear in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import Environment
from jaxpyop._op.body import Struct, UserBody, WhenUser, is_inexact
from jaxpyop._op.derivatives.functions import called, checked, one_each, zero_cotangent
from jaxpyop._op.primitive import Call, transposed
from jaxpyop._op.request import Op
from jaxpyop._op.values import as_jax


class LinearCall(Call):
    """Runs a linear function, or its transpose, on tangents or cotangents."""

    order = "linear({})"
    blocks = True
    is_linear = True

    def __init__(self, body: Any, op: Op, environment: Environment) -> None:
        super().__init__(body, op, environment)
        self.on_jax = op.on_jax
        self.vmap_method = op.vmap_method
        self.func = body.rule
        self.linear = body.linear

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.on_jax:
            arrays = as_jax(arrays)
        return self.body(*arrays, lead=lead)

    def in_tangents(self, mask: tuple[bool, ...]) -> Call:
        """Itself."""
        return self

    def back(self, structs: Sequence[Struct]) -> Call:
        """The transpose, of inputs of these shapes."""
        return transposed(LinearCall(self.body.transposed(structs), self.op, self.environment))


class LinearFunction:
    """The function itself, to the floating ones of its results.

    Args:
        base: the function.
        mask: which of its inputs are floating.
    """

    travels = True
    linear = 0  # a block method lends inputs that have no batch an axis of size 1

    def __init__(self, base: UserBody | WhenUser, mask: tuple[bool, ...]) -> None:
        self.base = base
        self.mask = mask
        self.conditional = isinstance(base, WhenUser)
        self.op: Op = base.base.op if isinstance(base, WhenUser) else base.op
        self.rule = self.op.func

    def sorted(self, arrays: Sequence[Any]) -> list[Any]:
        """The inputs as the function takes them."""
        count = len(self.mask) - sum(self.mask)
        fixed, floating = iter(arrays[:count]), iter(arrays[count:])
        return [next(floating) if is_floating else next(fixed) for is_floating in self.mask]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(self.sorted(structs)) if is_inexact(s)]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        return [value for value in self.base(*self.sorted(arrays), lead=lead) if is_inexact(value)]

    def transposed(self, structs: Sequence[Struct]) -> TransposedFunction:
        return TransposedFunction(self, self.sorted(structs))


class TransposedFunction:
    """The user's `transpose=` function: from cotangents of the results to those of the floating inputs.

    Args:
        forth: the function.
        inputs: shapes and dtypes of all of its inputs.
    """

    travels = True

    def __init__(self, forth: LinearFunction, inputs: Sequence[Struct]) -> None:
        self.forth = forth
        self.inputs = [Struct(s.shape, s.dtype) for s in inputs]
        self.outputs = forth.base.shapes(self.inputs)
        self.rule = forth.op.rules.transpose
        self.linear = sum(map(is_inexact, self.outputs))

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, is_floating in zip(self.inputs, self.forth.mask) if is_floating]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        if self.forth.conditional and not np.asarray(arrays[0]).any():
            return [np.zeros((*lead, *s.shape), s.dtype) for s in self.shapes(())]
        op, flags = self.forth.op, int(self.forth.conditional)
        found = called(op, "transpose", self.rule, tuple(self._cotangents(arrays, lead)))
        found = one_each(found, len(self.inputs) - flags, "transpose", ("cotangent", "array input"), op.title)
        likes = [Struct((*lead, *s.shape), s.dtype) for s in self.inputs[flags:]]
        mask = self.forth.mask[flags:]
        return [checked(op, "transpose", k, found[k], like, "input") for k, like in enumerate(likes) if mask[k]]

    def _cotangents(self, arrays: Sequence[Any], lead: tuple[int, ...]) -> Iterator[Any]:
        it = iter(arrays[len(arrays) - self.linear :])
        for out in self.outputs:
            yield next(it) if is_inexact(out) else zero_cotangent(out, lead, self.forth.op)

    def transposed(self, structs: Sequence[Struct]) -> LinearFunction:
        return self.forth

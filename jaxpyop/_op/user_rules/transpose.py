"""`transpose=f`: functions that are linear in their floating inputs.

Such a function is its own derivative. The user gives its transpose, and the transpose of the transpose is the function
again. So the function and its transpose give the derivatives of every order. The bodies of both take the inputs that
are not floating first, and then the inputs in which they are linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._host import Environment
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import Body, DerivedBody
from jaxpyop._op.primitive import Batching, Call, Operands
from jaxpyop._op.user_rules.functions import run_rule, zero_cotangent
from jaxpyop._op.values import Struct


class LinearCall(Call):
    """Runs a linear function, or its transpose, on tangents or cotangents."""

    is_declared_linear = True
    body: LinearFunction | LinearTranspose

    def __init__(self, body: LinearFunction | LinearTranspose, environment: Environment) -> None:
        super().__init__(
            body,
            environment,
            label="linear({})",
            on_jax=body.op.on_jax,
            batching=Batching(body.op.vmap_method),
            operands=Operands(rule_inputs=body.linear_inputs),
        )

    def linear_part(self, floating: tuple[bool, ...]) -> Call:
        return self

    def transposed_linear_part(self, structs: Sequence[Struct]) -> Call:
        return LinearCall(self.body.transpose_for(structs), self.environment)


class LinearFunction(DerivedBody):
    """The user's function as a linear map: linear inputs come last, and only floating results are returned.

    `linear_inputs` stays 0 on purpose. The batching rule broadcasts linear inputs to the size of the batch, but this
    function expects an axis of size 1 for an input without a batch axis.

    Args:
        base: the function.
        floating: which of its inputs are floating.
        conditional: whether its first input is the flag of `when=`.
    """

    def __init__(self, base: Body, floating: tuple[bool, ...], conditional: bool) -> None:
        super().__init__(base)
        self.floating = floating
        self.conditional = conditional

    def in_order(self, values: Sequence[Any]) -> list[Any]:
        """Return the inputs in the order in which the function takes them."""
        count = len(self.floating) - sum(self.floating)
        fixed, linear = iter(values[:count]), iter(values[count:])
        return [next(linear) if floating else next(fixed) for floating in self.floating]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(self.in_order(structs)) if is_inexact(s)]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        return [value for value in self.base(*self.in_order(arrays), lead=lead) if is_inexact(value)]

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        return self.base.groups(self.in_order(values))

    def transpose_for(self, structs: Sequence[Struct]) -> LinearTranspose:
        """Return the transpose for inputs of these shapes and dtypes."""
        return LinearTranspose(self, self.in_order(structs))


class LinearTranspose(DerivedBody):
    """The user's `transpose=` function: it maps the results' cotangents to the floating inputs' cotangents.

    Args:
        base: the linear function.
        inputs: the shapes and dtypes of all inputs of the function.
    """

    rule_name = "transpose"

    def __init__(self, base: LinearFunction, inputs: Sequence[Struct]) -> None:
        super().__init__(base)
        self.inputs = [Struct(s.shape, s.dtype) for s in inputs]
        self.outputs = base.base.shapes(self.inputs)
        self.linear_inputs = sum(map(is_inexact, self.outputs))

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, floating in zip(self.inputs, self.base.floating) if floating]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        if self.base.conditional and not np.asarray(arrays[0]).any():
            return self.absent_results((), lead)
        op, flags = self.op, int(self.base.conditional)
        given = iter(arrays[len(arrays) - self.linear_inputs :])
        cotangents = tuple(next(given) if is_inexact(out) else zero_cotangent(out, lead, op) for out in self.outputs)
        likes = [Struct((*lead, *s.shape), s.dtype) for s in self.inputs[flags:]]
        return run_rule(op, "transpose", self.func, (cotangents,), likes, self.base.floating[flags:], traced=False)

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        return {"cotangents": values[len(values) - self.linear_inputs :]}

    def transpose_for(self, structs: Sequence[Struct]) -> LinearFunction:
        """Return the linear function, which is the transpose of its transpose."""
        return self.base

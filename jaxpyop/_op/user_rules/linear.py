"""`transpose=f` declares that a function is linear in its floating inputs.

Then it is its own derivative, and the transpose of its transpose is the function again. So the two give the derivatives
of every order. The bodies of both take the inputs that are not floating first, and then the inputs in which they are
linear.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jaxpyop._host import Environment
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import Body, UserBody, call_with_advice
from jaxpyop._op.primitive import Call, Operands
from jaxpyop._op.user_rules.functions import cotangents_of_inputs, has_padding_or_keys, in_structure, zero_cotangent
from jaxpyop._op.values import Struct


class LinearCall(Call):
    """Runs a linear function, or its transpose, on tangents or cotangents.

    Args:
        body: the function or its transpose.
        environment: that of the user's call.
        has_flag: whether the flag of `when=` comes first.
    """

    is_declared_linear = True

    def __init__(self, body: LinearFunction | LinearTranspose, environment: Environment, has_flag: bool) -> None:
        super().__init__(
            body,
            environment,
            label="linear({})",
            on_jax=body.op.on_jax,
            method=body.op.vmap_method,
            operands=Operands(has_flag=has_flag, linear_inputs=body.linear_inputs),
        )

    def linear_part(self, floating: tuple[bool, ...]) -> Call:
        return self

    def transposed_linear_part(self, structs: Sequence[Struct]) -> Call:
        operands = self.operands
        return LinearCall(self.body.transpose_for(structs[operands.leading :]), self.environment, operands.has_flag)


class LinearFunction(Body):
    """The user's function as a linear map: linear inputs come last, and only floating results are returned.

    `linear_inputs` stays 0 on purpose. The batching rule broadcasts linear inputs to the size of the batch, but this
    function expects an axis of size 1 for an input without a batch axis.

    Args:
        base: the function.
        floating: which of its inputs are floating.
    """

    def __init__(self, base: UserBody, floating: tuple[bool, ...]) -> None:
        super().__init__(base.op)
        self.base = base
        self.floating = floating

    def in_order(self, values: Sequence[Any]) -> list[Any]:
        """Return the inputs in the order in which the function takes them."""
        count = len(self.floating) - sum(self.floating)
        fixed, linear = iter(values[:count]), iter(values[count:])
        return [next(linear) if floating else next(fixed) for floating in self.floating]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(self.in_order(structs)) if is_inexact(s)]

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return [value for value in self.base.run(self.in_order(arrays), lead) if is_inexact(value)]

    def written(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        return self.base.written(self.in_order(arrays)) if all(map(is_inexact, self.op.spec.leaves)) else None

    def transpose_for(self, structs: Sequence[Struct]) -> LinearTranspose:
        """Return the transpose for inputs of these shapes and dtypes."""
        return LinearTranspose(self, self.in_order(structs))


class LinearTranspose(Body):
    """The user's `transpose=` function: it maps the results' cotangents to the floating inputs' cotangents.

    Args:
        linear: the linear function.
        inputs: the shapes and dtypes of all inputs of the function.
    """

    rule_name = "transpose"

    def __init__(self, linear: LinearFunction, inputs: Sequence[Struct]) -> None:
        super().__init__(linear.op)
        self.linear = linear
        self.inputs = [Struct(s.shape, s.dtype) for s in inputs]
        self.outputs = linear.base.shapes(self.inputs)
        self.linear_inputs = sum(map(is_inexact, self.outputs))

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, floating in zip(self.inputs, self.linear.floating) if floating]

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        op, given = self.op, iter(arrays[len(arrays) - self.linear_inputs :])
        zero = lambda out: zero_cotangent(out, lead, op, self.func)
        cotangents = [next(given) if is_inexact(out) else zero(out) for out in self.outputs]
        found = call_with_advice(op, "transpose", self.func, (in_structure(op, cotangents),), {})
        likes = [Struct((*lead, *s.shape), s.dtype) for s in self.inputs]
        return cotangents_of_inputs(self.linear.base, "transpose", found, likes, self.linear.floating)

    def written(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        base, given, wanted = self.linear.base, iter(arrays[len(arrays) - self.linear_inputs :]), itertools.count()
        if has_padding_or_keys(base):
            return None
        cotangents = in_structure(self.op, [next(given) if is_inexact(out) else None for out in self.outputs])
        numbers = [next(wanted) if floating else None for floating in self.linear.floating]
        return (cotangents,), {}, base.arguments.filled_with_tangents(numbers), True

    def transpose_for(self, structs: Sequence[Struct]) -> LinearFunction:
        """Return the linear function, which is the transpose of its transpose."""
        return self.linear

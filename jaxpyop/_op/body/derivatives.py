"""The derivatives of a body for one element, on the tape; `primitive.differentiate` batches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body.body_protocol import DerivedBody, constants, element_structs
from jaxpyop._op.request import is_nan
from jaxpyop._op.values import Struct, as_jax, check_fingerprints, fingerprint
from jaxpyop._tape import Record, record


class DerivativeBody(DerivedBody):
    """What the derivatives of a body have in common.

    A derivative takes the inputs of its base, perhaps the results of its base, and then the tangents or cotangents, in
    which it is linear.

    Args:
        base: the body.
        perturbed: the inputs of the base in which it is differentiated.
        linear_inputs: how many tangents or cotangents the derivative takes.
    """

    def __init__(self, base: Any, perturbed: tuple[bool, ...], linear_inputs: int) -> None:
        # This keeps it as `self.base`.
        super().__init__(base)
        self.perturbed = perturbed
        self.linear_inputs = linear_inputs

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        return self.run_or_on_error_fills(lambda: self.run(arrays, lead), arrays, lead)

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """Return the derivative. If the user's code fails here, `on_error=` replaces the results.

        This is asked of a derivative that runs as a body itself, such as a second one. The pass that belongs to a
        recording run asks for `answer`, which takes the record.
        """
        return self.answer(record(self.base, self.split(arrays)[0], self.perturbed)[1], arrays)

    def answer(self, taken: Record, arrays: Sequence[Any]) -> list[Any]:
        """Return the derivative by `taken`, a record of the base on the tape."""
        raise NotImplementedError(type(self).__name__)

    def split(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The base's inputs, its results if they are there, and the linear inputs."""
        count, first = len(self.perturbed), len(arrays) - self.linear_inputs
        return arrays[:count], arrays[count:first], arrays[first:]


class TangentBody(DerivativeBody):
    """Gives the tangents of a body's inexact results, for a tangent of each perturbed input."""

    def __init__(self, base: Any, perturbed: tuple[bool, ...]) -> None:
        super().__init__(base, perturbed, sum(perturbed))

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(self.split(structs)[0]) if is_inexact(s)]

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return constants(_derivatives_of_fills(self.op), self.shapes(element_structs(arrays, lead)), arrays, lead)

    def per_input(self, tangents: Sequence[Any]) -> list[Any]:
        """For each of the base's inputs its tangent, or None if it is not perturbed."""
        given = iter(tangents)
        return [next(given) if p else None for p in self.perturbed]


class CotangentBody(DerivativeBody):
    """Gives the cotangents of the perturbed inputs.

    It takes the cotangents of the inexact results that `nonzero_cotangents` marks.
    """

    def __init__(self, base: Any, nonzero_cotangents: tuple[bool, ...], perturbed: tuple[bool, ...]) -> None:
        super().__init__(base, perturbed, sum(nonzero_cotangents))
        self.nonzero_cotangents = nonzero_cotangents

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, wanted in zip(structs, self.perturbed) if wanted]

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        structs = self.shapes(element_structs(arrays, lead))
        derivative = sum(d for d, nonzero in zip(_derivatives_of_fills(self.op), self.nonzero_cotangents) if nonzero)
        return constants([derivative] * len(structs), structs, arrays, lead)

    def per_result(self, cotangents: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
        """For each of the base's results its cotangent, or None if that is zero."""
        given, nonzero = iter(cotangents), iter(self.nonzero_cotangents)
        return [next(given) if is_inexact(out) and next(nonzero) else None for out in outs]


class Pushforward(TangentBody):
    """The tangents of a body, in forward mode on the tape."""

    def answer(self, taken: Record, arrays: Sequence[Any]) -> list[Any]:
        primals, _, tangents = self.split(arrays)
        found = taken.pushforward(as_jax(self.per_input(tangents)))
        return [_or_zeros(tangent, out) for out, tangent in zip(self.base.shapes(primals), found) if is_inexact(out)]


class Pullback(CotangentBody):
    """The cotangents of a body, in reverse mode on the tape."""

    def answer(self, taken: Record, arrays: Sequence[Any]) -> list[Any]:
        primals, _, nonzero = self.split(arrays)
        found = taken.pullback(as_jax(self.per_result(nonzero, self.base.shapes(primals))))
        return [_or_zeros(cotangent, x) for x, cotangent, wanted in zip(primals, found, self.perturbed) if wanted]


class RecordedDerivative(DerivedBody):
    """A derivative that is answered from a record. If the record is gone, the body runs again on the tape.

    Takes the receipt of the record, perhaps the flag of `when=`, and the inputs of the derivative. A body that runs
    again must give the results of the forward pass.
    """

    def __init__(self, derivative: Pushforward | Pullback, recorded: tuple[bool, ...], conditional: bool) -> None:
        # `self.base` is the derivative, and the body that is recorded is the base of the derivative.
        super().__init__(derivative)
        self.derivative = derivative
        self.recorded = recorded
        self.leading_inputs = 1 + conditional
        self.linear_inputs = derivative.linear_inputs

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        # The body runs again, because its record is gone, or is kept by another process.
        receipt, rest = arrays[0], arrays[self.leading_inputs :]
        # Record the same inputs as the forward pass, because operations on recorded values are compiled differently.
        outs, again = record(self.derivative.base, as_jax(self.derivative.split(rest)[0]), self.recorded)
        check_fingerprints(fingerprint(outs), np.asarray(receipt)[1], self.title, "func")
        return self.answer(again, arrays)

    def results_if_lost(self, error: Exception, arrays: Sequence[Any]) -> list[Any]:
        return self.derivative.results_if_lost(error, arrays[self.leading_inputs :])

    def answer(self, taken: Record, arrays: Sequence[Any]) -> list[Any]:
        """Return the derivative by `taken`, a record."""
        rest = arrays[self.leading_inputs :]
        return self.derivative.run_or_on_error_fills(lambda: self.derivative.answer(taken, rest), rest)


def _derivatives_of_fills(op: Any) -> list[float]:
    """The derivatives of the inexact results of an element that failed."""
    pairs = zip(op.fills, op.spec.leaves)
    return [float("nan") if is_nan(fill) else 0.0 for fill, leaf in pairs if is_inexact(leaf)]


def _or_zeros(value: Any, like: Any) -> Any:
    # Zeros on the device would take longer to make.
    return np.zeros(like.shape, like.dtype) if value is None else value

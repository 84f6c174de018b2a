"""The derivatives of a body: its pushforward and its pullback, on the tape, and what all derivatives have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body.body_protocol import DerivedBody, constants, element_structs
from jaxpyop._op.request import is_nan
from jaxpyop._op.values import Struct, as_jax, check_fingerprints, fingerprint
from jaxpyop._tape import jvp, record, vjp


class TangentBody(DerivedBody):
    """Gives the tangents of a body's inexact results.

    Takes the base's inputs, perhaps the base's results, then a tangent for each input that `perturbed` marks.
    """

    def __init__(self, base: Any, perturbed: tuple[bool, ...]) -> None:
        super().__init__(base)
        self.perturbed = perturbed
        self.linear_inputs = sum(perturbed)

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(structs[: len(self.perturbed)]) if is_inexact(s)]

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        return _groups(values, len(self.perturbed), self.linear_inputs, "tangents")

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return constants(_derivatives_of_fills(self.op), self.shapes(element_structs(arrays, lead)), arrays, lead)

    def split(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], list[Any]]:
        """The base's inputs, its results if they are there, and for each input a tangent or None."""
        count, first = len(self.perturbed), len(arrays) - self.linear_inputs
        tangents = iter(arrays[first:])
        return arrays[:count], arrays[count:first], [next(tangents) if p else None for p in self.perturbed]


class CotangentBody(DerivedBody):
    """Gives the cotangents of the inputs that `wanted_cotangents` marks.

    Takes the base's inputs, perhaps the base's results, then the cotangents of the inexact results that
    `nonzero_cotangents` marks.
    """

    def __init__(self, base: Any, nonzero_cotangents: tuple[bool, ...], wanted_cotangents: tuple[bool, ...]) -> None:
        super().__init__(base)
        self.nonzero_cotangents = nonzero_cotangents
        self.wanted_cotangents = wanted_cotangents
        self.linear_inputs = sum(nonzero_cotangents)

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, wanted in zip(structs, self.wanted_cotangents) if wanted]

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        return _groups(values, len(self.wanted_cotangents), self.linear_inputs, "cotangents")

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        structs = self.shapes(element_structs(arrays[: len(self.wanted_cotangents)], lead))
        derivative = sum(d for d, nonzero in zip(_derivatives_of_fills(self.op), self.nonzero_cotangents) if nonzero)
        return constants([derivative] * len(structs), structs, arrays, lead)

    def split(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The base's inputs, its results if they are there, and the cotangents that are not zero."""
        count, first = len(self.wanted_cotangents), len(arrays) - self.linear_inputs
        return arrays[:count], arrays[count:first], arrays[first:]

    def per_result(self, cotangents: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
        """For each of the base's results its cotangent, or None if that is zero."""
        given, nonzero = iter(cotangents), iter(self.nonzero_cotangents)
        return [next(given) if is_inexact(out) and next(nonzero) else None for out in outs]


class Pushforward(TangentBody):
    """The tangents of a body, in forward mode on the tape."""

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        primals, _, tangents = self.split(arrays)
        return self.or_fills(lambda: _inexact(*jvp(self.base, primals, tangents)), arrays, lead)

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        primals, _, tangents = self.split(arrays)
        push = lambda: _inexact(self.base.shapes(primals), record.pushforward(as_jax(tangents)))
        return self.or_fills(push, arrays)

    def pullback(self, nonzero_cotangents: tuple[bool, ...]) -> Pullback:
        """Return the body of the transpose, for the cotangents of the results that `nonzero_cotangents` marks."""
        return Pullback(self.base, nonzero_cotangents, self.perturbed)


class Pullback(CotangentBody):
    """The cotangents of a body, in reverse mode on the tape."""

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        primals, cotangents = self._primals_and_cotangents(arrays)
        pull = lambda: self._wanted(primals, vjp(self.base, primals, cotangents, self.wanted_cotangents))
        return self.or_fills(pull, arrays, lead)

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        primals, cotangents = self._primals_and_cotangents(arrays)
        return self.or_fills(lambda: self._wanted(primals, record.pullback(as_jax(cotangents))), arrays)

    def _primals_and_cotangents(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        primals, _, cotangents = self.split(arrays)
        return primals, self.per_result(cotangents, self.base.shapes(primals))

    def _wanted(self, primals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        return [_or_zeros(c, p) for p, c, wanted in zip(primals, cotangents, self.wanted_cotangents) if wanted]


class RecordedDerivative(DerivedBody):
    """A derivative that is answered from a record. If the record is gone, the body runs again on the tape.

    Takes the receipt of the record, then the inputs of the derivative. A body that runs again must give the results of
    the forward pass.
    """

    leading_inputs = 1

    def __init__(self, derivative: Pushforward | Pullback, recorded: tuple[bool, ...]) -> None:
        super().__init__(derivative)
        self.derivative = derivative
        self.recorded = recorded
        self.linear_inputs = derivative.linear_inputs

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        # The body runs again, because its record is gone, or is kept by another process.
        receipt, *rest = arrays
        # Record the same inputs as the forward pass, because operations on recorded values are compiled differently.
        outs, again = record(self.derivative.base, as_jax(self.derivative.split(rest)[0]), self.recorded)
        check_fingerprints(fingerprint(outs), np.asarray(receipt)[1], self.title, "func")
        return self.derivative.replay(again, rest)

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        return self.derivative.replay(record, arrays[1:])


def _derivatives_of_fills(op: Any) -> list[float]:
    """The derivatives of the inexact results of an element that failed."""
    pairs = zip(op.fills, op.spec.leaves)
    return [float("nan") if is_nan(fill) else 0.0 for fill, leaf in pairs if is_inexact(leaf)]


def _groups(values: Sequence[Any], inputs: int, linear: int, name: str) -> dict[str, Sequence[Any]]:
    """The inputs of a derivative by group: so many inputs of its base, perhaps the results, and the linear inputs."""
    first = len(values) - linear
    outputs = {"outputs": values[inputs:first]} if inputs < first else {}
    return {"inputs": values[:inputs], **outputs, name: values[first:]}


def _inexact(outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    return [_or_zeros(t, out) for out, t in zip(outs, tangents) if is_inexact(out)]


def _or_zeros(value: Any, like: Any) -> Any:
    # Zeros on the device would take longer to make.
    return np.zeros(like.shape, like.dtype) if value is None else value

"""`transpose=f` declares that a function is linear in its floating inputs.

Then it is its own derivative, and the transpose of its transpose is the function again. So the two give the derivatives
of every order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._dtypes import is_inexact
from jaxpyop._op.body import DerivativeBody, call_with_advice, element_structs
from jaxpyop._op.user_rules.vjp_and_jvp import (
    cotangents_of_inputs,
    cotangents_of_results,
    has_padding_or_keys,
    in_structure,
    places_of_cotangents,
    with_lead,
)
from jaxpyop._values import Struct


class LinearTangents(DerivativeBody):
    """The user's function of tangents, which are in the places of its floating inputs."""

    depends_on_inputs = False

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        inputs, _, tangents = self.split(arrays)
        pairs = zip(inputs, self.per_input(tangents))
        moved = [(np.zeros_like(x) if is_inexact(x) else x) if t is None else t for x, t in pairs]
        return self.wanted([value for value in self.base.run(moved, lead) if is_inexact(value)])

    def for_native(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        if not all(map(is_inexact, self.op.spec.leaves)) or self.results is not None:
            return None
        inputs, _, tangents = self.split(arrays)
        pairs = zip(inputs, self.per_input(tangents))
        zero = lambda x: dataclasses.replace(x, is_zero=True) if is_inexact(x) else x
        return self.base.for_native([zero(x) if t is None else t for x, t in pairs])


class LinearCotangents(DerivativeBody):
    """The user's `transpose=` function: it maps the results' cotangents to the floating inputs' cotangents."""

    rule_name = "transpose"
    depends_on_inputs = False

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        inputs, _, given = self.split(arrays)
        outputs = [Struct((*lead, *s.shape), s.dtype) for s in self.base.shapes(element_structs(inputs, lead))]
        cotangents = in_structure(self.op, cotangents_of_results(self, given, outputs, lead))
        found = call_with_advice(self.op, "transpose", self.func, (cotangents,), {})
        return cotangents_of_inputs(self.base, "transpose", found, with_lead(inputs, lead), self.perturbed)

    def for_native(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        if has_padding_or_keys(self.base) or not all(self.nonzero or ()):
            return None
        inputs, _, given = self.split(arrays)
        cotangents = in_structure(self.op, self.per_result(given, self.op.spec.leaves))
        return (cotangents,), {}, places_of_cotangents(self, inputs), True

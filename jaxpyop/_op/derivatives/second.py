"""`hvp="numerical"`: second derivatives by central differences of a rule.

The rule is differentiated along one direction, so a Hessian-vector product takes two runs of the function and of its
rule. It is a function of the inputs and the cotangents: the function runs again for the results.

Second derivatives are symmetric. So the transpose of a pullback's derivative in the inputs is the derivative of the
pullback again, along the other direction. This needs a rule that is the derivative of the function, which one more run
checks along that direction.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import run_once
from jaxpyop._op.body import Body, ConditionalBody, CotangentBody, DerivedBody, TangentBody, element_structs
from jaxpyop._op.derivatives.functions import RuleCall
from jaxpyop._op.derivatives.fwd_bwd import BwdRule, FwdBody
from jaxpyop._op.derivatives.numerical import NumericalJvp, NumericalVjp, relative_step
from jaxpyop._op.primitive import Call, Linearization
from jaxpyop._op.request import no_reverse_over_forward_error, no_second_derivative_error, not_the_derivative_error
from jaxpyop._op.values import Struct, as_jax


def linearize_rule(function: Call, call: RuleCall, perturbed: tuple[bool, ...]) -> Linearization:
    """The linearization of a rule by its differences.

    Args:
        function: the call of the op's function, without a flag.
        call: the call of the rule.
        perturbed: which of its inputs have tangents.
    """
    rule, leading = call.rule, call.operands.leading_inputs
    # A receipt comes first. `fwd` runs again, so it is left out.
    skip = min(leading, 1)
    flags = 1 if isinstance(call.body, ConditionalBody) else leading - skip
    # The function runs again along its inputs, so its results need no tangents.
    first, last = skip + flags, len(perturbed) - rule.linear_inputs
    moved = tuple(p and (k < first + _count(rule) or k >= last) for k, p in enumerate(perturbed))
    body = RuleTangent(rule, moved[first:], function)
    linear = RuleCall(ConditionalBody(body) if flags else body, call.op, call.environment)
    return Linearization(call, linear, skip=skip, perturbed=moved)


def _count(rule: Any) -> int:
    """How many inputs the function of a rule has."""
    return len(rule.perturbed if isinstance(rule, TangentBody) else rule.wanted_cotangents)


class RuleAlongInputs(DerivedBody):
    """A rule as a function of the inputs and of the tangents or cotangents: the function runs again for its results.

    Args:
        base: the rule.
        function: the call of the function.
        with_outputs: whether the results of the function are results too.
    """

    goes_to_executor = False

    def __init__(self, base: Any, function: Call, *, with_outputs: bool = False) -> None:
        super().__init__(base)
        self.function = function
        self.with_outputs = with_outputs
        self.linear_inputs = base.linear_inputs

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        inputs = structs[: _count(self.base)]
        if any(np.dtype(s.dtype).kind == "c" for s in inputs):
            raise NotImplementedError(
                f"{self.title}: second derivatives by differences are for real inputs; write func as a py_function, or "
                "make the rule an op with rules of its own"
            )
        return [*self.base.shapes(structs), *(self.function.body.shapes(inputs) if self.with_outputs else ())]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        inputs = list(arrays[: _count(self.base)])
        # A rule gets tangents and cotangents with all batch axes in full size.
        linear = [_in_full(a, lead) for a in arrays[len(arrays) - self.linear_inputs :]]
        if isinstance(self.base, BwdRule):
            outs, residuals = FwdBody(self.base.base).run(self._copies(inputs), lead)
            outs = list(map(np.array, outs))
            found = self.base.pulled(residuals, self._copies(inputs, outs, linear), lead)
        else:
            outs = self._run(inputs, lead)
            found = self.base(*self._copies(inputs, outs, linear), lead=lead)
        return [*map(np.array, found), *(outs if self.with_outputs else ())]

    def _run(self, inputs: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        found: list[Any] = []
        run_once(self.function, self._copies(inputs), lead, lambda values: found.extend(map(np.array, values)))
        return found

    def _copies(self, *groups: Sequence[Any]) -> Sequence[Any]:
        """Arrays that the function or the rule may keep and write into."""
        arrays = [np.array(a) for group in groups for a in group]
        return as_jax(arrays) if self.op.on_jax else arrays


def _in_full(array: Any, lead: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.asarray(array), (*lead, *np.shape(array)[len(lead) :]))


def _difference(again: RuleAlongInputs, moved: tuple[bool, ...], *arrays: Any, lead: tuple[int, ...]) -> list[Any]:
    """The change of a rule's results along directions, one for each input that `moved` marks.

    Args:
        again: the rule.
        moved: the inputs that change.
        *arrays: the inputs, and the directions.
        lead: their batch axes.
    """

    def refuse(nonzero: tuple[bool, ...], wanted: tuple[bool, ...]) -> Any:
        raise no_second_derivative_error(again.title)

    difference = NumericalJvp(again, moved, refuse, RuleCall(again, again.op, again.function.environment))
    if isinstance(again.base, (NumericalJvp, NumericalVjp)):
        difference.root = 2 / 3
    values, _, directions = difference.split(arrays)
    structs = again.shapes(element_structs(values, lead))
    results = [Struct((*lead, *s.shape), s.dtype) for s in structs]
    return difference(*values, *results, *(d for d in directions if d is not None), lead=lead)


class RuleTangent(TangentBody):
    """The tangent of a rule, by one pair of runs along the tangents of the inputs and of its linear inputs."""

    goes_to_executor = False

    def __init__(self, rule: Any, moved: tuple[bool, ...], function: Call) -> None:
        super().__init__(RuleAlongInputs(rule, function), moved)

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        return _difference(self.base, self.perturbed, *arrays, lead=lead)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Body:
        again: RuleAlongInputs = self.base
        if not isinstance(again.base, CotangentBody):
            raise no_reverse_over_forward_error(self.title)
        return RuleCotangent(again, nonzero_cotangents, self.perturbed)


class RuleCotangent(CotangentBody):
    """The cotangents of a pullback's inputs and cotangents, by one pair of runs.

    The cotangents are a direction for the inputs. Along it, the change of the pullback is the cotangent of the inputs,
    and the change of the results is the cotangent of the pullback's cotangents.
    """

    goes_to_executor = False

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        again: RuleAlongInputs = self.base
        rule, wanted = again.base, self.wanted_cotangents
        values, _, directions = self.split(arrays)
        nonzero = iter(self.nonzero_cotangents)
        moved = [w and next(nonzero) for w in rule.wanted_cotangents]
        pullback = copy.copy(rule)
        pullback.wanted_cotangents = wanted[: len(moved)]
        along = RuleAlongInputs(pullback, again.function, with_outputs=True)
        moved += [False] * (len(values) - len(moved))
        found = _difference(along, tuple(moved), *values, *directions, lead=lead)
        count = sum(pullback.wanted_cotangents)
        changes = [t for t, nonzero in zip(found[count:], rule.nonzero_cotangents) if nonzero]
        if not isinstance(rule, NumericalVjp):
            self._check_rule(values, directions, changes, lead)
        return [*found[:count], *(t for t, w in zip(changes, wanted[len(wanted) - rule.linear_inputs :]) if w)]

    def _check_rule(
        self, values: Sequence[Any], directions: Sequence[Any], changes: Sequence[Any], lead: tuple[int, ...]
    ) -> None:
        """Check that the rule gives the change of the function along the directions.

        Raises:
            ValueError: it is off by more than a tenth, and by more than differences can be.
        """
        again: RuleAlongInputs = self.base
        gradients = [g for g, nonzero in zip(again(*values, lead=lead), self.nonzero_cotangents) if nonzero]
        cotangents = values[len(values) - again.linear_inputs :]
        by_rule, size = _paired(gradients, directions, lead)
        by_function, size_of_changes = _paired(cotangents, changes, lead)
        tolerance = (0.1 + relative_step([*values, *changes])) * (size + size_of_changes)
        # With NaN this is false, and the results tell.
        if (wrong := np.abs(by_rule - by_function) > tolerance).any():
            k = tuple(np.argwhere(wrong)[0])
            raise not_the_derivative_error(self.title, self.op.rules, by_rule[k], by_function[k])


def _paired(left: Iterable[Any], right: Iterable[Any], lead: tuple[int, ...]) -> tuple[Any, Any]:
    """The sum of products of cotangents and changes, and the sum of their sizes, for each element of a block."""
    total, size = np.zeros(lead), np.zeros(lead)
    for a, b in zip(left, right):
        product = np.real(np.multiply(a, b)).astype(np.float64).reshape(*lead, -1)
        total, size = total + product.sum(-1), size + np.abs(product).sum(-1)
    return total, size

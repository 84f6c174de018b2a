"""`hvp="numerical"`: second derivatives by central differences of a rule.

The rule is differentiated along one direction, so a Hessian-vector product takes two runs of the function and of its
rule. If the direction moves elements of several magnitudes, it takes two for each power of ten (see `numerical`). A
rule also takes the function's results. To differentiate it as a function of the inputs and the cotangents alone, the
function runs again at each point, and gives the results there.

Second derivatives are symmetric. So the transpose of a pullback's derivative with respect to the inputs is again a
derivative of the pullback, along another direction. This is true only if the rule really is the derivative of the
function. More runs of the rule check this.
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
from jaxpyop._op.derivatives.numerical import NumericalJvp, NumericalVjp, own_axes, relative_step
from jaxpyop._op.primitive import Call, Linearization
from jaxpyop._op.request import no_reverse_over_forward_error, no_second_derivative_error, not_the_derivative_error
from jaxpyop._op.values import Struct, as_jax


def linearize_rule(function: Call, call: RuleCall, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of a rule by differences of the rule.

    Args:
        function: the call of the op's function, without the flag of `when=`.
        call: the call of the rule.
        perturbed: which inputs of the rule have tangents.
    """
    rule, leading = call.rule, call.operands.leading_inputs
    # A receipt, if there is one, is the first input. It is left out, because `fwd` runs again.
    skip = min(leading, 1)
    flags = 1 if isinstance(call.body, ConditionalBody) else leading - skip
    # The function runs again at the moved inputs and gives new results, so the old results need no tangents.
    first, last = skip + flags, len(perturbed) - rule.linear_inputs
    moved = tuple(p and (k < first + _count(rule) or k >= last) for k, p in enumerate(perturbed))
    body = RuleTangent(rule, moved[first:], function)
    linear = RuleCall(ConditionalBody(body) if flags else body, call.op, call.environment)
    return Linearization(call, linear, skip=skip, perturbed=moved)


def _count(rule: Any) -> int:
    """Return how many inputs the function has that a rule belongs to."""
    return len(rule.perturbed if isinstance(rule, TangentBody) else rule.wanted_cotangents)


class RuleAlongInputs(DerivedBody):
    """A rule as a function of the inputs and of the tangents or cotangents alone.

    The rule also takes the function's results, so the function runs again before it.

    Args:
        base: the rule.
        function: the call of the function.
        with_outputs: whether to return the results of the function, too, after the results of the rule.
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
        # A rule expects tangents and cotangents in which no batch axis has size 1 in place of its full size.
        linear = [_in_full(a, lead) for a in arrays[len(arrays) - self.linear_inputs :]]
        if isinstance(self.base, BwdRule):
            outs, residuals = FwdBody(self.base.base).run(self._copies(inputs), own_axes(inputs, lead))
            outs = list(map(np.array, outs))
            found = self.base.pulled(residuals, self._copies(inputs, outs, linear), lead)
        else:
            outs = self._run(inputs, lead)
            found = self.base(*self._copies(inputs, outs, linear), lead=lead)
        return [*map(np.array, found), *(_in_full(o, lead) for o in outs if self.with_outputs)]

    def _run(self, inputs: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        found: list[Any] = []
        axes = own_axes(inputs, lead)
        run_once(self.function, self._copies(inputs), axes, lambda values: found.extend(map(np.array, values)))
        return found

    def _copies(self, *groups: Sequence[Any]) -> Sequence[Any]:
        """Return copies of arrays, which the function or the rule may keep and write into."""
        arrays = [np.array(a) for group in groups for a in group]
        return as_jax(arrays) if self.op.on_jax else arrays


def _in_full(array: Any, lead: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.asarray(array), (*lead, *np.shape(array)[len(lead) :]))


def _difference(base: RuleAlongInputs, moved: tuple[bool, ...], *arrays: Any, lead: tuple[int, ...]) -> list[Any]:
    """Return the derivative of a rule's results along given directions, by central differences.

    Args:
        base: the rule.
        moved: which inputs change.
        *arrays: the inputs, and then a direction for each input that changes.
        lead: the sizes of the batch axes of these arrays.
    """

    def refuse(nonzero: tuple[bool, ...], wanted: tuple[bool, ...]) -> Any:
        raise no_second_derivative_error(base.title, base.op.rules)

    difference = NumericalJvp(base, moved, refuse, RuleCall(base, base.op, base.function.environment))
    if isinstance(base.base, (NumericalJvp, NumericalVjp)):
        difference.step_power = 2 / 3
    values, _, directions = difference.split(arrays)
    structs = base.shapes(element_structs(values, lead))
    results = [Struct((*lead, *s.shape), s.dtype) for s in structs]
    return difference(*values, *results, *(d for d in directions if d is not None), lead=lead)


class RuleTangent(TangentBody):
    """Computes the tangent of a rule, by differences in the direction of the tangents.

    The inputs of the function have tangents, and so do the tangents or cotangents that the rule takes.
    """

    goes_to_executor = False

    def __init__(self, rule: Any, moved: tuple[bool, ...], function: Call) -> None:
        super().__init__(RuleAlongInputs(rule, function), moved)

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        return _difference(self.base, self.perturbed, *arrays, lead=lead)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Body:
        base: RuleAlongInputs = self.base
        if not isinstance(base.base, CotangentBody):
            raise no_reverse_over_forward_error(self.title)
        return RuleCotangent(base, nonzero_cotangents, self.perturbed)


class RuleCotangent(CotangentBody):
    """Computes the cotangents of a pullback's inputs, and of the cotangents that it takes, by differences.

    The results of a pullback have the shapes of the function's inputs, so their cotangents are a direction for the
    inputs. The change of the pullback in this direction is the cotangent of the inputs. The change of the function's
    results in this direction is the cotangent of the cotangents that the pullback takes.
    """

    goes_to_executor = False

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        base: RuleAlongInputs = self.base
        rule, wanted = base.base, self.wanted_cotangents
        values, _, directions = self.split(arrays)
        nonzero = iter(self.nonzero_cotangents)
        moved = [w and next(nonzero) for w in rule.wanted_cotangents]
        pullback = copy.copy(rule)
        pullback.wanted_cotangents = wanted[: len(moved)]
        along = RuleAlongInputs(pullback, base.function, with_outputs=True)
        moved += [False] * (len(values) - len(moved))
        found = _difference(along, tuple(moved), *values, *directions, lead=lead)
        count = sum(pullback.wanted_cotangents)
        changes = [t for t, nonzero in zip(found[count:], rule.nonzero_cotangents) if nonzero]
        if not isinstance(rule, NumericalVjp):
            gradients = [g for g, nonzero in zip(base(*values, lead=lead), self.nonzero_cotangents) if nonzero]
            self._check_rule(values, directions, gradients, changes, lead)
            self._check_zeros(values, directions, gradients, found[:count], lead)
        return [*found[:count], *(t for t, w in zip(changes, wanted[len(wanted) - rule.linear_inputs :]) if w)]

    def _check_rule(
        self,
        values: Sequence[Any],
        directions: Sequence[Any],
        gradients: Sequence[Any],
        changes: Sequence[Any],
        lead: tuple[int, ...],
    ) -> None:
        """Check that the rule gives the same change of the function in these directions as differences of the function.

        Raises:
            ValueError: they differ by more than a tenth, and by more than the error of differences.
        """
        cotangents = values[len(values) - self.base.linear_inputs :]
        by_rule, size = _paired(gradients, directions, lead)
        by_function, size_of_changes = _paired(cotangents, changes, lead)
        tolerance = (0.1 + relative_step([*values, *changes])) * (size + size_of_changes)
        # The comparison is false for NaN. No error is needed then, because the results are NaN too.
        if (wrong := np.abs(by_rule - by_function) > tolerance).any():
            k, name = tuple(np.argwhere(wrong)[0]), self.op.rules.vjp_name
            numbers = f"differences of func give {by_function[k]:.3g}, and {name} gives {by_rule[k]:.3g}"
            raise not_the_derivative_error(self.title, f"along the cotangents, {numbers}")

    def _check_zeros(
        self,
        values: Sequence[Any],
        directions: Sequence[Any],
        gradients: Sequence[Any],
        found: Sequence[Any],
        lead: tuple[int, ...],
    ) -> None:
        """Check that the rule does not depend on the inputs whose cotangents are zero.

        A rule that leaves out the derivative with respect to some input also gives zero for it, and would be wrong.

        Raises:
            ValueError: the other cotangents depend on such an input.
        """
        wanted = self.wanted_cotangents[: _count(self.base.base)]
        inputs = [x for x, w in zip(values, wanted) if w]
        along = [np.where(c == 0, np.maximum(1, np.abs(x)), 0).astype(x.dtype) for c, x in zip(found, inputs)]
        if not any(np.any(t) for t in along):
            return
        moved = (*wanted, *[False] * (len(values) - len(wanted)))
        changes = zip(_difference(self.base, moved, *values, *along, lead=lead), self.nonzero_cotangents)
        total, size = _paired([c for c, nonzero in changes if nonzero], directions, lead)
        tolerance = 0.1 * size + relative_step(values) * _paired(gradients, directions, lead)[1]
        if (np.abs(total) > tolerance).any():
            left_out = f"{self.op.rules.vjp_name} gives zero for an input on which its other cotangents depend"
            raise not_the_derivative_error(self.title, left_out)


def _paired(left: Iterable[Any], right: Iterable[Any], lead: tuple[int, ...]) -> tuple[Any, Any]:
    """Return, for each element of a block, the sum of the products of two lists, and the sum of their sizes."""
    total, size = np.zeros(lead), np.zeros(lead)
    for a, b in zip(left, right):
        product = np.real(np.multiply(a, b)).astype(np.float64).reshape(*lead, -1)
        total, size = total + product.sum(-1), size + np.abs(product).sum(-1)
    return total, size

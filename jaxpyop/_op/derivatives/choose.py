"""Chooses which of the user's rules make up the derivative of a call."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

from jaxpyop._op.body import ConditionalBody, UserBody
from jaxpyop._op.derivatives.functions import JvpRule, MakePullback, MissingJvp, RuleCall, VjpRule
from jaxpyop._op.derivatives.fwd_bwd import BwdRule, FwdCall, ResidualRuleCall
from jaxpyop._op.derivatives.numerical import NumericalJvp, NumericalVjp
from jaxpyop._op.derivatives.second import linearize_rule
from jaxpyop._op.primitive import Call, Linearization
from jaxpyop._op.request import NUMERICAL, no_vjp


def linearize_by_rules(call: Call, body: UserBody, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of the user's call by the user's rules.

    Args:
        call: the user's call.
        body: runs the user's function.
        perturbed: which inputs of the call have tangents.
    """
    if call.op.rules.fwd is None and call.op.failures is None:
        return _linearize(call, body, call, perturbed)
    # Without `fwd`, a plain FwdCall runs the function itself. It is needed for its receipt, which tells what failed.
    plain = call.op.rules.fwd is None
    forward = FwdCall(call, body, functools.partial(_linearize, call, body), plain=plain)
    return _linearize(call, body, forward, perturbed)


def _linearize(call: Call, body: UserBody, forward: Call, perturbed: tuple[bool, ...]) -> Linearization:
    op, conditional = call.op, call.operands.conditional
    tangents = _tangents(call, body, perturbed[1:] if conditional else perturbed)
    # `differences` linearizes the call of a rule, for second derivatives.
    differences = None
    if op.rules.hvp is not None:
        differences = functools.partial(linearize_rule, _without_flag(call, body))
    if forward is not call:
        linear = ResidualRuleCall(tangents, op, call.environment, conditional=conditional, differences=differences)
    else:
        body_of_rule = ConditionalBody(tangents) if conditional else tangents
        linear = RuleCall(body_of_rule, op, call.environment, differences=differences)
    with_results = op.rules.fwd is None or op.rules.forward is not None or op.spec.returned_spec is not None
    return Linearization(forward, linear, with_results=with_results)


def _tangents(call: Call, body: UserBody, perturbed: tuple[bool, ...]) -> Any:
    jvp = call.op.rules.forward
    if jvp == NUMERICAL:
        return NumericalJvp(body, perturbed, _make_pullback(call, body), _without_flag(call, body))
    return (MissingJvp if jvp is None else JvpRule)(body, perturbed, _make_pullback(call, body))


def _make_pullback(call: Call, body: UserBody) -> MakePullback:
    rules = call.op.rules
    if rules.vjp is None:
        return no_vjp(call.op.title, rules)
    if rules.vjp == NUMERICAL:
        return functools.partial(NumericalVjp, body, function=_without_flag(call, body))
    return functools.partial(VjpRule if rules.fwd is None else BwdRule, body)


def _without_flag(call: Call, body: UserBody) -> Call:
    """Return a call of the function itself, without the flag of `when=`.

    With `on_error=` it is a plain FwdCall, because its receipts tell which runs failed.
    """
    function = call
    if call.operands.conditional:
        function = copy.copy(call)
        function.body = body
        function.operands = dataclasses.replace(call.operands, leading_inputs=0, conditional=False)
    if call.op.failures is None:
        return function
    return FwdCall(function, body, functools.partial(_linearize, call, body), plain=True)

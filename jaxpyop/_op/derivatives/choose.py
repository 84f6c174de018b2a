"""Which rules make up the derivative of a call."""

from __future__ import annotations

import functools
from typing import Any

from jaxpyop._op.body import When
from jaxpyop._op.derivatives.functions import JvpRule, MissingJvp, RuleCall, VjpRule
from jaxpyop._op.derivatives.fwd_bwd import BwdRule, FwdCall, ResidualRuleCall
from jaxpyop._op.derivatives.numerical import NumericalJvp, NumericalVjp
from jaxpyop._op.primitive import Call, Linearization
from jaxpyop._op.request import NUMERICAL, no_vjp


def linearize_by_rules(call: Any, moving: tuple[bool, ...]) -> Linearization:
    """The linearization of a user's call, by the user's rules."""
    return _derive(call, FwdCall(call, functools.partial(_derive, call)) if call.op.rules.fwd else call, moving)


def _derive(call: Any, forward: Call, moving: tuple[bool, ...]) -> Linearization:
    op, runs = call.op, call.unconditional()
    body = _push(runs, moving[1:] if call.conditional else moving)
    with_results = forward is call or op.rules.jvp is not None or op.spec.returned_spec is not None
    if forward is not call:
        linear = ResidualRuleCall(body, op, call.environment, conditional=call.conditional)
    else:
        linear = RuleCall(When(body) if call.conditional else body, op, call.environment)
    return Linearization(forward, linear, with_results=with_results)


def _push(call: Any, moving: tuple[bool, ...]) -> Any:
    push, pull = call.op.rules.jvp, _pull(call)
    if push is None:
        return MissingJvp(call.body, moving, pull)
    if push == NUMERICAL:
        return NumericalJvp(call, moving, pull)
    return JvpRule(call.body, moving, pull)


def _pull(call: Any) -> Any:
    rules = call.op.rules
    if rules.vjp is None:
        return no_vjp(call.op.title, rules)
    if rules.vjp == NUMERICAL:
        return functools.partial(NumericalVjp, call)
    return functools.partial(VjpRule if rules.fwd is None else BwdRule, call.body)

"""Which rules make up the derivative of a call."""

from __future__ import annotations

import functools
from typing import Any

from jaxpyop._op.body import When
from jaxpyop._op.derivatives.functions import Derivative, NoPush, PullRule, PushRule
from jaxpyop._op.derivatives.fwd_bwd import BwdRule, Forward, FromResiduals
from jaxpyop._op.derivatives.numerical import DifferencesPull, DifferencesPush
from jaxpyop._op.primitive import Linearization, Plain
from jaxpyop._op.request import NUMERICAL, no_pull


def derive(call: Any, moving: tuple[bool, ...]) -> Linearization:
    """The linearization of a user's call, by the user's rules."""
    return _derive(call, Forward(call, functools.partial(_derive, call)) if call.op.rules.forward else call, moving)


def _derive(call: Any, forward: Plain, moving: tuple[bool, ...]) -> Linearization:
    op, runs = call.op, call.unconditional()
    body = _push(runs, moving[1:] if call.conditional else moving)
    with_results = forward is call or op.rules.push is not None or op.spec.own is not None
    if forward is not call:
        linear = FromResiduals(body, op, call.environment, conditional=call.conditional)
    else:
        linear = Derivative(When(body) if call.conditional else body, op, call.environment)
    return Linearization(forward, linear, with_results=with_results)


def _push(call: Any, moving: tuple[bool, ...]) -> Any:
    push, pull = call.op.rules.push, _pull(call)
    if push is None:
        return NoPush(call.body, moving, pull)
    if push == NUMERICAL:
        return DifferencesPush(call, moving, pull)
    return PushRule(call.body, moving, pull)


def _pull(call: Any) -> Any:
    rules = call.op.rules
    if rules.pull is None:
        return no_pull(call.op.title, rules)
    if rules.pull == NUMERICAL:
        return functools.partial(DifferencesPull, call)
    return functools.partial(PullRule if rules.forward is None else BwdRule, call.body)

"""Chooses which of the user's rules make up the derivative of a call."""

from __future__ import annotations

import functools
from typing import Any

from jaxpyop._op.body import CotangentBody, TangentBody
from jaxpyop._op.primitive import Call, Linearization
from jaxpyop._op.request import NUMERICAL, Rules
from jaxpyop._op.user_rules.functions import JvpRule, MissingTangents, RuleCall, VjpRule
from jaxpyop._op.user_rules.numerical import NumericalJvp, NumericalVjp
from jaxpyop._op.user_rules.residuals import BwdRule, FwdCall, ResidualRuleCall


def linearize_by_rules(call: Any, forward: Call, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of the user's call by the user's rules.

    Args:
        call: the user's call.
        forward: runs first: the call itself, or a `FwdCall`.
        perturbed: which inputs of the call have tangents.
    """
    op, conditional = call.op, call.operands.conditional
    kind = RuleCall if forward is call else ResidualRuleCall
    linear = kind(_tangents(call, perturbed[1:] if conditional else perturbed), call, conditional=conditional)
    with_results = op.rules.fwd is None or op.rules.jvp is not None or op.spec.returned_spec is not None
    return Linearization(forward, linear, with_results=with_results)


def _tangents(call: Any, perturbed: tuple[bool, ...]) -> TangentBody:
    """Return the body of forward mode."""
    rules = call.op.rules
    if rules.jvp is None:
        return MissingTangents(call.user_body, perturbed, functools.partial(_no_jvp_error, call.title, rules))
    if rules.jvp == NUMERICAL:
        return NumericalJvp(call.user_body, perturbed, _function_of(call))
    return JvpRule(call.user_body, perturbed)


def pullback_by_rules(call: Any, nonzero_cotangents: tuple[bool, ...], perturbed: tuple[bool, ...]) -> CotangentBody:
    """Return the body of reverse mode, or raise an error if there is no rule for it."""
    rules = call.op.rules
    if rules.vjp is None:
        raise _no_vjp_error(call.title, rules)
    if rules.vjp == NUMERICAL:
        return NumericalVjp(call.user_body, nonzero_cotangents, perturbed, _function_of(call))
    return (VjpRule if rules.fwd is None else BwdRule)(call.user_body, nonzero_cotangents, perturbed)


def _function_of(call: Any) -> Call:
    """Return a call of the function itself, without the flag of `when=`.

    With `on_error=` it is a plain FwdCall, because its receipts tell which runs failed.
    """
    step, count = call.op.step, len(call.user_body.inputs.key_impls)
    if isinstance(step, list) and len(step) != count:
        raise ValueError(
            f"{call.title}: step= has {len(step)} entries, and func has {count} array inputs; give each one"
        )
    if call.operands.conditional:
        call = call.without_flag()
    return call if call.op.failures is None else FwdCall(call, plain=True)


def _no_jvp_error(title: str, rules: Rules) -> Exception:
    """The error of forward mode without `jvp=`."""
    has = "; vjp= gives reverse mode (grad, vjp, jacrev) only" if rules.vjp is not None else ""
    return NotImplementedError(
        f"{title}: forward-mode differentiation (jvp, jacfwd, linearize) needs the rule jvp=f with "
        f"f(inputs, outputs, tangents), jvp='numerical', or a body of JAX operations: write it as a py_function{has}"
    )


def _no_vjp_error(title: str, rules: Rules) -> Exception:
    """The error of reverse mode without `vjp=`."""
    has, needs = "", "a backward pass needs the gradient of a NumPy function"
    if rules.jvp is not None:
        # A py_function may have this rule, too.
        needs = "a backward pass needs the gradient of the function"
        has = "; jvp= gives forward mode (jvp, jacfwd, linearize) only"
    return ValueError(
        f"{title}: {needs}; give one as vjp=f with f(inputs, outputs, cotangents), vjp=(fwd, bwd) or "
        f"vjp='numerical', or stop the pass with jax.lax.stop_gradient on its inputs{has}"
    )

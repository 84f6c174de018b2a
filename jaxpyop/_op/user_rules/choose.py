"""Chooses which of the user's rules make up the derivative of a call, and has the calls that run them.

A derivative by rules begins with the function itself, or with `fwd` in its place (`FwdCall`). A rule follows as a
`RuleCall`, which gets inputs and results from the program, and after `fwd` a receipt besides.

A missing rule is a body that cannot run. In a direct call, an error is raised when its results are used. A compiled
program that contains it is rejected at lowering and not at tracing: only by then has JAX dropped the operations whose
results are not used.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import DerivativeBody
from jaxpyop._op.primitive import (
    RECEIPT,
    Call,
    Linearization,
    Operands,
    RecordingCall,
    ReplayCall,
)
from jaxpyop._op.request import numerical
from jaxpyop._op.user_rules.functions import JvpRule, MissingTangents, VjpRule, method_of_rules
from jaxpyop._op.user_rules.numerical import NumericalBody
from jaxpyop._op.user_rules.residuals import BwdRule, FwdInWorker, Residuals, fwd_of, protected, size_of
from jaxpyop._op.values import as_jax


def linearize_by_rules(call: Call, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of the user's call by the user's rules, in the inputs that `perturbed` marks."""
    rules = call.op.rules
    if rules.fwd is None and call.op.failures is None:
        return _linearize_after(call, call, perturbed)
    return _linearize_after(call, FwdCall(call, rules.fwd), perturbed)


def _linearize_after(call: Call, forward: Call, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of the user's call after `forward` ran, which is the call itself or a `FwdCall`."""
    rules = call.op.rules
    tangents = _tangents(call, perturbed[call.operands.leading :])
    linear = RuleCall(tangents, call, has_flag=call.operands.has_flag, has_receipt=forward is not call)
    with_results = rules.fwd is None or rules.jvp is not None or call.op.spec.returned_spec is not None
    return Linearization(forward, linear, with_results=with_results)


def _tangents(call: Call, perturbed: tuple[bool, ...]) -> DerivativeBody:
    """Return the body of forward mode."""
    rule = call.op.rules.jvp
    if rule is None:
        return MissingTangents(call.body, perturbed, functools.partial(_no_jvp_error, call.title))
    if isinstance(rule, numerical):
        return NumericalBody(call.body, perturbed, None, _function_of(call))
    return JvpRule(call.body, perturbed)


def _cotangents(call: Call, nonzero: tuple[bool, ...], perturbed: tuple[bool, ...]) -> DerivativeBody:
    """Return the body of reverse mode, or raise an error if there is no rule for it."""
    rules = call.op.rules
    if rules.vjp is None:
        raise ValueError(
            f"{call.title}: a backward pass needs the gradient of a NumPy function, or of one that has jvp= alone; "
            "give one as vjp=f with f(inputs, outputs, cotangents), vjp=(fwd, bwd) or vjp=jaxpyop.numerical(), or stop "
            "the pass with jax.lax.stop_gradient on its inputs"
        )
    if isinstance(rules.vjp, numerical):
        return NumericalBody(call.body, perturbed, nonzero, _function_of(call))
    return (VjpRule if rules.fwd is None else BwdRule)(call.body, perturbed, nonzero)


def _function_of(call: Call) -> Call:
    """Return a call of the function itself, without the flag of `when=`.

    With `on_error=` it is a `FwdCall` that runs the function, because its receipts tell which runs failed.
    """
    if call.operands.has_flag:
        call = call.without_flag()
    return call if call.op.failures is None else FwdCall(call, None)


def _no_jvp_error(title: str) -> Exception:
    """The error of forward mode without `jvp=`."""
    return NotImplementedError(
        f"{title}: forward-mode differentiation (jvp, jacfwd, linearize) needs the rule jvp=f with "
        "f(inputs, outputs, tangents), jvp=jaxpyop.numerical(), or a body of JAX operations: write it as a py_function "
        "without vjp=, which gives reverse mode (grad, vjp, jacrev) only"
    )


def _no_second_derivative_error(title: str, rule: str) -> Exception:
    """The error of a derivative of a rule."""
    return NotImplementedError(
        f"{title}: {rule} gives first derivatives. For second ones, write the derivative as a rule of jax.custom_jvp "
        "around the op, made of JAX operations and ops that have rules themselves (docs: rules, second derivatives), "
        "or write func as a py_function of JAX operations"
    )


# ---------------------------------------------------------------- fwd as a call


class FwdCall(RecordingCall):
    """Runs `fwd` in place of the function, and keeps its residuals.

    Args:
        source: the user's call.
        fwd: the user's `fwd`. If it is None, the function itself runs, and nothing is kept. With `on_error=` this is
            done for the receipts, which tell where the function failed.
    """

    def __init__(self, source: Call, fwd: Any) -> None:
        super().__init__(
            source.body,
            source.environment,
            label="jvp({})",
            on_jax=source.on_jax,
            has_effects=True,
            method=method_of_rules(source.op),
            one_by_one=True,
            operands=dataclasses.replace(source.operands, extra_results=(RECEIPT,), writes_out=False),
        )
        self.in_worker = FwdInWorker(source.body, None if fwd is None else fwd_of(source.body))
        self.func = self.func if fwd is None else fwd
        self.identity = hash(source.body.identity)
        self.source = source
        # With an executor the residuals may come from a worker as bytes. With `when=` or `on_error=` there may be none.
        self.can_hand_over = self.op.executor is None and not self.operands.has_flag and self.op.failures is None

    def kept_by_run(self, arrays: Sequence[Any], lead: tuple[int, ...]) -> tuple[list[Any], Any, Any]:
        inputs = as_jax(arrays) if self.on_jax else arrays
        outs, failed, residuals = self.in_worker.outcome_and_residuals(inputs, lead)
        return outs, self._kept(residuals, failed, lead), failed

    def _kept(self, residuals: Any, failed: Any, lead: tuple[int, ...]) -> Residuals | None:
        if self.in_worker.fwd is None or (failed is not None and np.all(failed)):
            return None
        return Residuals(protected(residuals), lead, size_of(residuals))

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        *outs, data = values
        self.body.check_results(outs, arrays[self.operands.leading :], lead)
        failed, residuals = pickle.loads(data.tobytes())
        kept = self._kept(residuals, failed, lead)
        return [*outs, self.receipts(arrays[self.operands.leading :], outs, kept, failed, lead)]

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # This call is bound in place of the user's call, so its derivative is made in the same way.
        return _linearize_after(self.source, self, perturbed)


# ------------------------------------------------------------- a rule as a call


class RuleCall(ReplayCall):
    """Runs a rule as the op runs its function: on the same kind of arrays, and once per block if the function does.

    Args:
        rule: the body of the rule.
        source: the `UserCall` of the op.
        has_flag: whether the flag of `when=` comes before the inputs of the rule.
        has_receipt: whether the receipt of a `FwdCall` comes before everything else.
    """

    def __init__(self, rule: DerivativeBody, source: Call, *, has_flag: bool, has_receipt: bool) -> None:
        op = rule.op
        super().__init__(
            rule,
            source.environment,
            identity=hash(source.body.identity),
            label="jvp({})",
            on_jax=op.on_jax,
            method=method_of_rules(op),
            one_by_one=has_receipt,
            operands=Operands(has_receipt, has_flag, linear_inputs=rule.linear_inputs),
        )
        self.source = source

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # Nothing gives a second derivative, so an error is raised where one is used.
        skip, rule = self.operands.leading, "jvp=" if self.body.nonzero is None else "vjp="
        error = functools.partial(_no_second_derivative_error, self.title, rule)
        body = MissingTangents(self.body, perturbed[skip:], error)
        return Linearization(self, RuleCall(body, self.source, has_flag=False, has_receipt=False), skip=skip)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        body, operands = self.body, self.operands
        if body.nonzero is not None or body.base is not self.source.body:
            raise _no_second_derivative_error(self.title, "vjp=")
        pullback = _cotangents(self.source, nonzero_cotangents, body.perturbed)
        return RuleCall(pullback, self.source, has_flag=operands.has_flag, has_receipt=operands.has_receipt)

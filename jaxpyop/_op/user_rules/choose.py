"""Chooses which of the user's rules make up the derivative of a call, and runs a rule as a call of its own.

A missing rule is a body that cannot run. In a direct call, an error is raised when its results are used. A compiled
program that contains it is rejected at lowering and not at tracing: only by then has JAX dropped the operations whose
results are not used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import Batch
from jaxpyop._op.body import CotangentBody, TangentBody, each_alone
from jaxpyop._op.primitive import (
    RECORDS,
    Batching,
    Call,
    HandedRecord,
    Linearization,
    Operands,
    find_record,
    masks_and_added_axes,
)
from jaxpyop._op.request import NUMERICAL, is_differentiable
from jaxpyop._op.user_rules.functions import JvpRule, MissingTangents, VjpRule, method_of_rules
from jaxpyop._op.user_rules.numerical import NumericalJvp, NumericalVjp
from jaxpyop._op.user_rules.residuals import BwdRule, FwdCall, has_failed, pickled, with_makers
from jaxpyop._op.values import as_jax


def linearize_by_rules(call: Any, forward: Call, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of the user's call by the user's rules.

    Args:
        call: the user's call.
        forward: runs first: the call itself, or a `FwdCall`.
        perturbed: which inputs of the call have tangents.
    """
    op, conditional = call.op, call.operands.conditional
    tangents = _tangents(call, perturbed[1:] if conditional else perturbed)
    linear = RuleCall(tangents, call, conditional=conditional, after_fwd=forward is not call)
    with_results = op.rules.fwd is None or op.rules.jvp is not None or op.spec.returned_spec is not None
    return Linearization(forward, linear, with_results=with_results)


def _tangents(call: Any, perturbed: tuple[bool, ...]) -> TangentBody:
    """Return the body of forward mode."""
    rules = call.op.rules
    if rules.jvp is None:
        return MissingTangents(call.user_body, perturbed, functools.partial(_no_jvp_error, call.title))
    if rules.jvp == NUMERICAL:
        return NumericalJvp(call.user_body, perturbed, _function_of(call))
    return JvpRule(call.user_body, perturbed)


def _cotangents(call: Any, nonzero_cotangents: tuple[bool, ...], perturbed: tuple[bool, ...]) -> CotangentBody:
    """Return the body of reverse mode, or raise an error if there is no rule for it."""
    rules = call.op.rules
    if rules.vjp is None:
        raise ValueError(
            f"{call.title}: a backward pass needs the gradient of a NumPy function, or of one that has jvp= alone; "
            "give one as vjp=f with f(inputs, outputs, cotangents), vjp=(fwd, bwd) or vjp='numerical', or stop the "
            "pass with jax.lax.stop_gradient on its inputs"
        )
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


def _no_jvp_error(title: str) -> Exception:
    """The error of forward mode without `jvp=`."""
    return NotImplementedError(
        f"{title}: forward-mode differentiation (jvp, jacfwd, linearize) needs the rule jvp=f with "
        "f(inputs, outputs, tangents), jvp='numerical', or a body of JAX operations: write it as a py_function without "
        "vjp=, which gives reverse mode (grad, vjp, jacrev) only"
    )


def _no_second_derivative_error(title: str) -> Exception:
    """The error of a derivative of a rule."""
    return NotImplementedError(
        f"{title}: second derivatives need a body of JAX operations: write it as a py_function; vjp= and jvp= give the "
        "first. Or make the rule an op with rules of its own, such as vjp='numerical' (docs: gradients, second "
        "derivatives)"
    )


# ------------------------------------------------------------------ a rule as a call


class RuleCall(Call):
    """Runs a rule as the op runs its function: on the same kind of arrays, and once per block if the function does.

    After a `FwdCall`, its receipt is the first input. It is all zeros for a call that `when=` skipped.

    Args:
        rule: the body of the rule.
        source: the `UserCall` of the op.
        conditional: whether the flag of `when=` comes before the inputs of the rule.
        after_fwd: whether the receipt of a `FwdCall` comes before everything else.
    """

    def __init__(
        self, rule: TangentBody | CotangentBody, source: Any, *, conditional: bool, after_fwd: bool = False
    ) -> None:
        op = rule.op
        # The receipt of a call that `when=` skipped is all zeros, so after `fwd` the flag is not needed.
        leading, has_flag = after_fwd + conditional, conditional and not after_fwd
        super().__init__(
            rule,
            source.environment,
            label="jvp({})",
            on_jax=op.on_jax,
            batching=Batching(method_of_rules(op), one_by_one=after_fwd),
            operands=Operands(leading, leading, rule_inputs=rule.linear_inputs, conditional=has_flag),
        )
        self.source, self.conditional = source, conditional
        self.takes_records = self.after_fwd = after_fwd
        # Whether the rule is an op with derivatives, which can be a part of the traced program.
        is_plain = not leading and op.spec.returned_spec is None
        self._is_op = is_plain and isinstance(rule, (VjpRule, JvpRule)) and is_differentiable(self.func)
        # The user may write a pullback that is not linear in the cotangents, for example one that clips gradients. So a
        # pullback whose derivative is known is not taken for its own derivative.
        self.is_own_derivative = not (self._is_op and isinstance(rule, VjpRule))

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if not self.after_fwd:
            return super().__call__(arrays, lead)
        rest = arrays[self.operands.leading_inputs :]
        if isinstance(arrays[0], HandedRecord):
            if not isinstance(self.body, BwdRule):
                return super().__call__(arrays)
            return self.body.pulled(arrays[0].record, as_jax(rest) if self.on_jax else rest, ())
        receipts = np.asarray(arrays[0])
        if self.op.failures is not None and (failed := has_failed(receipts)).any() and self.body.refusal is None:
            if not failed.all():
                return each_alone(lambda *parts, lead: self(parts, lead), arrays, lead)
            return self.body.fills(rest, lead)
        if not receipts[..., 0].any():
            # Under `vmap`, a `cond` also runs the backward pass of the branch that was not taken. JAX fills the inputs
            # of that branch, and so the receipts, with zeros.
            return self.body.absent_results(rest, lead)
        if isinstance(self.body, BwdRule):
            return self.body.after_fwd(*self._kept(receipts), as_jax(rest) if self.on_jax else rest, lead)
        # Mark the record as read, so that it can be evicted: jvp= needs no residuals.
        RECORDS.get(int(receipts[..., 0].max()))
        return super().__call__(arrays, lead)

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        if not self.after_fwd:
            return super().for_worker(arrays)
        receipts, rest = np.asarray(arrays[0]), arrays[self.operands.leading_inputs :]
        if not receipts[..., 0].any() or has_failed(receipts).any():
            return None
        if not isinstance(self.body, BwdRule):
            return rest
        return [pickled(self._kept(receipts), self.title), *rest]

    def _kept(self, receipts: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], Any]:
        """The receipts with their makers, and the residuals that may serve for all."""
        receipts = with_makers(receipts, self.source.user_body)
        return receipts, None if receipts[..., -1].any() else find_record(self.op, int(receipts[..., 0].max()))

    def program(self, args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]] | None:
        rule: Any = self.body
        return _over_batch(lambda *arrays: rule.run(arrays, (), traced=True), args, batch) if self._is_op else None

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # Nothing gives a second derivative, so an error is raised where one is used.
        skip = self.operands.leading_inputs
        body = MissingTangents(self.body, perturbed[skip:], functools.partial(_no_second_derivative_error, self.title))
        return Linearization(self, RuleCall(body, self.source, conditional=False), skip=skip)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        if not isinstance(self.body, TangentBody) or self.body.base is not self.source.user_body:
            raise _no_second_derivative_error(self.title)
        pullback = _cotangents(self.source, nonzero_cotangents, self.body.perturbed)
        return RuleCall(pullback, self.source, conditional=self.conditional, after_fwd=self.after_fwd)


def _over_batch(program: Callable[..., list[Any]], args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]]:
    """The program of one element, as a program of the whole batch with the inputs `args`."""
    if not batch.sizes:
        return program
    masks, axes = masks_and_added_axes(args, batch.sizes) if batch.block else (batch.masks, [()] * len(args))
    for size, mask in zip(reversed(batch.sizes), reversed(masks)):
        program = jax.vmap(program, tuple(0 if mapped else None for mapped in mask), axis_size=size)
    whole = program
    return lambda *arrays: whole(*(jnp.squeeze(a, axis) if axis else a for a, axis in zip(arrays, axes)))

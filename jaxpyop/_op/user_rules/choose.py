"""Chooses which of the user's rules make up the derivative of a call, and has the calls that run them.

A derivative by rules begins with the function itself, or with a `FwdCall` in its place. A rule follows as a `RuleCall`,
which gets inputs and results from the program, and after a `FwdCall` a receipt besides.

A missing rule is a body that cannot run. `jax.grad` of an op that has `vjp=` alone binds one, too: that of forward
mode, which JAX transposes, and the transpose runs `vjp=`. In a direct call, an error is raised when the results of such
a body are used. A compiled program that contains it is rejected at lowering and not at tracing: only by then has JAX
dropped the operations whose results are not used.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import Batch, runs_in_this_process
from jaxpyop._op.body import Body, DerivativeBody, UserBody
from jaxpyop._op.primitive import (
    RECEIPT,
    Call,
    Linearization,
    Operands,
    RecordingCall,
    ReplayCall,
    masks_and_added_axes,
)
from jaxpyop._op.request import is_differentiable, numerical
from jaxpyop._op.user_rules.linear import LinearCotangents, LinearTangents
from jaxpyop._op.user_rules.numerical import NumericalBody
from jaxpyop._op.user_rules.residuals import BwdRule, Residuals, run_fwd
from jaxpyop._op.user_rules.vjp_and_jvp import JvpRule, MissingTangents, VjpRule, method_of_rules
from jaxpyop._refusal import refusal
from jaxpyop._values import Struct, protected, size_of


def linearize_by_rules(call: Call, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of the user's call by the user's rules, in the inputs that `perturbed` marks."""
    needs_receipt = call.op.rules.fwd is not None or call.op.failures is not None
    return _linearize_after(call, FwdCall(call) if needs_receipt else call, perturbed)


def _linearize_after(call: Call, forward: Call, perturbed: tuple[bool, ...]) -> Linearization:
    """Return the linearization of the user's call after `forward` ran: the call itself, or what runs in its place."""
    rules = call.op.rules
    tangents = _tangents(call, perturbed[call.operands.leading :])
    linear = RuleCall(tangents, call, has_flag=call.operands.has_flag, has_receipt=forward is not call)
    with_results = rules.fwd is None or rules.jvp is not None or call.op.spec.returned_spec is not None
    return Linearization(forward, linear, with_results=with_results)


def _tangents(call: Call, perturbed: tuple[bool, ...]) -> DerivativeBody:
    """Return the body of forward mode."""
    rule = call.op.rules.jvp
    if call.op.rules.transpose is not None:
        return LinearTangents(call.body, perturbed)
    if rule is None:
        return MissingTangents(call.body, perturbed, functools.partial(_no_jvp_error, call.title))
    if isinstance(rule, numerical):
        return NumericalBody(call.body, perturbed, None, _function_of(call))
    return JvpRule(call.body, perturbed)


def _cotangents(call: Call, nonzero: tuple[bool, ...], perturbed: tuple[bool, ...]) -> DerivativeBody:
    """Return the body of reverse mode, or raise an error if there is no rule for it."""
    rules = call.op.rules
    if rules.vjp is None:
        text = (
            f"{call.title}: a backward pass needs the gradient of a NumPy function, or of one that has jvp= alone; "
            "give one as vjp=f with f(inputs, outputs, cotangents), vjp=(fwd, bwd) or vjp=jaxpyop.numerical(), or "
            "stop the pass with jax.lax.stop_gradient on its inputs"
        )
        raise refusal(ValueError(text))
    if isinstance(rules.vjp, numerical):
        return NumericalBody(call.body, perturbed, nonzero, _function_of(call))
    return (VjpRule if rules.fwd is None else BwdRule)(call.body, perturbed, nonzero)


def _function_of(call: Call) -> Call:
    """Return a call of the function itself, without `when=` and `on_error=`.

    If the function fails, the derivative does, and `on_error=` fills that.
    """
    call = call.without_flag()
    if call.op.failures is not None:
        call.op = dataclasses.replace(call.op, failures=None)
        call.body = call.in_worker = type(call.body)(call.op, call.body.inputs)
    return call


def _no_jvp_error(title: str) -> Exception:
    """The error of forward mode without `jvp=`."""
    text = (
        f"{title}: forward-mode differentiation (jvp, jacfwd, linearize) needs the rule jvp=f with "
        "f(inputs, outputs, tangents), jvp=jaxpyop.numerical(), or a body of JAX operations: write it as a py_function "
        "without vjp=, which gives reverse mode (grad, vjp, jacrev) only"
    )
    return refusal(NotImplementedError(text))


def _no_second_derivative_error(title: str, rule: str) -> Exception:
    """The error of a derivative of a rule."""
    text = (
        f"{title}: {rule} gives first derivatives. For second ones, make the rule an op with rules of its own: a "
        "py_function if it is made of JAX operations, or a numpy_function with vjp= and jvp= (docs: rules, second "
        "derivatives); or write func itself as a py_function of JAX operations"
    )
    return refusal(NotImplementedError(text))


# ---------------------------------------------------------------- fwd as a call


class FwdCall(RecordingCall):
    """Runs in place of the user's call, and gives the rules a receipt.

    It runs `fwd`, and keeps its residuals. Without `fwd` it runs the function of an op with `on_error=`, keeps nothing,
    and the receipt tells whether the function failed.

    Args:
        source: the user's call.
    """

    def __init__(self, source: Call) -> None:
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
        self.in_worker = OutcomeInWorker(source.body)
        self.body_hash = hash(source.body.identity)
        self.source = source
        self.fwd = self.op.rules.fwd
        if self.fwd is not None:
            self.func = self.fwd
            if not runs_in_this_process(self.op):
                text = (
                    f"{self.title}: fwd of vjp keeps its residuals in this process, and executor= runs func in others; "
                    "write vjp=f with f(inputs, outputs, cotangents), which needs no residuals, or use threads"
                )
                raise refusal(ValueError(text))

    def run_and_keep(self, arrays: Sequence[Any]) -> tuple[list[Any], Residuals | None]:
        if self.fwd is None:
            return self.body.run(arrays), None
        outs, residuals = run_fwd(self.body, arrays)
        return outs, Residuals(protected(residuals), size_of(residuals))

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        *outs, failed = values
        inputs = arrays[self.operands.leading :]
        self.body.check_results(outs, inputs, lead)
        return [*outs, self.receipt(inputs, outs, None, bool(failed))]

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # This call is bound in place of the user's call, so its derivative is made in the same way.
        return _linearize_after(self.source, self, perturbed)


class OutcomeInWorker(Body):
    """Runs the function of an op with `on_error=` in a worker. The last result tells whether it failed."""

    def __init__(self, base: UserBody) -> None:
        super().__init__(base.op)
        self.base = base

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs)

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        outs, failed = self.base.outcome(arrays)
        return [*outs, np.asarray(failed)]

    def fills(self, arrays: Sequence[Any]) -> list[Any]:
        return [*self.base.fills(arrays), np.asarray(True)]


# ------------------------------------------------------------- a rule as a call


class RuleCall(ReplayCall):
    """Runs a rule as the op runs its function: on the same kind of arrays, and once per block if the function does.

    Args:
        rule: the body of the rule.
        source: the `UserCall` of the op.
        has_flag: whether the flag of `when=` comes before the inputs of the rule.
        has_receipt: whether a receipt comes before everything else.
    """

    def __init__(self, rule: DerivativeBody, source: Call, *, has_flag: bool, has_receipt: bool) -> None:
        op = rule.op
        super().__init__(
            rule,
            source.environment,
            body_hash=hash(source.body.identity),
            label="jvp({})",
            on_jax=op.on_jax,
            method=method_of_rules(op),
            one_by_one=has_receipt,
            operands=Operands(has_receipt, has_flag, linear_inputs=rule.linear_inputs),
        )
        self.source = source
        # Whether the rule is an op with derivatives, which can be a part of the traced program.
        is_plain = not self.operands.leading and op.spec.returned_spec is None
        self._is_op = is_plain and isinstance(rule, (VjpRule, JvpRule)) and is_differentiable(self.func)
        # The user may write a pullback that is not linear in the cotangents, for example one that clips gradients. So a
        # pullback whose derivative is known is not taken for its own derivative.
        self.is_own_derivative = not (self._is_op and isinstance(rule, VjpRule))

    def program(self, args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]] | None:
        rule = self.body
        return _over_batch(lambda *arrays: rule.run(arrays, (), traced=True), args, batch) if self._is_op else None

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # Nothing gives a second derivative, so an error is raised where one is used.
        skip, rule = self.operands.leading, "jvp=" if self.body.nonzero is None else "vjp="
        error = functools.partial(_no_second_derivative_error, self.title, rule)
        body = MissingTangents(self.body, perturbed[skip:], error)
        return Linearization(self, RuleCall(body, self.source, has_flag=False, has_receipt=False), skip=skip)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        body, operands = self.body, self.operands
        if not body.depends_on_inputs:
            back = LinearTangents if isinstance(body, LinearCotangents) else LinearCotangents
            pullback: DerivativeBody = back(body.base, *body.transposed(nonzero_cotangents))
        elif body.nonzero is not None or body.base is not self.source.body:
            raise _no_second_derivative_error(self.title, "vjp=")
        else:
            pullback = _cotangents(self.source, nonzero_cotangents, body.perturbed)
        return RuleCall(pullback, self.source, has_flag=operands.has_flag, has_receipt=operands.has_receipt)


def _over_batch(program: Callable[..., list[Any]], args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]]:
    """The program of one element, as a program of the whole batch with the inputs `args`."""
    if not batch.sizes:
        return program
    masks, axes = masks_and_added_axes(args, batch.sizes) if batch.block else (batch.masks, [()] * len(args))
    for size, mask in zip(reversed(batch.sizes), reversed(masks)):
        program = jax.vmap(program, tuple(0 if mapped else None for mapped in mask), axis_size=size)
    whole = program
    return lambda *arrays: whole(*(jnp.squeeze(a, axis) if axis else a for a, axis in zip(arrays, axes)))

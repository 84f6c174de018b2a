"""The three calls of a py_function: run the body, run it on the tape and keep a record, answer from that record.

- `UserCall` runs the user's function.
- `RecordingCall` runs a body on the tape, and adds the receipt of the record as a result.
- `ReplayCall` answers a derivative from the record of a receipt. If the record is gone, it runs the body again.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import Environment
from jaxpyop._op.body import Body, ConditionalBody, FilledBody, Pullback, Pushforward, RecordedDerivative, UserBody
from jaxpyop._op.derivatives import (
    BwdRule,
    FwdCall,
    JvpRule,
    LinearCall,
    LinearFunction,
    MakePullback,
    MissingTangents,
    NumericalJvp,
    NumericalVjp,
    ResidualRuleCall,
    RuleCall,
    VjpRule,
    raising,
)
from jaxpyop._op.primitive import (
    NO_RECORD,
    RECEIPT,
    RECORDS,
    TOKEN,
    Batching,
    Call,
    HandedRecord,
    Linearization,
    Operands,
    warn_of_pushed_out,
)
from jaxpyop._op.request import NUMERICAL, Op, no_jvp_error, no_vjp_error
from jaxpyop._op.values import Inputs, Struct, as_jax, fingerprint
from jaxpyop._tape import record


class UserCall(Call):
    """Runs the user's function."""

    def __init__(self, op: Op, inputs: Inputs, *, conditional: bool = False) -> None:
        self.user_body = (FilledBody if op.out else UserBody)(op, inputs)
        super().__init__(
            ConditionalBody(self.user_body) if conditional else self.user_body,
            Environment(),
            on_jax=op.on_jax,
            copy=op.copy,
            has_effects=True,
            batching=Batching(op.vmap_method, (op.rules.any_given or not op.on_jax) and op.spec.returned_spec is None),
            operands=Operands(leading_inputs=int(conditional), conditional=conditional, writes_out=op.out),
        )
        self.is_linear = op.rules.transpose is not None

    def __repr__(self) -> str:
        return self.title

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        rules = self.op.rules
        if self.on_jax and not rules.any_given:
            return _linearized_on_tape(self, self.body, perturbed, perturbed)
        if rules.fwd is None and self.op.failures is None:
            return self.linearize_by_rules(self, perturbed)
        # Without `fwd`, a plain FwdCall runs the function itself, for its receipt, which tells what failed.
        return self.linearize_by_rules(FwdCall(self, plain=rules.fwd is None), perturbed)

    def linearize_by_rules(self, forward: Call, perturbed: tuple[bool, ...]) -> Linearization:
        """Choose which of the user's rules make up the derivative, after `forward`: this call, or a `FwdCall`."""
        op, conditional = self.op, self.operands.conditional
        tangents = self._tangents(perturbed[1:] if conditional else perturbed)
        kind = RuleCall if forward is self else ResidualRuleCall
        with_results = op.rules.fwd is None or op.rules.jvp is not None or op.spec.returned_spec is not None
        linear = kind(tangents, self.environment, conditional=conditional)
        return Linearization(forward, linear, with_results=with_results)

    def _tangents(self, perturbed: tuple[bool, ...]) -> JvpRule | NumericalJvp | MissingTangents:
        body, title, rules = self.user_body, self.title, self.op.rules
        make_pullback: MakePullback
        if rules.vjp is None:
            make_pullback = raising(functools.partial(no_vjp_error, title, rules))
        elif rules.vjp == NUMERICAL:
            make_pullback = functools.partial(NumericalVjp, body, function=self._function())
        else:
            make_pullback = functools.partial(VjpRule if rules.fwd is None else BwdRule, body)
        if rules.jvp is None:
            return MissingTangents(body, perturbed, functools.partial(no_jvp_error, title, rules), make_pullback)
        if rules.jvp == NUMERICAL:
            return NumericalJvp(body, perturbed, make_pullback, self._function())
        return JvpRule(body, perturbed, make_pullback)

    def _function(self) -> Call:
        """Return a call of the function itself, without the flag of `when=`.

        With `on_error=` it is a plain FwdCall, because its receipts tell which runs failed.
        """
        function = self
        if self.operands.conditional:
            function = copy.copy(self)
            function.body = self.user_body
            function.operands = dataclasses.replace(self.operands, leading_inputs=0, conditional=False)
        return function if self.op.failures is None else FwdCall(function, plain=True)

    def linear_part(self, floating: tuple[bool, ...]) -> Call:
        return LinearCall(LinearFunction(self.body, floating, self.operands.conditional), self.environment)


class RecordingCall(Call):
    """Runs a body on the tape, for the inputs that `perturbed` marks. Its last result is the record's receipt."""

    def __init__(self, body: Body, environment: Environment, perturbed: tuple[bool, ...]) -> None:
        super().__init__(body, environment, label="jvp({})", has_effects=True, operands=Operands(extra_results=1))
        self.perturbed = perturbed
        # A worker may have the record.
        self.can_hand_over = self.op.executor is None

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [*self.body.shapes(structs), RECEIPT]

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        RECORDS.make_room()
        outs, taken = record(self.body, as_jax(arrays), self.perturbed)
        if self.hands_over:
            return [*outs, HandedRecord(taken)]
        return [*outs, _receipt(RECORDS.put(taken, once_made=self.op.stateful, owner=self.op.name), outs)]

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return [*super().from_worker(values, arrays, lead), _receipt(NO_RECORD, values)]

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # One record has to serve this order of derivative and the lower one.
        recorded = tuple(a or b for a, b in zip(self.perturbed, perturbed))
        return _linearized_on_tape(self, self.body, perturbed, recorded)


def _receipt(token: int, outs: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.asarray([token, fingerprint(outs)], TOKEN)


class ReplayCall(Call):
    """Answers a derivative from a record. Its first input is the record's receipt."""

    body: RecordedDerivative
    takes_records = True

    def __init__(self, body: RecordedDerivative, environment: Environment) -> None:
        super().__init__(body, environment, label="jvp({})", operands=Operands(leading_inputs=1))

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        ran_there = bool(np.all(np.asarray(arrays[0])[..., 0] == NO_RECORD)) and not self.op.stateful
        return arrays if ran_there else None

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if isinstance(arrays[0], HandedRecord):
            return _jaxcore.with_transfers(self.body.replay, arrays[0].record, arrays)
        token = int(np.asarray(arrays[0])[0])
        if token == 0:
            # vmap of cond also runs the backward pass of the branch that was not taken, on residuals filled with zeros.
            return self.body.absent_results(arrays)
        if (taken := RECORDS.get(token)) is not None:
            return _jaxcore.with_transfers(self.body.replay, taken, arrays)
        if self.op.stateful and token == NO_RECORD:
            raise RuntimeError(
                f"{self.title}: the forward pass ran in another process, which keeps no record, and func of a stateful "
                "op cannot be run again; pass stateful=False, or use threads"
            )
        if self.op.stateful:
            raise RuntimeError(
                f"{self.title}: the record of this step's forward pass is gone, and a stateful op cannot be run again; "
                "increase jaxpyop.config.max_records or max_record_bytes (see python -m jaxpyop doctor)"
            )
        warn_of_pushed_out(self.op, token)
        return self.body(arrays[0], *as_jax(arrays[1:]))

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        if self.op.stateful:
            raise NotImplementedError(
                f"{self.title}: a second derivative runs func again, which a stateful op does not allow; "
                "pass stateful=False"
            )
        # The receipt has no tangent, so the derivative is that of the body behind the record.
        return _linearized_on_tape(self, self.body.derivative, perturbed[1:], perturbed[1:], skip=1)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        # We ask for `Pullback`, because a program from before a reload of jaxpyop has its own class `Pushforward`.
        if isinstance(self.body.derivative, Pullback):
            return super().transposed(nonzero_cotangents)
        pullback = self.body.derivative.pullback(nonzero_cotangents)
        return ReplayCall(RecordedDerivative(pullback, self.body.recorded), self.environment)


def _linearized_on_tape(
    call: Call, body: Body, perturbed: tuple[bool, ...], recorded: tuple[bool, ...], *, skip: int = 0
) -> Linearization:
    """Return the linearization of a call that runs `body`: record a run of the body, and answer from the record.

    Args:
        call: the call.
        body: the body.
        perturbed: which inputs of the body have tangents.
        recorded: for which inputs the body is recorded.
        skip: how many leading inputs the call has before those of the body.
    """
    forward = RecordingCall(body, call.environment, recorded)
    derivative = RecordedDerivative(Pushforward(body, perturbed), recorded)
    return Linearization(forward, ReplayCall(derivative, call.environment), skip=skip)

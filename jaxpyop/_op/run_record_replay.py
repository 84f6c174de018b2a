"""The three calls of a py_function: run the body, run it on the tape and keep a record, answer from that record.

- `UserCall` runs the user's function.
- `RecordingCall` runs a body on the tape, and adds the receipt of the record as a result.
- `ReplayCall` answers a derivative from the record of a receipt. If the record is gone, it runs the body again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import Environment
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import Body, ConditionalBody, FilledBody, Pullback, Pushforward, RecordedDerivative, UserBody
from jaxpyop._op.derivatives import LinearCall, LinearFunction, linearize_by_rules
from jaxpyop._op.primitive import (
    NO_RECORD,
    RECEIPT,
    RECORDS,
    TOKEN,
    Batching,
    Call,
    Effects,
    HandedRecord,
    Linearization,
    Operands,
    warn_of_pushed_out,
)
from jaxpyop._op.request import Op
from jaxpyop._op.values import Inputs, Struct, as_jax, fingerprint
from jaxpyop._tape import record


class UserCall(Call):
    """Runs the user's function."""

    def __init__(self, op: Op, inputs: Inputs, *, conditional: bool = False) -> None:
        self.user_body = (FilledBody if op.out else UserBody)(op, inputs)
        super().__init__(
            ConditionalBody(self.user_body) if conditional else self.user_body,
            op,
            Environment(),
            on_jax=op.on_jax,
            copy=op.copy,
            effects=Effects(op.stateful, op.ordered),
            batching=Batching(op.vmap_method, (op.rules.any_given or not op.on_jax) and op.spec.returned_spec is None),
            operands=Operands(leading_inputs=int(conditional), conditional=conditional, writes_out=op.out),
        )
        self.is_linear = op.rules.transpose is not None

    def __repr__(self) -> str:
        return self.title

    @property
    def differentiable(self) -> bool:
        return any(map(is_inexact, self.op.spec.leaves))

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        if self.on_jax and not self.op.rules.any_given:
            return _linearized_on_tape(self, self.body, perturbed, perturbed)
        return linearize_by_rules(self, self.user_body, perturbed)

    def linear_part(self, floating: tuple[bool, ...]) -> Call:
        return LinearCall(LinearFunction(self.body, floating, self.operands.conditional), self.op, self.environment)


class RecordingCall(Call):
    """Runs a body on the tape, for the inputs that `perturbed` marks. Its last result is the record's receipt."""

    def __init__(
        self, body: Body, op: Op, environment: Environment, perturbed: tuple[bool, ...], effects: Effects
    ) -> None:
        operands = Operands(extra_results=1)
        super().__init__(body, op, environment, label="jvp({})", effects=effects, operands=operands)
        self.perturbed = perturbed
        self._hands_over = False

    def handing_over(self) -> RecordingCall | None:
        # A worker may have the record.
        if self.op.executor is not None:
            return None
        call = copy.copy(self)
        call._hands_over = True
        return call

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [*self.body.shapes(structs), RECEIPT]

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        RECORDS.make_room()
        outs, taken = record(self.body, as_jax(arrays), self.perturbed)
        if self._hands_over:
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

    def __init__(self, body: RecordedDerivative, op: Op, environment: Environment) -> None:
        super().__init__(body, op, environment, label="jvp({})", operands=Operands(leading_inputs=1))

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
        return ReplayCall(RecordedDerivative(pullback, self.body.recorded), self.op, self.environment)


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
    forward = RecordingCall(body, call.op, call.environment, recorded, call.effects)
    derivative = RecordedDerivative(Pushforward(body, perturbed), recorded)
    return Linearization(forward, ReplayCall(derivative, call.op, call.environment), skip=skip)

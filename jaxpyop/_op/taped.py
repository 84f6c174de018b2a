"""The derivatives of a function of JAX operations: record its run on the tape, and replay the record.

`linearize_on_tape` makes the two calls of a derivative. The first, `TapeRecording`, runs a body on the tape and keeps
the record. The second, `TapeReplay`, answers from it: with tangents in forward mode, and with cotangents once JAX has
transposed it. What it runs is a `TapeDerivative`. This is a body too, so the derivative of a derivative is made in the
same way: the recording of a `TapeDerivative`, and the replay of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop import _settings
from jaxpyop._dtypes import is_inexact
from jaxpyop._host import Environment
from jaxpyop._op.body import Body, DerivativeBody
from jaxpyop._op.primitive import (
    FINGERPRINT_WORD,
    NO_RECORD,
    RECEIPT,
    RUN_WORD,
    TOKEN_WORD,
    Call,
    Linearization,
    Operands,
    RecordingCall,
    ReplayCall,
    hash_of_run,
)
from jaxpyop._refusal import refusal
from jaxpyop._tape import Record, record
from jaxpyop._values import Struct, as_jax, check_fingerprints, fingerprint


def linearize_on_tape(
    call: Call,
    body: Body,
    perturbed: tuple[bool, ...],
    recorded: tuple[bool, ...],
    *,
    has_flag: bool,
    skip: int = 0,
    body_hash: int | None = None,
) -> Linearization:
    """Return the linearization of a call that runs `body`: record a run of the body, and replay the record.

    Args:
        call: the call.
        body: the body.
        perturbed: which inputs of the body have tangents.
        recorded: for which inputs the body is recorded.
        has_flag: whether the flag of `when=` comes before the inputs of the body.
        skip: how many inputs the call has before these.
        body_hash: the hash of the body in receipts, if an earlier derivative already looks for its record by it.
    """
    body_hash = hash((body.identity, recorded)) if body_hash is None else body_hash
    forward = TapeRecording(body, call.environment, recorded, has_flag, body_hash)
    linear = TapeReplay(TapeDerivative(body, perturbed, recorded=recorded), call.environment, has_flag, body_hash)
    return Linearization(forward, linear, skip=skip)


class TapeRecording(RecordingCall):
    """Runs a body on the tape, for the inputs that `recorded` marks."""

    def __init__(
        self, body: Body, environment: Environment, recorded: tuple[bool, ...], has_flag: bool, body_hash: int
    ) -> None:
        operands = Operands(has_flag=has_flag, extra_results=(RECEIPT,))
        super().__init__(body, environment, label="jvp({})", has_effects=True, operands=operands)
        self.in_worker = _RecordingInWorker(body, recorded)
        self.recorded = recorded
        self.body_hash = body_hash

    def run_and_keep(self, arrays: Sequence[Any]) -> tuple[list[Any], Record]:
        return _recorded(self.body, arrays, self.recorded)

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # The first derivative may read the record too, where nothing differentiates it: a pullback under
        # `stop_gradient`. So the record is made for the inputs of both, and the first finds its own receipt.
        perturbed, has_flag = perturbed[self.operands.leading :], self.operands.has_flag
        recorded = tuple(a or b for a, b in zip(self.recorded, perturbed))
        return linearize_on_tape(self, self.body, perturbed, recorded, has_flag=has_flag, body_hash=self.body_hash)


class _RecordingInWorker(Body):
    """Runs a body in a worker, on the tape, as its run for a derivative there does, which has to give the same bits."""

    def __init__(self, body: Body, recorded: tuple[bool, ...]) -> None:
        super().__init__(body.op)
        self.body = body
        self.recorded = recorded

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.body.shapes(structs)

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return _recorded(self.body, arrays, self.recorded)[0]

    def fills(self, arrays: Sequence[Any]) -> list[Any]:
        return self.body.fills(arrays)


class TapeReplay(ReplayCall):
    """Answers a derivative from the record of a run on the tape."""

    body: TapeDerivative

    def __init__(self, body: TapeDerivative, environment: Environment, has_flag: bool, body_hash: int) -> None:
        operands = Operands(has_receipt=True, has_flag=has_flag, linear_inputs=body.linear_inputs)
        super().__init__(body, environment, label="jvp({})", operands=operands, body_hash=body_hash)
        self.in_worker = TapeReplayInWorker(body, operands.leading, body_hash)

    def for_worker(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Any] | None:
        # A record stays in its process, so a worker runs the function again where a worker ran it before.
        ran_there = bool((np.asarray(arrays[0])[..., TOKEN_WORD] == NO_RECORD).all())
        return arrays if ran_there and not self.op.stateful else None

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        if self.op.stateful:
            text = (
                f"{self.title}: a second derivative runs func again, which a stateful op does not allow; "
                "pass stateful=False"
            )
            raise refusal(NotImplementedError(text))
        # The receipt has no tangent, so the derivative is that of the body behind the record.
        perturbed = perturbed[self.operands.leading :]
        return linearize_on_tape(self, self.body, perturbed, perturbed, has_flag=self.operands.has_flag, skip=1)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        body = self.body
        back = TapeDerivative(body.base, *body.transposed(nonzero_cotangents), recorded=body.recorded)
        return TapeReplay(back, self.environment, self.operands.has_flag, self.body_hash)


class TapeReplayInWorker(Body):
    """Runs a body again in a worker, on the tape, and answers a derivative. The first input is the receipt.

    Args:
        body: the derivative.
        leading: how many inputs come before those of the derivative.
        body_hash: the hash of the `TapeReplay`.
    """

    def __init__(self, body: TapeDerivative, leading: int, body_hash: int) -> None:
        super().__init__(body.op)
        self.body = body
        self.leading = leading
        self.body_hash = body_hash

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.body.shapes(structs[self.leading :])

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        receipt, rest = np.asarray(arrays[0]), arrays[self.leading :]
        if int(receipt[RUN_WORD]) != hash_of_run(self.body_hash, self.body.split(rest)[0]):
            # The receipt of the other branch of a `cond`.
            return self.body.absent_results(rest)
        return self.body.answer(None, receipt, rest)

    def fills(self, arrays: Sequence[Any]) -> list[Any]:
        return self.body.fills(arrays[self.leading :])


class TapeDerivative(DerivativeBody):
    """A derivative of a body by a record of it: forward mode for tangents, reverse mode for cotangents.

    Args:
        base: the body.
        perturbed: the inputs in which it is differentiated.
        nonzero: which inexact results have a cotangent; None for tangents.
        results: which inexact results have a tangent; None for all.
        recorded: the inputs for which the forward pass recorded the body.
    """

    reads_kept = True

    def __init__(
        self,
        base: Body,
        perturbed: tuple[bool, ...],
        nonzero: tuple[bool, ...] | None = None,
        results: tuple[bool, ...] | None = None,
        *,
        recorded: tuple[bool, ...],
    ) -> None:
        super().__init__(base, perturbed, nonzero, results)
        self.recorded = recorded

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """Return the derivative as a function of all inputs. A second derivative records this."""
        return self._derivative(_recorded(self.base, self.split(arrays)[0], self.perturbed)[1], arrays)

    def answer(self, kept: Record | None, receipt: Any, arrays: Sequence[Any]) -> list[Any]:
        if kept is None:
            # The same inputs as in the forward pass, because operations on recorded values are compiled differently.
            outs, kept = _recorded(self.base, as_jax(self.split(arrays)[0]), self.recorded)
            check_fingerprints(fingerprint(outs), int(receipt[FINGERPRINT_WORD]), self.title, "func")
        # A record may move arrays to where they are needed, whatever `jax_transfer_guard` says.
        return _settings.with_transfers(self._derivative, kept, arrays)

    def _derivative(self, kept: Record, arrays: Sequence[Any]) -> list[Any]:
        primals, _, linear = self.split(arrays)
        results = self.base.shapes(primals)
        if self.nonzero is None:
            found = kept.pushforward(as_jax(self.per_input(linear)))
            pairs = self.wanted([pair for pair in zip(results, found) if is_inexact(pair[0])])
        else:
            found = kept.pullback(as_jax(self.per_result(linear, results)))
            pairs = [pair for *pair, wanted in zip(primals, found, self.perturbed) if wanted]
        # Zeros on the device would take longer to make.
        return [np.zeros(like.shape, like.dtype) if value is None else value for like, value in pairs]


def _recorded(body: Body, arrays: Sequence[Any], recorded: Sequence[bool]) -> tuple[list[Any], Record]:
    """Run a body on the tape, and return its results and the record. It raises what the user's code raises."""
    return record(body.run, arrays, recorded, title=body.title)

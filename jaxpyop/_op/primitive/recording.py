"""Calls that keep something for their derivatives, and calls that read it: record and replay.

A `RecordingCall` runs, puts what the run kept into the store of records, and adds a receipt to its results. It is a run
on the tape (`_op/taped.py`), or the user's `fwd` (`_op/user_rules`). A `ReplayCall` takes the receipt as its first
input, finds what was kept, and has its body answer from it. If the record is gone, the body runs its base again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import DerivativeBody
from jaxpyop._op.primitive.call import Call
from jaxpyop._op.primitive.records import FAILED, NO_RECORD, NO_RUN, RECEIPT, RECORDS, find_record
from jaxpyop._values import as_jax, fingerprint

# The words of a receipt.
TOKEN_WORD, FINGERPRINT_WORD, RUN_WORD = range(3)


def hash_of_run(body_hash: int, inputs: Sequence[Any]) -> int:
    """The word by which a receipt names what ran: the body, by its hash, and the types of its inputs.

    A worker that is given the same hash gets the same word, because the hash of numbers does not depend on the process.
    """
    return hash((body_hash, *[(a.shape, ord(a.dtype.kind), a.dtype.itemsize) for a in inputs])) % 2**32


class RecordingCall(Call):
    """A call that keeps something of the run of one element for its derivatives. Its last result is the receipt.

    A kind of recording call passes `extra_results=(RECEIPT,)`, and defines `run_and_keep`.

    Attributes:
        body_hash: a hash of what the body runs. The calls that replay the record have the same.
    """

    body_hash: int

    def run_and_keep(self, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        """Run, and return the results and what is kept, which may be None."""
        raise NotImplementedError

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.operands.is_conditional and not self.runs(arrays):
            return self.absent_results(arrays)
        RECORDS.make_room()
        inputs, failed = arrays[self.operands.leading :], False
        given = as_jax(inputs) if self.on_jax else inputs
        try:
            outs, kept = self.run_and_keep(given)
        except Exception as error:
            outs, kept, failed = self.body.after_failure(error, given), None, True
        return [*outs, self.receipt(inputs, outs, kept, failed)]

    def receipt(self, inputs: Sequence[Any], outs: Sequence[Any], kept: Any, failed: bool) -> np.ndarray[Any, Any]:
        """Put what is kept into the store, and return the receipt."""
        run = hash_of_run(self.body_hash, inputs)
        if failed:
            return np.array([NO_RUN, FAILED, run], RECEIPT.dtype)
        token = NO_RECORD
        if kept is not None:
            token = RECORDS.put(kept, once_made=self.op.stateful, owner=self.op.name)
        return np.array([token, fingerprint(outs), run], RECEIPT.dtype)

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        outs = super().from_worker(values, arrays, lead)
        return [*outs, self.receipt(arrays[self.operands.leading :], outs, None, False)]


class ReplayCall(Call):
    """Answers a derivative of one element from what a run of the base kept, or from nothing but its inputs.

    Its first input is the receipt of that run, if there is one.

    Args:
        body: the derivative.
        body_hash: the hash of the recording call whose receipts this one gets.
    """

    def __init__(self, body: DerivativeBody, *args: Any, body_hash: int, **options: Any) -> None:
        super().__init__(body, *args, **options)
        self.body_hash = body_hash

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if not self.operands.has_receipt:
            return super().__call__(arrays, lead)
        body, receipt, rest = self.body, self.own_receipt(arrays), arrays[self.operands.leading :]
        if _has_failed(receipt):
            return body.fills(rest)
        token = int(receipt[TOKEN_WORD])
        if token == NO_RUN:
            return body.absent_results(rest)
        # If the body does not read the record, to ask for it marks it as read, so that it can be evicted.
        kept = find_record(self.op, token) if body.reads_kept else RECORDS.get(token)
        if self.on_jax and not body.reads_kept:
            rest = as_jax(rest)
        try:
            return body.answer(kept, receipt, rest)
        except Exception as error:
            return body.after_failure(error, rest)

    def own_receipt(self, arrays: Sequence[Any]) -> np.ndarray[Any, Any]:
        """The receipt among the inputs, or zeros if the other branch of a `cond` made it.

        Under `vmap`, a `cond` also runs the backward pass of the branch that an element did not take, and hands over
        the receipt of the branch that it took, or zeros.
        """
        leading = self.operands.leading
        receipt, inputs = np.asarray(arrays[0]), arrays[leading : leading + len(self.body.perturbed)]
        return receipt if receipt[RUN_WORD] == hash_of_run(self.body_hash, inputs) else np.zeros_like(receipt)

    def for_worker(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Any] | None:
        if not self.operands.has_receipt:
            return super().for_worker(arrays, lead)
        # Without a run nothing is sent.
        return None if self.own_receipt(arrays)[TOKEN_WORD] == NO_RUN else arrays[self.operands.leading :]


def _has_failed(receipt: np.ndarray[Any, Any]) -> bool:
    return bool(receipt[TOKEN_WORD] == NO_RUN and receipt[FINGERPRINT_WORD] == FAILED)

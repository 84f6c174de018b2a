"""Calls that keep something for their derivatives, and calls that read it: record and replay.

A `RecordingCall` runs, puts what the run kept into the store of records, and adds a receipt to its results. It is a run
on the tape (`_op/taped.py`), or the user's `fwd` (`_op/user_rules`). A `ReplayCall` takes the receipt as its first
input, finds what was kept, and has its body answer from it. If the record is gone, the body runs its base again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import DerivativeBody, each_alone
from jaxpyop._op.primitive.call import Call
from jaxpyop._op.primitive.records import FAILED, NO_RECORD, NO_RUN, RECEIPT, RECORDS, find_record
from jaxpyop._op.values import as_jax, fingerprints

# The words of a receipt.
TOKEN_WORD, FINGERPRINT_WORD, RUN_WORD = range(3)


def hash_of_run(identity: int, inputs: Sequence[Any], lead: tuple[int, ...]) -> int:
    """The word by which a receipt names what ran: the functions, and the types of their inputs.

    Every process gives the same word, because the hash of numbers does not depend on the process.
    """
    count = len(lead)
    return hash((identity, *[(a.shape[count:], ord(a.dtype.kind), a.dtype.itemsize) for a in inputs])) % 2**32


class RecordingCall(Call):
    """A call that keeps something for its derivatives. Its last result is the receipt.

    A kind of recording call passes `extra_results=(RECEIPT,)`, and defines `run_and_keep`.

    Attributes:
        identity: a hash of the functions that run. The calls that replay the record have the same.
    """

    identity: int

    def run_and_keep(self, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        """Run once, on one element, and return the results and what is kept."""
        raise NotImplementedError

    def outcome(self, arrays: Sequence[Any], lead: tuple[int, ...]) -> tuple[list[Any], Any, Any]:
        """Run, and return the results, what is kept, and which elements failed (None if none did)."""
        try:
            return *self.run_and_keep(arrays), None
        except Exception as error:
            outs, failed = self.body.after_failure(error, arrays, lead)
            return outs, None, failed

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.operands.is_conditional and not self.runs(arrays):
            return self.absent_results(arrays, lead)
        RECORDS.make_room()
        inputs = arrays[self.operands.leading :]
        outs, kept, failed = self.outcome(as_jax(inputs) if self.on_jax else inputs, lead)
        return [*outs, self.receipts(inputs, outs, kept, failed, lead)]

    def receipts(
        self, inputs: Sequence[Any], outs: Sequence[Any], kept: Any, failed: Any, lead: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """Put what is kept into the store, and return the receipt of each element."""
        token = NO_RECORD
        if kept is not None:
            token = RECORDS.put(kept, once_made=self.op.stateful, owner=self.op.name)
        found = np.empty((*lead, *RECEIPT.shape), RECEIPT.dtype)
        found[..., TOKEN_WORD], found[..., FINGERPRINT_WORD] = token, fingerprints(outs, lead)
        found[..., RUN_WORD] = hash_of_run(self.identity, inputs, lead)
        if failed is not None:
            found[failed, : FINGERPRINT_WORD + 1] = NO_RUN, FAILED
        return found

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        inputs = arrays[self.operands.leading :]
        return [*super().from_worker(values, arrays, lead), self.receipts(inputs, values, None, None, lead)]


class ReplayCall(Call):
    """Answers a derivative from what a run of the base kept, or from nothing but its inputs.

    Its first input is the receipt of that run, if there is one.

    Args:
        body: the derivative.
        identity: that of the recording call whose receipts this one gets.
    """

    def __init__(self, body: DerivativeBody, *args: Any, identity: int, **options: Any) -> None:
        super().__init__(body, *args, **options)
        self.identity = identity

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if not self.operands.has_receipt:
            return super().__call__(arrays, lead)
        body, rest = self.body, arrays[self.operands.leading :]
        receipts = self.own(arrays, lead)
        tokens, failed = receipts[..., TOKEN_WORD], _has_failed(receipts)
        if self.op.failures is not None and self.refusal is None and failed.any():
            if failed.all():
                return body.fills(rest, lead)
            return each_alone(lambda parts, lead: (self(parts, lead), None), arrays, lead)[0]
        if not tokens.any():
            return body.absent_results(rest, lead)
        return self._answer(self._kept(receipts), receipts, rest, lead)

    def own(self, arrays: Sequence[Any], lead: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The receipts among the inputs, with zeros in place of those that the other branch of a `cond` made.

        Under `vmap`, a `cond` also runs the backward pass of the branch that an element did not take, and hands over
        the receipt of the branch that it took, or zeros.
        """
        leading = self.operands.leading
        receipts, inputs = np.asarray(arrays[0]), arrays[leading : leading + len(self.body.perturbed)]
        own = receipts[..., RUN_WORD] == hash_of_run(self.identity, inputs, lead)
        return receipts if own.all() else np.where(own[..., None], receipts, np.uint32(0))

    def _kept(self, receipts: np.ndarray[Any, Any]) -> Any:
        # In a block nothing is kept, and the tokens of its elements are NO_RECORD or NO_RUN.
        token = int(receipts[..., TOKEN_WORD].max())
        if self.body.reads_kept:
            return find_record(self.op, token)
        # To ask for the record marks it as read, so that it can be evicted.
        RECORDS.get(token)
        return None

    def _answer(self, kept: Any, receipts: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        body = self.body
        if self.on_jax and not body.reads_kept:
            arrays = as_jax(arrays)
        if self.op.failures is None:
            return body.answer(kept, receipts, arrays, lead)
        try:
            return body.answer(kept, receipts, arrays, lead)
        except Exception as error:
            return body.after_failure(error, arrays, lead)[0]

    def for_worker(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Any] | None:
        if not self.operands.has_receipt:
            return super().for_worker(arrays, lead)
        receipts, rest = self.own(arrays, lead), arrays[self.operands.leading :]
        return rest if receipts[..., TOKEN_WORD].any() and not _has_failed(receipts).any() else None


def _has_failed(receipts: np.ndarray[Any, Any]) -> Any:
    return (receipts[..., TOKEN_WORD] == NO_RUN) & (receipts[..., FINGERPRINT_WORD] == FAILED)

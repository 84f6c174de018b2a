"""Calls that keep something for their derivatives, and calls that read it: record and replay.

A `RecordingCall` runs, puts what the run kept into the store of records, and adds a receipt to its results. It is a run
on the tape (`_op/taped.py`), or the user's `fwd` (`_op/user_rules`). A `ReplayCall` takes the receipt as its first
input, finds what was kept, and has its body answer from it. If the record is gone, the body runs its base again.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import Body, DerivativeBody, each_alone
from jaxpyop._op.primitive.call import Call
from jaxpyop._op.primitive.records import FAILED, NO_RECORD, NO_RUN, RECEIPT, RECORDS, HandedRecord, find_record
from jaxpyop._op.values import Struct, as_jax, fingerprints

# The words of a receipt.
TOKEN_WORD, FINGERPRINT_WORD, ELEMENT_WORD, RUN_WORD = range(4)


def _hash_of_run(identity: int, inputs: Sequence[Any], lead: tuple[int, ...]) -> int:
    """The word by which a receipt names what ran: the functions, and the types of their inputs.

    Every process gives the same word, because the hash of numbers does not depend on the process.
    """
    count = len(lead)
    return hash((identity, *[(a.shape[count:], ord(a.dtype.kind), a.dtype.itemsize) for a in inputs])) % 2**32


class RecordingCall(Call):
    """A call that keeps something for its derivatives. Its last result is the receipt.

    A kind of recording call passes `extra_results=(RECEIPT,)`, and defines `kept_by_run`.

    Attributes:
        identity: a hash of the functions that run. The calls that replay the record have the same.
    """

    identity: int

    def kept_by_run(self, arrays: Sequence[Any], lead: tuple[int, ...]) -> tuple[list[Any], Any, Any]:
        """Run, and return the results, what is kept, and which elements failed (None if none did)."""
        raise NotImplementedError

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.operands.is_conditional and not self.runs(arrays):
            return self.absent_results(arrays, lead)
        RECORDS.make_room()
        inputs = arrays[self.operands.leading :]
        outs, kept, failed = self.kept_by_run(inputs, lead)
        if self.hands_over:
            # A cut program takes the record itself from one of its steps to another.
            return [*outs, HandedRecord(kept)]
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
        found[..., ELEMENT_WORD] = np.arange(math.prod(lead)).reshape(lead)
        found[..., RUN_WORD] = _hash_of_run(self.identity, inputs, lead)
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
        self.takes_records = self.operands.has_receipt
        if self.takes_records and body.reads_kept:
            self.in_worker = AnswerInWorker(body, self.operands.leading, identity)

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if not self.operands.has_receipt:
            return super().__call__(arrays, lead)
        body, rest = self.body, arrays[self.operands.leading :]
        if isinstance(arrays[0], HandedRecord):
            return self._answer(arrays[0].record, None, rest, lead)
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
        own = receipts[..., RUN_WORD] == _hash_of_run(self.identity, inputs, lead)
        return receipts if own.all() else np.where(own[..., None], receipts, np.uint32(0))

    def _kept(self, receipts: np.ndarray[Any, Any]) -> Any:
        # The elements of a block have the token of one run, unless the program mixed the elements of several runs.
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
        if not receipts[..., TOKEN_WORD].any() or _has_failed(receipts).any():
            return None
        if not self.body.reads_kept:
            return rest
        return [pickled((receipts, self._kept(receipts)), self.title), *arrays[1:]]


def _has_failed(receipts: np.ndarray[Any, Any]) -> Any:
    return (receipts[..., TOKEN_WORD] == NO_RUN) & (receipts[..., FINGERPRINT_WORD] == FAILED)


# ------------------------------------------------------------------- in a worker


class AnswerInWorker(Body):
    """Answers a derivative in a worker. The first input is the receipt, or a pickle of the receipt and what was kept.

    Args:
        body: the derivative.
        leading: how many inputs come before those of the derivative.
        identity: that of the recording call.
    """

    def __init__(self, body: DerivativeBody, leading: int, identity: int) -> None:
        super().__init__(body.op)
        self.body = body
        self.leading = leading
        self.run_identity = identity

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.body.shapes(structs[self.leading :])

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        first, rest = np.asarray(arrays[0]), arrays[self.leading :]
        if first.dtype == np.uint8:
            receipts, kept = pickle.loads(first.tobytes())
            return self.body.answer(kept, receipts, rest, lead)
        if int(first[RUN_WORD]) != _hash_of_run(self.run_identity, self.body.split(rest)[0], lead):
            # The receipt of the other branch of a `cond`.
            return self.body.absent_results(rest, lead)
        return self.body.answer(None, first, rest, lead)

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return self.body.fills(arrays[self.leading :], lead)


def pickled(value: Any, title: str) -> np.ndarray[Any, Any]:
    """Pickle a value, and return it as an array of bytes.

    Raises:
        ValueError: the value cannot be pickled.
    """
    try:
        return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
    except Exception as error:
        raise ValueError(
            f"{title}: the residuals of fwd cannot be sent between processes ({type(error).__name__}: {error}); "
            "return numbers, arrays and containers of these, or use threads"
        ) from None

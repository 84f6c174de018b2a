"""`bwd` of `vjp=(fwd, bwd)`, and the other rules that run after a `FwdCall`."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import each_alone, element_structs
from jaxpyop._op.derivatives.functions import RuleCall, VjpRule, expanded
from jaxpyop._op.derivatives.fwd import FwdBody, Residuals, has_failed, pickled
from jaxpyop._op.primitive import RECORDS, HandedRecord, warn_of_pushed_out
from jaxpyop._op.values import Struct, as_jax, check_fingerprints, decode, fingerprints, show_shape


class ResidualRuleCall(RuleCall):
    """Runs a rule after `fwd`. Its first input is the receipt of the residuals.

    The receipt is all zeros for a call that `when=` skipped.
    """

    after_fwd = True
    takes_records = True

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        receipts, rest = np.asarray(arrays[0]), arrays[self.operands.leading_inputs :]
        if not self.body.goes_to_executor or not receipts[..., 0].any() or has_failed(receipts).any():
            return None
        if not isinstance(self.body, BwdRule):
            return rest
        return [pickled((receipts, self._kept(receipts)), self.title), *rest]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.body.shapes(structs[self.operands.leading_inputs :])

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        return self.body.groups(values[self.operands.leading_inputs :])

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        rest = arrays[self.operands.leading_inputs :]
        if isinstance(arrays[0], HandedRecord):
            if not isinstance(self.body, BwdRule):
                return super().__call__(rest)
            return self.body.pulled(arrays[0].record, as_jax(rest) if self.on_jax else rest, ())
        receipts = np.asarray(arrays[0])
        tokens = receipts[..., 0]
        if self.op.failures is not None and (failed := has_failed(receipts)).any() and self.body.refusal is None:
            if not failed.all():
                return each_alone(lambda *parts, lead: self(parts, lead), arrays, lead)
            return self.body.fills(rest, lead)
        if not tokens.any():
            # Under `vmap`, a `cond` also runs the backward pass of the branch that was not taken. JAX fills the inputs
            # of that branch, and so the receipts, with zeros.
            return self.body.absent_results(rest, lead)
        if not isinstance(self.body, BwdRule):
            # Mark the record as read, so that it can be evicted: jvp= needs no residuals.
            RECORDS.get(int(tokens.max()))
            return super().__call__(rest, lead)
        return self.body.after_fwd(receipts, self._kept(receipts), as_jax(rest) if self.on_jax else rest, lead)

    def _kept(self, receipts: np.ndarray[Any, Any]) -> Residuals | None:
        token = _common_token(receipts[..., 0])
        kept = RECORDS.get(token) if token else None
        if kept is None and self.op.stateful:
            raise RuntimeError(
                f"{self.title}: the residuals of this step's fwd are gone, and fwd of a stateful op cannot be run "
                "again; increase jaxpyop.config.max_records or max_record_bytes (see python -m jaxpyop doctor)"
            )
        if kept is None and token:
            warn_of_pushed_out(self.op, token)
        return kept


def _common_token(tokens: np.ndarray[Any, Any]) -> int:
    """Return the token that all elements share, apart from elements that did not run; 0 if there are several tokens."""
    token = tokens.max()
    return int(token) if ((tokens == token) | (tokens == 0)).all() else 0


def _axes_that_fwd_lacks(
    receipts: np.ndarray[Any, Any], fwd_lead: tuple[int, ...], lead: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return which batch axes of a backward pass the run of `fwd` did not have, such as the one of `jax.jacrev`.

    A program may transpose, reverse or slice the receipts like any array, so each has the number of its element in the
    block. The result is None if the elements are not all elements of the run of `fwd`, in their order.

    Args:
        receipts: the receipts of the elements. A batch axis that they do not depend on has size 1.
        fwd_lead: the sizes of the batch axes of the run of `fwd`.
        lead: the sizes of the batch axes of the backward pass.
    """
    of_size_1 = [axis for axis, size in enumerate(receipts.shape[:-1]) if size == 1]
    added = tuple(sorted(of_size_1, key=lambda axis: lead[axis] == 1)[: max(0, len(lead) - len(fwd_lead))])
    receipts = receipts.squeeze(added)
    if not receipts.shape[:-1] == tuple(size for axis, size in enumerate(lead) if axis not in added) == fwd_lead:
        return None
    tokens, numbers = receipts[..., 0], receipts[..., 2]
    in_order = ((numbers == np.arange(numbers.size).reshape(fwd_lead)) | (tokens == 0)).all()
    return added if in_order else None


def _with_axes_moved(values: Sequence[Any], source: tuple[int, ...], to: tuple[int, ...]) -> list[Any]:
    return list(values) if source == to else [np.moveaxis(v, source, to) for v in values]


class BwdRule(VjpRule):
    """The user's `bwd`.

    A worker process calls the body itself. The first input is then a pickle of the receipts and the residuals.
    """

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        receipts, kept = pickle.loads(np.asarray(arrays[0]).tobytes())
        return self.after_fwd(receipts, kept, arrays[1:], lead)

    def after_fwd(
        self, receipts: np.ndarray[Any, Any], kept: Residuals | None, rest: Sequence[Any], lead: tuple[int, ...]
    ) -> list[Any]:
        """Return the cotangents of the inputs after runs of `fwd`.

        Args:
            receipts: the receipts of the runs.
            kept: the residuals, or None if they are gone. Then `fwd` runs again.
            rest: the inputs, the results and the cotangents.
            lead: the sizes of the batch axes that these have in front.
        """
        added = None if kept is None else _axes_that_fwd_lacks(receipts, kept.lead, lead)
        if kept is not None and added is not None:
            # The residuals begin with the axes of `fwd`. Once the others come first, they broadcast to the cotangents.
            first = tuple(range(len(added)))
            moved_lead = (*(lead[axis] for axis in added), *kept.lead)
            found = self.pulled(kept.value, _with_axes_moved(rest, added, first), moved_lead)
            found = _with_axes_moved(found, first, added)
        elif kept is not None and self.op.stateful:
            raise RuntimeError(
                f"{self.title}: fwd ran for a block of {show_shape(kept.lead)} elements, and bwd was asked for some of "
                "them, or in another order. The residuals are those of the whole block, and fwd of a stateful op "
                'cannot be run again; pull back the whole block, or pass vmap_method="sequential"'
            )
        else:
            found = self.recomputed(receipts, rest, lead)
        # A token of 0 stands for an element that did not run.
        did_run = np.broadcast_to(receipts[..., 0] != 0, lead)
        return found if did_run.all() else [np.where(expanded(did_run, v), v, 0) for v in found]

    def recomputed(self, receipts: np.ndarray[Any, Any], arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """Run `fwd` again, check that it gives the results of the forward pass, and return the cotangents."""
        inputs = [a.copy() for a in self.split(arrays)[0]]
        outs, residuals = FwdBody(self.base).run(inputs, lead)
        tokens, expected = (np.broadcast_to(receipts[..., k], lead) for k in (0, 1))
        # A token of 0 stands for an element that did not run, which has no results to compare.
        found = np.where(tokens == 0, expected, fingerprints(outs, lead))
        check_fingerprints(found, expected, self.title, "fwd of vjp")
        return self.pulled(residuals, arrays, lead)

    def pulled(self, residuals: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """Call `bwd` with the residuals of a run on these inputs, and return the cotangents."""
        inputs, outputs, cotangents = self.split(arrays)
        structs = self.base.shapes(element_structs(inputs, lead))
        found = self.filled(cotangents, [Struct((*lead, *s.shape), s.dtype) for s in structs], lead)
        if self.op.spec.returned_spec is not None:
            # The lengths of padded results are among the results. Cotangents are cut to the same lengths.
            found = decode(self.op, found, outputs)
        return self.or_fills(lambda: self.cotangents(inputs, lead, (residuals, found)), arrays, lead)

"""`vjp=(fwd, bwd)`: residuals that stay on the host.

`fwd` runs in place of the function. Its residuals go into the store of records, and only a receipt for them goes
through the program. Residuals may be any object, such as an LU factorisation or an open solver. They are pickled only
on their way to and from a worker process.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import Environment
from jaxpyop._op.body import Body, DerivedBody, UserBody, each_alone, element_structs, failed_results
from jaxpyop._op.derivatives.element_axes import axes_of_fwd_last
from jaxpyop._op.derivatives.functions import Differences, RuleCall, VjpRule
from jaxpyop._op.derivatives.residuals import Residuals, protected, size_of
from jaxpyop._op.primitive import NO_RECORD, RECORDS, TOKEN, Call, HandedRecord, Linearization, warn_of_pushed_out
from jaxpyop._op.request import Op, advice_on_workers
from jaxpyop._op.values import Struct, as_jax, check_fingerprints, decode, fingerprints, show_shape

# ------------------------------------------------------------------------- fwd

# A receipt has three numbers: the token of the residuals, the fingerprint of the results, and the number of the element
# in the block that ran.
_RECEIPT = Struct((3,), TOKEN)


class _Kept(threading.local):
    """A stack of residuals, one for each run of `fwd` that is under way on this thread. The innermost run is last."""

    def __init__(self) -> None:
        self.all: list[Any] = []


_KEPT = _Kept()


class _UserFwd(UserBody):
    """The user's `fwd` as a body. It returns the results, and leaves the residuals in `_KEPT`."""

    def _run(self, arrays: Sequence[Any]) -> Any:
        found = super()._run(arrays)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            kind = f"a {type(found).__name__}" + (f" of {len(found)}" if isinstance(found, (tuple, list)) else "")
            raise ValueError(f"{self.title}: fwd returned {kind}; return a pair, (outputs, residuals)")
        _KEPT.all.append(found[1])
        return found[0]


class FwdBody(DerivedBody):
    """Runs the user's `fwd`, and returns its residuals with its results.

    A worker process calls the body itself. The last result is then a pickle of the residuals, together with which
    elements failed.

    Args:
        base: the user's function.
        plain: whether to run the function in place of `fwd`. It has no residuals, but a receipt tells what failed.
    """

    def __init__(self, base: UserBody, *, plain: bool = False) -> None:
        super().__init__(base)
        op = base.op
        self.plain = plain
        self._fwd = base
        if not plain:
            fwd = dataclasses.replace(op, func=op.rules.fwd, title=f"{op.title}, fwd of vjp")
            self._fwd = _UserFwd(fwd, base.inputs)

    @property
    def func(self) -> Any:
        return self._fwd.op.func

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs)

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> tuple[list[Any], Any]:
        """Return the results and the residuals."""
        depth = len(_KEPT.all)
        try:
            # If `fwd` failed, there are no residuals.
            return self._fwd(*arrays, lead=lead), next(iter(_KEPT.all[depth:]), None)
        finally:
            del _KEPT.all[depth:]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        outs, residuals = self.run(arrays, lead)
        return [*outs, _pickled((residuals, getattr(outs, "failed", False)), self.title)]


def _pickled(value: Any, title: str) -> np.ndarray[Any, Any]:
    """Pickle a value, and return it as an array of bytes.

    Raises:
        ValueError: the value cannot be pickled.
    """
    try:
        return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
    except Exception as error:
        raise advice_on_workers(title, error) from None


# The receipt of an element that failed. No record has the token 0, and the 1 tells it from an element that did not run.
FAILED = np.array([0, 1, 0], TOKEN)


def _has_failed(receipts: np.ndarray[Any, Any]) -> Any:
    """Tell which elements have the receipt of a failure."""
    return (receipts == FAILED).all(-1)


class FwdCall(Call):
    """Runs `fwd` in place of the function. The last result of the call is the receipt of the residuals.

    The receipt is all zeros if `fwd` did not run, and `FAILED` if it ran and failed. With `plain`, the call runs the
    function in place of `fwd`.
    """

    body: FwdBody

    def __init__(
        self,
        call: Call,
        base: UserBody,
        linearize: Callable[[Call, tuple[bool, ...]], Linearization],
        *,
        plain: bool = False,
    ) -> None:
        super().__init__(
            FwdBody(base, plain=plain),
            call.op,
            call.environment,
            label="jvp({})",
            on_jax=call.on_jax,
            effects=call.effects,
            batching=dataclasses.replace(call.batching, block_derivative=True, one_by_one=True),
            operands=dataclasses.replace(call.operands, extra_results=1, writes_out=False),
        )
        self._linearize = linearize
        self._hands_over = False

    def handing_over(self) -> FwdCall | None:
        # With an executor the residuals may come from a worker as bytes. With `when=` or `on_error=` there may be none.
        if self.op.executor is not None or self.operands.conditional or self.op.failures is not None:
            return None
        call = copy.copy(self)
        call._hands_over = True
        return call

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [*self.body.shapes(structs[self.operands.leading_inputs :]), _RECEIPT]

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        return self.body.groups(values[self.operands.leading_inputs :])

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        self.body.base.note_shapes(structs[self.operands.leading_inputs :], results)

    def _runs(self, arrays: Sequence[Any]) -> bool:
        # The flag of `when=` is the first input. All elements of a block have the same flag.
        return not self.operands.conditional or bool(np.asarray(arrays[0]).any())

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        inputs = arrays[self.operands.leading_inputs :]
        if not self._runs(arrays):
            return [*self.body.base.absent_results(inputs, lead), np.zeros((*lead, *_RECEIPT.shape), TOKEN)]
        RECORDS.make_room()
        outs, residuals = self.body.run(as_jax(inputs) if self.on_jax else inputs, lead)
        if self._hands_over:
            return [*outs, HandedRecord(protected(residuals))]
        return [*outs, self._receipt(residuals, outs, lead, getattr(outs, "failed", False))]

    def _receipt(self, residuals: Any, outs: Sequence[Any], lead: tuple[int, ...], failed: Any) -> np.ndarray[Any, Any]:
        token = NO_RECORD
        if not self.body.plain and not np.all(failed):
            kept = Residuals(protected(residuals), lead, size_of(residuals))
            token = RECORDS.put(kept, once_made=self.op.stateful, owner=self.op.name)
        numbers = np.arange(math.prod(lead), dtype=TOKEN).reshape(lead)
        found = np.stack([np.full(lead, token, TOKEN), fingerprints(outs, lead), numbers], -1)
        found[failed] = FAILED
        return found

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        return arrays[self.operands.leading_inputs :] if self._runs(arrays) else None

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        *outs, data = values
        self.body.base.check_results(outs, arrays[len(arrays) - len(self.body.base.inputs.key_impls) :], lead)
        residuals, failed = pickle.loads(data.tobytes())
        return [*outs, self._receipt(residuals, outs, lead, failed)]

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # This call is bound in place of the user's call, so its derivative is made in the same way.
        return self._linearize(self, perturbed)


# ------------------------------------------------------------------------- bwd


class ResidualRuleCall(RuleCall):
    """Runs a rule after `fwd`. Its first input is the receipt of the residuals.

    The receipt is all zeros for a call that `when=` skipped.
    """

    takes_records = True

    def __init__(
        self,
        body: Body,
        op: Op,
        environment: Environment,
        *,
        conditional: bool,
        differences: Differences | None = None,
    ) -> None:
        leading = 1 + conditional
        super().__init__(body, op, environment, leading_inputs=leading, one_by_one=True, differences=differences)

    def with_body(self, body: Body) -> Call:
        conditional = self.operands.leading_inputs > 1
        return ResidualRuleCall(body, self.op, self.environment, conditional=conditional, differences=self.differences)

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        receipts, rest = np.asarray(arrays[0]), arrays[self.operands.leading_inputs :]
        if not self.body.goes_to_executor or not receipts[..., 0].any() or _has_failed(receipts).any():
            return None
        if not isinstance(self.body, BwdRule):
            return rest
        return [_pickled((receipts, self._kept(receipts)), self.title), *rest]

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
        if self.op.failures is not None and (failed := _has_failed(receipts)).any() and self.body.refusal is None:
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
    if tokens.size == 1:
        return int(tokens.item())
    token = tokens.max()
    return int(token) if ((tokens == token) | (tokens == 0)).all() else 0


def _zero_where(gone: np.ndarray[Any, Any], value: Any, lead: tuple[int, ...]) -> Any:
    return np.where(np.broadcast_to(gone, lead).reshape((*lead, *[1] * (value.ndim - len(lead)))), 0, value)


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
        tokens = receipts[..., 0]
        order = None if kept is None else axes_of_fwd_last(receipts, kept.lead, lead)
        if kept is not None and order is None and self.op.stateful:
            raise RuntimeError(
                f"{self.title}: fwd ran for a block of {show_shape(kept.lead)} elements, and bwd was asked for some of "
                "them, or in another order. The residuals are those of the whole block, and fwd of a stateful op "
                'cannot be run again; pull back the whole block, or pass vmap_method="sequential"'
            )
        if kept is None or order is None:
            found = self.recomputed(receipts, rest, lead)
        elif order == tuple(range(len(lead))):
            found = self.pulled(kept.value, rest, lead)
        else:
            transposed = [a.transpose(*order, *range(len(lead), a.ndim)) for a in rest]
            inverse = np.argsort(order).tolist()
            found = self.pulled(kept.value, transposed, tuple(lead[axis] for axis in order))
            found = [v.transpose(*inverse, *range(len(lead), v.ndim)) for v in found]
        return found if tokens.all() else [_zero_where(tokens == 0, v, lead) for v in found]

    def recomputed(self, receipts: np.ndarray[Any, Any], arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """Run `fwd` again, check that it gives the results of the forward pass, and return the cotangents."""
        inputs = [a.copy() for a in self.split(arrays)[0]]
        outs, residuals = FwdBody(self.base).run(inputs, lead)
        tokens = receipts[..., 0]
        token, expected = (np.broadcast_to(receipts[..., k], lead) for k in (0, 1))
        # A token of 0 stands for an element that did not run, which has no results to compare.
        found = np.where(token == 0, expected, fingerprints(outs, lead))
        check_fingerprints(found, expected, self.title, "fwd of vjp")
        is_whole = axes_of_fwd_last(receipts, lead, lead) == tuple(range(len(lead)))
        if is_whole and (ran_as_one := _common_token(tokens)):
            RECORDS.check(ran_as_one, Residuals(residuals, lead, 0), self.title, "fwd of vjp")
        return self.pulled(residuals, arrays, lead)

    def pulled(self, residuals: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """Call `bwd` with the residuals of a run on these inputs, and return the cotangents."""
        inputs, outputs, cotangents = self.split(arrays)
        structs = self.base.shapes(element_structs(inputs, lead))
        found = self.filled(cotangents, [Struct((*lead, *s.shape), s.dtype) for s in structs], lead)
        if self.op.spec.returned_spec is not None:
            # The lengths of padded results are among the results. Cotangents are cut to the same lengths.
            found = decode(self.op, found, outputs)
        try:
            return self.checked(inputs, lead, (residuals, found))
        except Exception as error:
            return failed_results(self, error, arrays, lead)

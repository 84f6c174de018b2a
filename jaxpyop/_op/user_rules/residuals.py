"""`vjp=(fwd, bwd)`: residuals that stay on the host.

`fwd` runs in place of the function. Its residuals go into the store of records, and only a receipt for them goes
through the program. Residuals may be any object, such as an LU factorisation or an open solver. They are pickled only
on their way to and from a worker process.

If the vmap_method passes whole blocks, `fwd` runs once for a block, and its residuals are one record. A program may
slice, reverse or mix the receipts of the elements like any array, so each receipt has the number of its element. `bwd`
gets the residuals if the receipts are those of all elements of the run, in their order. Otherwise `fwd` runs again.

Reading order: what is kept, the call of `fwd`, the body of `bwd`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import DerivedBody, UserBody, element_structs
from jaxpyop._op.primitive import NO_RECORD, RECORDS, TOKEN, Batching, Call, HandedRecord, Linearization
from jaxpyop._op.user_rules.functions import VjpRule, expanded, method_of_rules
from jaxpyop._op.values import Struct, as_jax, check_fingerprints, decode, fingerprints, show_shape

# ------------------------------------------------------------------- residuals


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """The residuals of one run of `fwd`, as a record.

    Attributes:
        value: any object.
        lead: the sizes of the batch axes of the block that ran.
        owner: the id of the body of the user's function.
        nbytes: an estimate of the memory that the object takes.
    """

    value: Any
    lead: tuple[int, ...]
    owner: int
    nbytes: int


def protected(value: Any) -> Any:
    """Replaces the NumPy arrays in residuals by read-only copies.

    They are copied because `fwd` may write into its own arrays later. They are read-only because `bwd` may run several
    times after one run of `fwd`, as in `jax.jacrev`, and must not change what its next run reads.
    """
    if type(value) is np.ndarray:
        found = value.copy("K")
        found.flags.writeable = False
        return found
    if type(value) in (list, tuple):
        return type(value)(map(protected, value))
    return {key: protected(part) for key, part in value.items()} if type(value) is dict else value


def size_of(value: Any) -> int:
    """Estimates how many bytes a value holds in arrays, containers, attributes and the entries of sparse matrices."""
    seen: set[int] = set()
    total, stack = 0, [value]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        # The attributes of classes, functions and modules are not data.
        held = {} if callable(part) or isinstance(part, types.ModuleType) else getattr(part, "__dict__", {})
        if isinstance(nbytes := getattr(part, "nbytes", None), (int, np.integer)):
            total += int(nbytes)
        else:
            total += sys.getsizeof(part, 64)
            # SciPy's SuperLU hides its arrays, but has the number of its entries. An entry takes about 12 bytes.
            if not held and isinstance(entries := getattr(part, "nnz", None), (int, np.integer)):
                total += 12 * int(entries)
        if isinstance(part, (list, tuple, set, frozenset)):
            stack.extend(part)
        else:
            stack.extend((part if isinstance(part, dict) else held).values())
    return total


# ------------------------------------------------------------------------- fwd

# The receipt of an element: the token of the residuals, the fingerprint of its results, and its number in the block.
_RECEIPT = Struct((3,), TOKEN)


class _UserFwd(UserBody):
    """The user's `fwd` as a body. It returns the results, and keeps the residuals of its last run."""

    residuals: Any = None

    def _run(self, arrays: Sequence[Any]) -> Any:
        found = super()._run(arrays)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            kind = f"a {type(found).__name__}" + (f" of {len(found)}" if isinstance(found, (tuple, list)) else "")
            raise ValueError(f"{self.title}: fwd returned {kind}; return a pair, (outputs, residuals)")
        self.residuals = found[1]
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
        self.absent_fills = base.absent_fills
        self._fwd = base
        if not plain:
            fwd = dataclasses.replace(op, func=op.rules.fwd, title=f"{op.title}, fwd of vjp")
            self._fwd = _UserFwd(fwd, base.inputs)
            self.rule_name = "fwd"

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> tuple[list[Any], Any]:
        """Return the results and the residuals. If `fwd` failed, or if the body is plain, the residuals are None."""
        # Each run has an object of its own, because other threads may run `fwd` at the same time.
        run = copy.copy(self._fwd)
        return run(*arrays, lead=lead), getattr(run, "residuals", None)

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        outs, residuals = self.run(arrays, lead)
        return [*outs, pickled((residuals, getattr(outs, "failed", False)), self.title)]

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        self.base.note_shapes(structs, results)

    def results_if_lost(self, error: Exception, arrays: Sequence[Any]) -> list[Any]:
        return [*self._fwd.results_if_lost(error, arrays), pickled((None, True), self.title)]


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


# The receipt of an element that failed. No record has the token 0, and the 1 tells it from an element that did not run.
FAILED = np.array([0, 1, 0], TOKEN)


def has_failed(receipts: np.ndarray[Any, Any]) -> Any:
    """Tell which elements have the receipt of a failure."""
    return (receipts == FAILED).all(-1)


class FwdCall(Call):
    """Runs `fwd` in place of the function. The last result of the call is the receipt of the residuals.

    The receipt is all zeros if `fwd` did not run, and `FAILED` if it ran and failed. With `plain`, the call runs the
    function in place of `fwd`.
    """

    body: FwdBody

    def __init__(self, call: Any, *, plain: bool = False) -> None:
        super().__init__(
            FwdBody(call.user_body, plain=plain),
            call.environment,
            label="jvp({})",
            on_jax=call.on_jax,
            has_effects=True,
            batching=Batching(method_of_rules(call.op), one_by_one=True),
            operands=dataclasses.replace(call.operands, extra_results=(_RECEIPT,), writes_out=False),
        )
        self._call = call
        # With an executor the residuals may come from a worker as bytes. With `when=` or `on_error=` there may be none.
        self.can_hand_over = self.op.executor is None and not self.operands.conditional and self.op.failures is None

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if not self.runs(arrays):
            return self.absent_results(arrays, lead)
        RECORDS.make_room()
        inputs = arrays[self.operands.unread_inputs :]
        outs, residuals = self.body.run(as_jax(inputs) if self.on_jax else inputs, lead)
        if self.hands_over:
            return [*outs, HandedRecord(protected(residuals))]
        return [*outs, self._receipt(residuals, outs, lead, getattr(outs, "failed", False))]

    def _receipt(self, residuals: Any, outs: Sequence[Any], lead: tuple[int, ...], failed: Any) -> np.ndarray[Any, Any]:
        token = NO_RECORD
        if not self.body.plain and not np.all(failed):
            kept = Residuals(protected(residuals), lead, id(self.body.base), size_of(residuals))
            token = RECORDS.put(kept, once_made=self.op.stateful, owner=self.op.name)
        found = np.zeros((*lead, *_RECEIPT.shape), TOKEN)
        found[..., 0], found[..., 1] = token, fingerprints(outs, lead)
        found[..., 2] = np.arange(math.prod(lead)).reshape(lead)
        found[failed] = FAILED
        return found

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        *outs, data = values
        self.body.base.check_results(outs, arrays[self.operands.unread_inputs :], lead)
        residuals, failed = pickle.loads(data.tobytes())
        return [*outs, self._receipt(residuals, outs, lead, failed)]

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # This call is bound in place of the user's call, so its derivative is made in the same way.
        return self._call.linearize_after(self, perturbed)


# ------------------------------------------------------------------------- bwd


def with_makers(receipts: np.ndarray[Any, Any], body: Any) -> np.ndarray[Any, Any]:
    """Append to each receipt whether another call made it than the one with this body: 1, or else 0.

    JAX hands what the branches of a `cond` keep for the backward pass over in the same arrays, if shapes and dtypes
    agree. Under `vmap`, the backward pass of a branch also runs for elements that took another branch.
    """
    records = {token: RECORDS.get(token) for token in set(receipts[..., 0].ravel().tolist())}
    others = [token for token, kept in records.items() if kept is not None and kept.owner != id(body)]
    found = np.zeros((*receipts.shape[:-1], 4), TOKEN)
    found[..., :3] = receipts
    if others and not body.op.stateful:
        found[..., 3] = np.isin(receipts[..., 0], others)
    return found


def _are_all_in_order(receipts: np.ndarray[Any, Any], lead: tuple[int, ...]) -> bool:
    """Tell whether the receipts are those of one run on a block of the sizes `lead`, or zeros in their places."""
    tokens, _, numbers, _ = receipts.reshape(-1, 4).T
    did_run = tokens != 0
    is_one_run = len(tokens) == math.prod(lead) and bool((tokens[did_run] == tokens.max()).all())
    return is_one_run and np.array_equal(numbers[did_run], np.flatnonzero(did_run))


def _added_axes_and_block(lead: tuple[int, ...], of_receipts: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """Return which axes of `lead` the run of `fwd` did not have, so that receipts have size 1, and the other sizes."""
    added = [axis for axis, size in enumerate(lead) if size != of_receipts[axis]]
    return added, tuple(size for axis, size in enumerate(lead) if axis not in added)


class BwdRule(VjpRule):
    """The user's `bwd`.

    A worker process calls the body itself. The first input is then a pickle of the receipts and the residuals.
    """

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        receipts, kept = pickle.loads(np.asarray(arrays[0]).tobytes())
        return self.after_fwd(receipts, kept, arrays[1:], lead)

    def results_if_lost(self, error: Exception, arrays: Sequence[Any]) -> list[Any]:
        return super().results_if_lost(error, arrays[1:])

    def after_fwd(
        self, receipts: np.ndarray[Any, Any], kept: Residuals | None, arrays: Sequence[Any], lead: tuple[int, ...]
    ) -> list[Any]:
        """Return the cotangents of the inputs after a run of `fwd`.

        Args:
            receipts: the receipts of the elements. A batch axis that `fwd` did not have, as in `jax.jacrev`, has
                size 1. `with_makers` made them.
            kept: the residuals, or None if they are gone. Then `fwd` runs again, and must give the same results.
            arrays: the inputs, the results and the cotangents.
            lead: the sizes of the batch axes that these have in front.
        """
        if kept is not None and kept.lead == lead == ():
            return self.pulled(kept.value, arrays, lead)
        did_run, lost = np.broadcast_to(receipts[..., 0] != 0, lead), np.False_
        if kept is None or not _are_all_in_order(receipts, kept.lead):
            if kept is not None and self.op.stateful:
                raise RuntimeError(
                    f"{self.title}: fwd ran for a block of {show_shape(kept.lead)} elements, and bwd was asked for "
                    "some of them, or in another order. The residuals are those of the whole block, and fwd of a "
                    'stateful op cannot be run again; pull back the whole block, or pass vmap_method="sequential"'
                )
            kept, lost = self._run_again(receipts, self.split(arrays)[0], lead)
        found = self._pulled_block(kept, arrays, lead, receipts.shape[:-1])
        # The cotangents of an element that took another branch are not used. NaN says so if they are.
        for elements, fill in ((~did_run, 0), (np.broadcast_to(lost, lead), np.nan)):
            if elements.any():
                found = [np.where(expanded(elements, v), v.dtype.type(fill), v) for v in found]
        return found

    def _run_again(
        self, receipts: np.ndarray[Any, Any], inputs: Sequence[Any], lead: tuple[int, ...]
    ) -> tuple[Residuals, np.ndarray[Any, Any]]:
        """Run `fwd` on the elements that have receipts, and check that it gives the results of the forward pass.

        Returns:
            The residuals, and which elements have the receipt of another call and other results.
        """
        added, block = _added_axes_and_block(lead, receipts.shape[:-1])
        tokens, expected, _, is_other = np.moveaxis(receipts.reshape(*block, 4), -1, 0)
        did_run = tokens != 0
        inputs = [
            np.asarray(a)[tuple(0 if axis in added else slice(None) for axis in range(len(lead)))] for a in inputs
        ]
        has_all_axes = np.broadcast_shapes(*[a.shape[: len(block)] for a in inputs]) == block
        if not (did_run.all() and has_all_axes):
            # A `cond` under `vmap` gives zeros for the elements that took the other branch. `fwd` may raise for zeros,
            # so they get the inputs of one that did run. An input that all elements share may come with size 1.
            flat = np.where(did_run, np.arange(did_run.size).reshape(block), did_run.argmax())
            source = np.unravel_index(flat, block)
            inputs = [a[tuple(k if size > 1 else 0 * k for k, size in zip(source, a.shape))] for a in inputs]
        inputs = [np.array(a, order="C") for a in inputs]
        outs, residuals = FwdBody(self.base).run(as_jax(inputs) if self.op.on_jax else inputs, block)
        found = np.where(did_run, fingerprints(outs, block), expected)
        lost = (is_other == 1) & (found != expected)
        check_fingerprints(found[~lost], expected[~lost], self.title, "fwd of vjp")
        return Residuals(residuals, block, id(self.base), 0), lost.reshape(receipts.shape[:-1])

    def _pulled_block(
        self, kept: Residuals, arrays: Sequence[Any], lead: tuple[int, ...], of_receipts: tuple[int, ...]
    ) -> list[Any]:
        """Call `bwd` on cotangents whose last batch axes are those of `fwd`, so that residuals broadcast to them."""
        if kept.lead == lead == of_receipts:
            return self.pulled(kept.value, arrays, lead)
        added, block = _added_axes_and_block(lead, of_receipts)
        first, sizes = range(len(added)), tuple(lead[axis] for axis in added)
        moved, count = (*sizes, *kept.lead), len(lead)
        inputs, outputs, cotangents = self.split(arrays)
        likes = [Struct((*moved, *a.shape[count:]), a.dtype) for a in inputs]
        cotangents = [np.moveaxis(c, added, first).reshape((*moved, *c.shape[count:])) for c in cotangents]
        found = self.pulled(kept.value, [*likes, *outputs, *cotangents], moved)
        return [np.moveaxis(v.reshape((*sizes, *block, *v.shape[len(moved) :])), first, added) for v in found]

    def pulled(self, residuals: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """Call `bwd` with the residuals of a run on these inputs, and return the cotangents."""
        inputs, outputs, cotangents = self.split(arrays)
        structs = self.base.shapes(element_structs(inputs, lead))
        found = self.filled(cotangents, [Struct((*lead, *s.shape), s.dtype) for s in structs], lead)
        if self.op.spec.returned_spec is not None:
            # The lengths of padded results are among the results. Cotangents are cut to the same lengths.
            found = decode(self.op, found, outputs)
        return self.run_or_on_error_fills(lambda: self.cotangents(inputs, lead, (residuals, found)), arrays, lead)

"""`vjp=(fwd, bwd)`: residuals that stay on the host.

`fwd` runs in place of the function. Its residuals go into the store of records, and only a receipt for them goes
through the program. Residuals may be any object, such as an LU factorisation or an open solver. They are pickled only
on their way to and from a worker process.

If the vmap_method passes whole blocks, `fwd` runs once for a block, and its residuals are one record. A program may
slice, reverse or mix the receipts of the elements like any array, so each receipt has the number of its element. `bwd`
gets the residuals if the receipts are those of all elements of the run, in their order. Otherwise `fwd` runs again.

Reading order: what is kept, how `fwd` runs, the body of `bwd`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import refusal
from jaxpyop._op.body import Body, UserBody, call_with_advice, element_structs
from jaxpyop._op.primitive import ELEMENT_WORD, FINGERPRINT_WORD, NO_RUN, TOKEN_WORD, pickled
from jaxpyop._op.user_rules.functions import VjpRule, cotangents_of_inputs, in_structure
from jaxpyop._op.values import Struct, as_jax, check_fingerprints, decode, fingerprints, show_shape

# ------------------------------------------------------------------- residuals


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """The residuals of one run of `fwd`, as a record.

    Attributes:
        value: any object.
        lead: the sizes of the batch axes of the block that ran.
        nbytes: an estimate of the memory that the object takes.
    """

    value: Any
    lead: tuple[int, ...]
    nbytes: int = 0


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


# The size of what a larger object holds is not counted to the end, which would take too long at each step.
_MAX_PARTS = 10_000


def size_of(value: Any) -> int:
    """Estimate how many bytes a value holds: in arrays, containers, attributes, closures and sparse matrices."""
    seen: set[int] = set()
    total, stack = 0, [value]
    while stack and len(seen) < _MAX_PARTS:
        part = stack.pop()
        if id(part) in seen or isinstance(part, (type, types.ModuleType)):
            continue
        seen.add(id(part))
        if isinstance(nbytes := getattr(part, "nbytes", None), (int, np.integer)):
            total += int(nbytes)
            continue
        total += sys.getsizeof(part, 64)
        inside = list(_inside(part))
        # SciPy's SuperLU hides its arrays, but has the number of its entries. An entry takes about 12 bytes.
        if not inside and isinstance(entries := getattr(part, "nnz", None), (int, np.integer)):
            total += 12 * int(entries)
        stack.extend(inside)
    return total


def _inside(part: Any) -> Iterator[Any]:
    """The objects that an object holds, without the globals of a function, which belong to its module."""
    if isinstance(part, dict):
        yield from part.values()
    elif isinstance(part, (list, tuple, set, frozenset, collections.deque)):
        yield from part
    elif isinstance(part, types.CellType):
        # The cell of a variable that is not assigned yet is empty.
        yield getattr(part, "cell_contents", None)
    elif isinstance(part, types.FunctionType):
        yield from (part.__closure__ or (), part.__defaults__, part.__kwdefaults__, vars(part))
    elif isinstance(part, types.MethodType):
        yield from (part.__self__, part.__func__)
    else:
        if isinstance(part, functools.partial):
            yield from (part.func, part.args, part.keywords)
        yield getattr(part, "__dict__", None)
        for kind in type(part).__mro__:
            slots = vars(kind).get("__slots__", ())
            yield from (getattr(part, slot, None) for slot in ((slots,) if isinstance(slots, str) else slots))


# ------------------------------------------------------------------------- fwd


def fwd_of(base: UserBody) -> UserBody:
    """The user's `fwd` as a body, beside that of the function."""
    op = base.op
    return UserBody(dataclasses.replace(op, func=op.rules.fwd, title=f"{op.title}, fwd of vjp"), base.inputs)


def run_fwd(fwd: UserBody, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> tuple[list[Any], Any]:
    """Return the results and the residuals, and raise what `fwd` raises."""
    found = fwd.returned(arrays)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        kind = f"a {type(found).__name__}" + (f" of {len(found)}" if isinstance(found, (tuple, list)) else "")
        raise refusal(ValueError(f"{fwd.title}: fwd returned {kind}; return a pair, (outputs, residuals)"))
    return fwd.results_of(found[0], arrays, lead), found[1]


class FwdInWorker(Body):
    """Runs `fwd` in a worker. The last result is a pickle of which elements failed, and of the residuals.

    Args:
        base: the user's function, which runs itself if there is no `fwd`.
        fwd: the user's `fwd`.
    """

    def __init__(self, base: UserBody, fwd: UserBody | None) -> None:
        super().__init__(base.op)
        self.base = base
        self.fwd = fwd

    def outcome_and_residuals(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> tuple[list[Any], Any, Any]:
        """Return the results, which elements failed, and the residuals, which are None if anything failed."""
        if self.fwd is None:
            return *self.base.outcome(arrays, lead), None
        try:
            outs, residuals = run_fwd(self.fwd, arrays, lead)
        except Exception as error:
            return *self.base.after_failure(error, arrays, lead), None
        return outs, None, residuals

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs)

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        outs, *rest = self.outcome_and_residuals(arrays, lead)
        return [*outs, pickled(rest, self.title)]

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return [*self.base.fills(arrays, lead), pickled((np.full(lead, True), None), self.title)]


# ------------------------------------------------------------------------- bwd


def _are_all_in_order(receipts: np.ndarray[Any, Any], lead: tuple[int, ...]) -> bool:
    """Tell whether the receipts are those of one run on a block of the sizes `lead`, or zeros in their places."""
    flat = receipts.reshape(-1, receipts.shape[-1])
    tokens, numbers = flat[:, TOKEN_WORD], flat[:, ELEMENT_WORD]
    did_run = tokens != NO_RUN
    is_one_run = len(tokens) == math.prod(lead) and bool((tokens[did_run] == tokens.max()).all())
    return is_one_run and np.array_equal(numbers[did_run], np.flatnonzero(did_run))


def _added_axes_and_block(lead: tuple[int, ...], of_receipts: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """Return which axes of `lead` the run of `fwd` did not have, so that receipts have size 1, and the other sizes."""
    added = [axis for axis, size in enumerate(lead) if size != of_receipts[axis]]
    return added, tuple(size for axis, size in enumerate(lead) if axis not in added)


class BwdRule(VjpRule):
    """The user's `bwd`."""

    reads_kept = True

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        raise NotImplementedError("a bwd answers from residuals")

    def answer(
        self, kept: Residuals | None, receipts: Any, arrays: Sequence[Any], lead: tuple[int, ...] = ()
    ) -> list[Any]:
        """Return the cotangents of the inputs.

        Args:
            kept: the residuals, or None if they are gone. Then `fwd` runs again, and must give the same results.
            receipts: the receipts of the elements. A batch axis that `fwd` did not have has size 1.
            arrays: the inputs, the results and the cotangents.
            lead: the sizes of the batch axes that these have in front.
        """
        if self.op.on_jax:
            arrays = as_jax(arrays)
        if kept is not None and kept.lead == lead == ():
            return self._pulled(kept.value, arrays, lead)
        did_run = receipts[..., TOKEN_WORD] != NO_RUN
        if kept is None or not _are_all_in_order(receipts, kept.lead):
            if kept is not None and self.op.stateful:
                text = (
                    f"{self.title}: fwd ran for a block of {show_shape(kept.lead)} elements, and bwd was asked for "
                    "some of them, or in another order. The residuals are those of the whole block, and fwd of a "
                    'stateful op cannot be run again; pull back the whole block, or pass vmap_method="sequential"'
                )
                raise refusal(RuntimeError(text))
            kept = self._run_again(receipts, did_run, self.split(arrays)[0], lead)
        # The cotangents of an element that did not run are not used.
        return self._pulled_block(kept, arrays, lead, receipts.shape[:-1])

    def _run_again(self, receipts: Any, did_run: Any, inputs: Sequence[Any], lead: tuple[int, ...]) -> Residuals:
        """Run `fwd` on the elements that have receipts, and check that it gives the results of the forward pass."""
        added, block = _added_axes_and_block(lead, receipts.shape[:-1])
        expected, did_run = receipts[..., FINGERPRINT_WORD].reshape(block), did_run.reshape(block)
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
        outs, residuals = run_fwd(fwd_of(self.base), as_jax(inputs) if self.op.on_jax else inputs, block)
        found = np.where(did_run, fingerprints(outs, block), expected)
        check_fingerprints(found, expected, self.title, "fwd of vjp")
        return Residuals(residuals, block)

    def _pulled_block(
        self, kept: Residuals, arrays: Sequence[Any], lead: tuple[int, ...], of_receipts: tuple[int, ...]
    ) -> list[Any]:
        """Call `bwd` on cotangents whose last batch axes are those of `fwd`, so that residuals broadcast to them."""
        if kept.lead == lead == of_receipts:
            return self._pulled(kept.value, arrays, lead)
        added, block = _added_axes_and_block(lead, of_receipts)
        first, sizes = range(len(added)), tuple(lead[axis] for axis in added)
        moved, count = (*sizes, *kept.lead), len(lead)
        inputs, outputs, cotangents = self.split(arrays)
        likes = [Struct((*moved, *a.shape[count:]), a.dtype) for a in inputs]
        cotangents = [np.moveaxis(c, added, first).reshape((*moved, *c.shape[count:])) for c in cotangents]
        found = self._pulled(kept.value, [*likes, *outputs, *cotangents], moved)
        return [np.moveaxis(v.reshape((*sizes, *block, *v.shape[len(moved) :])), first, added) for v in found]

    def _pulled(self, residuals: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """Call `bwd` with the residuals of a run on these inputs, and return the cotangents."""
        inputs, outputs, cotangents = self.split(arrays)
        structs = self.base.shapes(element_structs(inputs, lead))
        given: Any = self.filled(cotangents, [Struct((*lead, *s.shape), s.dtype) for s in structs], lead)
        if self.op.spec.returned_spec is not None:
            # The lengths of padded results are among the results. Cotangents are cut to the same lengths.
            given = decode(self.op, given, outputs)
        found = call_with_advice(self.op, "bwd of vjp", self.func, (residuals, in_structure(self.op, given)), {})
        likes = [Struct((*lead, *x.shape[len(lead) :]), x.dtype) for x in inputs]
        return cotangents_of_inputs(self.base, "bwd of vjp", found, likes, self.perturbed)

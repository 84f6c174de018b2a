"""`vjp=(fwd, bwd)`: residuals that stay on the host.

`fwd` runs in place of the function. Its residuals go into the store of records, and only a receipt for them goes
through the program. Residuals may be any object, such as an LU factorisation or an open solver. They are pickled only
on their way to and from a worker process.

Reading order: what is kept, the call of `fwd`, the call of a rule after it, the body of `bwd`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import DerivedBody, UserBody
from jaxpyop._op.primitive import NO_RECORD, RECORDS, TOKEN, Call, HandedRecord, Linearization
from jaxpyop._op.values import Struct, as_jax, fingerprints

# ------------------------------------------------------------------- residuals


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """The residuals of one run of `fwd`, as a record.

    Attributes:
        value: any object.
        lead: the sizes of the batch axes of the run. They are empty unless the vmap_method passes whole blocks.
        nbytes: an estimate of the memory that the object takes.
    """

    value: Any
    lead: tuple[int, ...]
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
    total = 0
    stack = [value]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        total += _own_size(part)
        stack.extend(_held_by(part))
    return total


def _own_size(part: Any) -> int:
    nbytes = getattr(part, "nbytes", None)
    if isinstance(nbytes, (int, np.integer)):
        return int(nbytes)
    # SciPy's SuperLU hides its arrays, but has the number of its entries. An entry takes about 12 bytes.
    entries = getattr(part, "nnz", None)
    size = sys.getsizeof(part, 64)
    return size + 12 * int(entries) if isinstance(entries, (int, np.integer)) and not _vars_of(part) else size


def _vars_of(part: Any) -> dict[str, Any]:
    """Returns the attributes of an object. Those of classes, functions and modules are not data, and are left out."""
    held = getattr(part, "__dict__", None)
    return held if isinstance(held, dict) and not callable(part) and not isinstance(part, type(sys)) else {}


def _held_by(part: Any) -> Iterable[Any]:
    if isinstance(part, dict):
        return part.values()
    if isinstance(part, (list, tuple, set, frozenset)):
        return part
    return _vars_of(part).values()


# ------------------------------------------------------------------------- fwd

# A receipt has three numbers: the token of the residuals, the fingerprint of the results, and the number of the element
# in the block that ran.
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
        self._fwd = base
        if not plain:
            fwd = dataclasses.replace(op, func=op.rules.fwd, title=f"{op.title}, fwd of vjp")
            self._fwd = _UserFwd(fwd, base.inputs)

    @property
    def func(self) -> Any:
        return self._fwd.op.func

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> tuple[list[Any], Any]:
        """Return the results and the residuals. If `fwd` failed, or if the body is plain, the residuals are None."""
        if self.plain:
            return self._fwd(*arrays, lead=lead), None
        # Each run has an object of its own, because other threads may run `fwd` at the same time.
        run: Any = copy.copy(self._fwd)
        return run(*arrays, lead=lead), run.residuals

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        outs, residuals = self.run(arrays, lead)
        return [*outs, pickled((residuals, getattr(outs, "failed", False)), self.title)]


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

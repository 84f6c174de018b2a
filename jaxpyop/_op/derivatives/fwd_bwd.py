"""`vjp=(fwd, bwd)`: residuals that stay on the host.

`fwd` runs instead of the function, and what it keeps for `bwd` goes into the
store of records; its token goes through the program. Residuals may be any
object: an LU factorisation, an open solver. Only to and from a worker process
they travel, pickled.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import Environment
from jaxpyop._op.body import Struct, UserBody, When
from jaxpyop._op.derivatives.functions import RuleCall, RulePullback, called
from jaxpyop._op.primitive import RECORDS, TOKEN, Call, Linearization, transposed
from jaxpyop._op.request import Op, advice_on_workers
from jaxpyop._op.values import as_jax, decode


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """What `fwd` kept of one run.

    Attributes:
        value: whatever it is.
        lead: the batch axes of the run, for a block method.
        nbytes: about how much memory it takes.
    """

    value: Any
    lead: tuple[int, ...]
    nbytes: int


def size_of(value: Any) -> int:
    """About how many bytes a value holds: of arrays, in containers and attributes; of a sparse matrix its entries."""
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
    entries = getattr(part, "nnz", None)  # of a SuperLU, which keeps its arrays to itself
    size = sys.getsizeof(part, 64)
    return size + 12 * int(entries) if isinstance(entries, (int, np.integer)) and not vars_of(part) else size


def vars_of(part: Any) -> dict[str, Any]:
    """An object's attributes; none of a class, a function or a module."""
    held = getattr(part, "__dict__", None)
    return held if isinstance(held, dict) and not callable(part) and not isinstance(part, type(sys)) else {}


def _held_by(part: Any) -> Iterable[Any]:
    if isinstance(part, dict):
        return part.values()
    if isinstance(part, (list, tuple, set, frozenset)):
        return part
    return vars_of(part).values()


class _Kept(threading.local):
    """The residuals of the runs of `fwd` that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.all: list[Any] = []


_KEPT = _Kept()


class _Fwd(UserBody):
    """The user's `fwd`, which leaves its residuals in `_KEPT`."""

    def _run(self, arrays: Sequence[Any]) -> Any:
        found = super()._run(arrays)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise ValueError(f"{self.title}: fwd returned {_kind_of(found)}; return a pair, (outputs, residuals)")
        _KEPT.all.append(found[1])
        return found[0]


class FwdBody:
    """The user's `fwd`; in a worker, its residuals are the last result, pickled."""

    def __init__(self, base: UserBody) -> None:
        self.base = base
        op = base.op
        self._fwd = _Fwd(dataclasses.replace(op, func=op.rules.fwd, title=f"{op.title}, fwd of vjp"), base.inputs)

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs)

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> tuple[list[Any], Any]:
        """The results and the residuals."""
        depth = len(_KEPT.all)
        try:
            return self._fwd(*arrays, lead=lead), _KEPT.all[depth]
        finally:
            del _KEPT.all[depth:]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        outs, residuals = self.run(arrays, lead)
        return [*outs, pickled(residuals, self.base.op.title)]


def _kind_of(value: Any) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, (tuple, list)) else f"a {kind}"


def pickled(value: Any, title: str) -> np.ndarray[Any, Any]:
    """A value as an array of bytes.

    Raises:
        ValueError: it cannot be pickled.
    """
    try:
        return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
    except Exception as error:
        raise advice_on_workers(title, error) from None


_NOT_RUN = object()  # the residuals of a step that `when=` leaves out


class WhenFwd(When):
    """`fwd` at the steps at which the op runs."""

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> tuple[list[Any], Any]:
        flag, *rest = arrays
        if np.asarray(flag).any():
            return self.base.run(rest, lead)
        structs = self.base.shapes([Struct(a.shape[len(lead) :], a.dtype) for a in rest])
        return [np.zeros((*lead, *s.shape), s.dtype) for s in structs], _NOT_RUN


class FwdCall(Call):
    """Runs `fwd` instead of the function; its last result is the token of the residuals."""

    extra_results = 1
    order = "jvp({})"
    blocks = True
    one_by_one = True

    def __init__(self, call: Call, derived: Callable[[Call, tuple[bool, ...]], Linearization]) -> None:
        body = FwdBody(call.body.base if call.conditional else call.body)
        super().__init__(WhenFwd(body) if call.conditional else body, call.op, call.environment)
        self.conditional = call.conditional
        self.leading_inputs = call.leading_inputs
        self.on_jax = call.on_jax
        self.stateful = call.stateful
        self.ordered = call.ordered
        self.vmap_method = call.vmap_method
        self.func = call.op.rules.fwd
        self.derived = derived

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [*self.body.shapes(structs), Struct((), TOKEN)]

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.on_jax:
            arrays = as_jax(arrays)
        RECORDS.make_room()
        outs, residuals = self.body.run(arrays, lead)
        return [*outs, np.full(lead, self._stored(residuals, lead), TOKEN)]

    def _stored(self, residuals: Any, lead: tuple[int, ...] = ()) -> int:
        if residuals is _NOT_RUN:
            return 0
        return RECORDS.put(Residuals(residuals, lead, size_of(residuals)), once_made=self.op.stateful)

    def learn(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        self._user_body().learn(structs[self.leading_inputs :], results)

    def _user_body(self) -> UserBody:
        return self.body.base.base if self.conditional else self.body.base

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        return arrays if not self.conditional or np.asarray(arrays[0]).any() else None

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        *outs, data = values
        base = self._user_body()
        base.check_shapes(outs, base.promised(arrays[self.leading_inputs :], lead), lead)
        return [*outs, np.full(lead, self._stored(pickle.loads(data.tobytes()), lead), TOKEN)]

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        """As that of the call in whose place this runs."""
        return self.derived(self, moving)


class ResidualRuleCall(RuleCall):
    """Runs a rule whose first input is the token of residuals, which is 0 where `when=` left the op out."""

    one_by_one = True

    def __init__(self, body: Any, op: Op, environment: Environment, *, conditional: bool) -> None:
        super().__init__(body, op, environment)
        self.leading_inputs = 1 + conditional

    def transposed(self, given: tuple[bool, ...]) -> Call:
        body = self.body.transposed(given)
        return transposed(ResidualRuleCall(body, self.op, self.environment, conditional=self.leading_inputs > 1))

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        token = int(np.max(arrays[0], initial=0))  # of a block, all are alike
        if not self.body.travels or token == 0:
            return None
        if not isinstance(self.body, BwdRule):
            return arrays[self.leading_inputs :]
        kept = self._kept(token)
        data = np.zeros(0, np.uint8) if kept is None else pickled(kept.value, self.title)
        return [data, *arrays[self.leading_inputs :]]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.body.shapes(structs[self.leading_inputs :])

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        tokens, rest = np.asarray(arrays[0]), arrays[self.leading_inputs :]
        if self.on_jax:
            rest = as_jax(rest)
        if not tokens.any():
            # vmap of cond runs the backward pass of the branch not taken too,
            # on residuals filled with zeros.
            structs = self.body.shapes([Struct(a.shape[len(lead) :], a.dtype) for a in rest])
            return [np.zeros((*lead, *s.shape), s.dtype) for s in structs]
        if not isinstance(self.body, BwdRule):
            RECORDS.get(int(tokens.max()))  # read: not to be kept for a backward pass that will not come
            return super().__call__(rest, lead)
        found = self._pulled(tokens, rest, lead)
        return found if tokens.all() else [_zero_where(tokens == 0, v, lead) for v in found]

    def _pulled(self, tokens: np.ndarray[Any, Any], rest: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        body = self.body
        kept = self._kept(_only_one(tokens))
        if kept is None:
            return body.recomputed(rest, lead)
        order = _front_to_back(tokens.shape, kept.lead, lead)
        if order is None:
            return body.recomputed(rest, lead)
        if order == tuple(range(len(lead))):
            return body.pulled(kept.value, rest, lead)
        there, sizes = [], tuple(lead[axis] for axis in order)
        for a in rest:
            there.append(a.transpose(*order, *range(len(lead), a.ndim)))
        found = body.pulled(kept.value, there, sizes)
        back = np.argsort(order).tolist()
        return [v.transpose(*back, *range(len(lead), v.ndim)) for v in found]

    def _kept(self, token: int) -> Residuals | None:
        kept = RECORDS.get(token) if token else None
        if kept is None and self.op.stateful:
            raise RuntimeError(
                f"{self.title}: the residuals of this step's fwd are gone, and fwd of a stateful op cannot be run "
                "again; raise jaxpyop.config.max_records or max_record_bytes (see python -m jaxpyop doctor)"
            )
        return kept


def _only_one(tokens: np.ndarray[Any, Any]) -> int:
    """The token of all that ran; 0 where there are several."""
    if tokens.size == 1:
        return int(tokens.item())
    token = tokens.max()
    return int(token) if ((tokens == token) | (tokens == 0)).all() else 0


def _zero_where(gone: np.ndarray[Any, Any], value: Any, lead: tuple[int, ...]) -> Any:
    return np.where(np.broadcast_to(gone, lead).reshape((*lead, *[1] * (value.ndim - len(lead)))), 0, value)


def _front_to_back(shape: tuple[int, ...], ran: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, ...] | None:
    """The batch axes in an order that has those with which `fwd` ran at the end; None where they cannot be told.

    The residuals have these axes in front of their own, so that they broadcast against the cotangents.
    """
    theirs: list[int] = []
    for size in ran:
        first = theirs[-1] + 1 if theirs else 0
        found = [axis for axis in range(first, len(lead)) if shape[axis] == lead[axis] == size]
        if not found:
            return None
        theirs.append(found[0])
    if any(shape[axis] != 1 for axis in range(len(lead)) if axis not in theirs):
        return None
    return (*(axis for axis in range(len(lead)) if axis not in theirs), *theirs)


class BwdRule(RulePullback):
    """The user's `bwd`; in a worker, the residuals are the first input, pickled, or empty for `fwd` to run again."""

    def __call__(self, *arrays: Any) -> list[Any]:
        data, *rest = arrays
        data = np.asarray(data)
        if not data.size:
            return self.recomputed(rest, ())
        return self.pulled(pickle.loads(data.tobytes()), rest, ())

    def recomputed(self, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """The cotangents after another run of `fwd`."""
        inputs = [a.copy() for a in arrays[: len(self.wanted)]]
        return self.pulled(FwdBody(self.base).run(inputs, lead)[1], arrays, lead)

    def pulled(self, residuals: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """The cotangents from the residuals of a run on these inputs."""
        inputs = arrays[: len(self.wanted)]
        structs = self.base.shapes([Struct(x.shape[len(lead) :], x.dtype) for x in inputs])
        outputs: Sequence[Any] = [Struct((*lead, *s.shape), s.dtype) for s in structs]
        cotangents = self.cotangents(arrays[len(arrays) - self.linear :], outputs, lead)
        op = self.base.op
        if op.spec.returned_spec is not None:  # what func returned is not what the op has: the results are here to tell
            cotangents = decode(op, cotangents, arrays[len(inputs) : len(arrays) - self.linear])
        return self.read(called(op, "bwd of vjp", self.rule, residuals, cotangents), inputs, lead)

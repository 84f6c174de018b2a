"""How a body is called: plainly, on the tape, or answered from a record.

- `UserCall` runs the user's function.
- `RecordingCall` runs a body on the tape and adds a token, by which its record is found.
- `ReplayCall` answers a derivative from the record of a token, and falls back to
  its body, which runs everything again, when the record is gone.

A call is the parameter of the primitive, compared by identity. That it can be
called itself has a second reason: JAX's caches hold a callable weakly, and
anything else for good (0.10 to 0.12).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import Environment
from jaxpyop._op.body import FilledBody, Pushforward, Struct, UserBody, WhenUser, is_inexact
from jaxpyop._op.derivatives import LinearCall, LinearFunction, linearize_by_rules
from jaxpyop._op.primitive import NO_RECORD, RECORDS, TOKEN, Call, Handed, Linearization, transposed
from jaxpyop._op.request import Op
from jaxpyop._op.values import Inputs, as_jax
from jaxpyop._tape import record


class UserCall(Call):
    """Runs the user's function."""

    def __init__(self, op: Op, inputs: Inputs, *, conditional: bool = False) -> None:
        body = (FilledBody if op.out else UserBody)(op, inputs)
        super().__init__(WhenUser(body) if conditional else body, op, Environment())
        self.conditional = conditional
        self.leading_inputs = int(conditional)
        self.on_jax = op.on_jax
        self.copy = op.copy
        self.writes_out = op.out
        self.stateful = op.stateful
        self.ordered = op.ordered
        self.vmap_method = op.vmap_method
        self.blocks = (op.rules.any_given or not op.on_jax) and op.spec.returned_spec is None
        self.is_linear = op.rules.transpose is not None

    def __repr__(self) -> str:
        return self.title

    @property
    def differentiable(self) -> bool:
        return any(map(is_inexact, self.op.spec.leaves))

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.on_jax:
            arrays = as_jax(arrays)
        return self.body(*arrays, lead=lead) if lead else self.body(*arrays)

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        """The pieces of this call's derivative in the inputs that move."""
        if self.on_jax and not self.op.rules.any_given:
            return RecordingCall(self, moving).linearize(moving)
        return linearize_by_rules(self, moving)

    def unconditional(self) -> UserCall:
        """The same call where it runs."""
        if not self.conditional:
            return self
        call = UserCall(self.op, self.body.base.inputs)
        call.body = self.body.base  # which knows shapes
        return call

    def in_tangents(self, mask: tuple[bool, ...]) -> Call:
        """A linear function as a map of tangents, of the inputs that `mask` marks."""
        return LinearCall(LinearFunction(self.body, mask), self.op, self.environment)


class RecordingCall(Call):
    """Runs a body on the tape, for the inputs that move; its last result is the record's token."""

    extra_results = 1
    order = "jvp({})"

    def __init__(self, call: Call, moving: tuple[bool, ...]) -> None:
        super().__init__(call.body, call.op, call.environment)
        self.stateful = call.stateful
        self.ordered = call.ordered
        self.moving = moving
        self._hands_over = False

    def handing_over(self) -> RecordingCall | None:
        """The same call with the record itself as its last result; None where a worker may have the record."""
        if self.op.executor is not None:
            return None
        call = copy.copy(self)
        call._hands_over = True
        return call

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [*self.body.shapes(structs), jax.ShapeDtypeStruct((), TOKEN)]

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        RECORDS.make_room()
        outs, taken = record(self.body, as_jax(arrays), self.moving)
        if self._hands_over:
            return [*outs, Handed(taken)]
        return [*outs, np.asarray(RECORDS.put(taken, once_made=self.op.stateful), TOKEN)]

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return [*super().from_worker(values, arrays, lead), np.asarray(NO_RECORD, TOKEN)]

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        both = tuple(a or b for a, b in zip(self.moving, moving))  # the record serves the lower order too
        forward = self if both == self.moving else RecordingCall(self, both)
        return Linearization(forward, ReplayCall(Pushforward(self.body, moving), self.op, self.environment))


class ReplayCall(Call):
    """Answers a derivative from the record of its first input, a token."""

    order = "jvp({})"
    leading_inputs = 1
    takes_records = True

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        ran_there = bool(np.all(np.asarray(arrays[0]) == NO_RECORD)) and not self.op.stateful
        return arrays[1:] if ran_there else None

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.body.shapes(structs[1:])

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        first, rest = arrays[0], arrays[1:]
        if isinstance(first, Handed):
            return _jaxcore.with_transfers(self.body.replay, first.record, rest)
        token = int(first)
        if token == 0:
            # vmap of cond runs the backward pass of the branch not taken too,
            # on residuals filled with zeros.
            return [np.zeros(s.shape, s.dtype) for s in self.body.shapes(rest)]
        if (taken := RECORDS.get(token)) is not None:
            return _jaxcore.with_transfers(self.body.replay, taken, rest)
        if self.op.stateful and token == NO_RECORD:
            raise RuntimeError(
                f"{self.title}: a backward pass runs the body again where another process ran it, and a stateful op "
                "cannot be run again; pass stateful=False, or use threads"
            )
        if self.op.stateful:
            raise RuntimeError(
                f"{self.title}: the record of this step's forward pass is gone, and a stateful op cannot be run again; "
                "raise jaxpyop.config.max_records or max_record_bytes (see python -m jaxpyop doctor)"
            )
        return self.body(*as_jax(rest))

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        """Of the body itself, without the token, which has no tangent."""
        if self.op.stateful:
            raise NotImplementedError(
                f"{self.title}: a second derivative runs the body again, which a stateful op does not allow; "
                "pass stateful=False"
            )
        again = RecordingCall(Call(self.body, self.op, self.environment), moving[1:]).linearize(moving[1:])
        return dataclasses.replace(again, skip=1)

    def transposed(self, given: tuple[bool, ...]) -> Call:
        """The cotangents' call of this tangents' call."""
        return transposed(ReplayCall(self.body.transposed(given), self.op, self.environment))

"""How a body is called: plainly, on the tape, or answered from a record.

- `UserCall` runs the user's function; `Plain` any other body.
- `Record` runs a body on the tape and adds a token, by which its record is found.
- `Replay` answers a derivative from the record of a token, and falls back to
  its body, which runs everything again, when the record is gone.

A call is the parameter of the primitive, compared by identity. That it can be
called itself has a second reason: JAX's caches hold a callable weakly, and
anything else for good (0.10 to 0.12).
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _bodies, _jaxcore, _records, _results, _tape
from jaxpyop._bodies import Op, Struct, as_jax
from jaxpyop._config import config, follow
from jaxpyop._inputs import Inputs
from jaxpyop._spec import Leaf
from jaxpyop._transport import Environment

TOKEN = np.dtype(np.uint32)
NO_RECORD = np.iinfo(TOKEN).max  # of a run in another process; no store gives it
# Processes that compute together each have a store: a token of one should not
# be found in another.
RECORDS = _records.Records(config.max_records, config.max_record_bytes, first=1 + secrets.randbelow(2**31))


follow(lambda: RECORDS.resize(config.max_records, config.max_record_bytes))


class Plain:
    """Runs a body that is not the user's own."""

    on_jax = True
    copy = True
    stateful = False
    ordered = False
    adds = 0  # results after the body's own
    hidden = 0  # inputs before the body's own
    order = "{}"  # of the derivative, as the profiler shows it

    def __init__(self, body: Any, op: Op, environment: Environment) -> None:
        self.body = body
        self.op = op
        self.environment = environment
        self.func = op.func
        self.title = op.title
        self.label = self.order.format(op.name)
        self.vmap_method = "parallel" if op.vmap_method == "parallel" else "sequential"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title})"

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        """The results' shapes and dtypes for one element's inputs."""
        return self.body.shapes(structs)

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """Run once.

        Args:
            arrays: NumPy views, or jax.Arrays, or private NumPy copies unless `on_jax`.
            lead: batch axes that the arrays have in front, for a block method.
        """
        return self.body(*map(as_jax, arrays))

    def learn(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        """Take note of the results' shapes, so that a derivative need not infer them."""
        if isinstance(self.body, _bodies.UserBody):
            self.body.learn(structs, results)

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        """The inputs of the body in another process; None to run here after all."""
        return arrays

    def from_worker(self, values: list[Any], arrays: Sequence[Any]) -> list[Any]:
        """This call's results from the body's in another process."""
        if isinstance(self.body, _bodies.UserBody):
            self.body.check_shapes(values, self.body.promised(arrays), ())
        return values

    def check(self, index: int, shape: tuple[int, ...], expected: tuple[int, ...], lead: tuple[int, ...] = ()) -> None:
        """Raise about a result of the wrong shape."""
        how = getattr(self.body, "how", "")
        said = f"assumed, {how}" if how else "promised"
        _results.check_shape(shape, Leaf(TOKEN, expected), lead, said, self.op.which(index), self.title)


def _transposed(call: Plain) -> Plain:
    call.label = f"transpose({call.label})"
    return call


@dataclasses.dataclass(frozen=True, slots=True)
class Linearization:
    """How a call is differentiated.

    Attributes:
        forward: runs instead of the call; the call's results come first.
        linear: from residuals and tangents to the results' tangents. The
            residuals are what `forward` adds, the inputs, and the results.
        with_results: whether the results are among the residuals.
        skip: how many leading inputs of the call `forward` does not take.
    """

    forward: Plain
    linear: Plain
    with_results: bool = False
    skip: int = 0


class UserCall(Plain):
    """Runs the user's function."""

    def __init__(self, op: Op, inputs: Inputs) -> None:
        super().__init__(_bodies.UserBody(op, inputs), op, Environment())
        self.on_jax = op.on_jax
        self.copy = op.copy
        self.stateful = op.stateful
        self.ordered = op.ordered
        self.vmap_method = op.vmap_method

    def __repr__(self) -> str:
        return self.title

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.on_jax:
            arrays = [as_jax(a) for a in arrays]
        return self.body(*arrays, lead=lead) if lead else self.body(*arrays)

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        """The pieces of this call's derivative in the inputs that move."""
        if not self.on_jax:
            push = _bodies.NumpyPush(self.body, moving)
            return Linearization(self, NumpyDerivative(push, self.op, self.environment), with_results=True)
        return Record(self, moving).linearize(moving)


class NumpyDerivative(Plain):
    """Runs the derivative of a NumPy body, which is on NumPy arrays too."""

    on_jax = False
    order = "jvp({})"

    def __init__(self, body: Any, op: Op, environment: Environment) -> None:
        super().__init__(body, op, environment)
        self.func = op.vjp or op.func

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        return self.body(*arrays)

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        raise NotImplementedError(
            f"{self.title}: second derivatives need a body of JAX operations: write it as a py_function; "
            "vjp= gives the first"
        )

    def transposed(self, given: tuple[bool, ...]) -> Plain:
        """The cotangents' call of this tangents' call."""
        return _transposed(NumpyDerivative(self.body.transposed(given), self.op, self.environment))


class Record(Plain):
    """Runs a body on the tape, for the inputs that move; its last result is the record's token."""

    adds = 1
    order = "jvp({})"

    def __init__(self, call: Plain, moving: tuple[bool, ...]) -> None:
        super().__init__(call.body, call.op, call.environment)
        self.stateful = call.stateful
        self.ordered = call.ordered
        self.moving = moving

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [*self.body.shapes(structs), jax.ShapeDtypeStruct((), TOKEN)]

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        outs, record = _tape.record(self.body, [as_jax(a) for a in arrays], self.moving)
        return [*outs, np.asarray(RECORDS.put(record), TOKEN)]

    def from_worker(self, values: list[Any], arrays: Sequence[Any]) -> list[Any]:
        return [*super().from_worker(values, arrays), np.asarray(NO_RECORD, TOKEN)]

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        both = tuple(a or b for a, b in zip(self.moving, moving))  # the record serves the lower order too
        forward = self if both == self.moving else Record(self, both)
        return Linearization(forward, Replay(_bodies.Push(self.body, moving), self.op, self.environment))


class Replay(Plain):
    """Answers a derivative from the record of its first input, a token."""

    order = "jvp({})"
    hidden = 1

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        ran_there = int(arrays[0]) == NO_RECORD and not self.op.stateful
        return arrays[1:] if ran_there else None

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.body.shapes(structs[1:])

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        token, rest = int(arrays[0]), arrays[1:]
        if token == 0:
            # vmap of cond runs the backward pass of the branch not taken too,
            # on residuals filled with zeros.
            return [np.zeros(s.shape, s.dtype) for s in self.body.shapes(rest)]
        if (record := RECORDS.get(token)) is not None:
            return _jaxcore.with_transfers(self.body.replay, record, rest)
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
        return self.body(*map(as_jax, rest))

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        """Of the body itself, without the token, which has no tangent."""
        if self.op.stateful:
            raise NotImplementedError(
                f"{self.title}: a second derivative runs the body again, which a stateful op does not allow; "
                "pass stateful=False"
            )
        again = Record(Plain(self.body, self.op, self.environment), moving[1:]).linearize(moving[1:])
        return dataclasses.replace(again, skip=1)

    def transposed(self, given: tuple[bool, ...]) -> Plain:
        """The cotangents' call of this tangents' call."""
        return _transposed(Replay(self.body.transposed(given), self.op, self.environment))

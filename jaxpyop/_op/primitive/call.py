"""The Call protocol: one host call of a program, written down member by member.

A call is a parameter of the primitive `python_call`. It says what runs (its body), how a batch of it runs, what its
inputs and results are, and how it is differentiated. The kinds of calls are in `recording` (what keeps and reads
records), `_op/taped.py`, `_op/user_rules` and `_op/calls.py`; each hands the values in which it differs to
`Call.__init__`, and defines `linearize`.

Calls are compared by identity. They define `__call__` so that JAX's caches hold them weakly; JAX would keep any other
parameter for good.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpyop._host import SEQUENTIAL, Batch, Environment, Method
from jaxpyop._op.body import Body
from jaxpyop._op.primitive.records import TOKEN
from jaxpyop._values import Leaf, Struct, as_jax, check_shape


@dataclasses.dataclass(frozen=True, slots=True)
class Operands:
    """How the inputs and results of a call are laid out, besides those of its body.

    Attributes:
        has_receipt: the first input is the receipt of a record.
        has_flag: the next input is the flag of `when=`.
        is_conditional: the flag says whether to run. After a receipt it does not, because the receipt says more.
        linear_inputs: how many inputs, at the end, are tangents or cotangents in which the call is linear, so that it
            is its own derivative there. The batching rule gives these the full size of a batch. The body says how many;
            a call that records a run of a derivative has none.
        extra_results: the results that come after the body's: the receipt of a record.
        writes_out: result buffers are appended to the inputs; the body fills them and returns nothing.
        leading: how many inputs come before those of the body.
    """

    has_receipt: bool = False
    has_flag: bool = False
    linear_inputs: int = 0
    extra_results: tuple[Struct, ...] = ()
    writes_out: bool = False
    leading: int = dataclasses.field(init=False)
    is_conditional: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # Every run asks for these.
        object.__setattr__(self, "leading", self.has_receipt + self.has_flag)
        object.__setattr__(self, "is_conditional", self.has_flag and not self.has_receipt)


class Call:
    """One host call of a program.

    Attributes:
        body: what runs.
        in_worker: what runs in a worker that shares no memory with this process. Its inputs are those that
            `for_worker` gives, and `from_worker` takes its results.
        op: the op that the user asked for.
        environment: what the body sees of the code that traced it.
        func: the user's function or rule that runs, for error texts.
        refusal: makes the error of a call whose rule is missing; None for a call that can run.
        title: the op's name in error texts.
        label: the call's name in a profile.
        on_jax: the body gets jax.Arrays, not NumPy arrays.
        copy: the body gets NumPy arrays of its own, not read-only views.
        stateful: the call runs exactly as often as the program says, even if nobody uses its results.
        ordered: the call runs in the program's order among all ordered calls.
        method: how it runs under `vmap`.
        one_by_one: each element sends something of its own to a worker, so that elements cannot be sent in chunks.
        operands: how its inputs and results are laid out.
        chunk: how many elements may go to a worker together, as far as earlier chunks have shown (`pools.sending`).
    """

    origin: tuple[Call, str, Any] | None = None
    """How a call of a derivative was made: of which call, by which of `STEPS`, with what argument."""

    def __init__(
        self,
        body: Body,
        environment: Environment,
        *,
        label: str = "{}",
        on_jax: bool = True,
        copy: bool = True,
        has_effects: bool = False,
        method: Method | None = None,
        one_by_one: bool = False,
        operands: Operands = Operands(),
    ) -> None:
        # Each kind of call knows of its own body what `Body` does not say.
        self.body: Any = body
        self.in_worker: Any = body
        self.op = op = body.op
        self.environment = environment
        self.func = body.func
        self.refusal = body.refusal
        self.title = op.title
        self.label = label.format(op.name)
        self.on_jax = on_jax
        self.copy = copy
        # Only calls that run the user's function or `fwd` have its effects.
        self.stateful = has_effects and op.stateful
        self.ordered = has_effects and op.ordered
        # A record on the tape belongs to one element, so a call that makes or reads one does not run on whole blocks.
        self.method = method or (SEQUENTIAL if op.vmap_method.whole_batch else op.vmap_method)
        # With `when=`, only the elements that run go to a worker.
        self.one_by_one = one_by_one or operands.is_conditional
        self.operands = operands
        self.chunk = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title})"

    # ------------------------------------------------------------------ how it runs

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """Run once, on one element, or on a block of them.

        Args:
            arrays: NumPy views or jax.Arrays, or NumPy arrays of the body's own if it does not take jax.Arrays.
            lead: the batch axes that the inputs of a block have in front.
        """
        if leading := self.operands.leading:
            if not self.runs(arrays):
                return self.absent_results(arrays, lead)
            arrays = arrays[leading:]
        if self.on_jax:
            arrays = as_jax(arrays)
        return self.body(*arrays, lead=lead) if lead else self.body(*arrays)

    # An op with `when=` is there at every step, and runs at some of them. The flag is an input of the call like the
    # others. So `vmap`, `scan` and the derivatives treat it like any input. We test it in Python, because `vmap` of a
    # `cond` would run both branches. Only where one flag decides for the whole call, the lowering makes a branch of it,
    # so that a program enters Python only where the flag is true.

    def runs(self, arrays: Sequence[Any]) -> bool:
        """Tell whether to run, by the flag of `when=`. All elements of a block have the same flag."""
        return not self.operands.is_conditional or bool(np.asarray(arrays[0]).any())

    def absent_results(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """The results where `when=` is false. A receipt of zeros says that there is no record."""
        receipts = [np.zeros((*lead, *s.shape), s.dtype) for s in self.operands.extra_results]
        return [*self.body.absent_results(arrays[self.operands.leading :], lead), *receipts]

    def without_flag(self) -> Call:
        """The same call without the flag of `when=`: it always runs."""
        found = copy.copy(self)
        found.operands = dataclasses.replace(self.operands, has_flag=False)
        return found

    def for_worker(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Any] | None:
        """The inputs of `in_worker`, for an element, a block or a batch; None if it has to run here."""
        return arrays[self.operands.leading :] if self.runs(arrays) else None

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """This call's results, from those of `in_worker`."""
        self.body.check_results(values, arrays[self.operands.leading :], lead)
        return values

    # ------------------------------------------------------------------ its results

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        """The shapes and dtypes of one element's results, the extra ones included."""
        return [*self.body.shapes(structs[self.operands.leading :]), *self.operands.extra_results]

    def result_structs(self, args: Sequence[Any], batch: Batch) -> list[Struct]:
        """The shapes and dtypes of the results for a whole batch of inputs."""
        found = self.shapes(structs_of(args, batch))
        return [Struct((*batch.sizes, *s.shape), s.dtype) for s in found] if batch.sizes else found

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        """Remember the shapes of the body's results, so that a derivative need not infer them."""
        self.body.note_shapes(structs[self.operands.leading :], results)

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        """The inputs by the name of their group, for errors that come before or after the function runs."""
        name = "inputs of the derivative" if self.body.linear_inputs else "inputs"
        return {name: values[self.operands.leading :]}

    def check_shape(self, k: int, shape: tuple[int, ...], wanted: tuple[int, ...], lead: tuple[int, ...] = ()) -> None:
        """Raise unless result `k` has the shape that it must have, after the batch axes `lead`."""
        source = self.body.shape_source
        said = f"assumed, {source}" if source else "declared"
        check_shape(shape, Leaf(TOKEN, wanted), lead, said, self.op.origin_of_array(k), self.title)

    # --------------------------------------------------------------- its derivative

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        """Make the calls that make up the derivative in the inputs that `perturbed` marks.

        The derivative of a user's call begins in `UserCall.linearize`.
        """
        raise NotImplementedError

    def program(self, args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]] | None:
        """A JAX function that gives the results for a batch, and can be differentiated where this call cannot.

        Args:
            args: the inputs of the batch, or their types.
            batch: the batch.
        """
        return None

    is_own_derivative = True
    """Whether the call, which is linear in the `linear_inputs` of its operands, is its own derivative in these."""

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        """Transpose this call in its last inputs, the body's `linear_inputs`.

        The transpose takes the other inputs, and then the cotangents of the results that `nonzero_cotangents` marks.
        Calls of derivatives have one: that of a `py_function` is `TapeReplay.transposed`.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, slots=True)
class Linearization:
    """How a call is differentiated.

    Attributes:
        forward: the call that runs instead of it. The call's results come first.
        linear: the call from residuals and tangents to the results' tangents. The residuals are the extra results of
            `forward`, the inputs, and the results.
        with_results: whether the results are among the residuals.
        skip: how many leading inputs of the call are left out of the inputs of `forward` and `linear`. If `forward` is
            the call itself, it takes them nevertheless.
    """

    forward: Call
    linear: Call
    with_results: bool = False
    skip: int = 0


def structs_of(args: Sequence[Any], batch: Batch) -> list[Struct]:
    """The shapes and dtypes of one element's inputs."""
    return [Struct(batch.element_shape(i, a.shape), a.dtype) for i, a in enumerate(args)]


def masks_and_added_axes(
    args: Sequence[Any], sizes: tuple[int, ...]
) -> tuple[tuple[tuple[bool, ...], ...], list[tuple[int, ...]]]:
    """Find which inputs of a block have each batch axis, and for each input the axes of size 1 that it got."""
    masks = tuple(tuple(a.shape[axis] == size != 1 for a in args) for axis, size in enumerate(sizes))
    return masks, [tuple(axis for axis, mask in enumerate(masks) if not mask[k]) for k in range(len(args))]


# ---------------------------------------------------------------------- origins
#
# A saved program stores a call of a derivative as the steps that made it from the user's call.


def made_by(step: str, call: Call, argument: Any, made: Call) -> Call:
    """Note how a call of a derivative was made, and return it."""
    # A call may be a part of its own derivative. Then it keeps its first origin.
    if made is not call:
        made.origin = call, step, argument
        if step == "transposed":
            made.label = f"transpose({made.label})"
    return made


STEPS: dict[str, Callable[[Call, Any], Call]] = {
    "forward": lambda call, perturbed: call.linearize(perturbed).forward,
    "linear": lambda call, perturbed: call.linearize(perturbed).linear,
    "transposed": lambda call, nonzero: call.transposed(nonzero),
}


def derived(call: Call, step: str, argument: Any) -> Call:
    """Make a call of a derivative again by a step that a file names."""
    if step not in STEPS:
        raise ValueError(f"there is no step {step!r} from a call to a part of its derivative")
    return made_by(step, call, argument, STEPS[step](call, argument))

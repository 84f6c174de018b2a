"""What every call has: how a body is run, batched, sent to a worker and checked.

`calls` and `derivatives` have the kinds of calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jaxpyop._host import Environment
from jaxpyop._op.body import Struct, UserBody, WhenUser
from jaxpyop._op.primitive.records import TOKEN
from jaxpyop._op.request import Op
from jaxpyop._op.values import Leaf, as_jax, check_shape


class Call:
    """Runs a body that is not the user's own."""

    on_jax = True
    copy = True
    writes_out = False  # takes the arrays of its results behind its inputs, and then returns none
    stateful = False
    ordered = False
    extra_results = 0  # results after the body's own
    leading_inputs = 0  # inputs before those that the user gave
    conditional = False  # the first input says whether to run at all
    linear = 0  # inputs, at the end, that the results are linear in
    blocks = False  # whether its derivative is taken of a whole batch
    is_linear = False  # whether the results are linear in all floating inputs
    missing: Callable[[], Exception] | None = None  # of a call that cannot run: what to raise
    one_by_one = False  # each element has something of its own to send to a worker
    seconds_per_element: float | None = None  # seconds that an element took in another worker, where that is known
    order = "{}"  # of the derivative, as the profiler shows it
    takes_records = False  # Whether the first input may be a `Handed` record in place of its token.

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
        return self.body(*as_jax(arrays))

    def handing_over(self) -> Call | None:
        """The same call with a `Handed` record as its last result, if it makes one."""
        return None

    @property
    def differentiable(self) -> bool:
        """Whether any result has a tangent."""
        return True

    def learn(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        """Take note of the results' shapes, so that a derivative need not infer them."""
        if isinstance(self.body, (UserBody, WhenUser)):
            self.body.learn(structs, results)

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        """The inputs of the body in another process, of one element or of a batch; None to run here after all."""
        return arrays

    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """This call's results from the body's in another process."""
        if isinstance(self.body, (UserBody, WhenUser)):
            self.body.check_shapes(values, self.body.promised(arrays, lead), lead)
        return values

    def check(self, index: int, shape: tuple[int, ...], expected: tuple[int, ...], lead: tuple[int, ...] = ()) -> None:
        """Raise about a result of the wrong shape."""
        how = getattr(self.body, "how", "")
        said = f"assumed, {how}" if how else "declared"
        check_shape(shape, Leaf(TOKEN, expected), lead, said, self.op.origin_of_array(index), self.title)


def transposed(call: Call) -> Call:
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

    forward: Call
    linear: Call
    with_results: bool = False
    skip: int = 0

"""The Body protocol: what a call runs on the host, written down member by member.

A body is a function from a flat list of arrays to a flat list of arrays. The derivatives of a body are bodies too,
over its inputs and their tangents, or over its inputs and its results' cotangents. So derivatives of every order are
built from the same pieces. Bodies are compared by identity, because each belongs to one place in a program.

A new kind of body derives from `Body`, or from `DerivedBody` if it is made of another one. It has to define `op`,
`shapes` and `__call__`; everything else has a default.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpyop._op.request import Op
from jaxpyop._op.values import Struct


def element_structs(arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Struct]:
    """The shapes and dtypes of one element of arrays that have the batch axes `lead` in front."""
    return [Struct(a.shape[len(lead) :], a.dtype) for a in arrays]


class Body(abc.ABC):
    """What a call runs on the host."""

    goes_to_executor = True
    """Whether `executor=` runs the body as a whole. A body that itself sends work there says False."""

    linear_inputs = 0
    """How many inputs, at the end, the results are linear in: the tangents or cotangents of a derivative."""

    @property
    @abc.abstractmethod
    def op(self) -> Op:
        """The op that this body belongs to. A derivative belongs to the op of its base."""

    @property
    def title(self) -> str:
        """The op's name in errors, and in the warnings of the tape."""
        return self.op.title

    @property
    def func(self) -> Any:
        """The user's function that this body calls: the op's, or one of its rules."""
        return self.op.func

    @property
    def shape_source(self) -> str:
        """Where the results' shapes come from if they were not declared, for errors about shapes."""
        return ""

    @property
    def refusal(self) -> Callable[[], Exception] | None:
        """Makes the error of a body whose rule is missing; None for a body that can run."""
        return None

    @abc.abstractmethod
    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        """The shapes and dtypes of the results for inputs of the shapes and dtypes `structs`, without a batch."""

    @abc.abstractmethod
    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        """Run once, on one element, or on a block of them.

        Args:
            *arrays: the inputs.
            lead: the batch axes that the inputs of a block have in front. The results have them too.
        """

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Body:
        """The body of the transposed linear map. Only tangent bodies implement it.

        Args:
            nonzero_cotangents: which of this body's results have a cotangent that is not zero.
        """
        raise NotImplementedError(
            f"{self.title}: jax.linear_transpose only works for functions declared linear with transpose=; use jax.vjp"
        )

    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
        """The inputs by the name of their group, for errors. A receipt and the flag of `when=` are in no group."""
        return {"inputs": values}

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        """The results, computed from a tape's record of the base's run; only derivatives on the tape have this."""
        raise NotImplementedError(type(self).__name__)

    def absent_results(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """What stands for the results where the body does not run: zeros, unless the user gave other values."""
        return [np.zeros((*lead, *s.shape), s.dtype) for s in self.shapes(element_structs(arrays, lead))]

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """What `on_error=` puts in the place of the results; only bodies that call the user's code have this."""
        raise NotImplementedError(type(self).__name__)

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:  # noqa: B027  # a default
        """Remember the shapes of results that came back, so that a derivative need not infer them."""

    def check_results(  # noqa: B027  # a default
        self, values: Sequence[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()
    ) -> None:
        """Raise unless results from a worker have the shapes that were promised for the inputs `arrays`."""


class DerivedBody(Body):
    """A body that is made of another one, and belongs to the same op."""

    def __init__(self, base: Any) -> None:
        self.base = base

    @property
    def op(self) -> Op:
        return self.base.op

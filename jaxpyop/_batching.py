"""One host call for a whole batch: how its elements reach the body.

A batch has one size per `vmap` around the call, outermost first, and a mask
per size that says which inputs have that axis. Looping methods take the
elements in batch order; block methods hand the batch over as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

METHODS = ("sequential", "expand_dims", "broadcast_all")
BLOCK_METHODS = ("expand_dims", "broadcast_all")


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The `vmap`s around a call, outermost first.

    Attributes:
        sizes: the length of each axis.
        masks: per axis, which inputs have it.
        block: hand the whole batch to one call of the body; every input then
            has every axis, of its size or of size 1.
    """

    sizes: tuple[int, ...] = ()
    masks: tuple[tuple[bool, ...], ...] = ()
    block: bool = False

    def inside(self, size: int, mask: tuple[bool, ...], block: bool) -> Batch:
        """This batch inside one more `vmap`."""
        return Batch((size, *self.sizes), (mask, *self.masks), block)

    def axes_of(self, i: int) -> int:
        """How many leading axes of input `i` are batch axes."""
        return sum(mask[i] for mask in self.masks)

    def element_shape(self, i: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that one element's input `i` has."""
        return shape[self.axes_of(i) :]

    def with_inputs(self, choose: Callable[[tuple[bool, ...]], tuple[bool, ...]]) -> Batch:
        """The same batch over other inputs."""
        return Batch(self.sizes, tuple(choose(mask) for mask in self.masks), self.block)


NO_BATCH = Batch()


def elements(arrays: Sequence[Any], batch: Batch, private: bool) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
    """Each element's index and inputs, in batch order; slices stay arrays.

    Args:
        arrays: the inputs with their batch axes in front.
        batch: a looping batch.
        private: copy the inputs that elements share, so that a body may write
            into its own.
    """
    shared = [not all(mask[i] for mask in batch.masks) for i in range(len(arrays))]
    for index in np.ndindex(*batch.sizes):
        chosen = []
        for i, array in enumerate(arrays):
            at = tuple(k for k, mask in zip(index, batch.masks) if mask[i])
            part = array[(*at, ...)]
            chosen.append(part.copy() if private and shared[i] else part)
        yield index, chosen


def note_index(error: BaseException, index: tuple[int, ...]) -> None:
    """Say in the error at which element of the batch it happened."""
    error.add_note(f"at batch index {index[0] if len(index) == 1 else index}")

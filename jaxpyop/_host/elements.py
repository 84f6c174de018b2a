"""A batch of elements, and the inputs that each of them has.

A batch has one size per `vmap` around the call, outermost first, and one mask per size, which says which inputs have
that axis. Elements are numbered in batch order: the last axis varies fastest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The `vmap`s around a call, outermost first.

    Attributes:
        sizes: the length of each axis.
        masks: per axis, which inputs have it.
        block: hand the whole batch to one call of the body. Every input then has every axis, with its size or size 1.
        index_name: what errors call an element's number.
    """

    sizes: tuple[int, ...] = ()
    masks: tuple[tuple[bool, ...], ...] = ()
    block: bool = False
    index_name: str = "batch index"

    @property
    def count(self) -> int:
        """How many elements there are."""
        return math.prod(self.sizes)

    def inside(self, size: int, mask: tuple[bool, ...], block: bool) -> Batch:
        """This batch inside one more `vmap`."""
        return Batch((size, *self.sizes), (mask, *self.masks), block)

    def element_shape(self, i: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of input `i` for one element, if `shape` is its shape for the whole batch."""
        return shape[sum(mask[i] for mask in self.masks) :]

    def with_inputs(self, choose: Callable[[tuple[bool, ...]], tuple[bool, ...]]) -> Batch:
        """The same batch over other inputs."""
        return dataclasses.replace(self, masks=tuple(choose(mask) for mask in self.masks))


NO_BATCH = Batch()


class BatchedInput:
    """One input of all elements of a looping batch.

    Args:
        array: the input with its batch axes in front.
        i: the input's number.
        batch: the batch.
    """

    def __init__(self, array: Any, i: int, batch: Batch) -> None:
        self.array = array
        self._sizes = batch.sizes
        self._mask = [mask[i] for mask in batch.masks]
        # With all batch axes, elements are rows. Otherwise several elements share memory.
        self._rows = array.reshape(batch.count, *array.shape[len(batch.sizes) :]) if all(self._mask) else None
        self.is_shared_by_all = not any(self._mask)

    def each(self) -> Iterator[Any]:
        """The input of each element, in batch order."""
        if (rows := self._rows) is not None:
            # An index with an ellipsis makes arrays of scalars too.
            return (rows[k, ...] for k in range(len(rows)))
        at = np.ndindex(*self._sizes)
        return (self.array[(*(k for k, has in zip(index, self._mask) if has), ...)] for index in at)

    def one(self, number: int) -> Any:
        """The input of one element."""
        return self.array if self.is_shared_by_all else self.rows(number, number + 1)[0, ...]

    def rows(self, start: int, stop: int) -> Any:
        """The inputs of some elements, stacked."""
        if self._rows is not None:
            return self._rows[start:stop]
        index = np.unravel_index(np.arange(start, stop), self._sizes)
        return self.array[tuple(k for k, has in zip(index, self._mask) if has)]


def elements(arrays: Sequence[Any], batch: Batch) -> Iterator[tuple[Any, ...]]:
    """The inputs of each element of a looping batch, in batch order.

    Args:
        arrays: the inputs with their batch axes in front.
        batch: the batch.
    """
    return zip(*(BatchedInput(array, i, batch).each() for i, array in enumerate(arrays)))

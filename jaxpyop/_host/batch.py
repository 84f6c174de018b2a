"""A batch of elements, and the inputs that each of them has.

A batch has one size per `vmap` around the call, outermost first, and a mask
per size that says which inputs have that axis. Elements are numbered in batch
order, the last axis fastest.
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
        block: hand the whole batch to one call of the body; every input then
            has every axis, of its size or of size 1.
        of: what errors call an element's number.
    """

    sizes: tuple[int, ...] = ()
    masks: tuple[tuple[bool, ...], ...] = ()
    block: bool = False
    of: str = "batch index"

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.sizes)

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


class Column:
    """One input of all elements; slices of arrays stay arrays.

    Args:
        array: with its batch axes in front.
        i: which input it is.
        batch: a looping batch.
    """

    def __init__(self, array: Any, i: int, batch: Batch) -> None:
        self.array = array
        self._sizes = batch.sizes
        self._mask = [mask[i] for mask in batch.masks]
        self._own = array.reshape(batch.count, *array.shape[len(batch.sizes) :]) if all(self._mask) else None
        self.shared = not any(self._mask)  # one value for all elements
        self.repeats = self._own is None  # several elements may have the same memory

    def each(self) -> Iterator[Any]:
        """The elements' values, in batch order."""
        if self._own is not None:
            own = self._own
            return (own[k, ...] for k in range(len(own)))
        at = np.ndindex(*self._sizes)
        return (self.array[(*(k for k, has in zip(index, self._mask) if has), ...)] for index in at)

    def one(self, number: int) -> Any:
        """The value of one element."""
        return self.array if self.shared else self.rows(number, number + 1)[0, ...]

    def rows(self, start: int, stop: int) -> Any:
        """The values of some elements, stacked."""
        if self._own is not None:
            return self._own[start:stop]
        index = np.unravel_index(np.arange(start, stop), self._sizes)
        return self.array[tuple(k for k, has in zip(index, self._mask) if has)]


def elements(arrays: Sequence[Any], batch: Batch) -> Iterator[tuple[Any, ...]]:
    """Each element's inputs, in batch order.

    Args:
        arrays: the inputs with their batch axes in front.
        batch: a looping batch.
    """
    return zip(*(Column(array, i, batch).each() for i, array in enumerate(arrays)))

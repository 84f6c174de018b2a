"""One host call for a whole batch: how its elements reach the body.

A batch has one size per `vmap` around the call, outermost first, and a mask
per size that says which inputs have that axis. Looping methods take the
elements in batch order; block methods hand the batch over as it is.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from jaxpyop import _errors, _executors, _progress

VmapMethod: TypeAlias = Literal["sequential", "expand_dims", "broadcast_all", "parallel"]
METHODS: tuple[str, ...] = get_args(VmapMethod)
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


_Numbered = Generator[tuple[int, list[Any]]]  # elements by number, the last axis fastest


def elements(arrays: Sequence[Any], batch: Batch, private: bool) -> Iterator[tuple[Any, ...]]:
    """Each element's inputs, in batch order; slices of arrays stay arrays.

    Args:
        arrays: the inputs with their batch axes in front.
        batch: a looping batch.
        private: copy the inputs that elements share, so that a body may write
            into its own.
    """
    return zip(*(_rows(array, i, batch, private) for i, array in enumerate(arrays)))


def _rows(array: Any, i: int, batch: Batch, private: bool) -> Iterator[Any]:
    count = math.prod(batch.sizes)
    if all(mask[i] for mask in batch.masks):
        flat = array.reshape(count, *array.shape[len(batch.sizes) :])
        return (flat[k, ...] for k in range(count))
    places = [size if mask[i] else 1 for size, mask in zip(batch.sizes, batch.masks)]
    shape = array.shape[batch.axes_of(i) :]
    shared = np.broadcast_to(array.reshape(*places, *shape), (*batch.sizes, *shape))
    at = (shared[(*index, ...)] for index in np.ndindex(*batch.sizes))
    return (row.copy() for row in at) if private else at


def run_elements(call: Any, arrays: Sequence[Any], batch: Batch) -> _Numbered:
    """Run a call on each element of a looping batch.

    Args:
        call: what to run; see `_calls`.
        arrays: the inputs with their batch axes in front.
        batch: a looping batch.

    Yields:
        Each element's number and results; in batch order unless in parallel.

    Raises:
        BaseException: what the first failing element raised, with a note of its
            index; nothing runs any more by then.
    """
    each = elements(arrays, batch, private=call.copy and not call.on_jax)
    run = _parallel if call.vmap_method == "parallel" else _sequential
    results = run(call, each, batch)
    return _progress.shown(results, math.prod(batch.sizes), call.title) if call.op.progress else results


def _sequential(call: Any, each: Iterator[Any], batch: Batch) -> _Numbered:
    number = 0
    try:
        for number, chosen in enumerate(each):
            yield number, call(chosen)
    except BaseException as error:
        _note_index(error, number, batch)
        raise


def _parallel(call: Any, each: Iterator[Any], batch: Batch) -> _Numbered:
    executor = _executors.resolve(call.op.executor, call.title)
    if _executors.is_busy_here(executor):
        yield from _sequential(call, each, batch)
        return
    local = _executors.is_local(executor)
    started: dict[concurrent.futures.Future[Any], tuple[int, Any]] = {}
    try:
        for number, chosen in enumerate(each):
            with _explaining(call, number, batch, local):
                started[_executors.submit(executor, call, chosen)] = number, chosen
        for future in _executors.completed(started, local):
            number, chosen = started[future]
            with _explaining(call, number, batch, local):
                values = _executors.result_of(future, executor, call, chosen)
            yield number, values
    finally:
        # The inputs are gone when the call is: let nothing run that still reads
        # them. What was cancelled never runs (and Dask's never counts as done).
        concurrent.futures.wait([future for future in started if not future.cancel()])


@contextlib.contextmanager
def _explaining(call: Any, number: int, batch: Batch, local: bool) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        explained = error if local else _executors.explained(error, call.title)
        _note_index(explained, number, batch)
        if explained is error:
            raise
        raise explained from error


def _note_index(error: BaseException, number: int, batch: Batch) -> None:
    if isinstance(error, GeneratorExit):
        return  # the reader of the results failed, not an element
    index = tuple(int(k) for k in np.unravel_index(number, batch.sizes))
    _errors.add_note(error, f"at batch index {index[0] if len(index) == 1 else index}")

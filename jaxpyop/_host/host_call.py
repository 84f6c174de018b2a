"""`HostCall`, `Method`, `Batch` and `Environment`: what the host asks of a call, and how it runs.

To add a `vmap_method`, add it here. The batching rule of the primitive and the host read these facts. They never ask
for a method by its name.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import jax
import numpy as np

from jaxpyop import _jaxcore, _settings, _sharding

VmapMethod: TypeAlias = Literal["sequential", "expand_dims", "broadcast_all", "parallel"]


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """What a `vmap_method` means.

    Attributes:
        name: the value that users pass.
        whole_batch: the function is called once, with the batch axes in front of its inputs.
        broadcasts: the inputs of a whole batch have its full size. Otherwise, an input without a batch axis has size 1
            there.
        at_once: several elements run at the same time.
    """

    name: VmapMethod
    whole_batch: bool = False
    broadcasts: bool = False
    at_once: bool = False


SEQUENTIAL = Method("sequential")
VMAP_METHODS: dict[VmapMethod, Method] = {
    method.name: method
    for method in (
        SEQUENTIAL,
        Method("expand_dims", whole_batch=True),
        Method("broadcast_all", whole_batch=True, broadcasts=True),
        Method("parallel", at_once=True),
    )
}

# ----------------------------------------------------------------------------- a batch of elements

# A batch has one size per `vmap` around the call, outermost first, and one mask per size, which says which inputs have
# that axis. Elements are numbered in batch order: the last axis varies fastest.


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
        mask = [mask[i] for mask in batch.masks]
        own = [size if has else 1 for size, has in zip(batch.sizes, mask)]
        self._rows = array.reshape(math.prod(own), *array.shape[sum(mask) :])
        # Elements that differ only along axes which the input does not have share a row.
        rows = np.arange(math.prod(own)).reshape(own)
        self._row_of: Any = range(batch.count) if all(mask) else np.broadcast_to(rows, batch.sizes).ravel()
        self.is_shared_by_all = not any(mask)
        self._is_full = all(mask)

    def each(self) -> Iterator[Any]:
        """The input of each element, in batch order."""
        # An index with an ellipsis makes arrays of scalars too.
        return (self._rows[k, ...] for k in self._row_of)

    def one(self, number: int) -> Any:
        """The input of one element."""
        return self._rows[self._row_of[number], ...]

    def rows(self, at: slice) -> Any:
        """The inputs of some elements, stacked."""
        return self._rows[at if self._is_full else self._row_of[at]]


def elements(arrays: Sequence[Any], batch: Batch) -> Iterator[tuple[Any, ...]]:
    """The inputs of each element of a looping batch, in batch order.

    Args:
        arrays: the inputs with their batch axes in front.
        batch: the batch.
    """
    return zip(*(BatchedInput(array, i, batch).each() for i, array in enumerate(arrays)))


# ----------------------------------------------------------------------------- what the host asks of a call

# The classes are in `_op`, above this package, which says what each member means.


class HostOp(Protocol):
    """The op of a call: `_op.request.Op`."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def executor(self) -> Any: ...
    @property
    def chunksize(self) -> int | None: ...
    @property
    def retries(self) -> int: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def failures(self) -> Any: ...


class HostBody(Protocol):
    """What runs: `_op.body.Body`."""

    @property
    def op(self) -> HostOp: ...
    @property
    def goes_to_executor(self) -> bool: ...
    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]: ...
    def after_failure(self, error: Exception, arrays: Sequence[Any]) -> list[Any]: ...


class HostOperands(Protocol):
    """How the inputs of a call are laid out: `_op.primitive.Operands`."""

    @property
    def writes_out(self) -> bool: ...


class HostCall(Protocol):
    """A call of a program: `_op.primitive.Call`."""

    chunk: int

    @property
    def op(self) -> HostOp: ...
    @property
    def body(self) -> HostBody: ...
    @property
    def in_worker(self) -> HostBody: ...
    @property
    def operands(self) -> HostOperands: ...
    @property
    def environment(self) -> Environment: ...
    @property
    def method(self) -> Method: ...
    @property
    def one_by_one(self) -> bool: ...
    @property
    def func(self) -> Any: ...
    @property
    def title(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def on_jax(self) -> bool: ...
    @property
    def copy(self) -> bool: ...
    @property
    def stateful(self) -> bool: ...
    @property
    def ordered(self) -> bool: ...
    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]: ...
    def for_worker(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Any] | None: ...
    def from_worker(self, values: list[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]: ...
    def groups(self, values: Sequence[Any]) -> dict[str, Sequence[Any]]: ...
    def check_shape(self, k: int, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None: ...


# ------------------------------------------------- what a body sees of the code that called the op

# By these variables ipykernel 7 knows which notebook cell gets an output or answers `input()`. A program outlives the
# cell that traced it. Without them ipykernel takes the cell that runs.
_CELL_VARIABLES = frozenset({"parent_header", "shell_parent", "shell_parent_ident"})


def _without_cell(context: contextvars.Context) -> contextvars.Context:
    if all(variable.name not in _CELL_VARIABLES for variable in context):
        return context
    kept = contextvars.Context()
    for variable, value in context.items():
        if variable.name not in _CELL_VARIABLES:
            kept.run(variable.set, value)
    return kept


# Python's threads by their identifiers.
_threads: dict[int, threading.Thread] = vars(threading)["_active"]


def python_thread() -> threading.Thread | None:
    """The thread that this code runs on; None for a thread that Python does not know, such as one of XLA's.

    Unlike threading.current_thread(), it does not register such a thread with Python.
    """
    return _threads.get(threading.get_ident())


def _runs_on_cpu() -> bool:
    # Every call in a compiled program asks, and JAX takes a microsecond to answer the second question.
    return _jaxcore.is_one_cpu() or jax.default_backend() == "cpu"


class Environment:
    """What a body sees of the code that called the op: its context variables, and JAX's settings of its thread."""

    __slots__ = ("context", "settings")

    def __init__(self) -> None:
        self.context = _without_cell(contextvars.copy_context())
        self.settings = _settings.thread_settings()

    def is_current(self) -> bool:
        """Tell whether a body may be called here and now, without `entered`."""
        return _settings.thread_settings() == self.settings and _jaxcore.at_top_level() and _runs_on_cpu()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make a block run as the caller's code does: evaluated, without axis names, with its settings, on the CPU."""
        with contextlib.ExitStack() as stack:
            # A program can run while another one is traced.
            if not _jaxcore.is_eager():
                stack.enter_context(_jaxcore.eval_context())
            stack.enter_context(_jaxcore.without_axes())
            stack.enter_context(_settings.with_thread_settings(self.settings))
            # A body's own JAX operations stay on the CPU, where the body runs.
            if not _runs_on_cpu():
                stack.enter_context(jax.default_device(_sharding.cpu_device()))
            yield

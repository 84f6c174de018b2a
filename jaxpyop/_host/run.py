"""One host call, for one element or a whole batch: where and how the function runs.

Looping methods take the elements in batch order; block methods hand the batch
over as it is. Either way `executor=` says where.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from jaxpyop._host.batch import Batch, elements
from jaxpyop._host.environment import Environment
from jaxpyop._host.errors import note_index
from jaxpyop._host.pools import (
    Elsewhere,
    Executor,
    Store,
    default_executor,
    executor_of,
    is_local,
    is_worker,
    run_apart,
    run_on_threads,
    run_once_elsewhere,
)

VmapMethod: TypeAlias = Literal["sequential", "expand_dims", "broadcast_all", "parallel"]
METHODS: tuple[str, ...] = get_args(VmapMethod)
BLOCK_METHODS = ("expand_dims", "broadcast_all")


def runs_here(op: Any) -> bool:
    """Whether an op's function runs in this process, on whatever thread."""
    executor = executor_of(op)
    return executor is None or is_local(executor) or is_worker(executor)


def run_once(call: Any, arrays: Sequence[Any], lead: tuple[int, ...], store: Callable[[Sequence[Any]], None]) -> None:
    """Run a call on one element, or on a whole block, where `executor=` says.

    Args:
        call: what to run; see `_op.calls`.
        arrays: the inputs.
        lead: the batch axes that they have in front.
        store: takes the results, on the thread that has them.
    """
    executor = executor_of(call.op) if call.body.goes_to_executor else None
    if executor is None or is_worker(executor):
        store(call(arrays, lead))
    elif is_local(executor):
        run_on_threads(
            executor, iter([(0, arrays)]), lambda _, a: store(call(a, lead)), call.environment, call.title, 1, 1, None
        )
    elif (given := call.for_worker(arrays)) is None:
        store(call(arrays, lead))  # a record of this process
    else:
        store(run_once_elsewhere(executor, call, given, lead))


def run_there(op: Any, func: Callable[[], Any]) -> Any:
    """Call a function on the threads of an op's executor; here, if its workers are no threads.

    Args:
        op: with `executor` and `title`.
        func: what to call.
    """
    executor = executor_of(op)
    if executor is None or is_worker(executor) or not is_local(executor):
        return func()
    found: list[Any] = []
    run_on_threads(executor, iter([(0, None)]), lambda *_: found.append(func()), Environment(), op.title, 1, 1, None)
    return found[0]


def run_each(call: Any, each: Iterator[Sequence[Any]], count: int, of: str) -> list[tuple[int, list[Any]]]:
    """Run a call on `count` lists of inputs, as `run_elements` does.

    Args:
        call: what to run.
        each: the inputs, which nobody else has.
        count: how many lists of them there are.
        of: what errors call one.

    Returns:
        The number and the results of each, in any order.
    """
    found: list[tuple[int, list[Any]]] = []

    def store(at: int | slice, values: Sequence[Any]) -> None:
        if isinstance(at, slice):
            found.extend((at.start + k, [v[k, ...] for v in values]) for k in range(at.stop - at.start))
        else:
            found.append((at, [np.array(v) for v in values]))

    executor = executor_of(call.op)
    if executor is None or is_local(executor) or is_worker(executor):
        run_elements(call, [], Batch((count,), of=of), store, each)
    else:
        arrays = [np.stack([np.asarray(v) for v in column]) for column in zip(*each)]
        run_elements(call, arrays, Batch((count,), ((True,) * len(arrays),), of=of), store)
    return found


def run_elements(
    call: Any, arrays: Sequence[Any], batch: Batch, store: Store, each: Iterator[Sequence[Any]] | None = None
) -> None:
    """Run a call on each element of a looping batch, where `executor=` says.

    Args:
        call: what to run; see `_op.calls`.
        arrays: the inputs with their batch axes in front.
        batch: a looping batch.
        store: takes an element's number and its results, or a slice and those of several, stacked; on any thread.
        each: the inputs of the elements, instead of `arrays`.

    Raises:
        BaseException: what the first failing element raised, with a note of its
            index; nothing runs any more by then.
    """
    if not batch.count:
        return
    at_once = call.batching.method == "parallel" and not call.effects.ordered
    executor = default_executor() if call.op.executor is None and at_once else executor_of(call.op)
    if executor is not None and call.op.executor is not None and not call.body.goes_to_executor:
        executor = None
    run = _Elements(call, arrays, batch, store, each)
    with contextlib.ExitStack() as stack:
        if call.op.progress:
            run.count_for(stack.enter_context(bar(batch.count, call.title)))
        run.on(executor, at_once)
        run.tick()


class _Elements:
    """The elements of a batch, and what becomes of them."""

    def __init__(
        self, call: Any, arrays: Sequence[Any], batch: Batch, store: Store, each: Iterator[Sequence[Any]] | None
    ) -> None:
        self._inputs = each
        self._call = call
        self._arrays = arrays
        self._batch = batch
        self._store = store
        self._show: Callable[[int], Any] | None = None
        self._done: list[int] = []
        repeating = [not all(mask[i] for mask in batch.masks) for i in range(len(arrays))]
        self._repeating = repeating if any(repeating) and call.copy and not call.on_jax else None

    def count_for(self, show: Callable[[int], Any]) -> None:
        """Have `show` called with how many elements are done."""
        self._show, store, done = show, self._store, self._done

        def counting(at: int | slice, values: Sequence[Any]) -> None:
            store(at, values)
            done.append(at.stop - at.start if isinstance(at, slice) else 1)

        self._store = counting

    def tick(self) -> None:
        """Show how many are done."""
        if self._show is not None:
            self._show(sum(self._done))

    def on(self, executor: Executor | None, at_once: bool) -> None:
        """Run all of them."""
        call, tick = self._call, self.tick if self._show else None
        if executor is None or is_worker(executor):
            self._here()
        elif is_local(executor):
            threads = sys.maxsize if at_once else 1
            step = call.op.chunksize or 1
            threads = min(threads, -(-self._batch.count // step))
            run_on_threads(executor, self._each(), self._one, call.environment, call.title, threads, step, tick)
        elif call.batching.one_by_one:
            run_apart(executor, call, self._each(), self._batch, self._store, at_once)
        elif (given := call.for_worker(self._arrays)) is None:
            self._here()  # from records of this process
        else:
            dropped = len(self._arrays) - len(given)
            batch = self._batch.with_inputs(lambda mask: mask[dropped:])
            Elsewhere(executor, call, given, batch, self._store, at_once).run(tick)

    def _each(self) -> Iterator[tuple[int, Any]]:
        return enumerate(elements(self._arrays, self._batch) if self._inputs is None else self._inputs)

    def _private(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs, of which a body may write into its own; copied here and now, where it runs."""
        repeating = self._repeating
        return [a.copy() if again else a for a, again in zip(inputs, repeating)] if repeating else inputs

    def _one(self, number: int, inputs: Sequence[Any]) -> None:
        try:
            self._store(number, self._call(self._private(inputs)))
        except BaseException as error:
            note_index(error, number, self._batch)
            raise

    def _here(self) -> None:
        call, store, private, show, number = self._call, self._store, self._private, self._show, 0
        try:
            for number, inputs in self._each():
                store(number, call(private(inputs)))
                if show is not None:
                    show(number + 1)
        except BaseException as error:
            note_index(error, number, self._batch)
            raise


def check_progress(title: str) -> None:
    """Raise unless tqdm can be imported."""
    if importlib.util.find_spec("tqdm") is None:
        raise ImportError(f'{title}: progress=True needs tqdm; pip install "jaxpyop[progress]"')


@contextlib.contextmanager
def bar(total: int, title: str) -> Iterator[Callable[[int], Any]]:
    """A bar in the terminal or notebook; what it gives is called with how many are done by now."""
    from tqdm.auto import tqdm  # an import here keeps the package free of it

    with tqdm(total=total, desc=title) as shown:
        yield lambda done: shown.update(done - shown.n)

"""What `executor=` takes, and the executor on which an op runs. What differs between engines is in `engines`.

Without `executor=` a function runs where it is called, and the elements of a parallel batch run on threads of our own.
With it, the function runs on that executor and nowhere else. The second half is about calls inside bodies.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import itertools
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence

# At exit this import would fail.
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host.host_call import Method, python_thread
from jaxpyop._host.memory import COUNTS_ARE_EXACT, FREE
from jaxpyop._refusal import refusal

Executor = concurrent.futures.Executor


class _Client(Protocol):
    """A client of Dask's."""

    def submit(self, func: Any, /, *args: Any, **kwargs: Any) -> Any: ...


# What `executor=` takes. The module is Ray.
_One: TypeAlias = Executor | _Client | types.ModuleType | Callable[[], Any]
Pool: TypeAlias = _One | Sequence[_One]


def is_ray(executor: Any) -> bool:
    """Tell whether this is the module `ray`."""
    return isinstance(executor, types.ModuleType) and hasattr(executor, "ObjectRef")


def dask_client_of(executor: Any) -> Any:
    """The client of Dask's that this is, or that is behind this executor; None if there is none."""
    client = getattr(executor, "_client", executor)
    return client if hasattr(client, "nthreads") else None


UNENDABLE = (
    "timeout= needs workers that can be ended, and retries= workers that tell what they ran; give a pool of processes, "
    "or use loky, Dask or Ray"
)

# The threads of our own, for `vmap_method="parallel"` without an executor. The first element starts the first of them.
OWN_THREADS = ThreadPoolExecutor(min(32, (os.cpu_count() or 1) + 4), thread_name_prefix="jaxpyop")


def check_executor(executor: Any, title: str, name: str = "executor") -> None:
    """Check the argument `executor=` of an op, which is not None.

    Raises:
        TypeError: it is neither an executor, nor a function that may return one.
    """
    if isinstance(executor, (list, tuple)) and executor:
        for one in executor:
            check_executor(one, title, name)
    elif not (hasattr(executor, "submit") or callable(executor) or is_ray(executor)) or executor is Workers:
        raise TypeError(
            f"{title}: {name} is {executor!r}; expected a concurrent.futures.Executor, a function that returns one, "
            "or a list of these, one for each element in turn"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Workers:
    """A pool for ``executor=``, with how elements of a batch are sent to its workers.

    TensorFlow runs ``tf.numpy_function`` in its own process only, and has nothing like it.

    Args:
        pool: any value that ``executor=`` takes.
        chunksize: how many elements are sent to a worker process at a time. The default is as
            many as take about a tenth of a second, and have 4 MB of inputs at most. With
            ``timeout=``, ``when=`` and a pair ``vjp=(fwd, bwd)`` it is one. Threads take one at
            a time.
        retries: how often an element is sent again that ran when its worker died. What else
            was lost with the worker is always sent again. Errors that the function raises are
            not repeated. The op must be stateless.
        timeout: the seconds that the function may take for an element, in a worker process.
            After that, a ``TimeoutError`` is raised in it. If it goes on, its worker process
            is ended, and on Dask this happens at once. The op must be stateless.

    Raises:
        TypeError: `pool` is no executor, and no function that may return one.
        ValueError: another argument is out of range.

    Example:
        >>> import concurrent.futures, jax, jax.numpy as jnp, numpy as np, jaxpyop
        >>> workers = jaxpyop.Workers(concurrent.futures.ThreadPoolExecutor(2), retries=1)
        >>> op = jaxpyop.numpy_function(Tout=jnp.float32, vmap_method="parallel", executor=workers)(np.sin)
        >>> print(jax.vmap(op)(jnp.zeros(3)))
        [0. 0. 0.]
    """

    pool: Any
    _: dataclasses.KW_ONLY
    chunksize: int | None = None
    retries: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.pool, Workers):
            raise TypeError("Workers: pool is another Workers; give the pool itself")
        check_executor(self.pool, "Workers", "pool")
        for name, least in (("chunksize", 1), ("retries", 0)):
            value = getattr(self, name)
            is_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if not (is_number and value >= least) and (value is not None or name == "retries"):
                raise ValueError(f"Workers: {name} is {value!r}; expected a whole number from {least} on")
        seconds: Any = self.timeout
        is_number = isinstance(seconds, (int, float, np.number)) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds < threading.TIMEOUT_MAX):
            raise ValueError(f"Workers: timeout is {seconds!r}; expected a number of seconds above 0, or None")


def check_workers(workers: Workers, stateful: bool, method: Method, title: str) -> None:
    """Check that the elements of an op can be sent to these workers in this way.

    Raises:
        ValueError: it may run more than once and is stateful, or it runs a batch as a whole.
    """
    timeout = workers.timeout
    repeats = f"retries={workers.retries}" if workers.retries else "" if timeout is None else f"timeout={timeout}"
    if repeats and stateful:
        raise ValueError(
            f"{title}: {repeats} may run func more than once for an element, and the op is stateful; pass "
            "stateful=False if its side effects may run any number of times, and return a result"
        )
    is_list = isinstance(workers.pool, (list, tuple))
    if method.whole_batch and (is_list or timeout is not None):
        raise ValueError(
            f"{title}: {'a list as executor=' if is_list else repeats} is for single elements, and vmap_method="
            f"{method.name!r} calls func once for the batch; pass vmap_method='parallel'"
        )


def executor_of(op: Any) -> Any:
    """The executor that an op's function is sent to, or a list of them; None if it runs on the calling thread.

    Raises:
        TypeError: a function given as `executor=` returned something else.
    """
    given = op.executor
    if given is None:
        return None
    if isinstance(given, (list, tuple)):
        found = [_resolved(op, one) for one in given]
        return None if any(map(is_own_thread, found)) else found
    found = _resolved(op, given)
    return None if is_own_thread(found) else found


def _resolved(op: Any, given: Any) -> Any:
    found: Any = _returned_by(given) if callable(given) and not isinstance(given, Executor) else given
    if not (hasattr(found, "submit") or is_ray(found)) or isinstance(found, type):
        raise refusal(TypeError(f"{op.title}: executor= gave {found!r}; expected a concurrent.futures.Executor"))
    if op.timeout is not None and has_threads(found):
        raise refusal(TypeError(f"{op.title}: {UNENDABLE}"))
    return found


# The executors that functions given as `executor=` made for us: nothing else refers to them. Such a function is called
# again when its executor is of no use any more. Any other function is called each time, because the executor that it
# returns is the user's, who may replace it.
_made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Otherwise they would go when the modules that they need are gone.
atexit.register(_made.clear)


def _returned_by(function: Callable[[], Any]) -> Any:
    with _lock, contextlib.suppress(TypeError):
        if (kept := _made.get(function)) is not None:
            return kept
    found = function()
    if COUNTS_ARE_EXACT and sys.getrefcount(found) <= FREE and hasattr(found, "submit"):
        # Functions without a hash, or that cannot be referred to weakly, are called each time.
        with _lock, contextlib.suppress(TypeError):
            found = _made.setdefault(function, found)
    return found


def new_executor_of(op: Any, gone: Any, index: int) -> Executor | None:
    """Another executor in the place of one that broke; None if the user gave no function that returns one.

    Args:
        op: the op.
        gone: the one that broke.
        index: its number, if the user gave a list.
    """
    given = op.executor[index] if isinstance(op.executor, (list, tuple)) else op.executor
    if not callable(given) or isinstance(given, Executor):
        return None
    with _lock, contextlib.suppress(TypeError):
        if _made.get(given) is gone:
            del _made[given]
    found = _resolved(op, given)
    return None if found is gone else found


def has_threads(executor: Executor) -> bool:
    """Tell whether an executor's workers are threads of this process, which can share memory with the caller."""
    return isinstance(executor, ThreadPoolExecutor)


def needs_pickled_body(executor: Executor) -> bool:
    """Tell whether a worker that cannot read a function breaks the executor.

    A worker of the standard library's process pool then dies. So it gets bytes, and says itself what it cannot read.
    Other executors pickle in ways of their own, which can do more.
    """
    # The import takes time, so it is left to whoever uses the pool.
    module = sys.modules.get("concurrent.futures.process")
    return module is not None and isinstance(executor, module.ProcessPoolExecutor)


def workers_of(executor: Any) -> int:
    """How many tasks an executor of concurrent.futures runs at once, as far as that can be known."""
    # The executors of the standard library and of loky have no public name for this.
    known = getattr(executor, "_max_workers", None)
    return known if isinstance(known, int) else os.cpu_count() or 1


# ------------------------------------------------------------------------ calls inside bodies

# A body that calls an op of its own executor would wait for a thread that waits for the body. So on a thread of the
# executor such an op runs in place. On any other thread, such as one of XLA's, it waits for a free thread of the
# executor. Once all threads of the executor are known to wait for such ops, one of these ops raises an error.
#
# The context variable `_outer` tells which executors have threads that wait for this code. A compiled program keeps the
# context in which it was traced, so every combination of outer executors has programs of its own.


@dataclasses.dataclass(eq=False)
class _Load:
    """What is known of an executor.

    Attributes:
        number: its number. A new executor gets the number of one that is gone, and with it the programs that were
            compiled for bodies on that one.
        waiting: how many calls wait for one of its threads while one of its threads waits for them.
        begun: how many tasks began on it.
    """

    number: int
    waiting: int = 0
    begun: int = 0


_loads: weakref.WeakKeyDictionary[Any, _Load] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def _load_of(executor: Any) -> _Load:
    with _lock:
        try:
            if (load := _loads.get(executor)) is None:
                used = {load.number for load in _loads.values()}
                load = _loads[executor] = _Load(next(n for n in itertools.count(1) if n not in used))
        except TypeError:
            # The executor has no hash, as a dataclass has none, or cannot be referred to weakly.
            return _Load(id(executor))
        return load


def number_of(executor: Any) -> int:
    """The number of an executor."""
    return _load_of(executor).number


_outer: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("jaxpyop_outer_executors", default=frozenset())
_thread = threading.local()


def is_own_thread(executor: Executor) -> bool:
    """Tell whether this thread is one of the executor's, whoever gave it its task."""
    if number_of(executor) in getattr(_thread, "works_for", ()):
        return True
    if (thread := python_thread()) is None or not has_threads(executor):
        return False
    # A ThreadPoolExecutor has no public name for its threads. It starts a thread, which may run a task at once, before
    # it notes that the thread is one of its own, and holds this lock meanwhile.
    pool: Any = executor
    with pool._shutdown_lock:
        return thread in pool._threads


@contextlib.contextmanager
def working_for(number: int) -> Iterator[None]:
    """Mark this thread as one of an executor's for a block, which has to run in a context of its own."""
    _outer.set(_outer.get() | {number})
    before = getattr(_thread, "works_for", frozenset())
    _thread.works_for = before | {number}
    with _lock:
        for load in _loads.values():
            load.begun += load.number == number
    try:
        # jaxpyop's own threads cannot deadlock. So the default executor is left out here, and bodies on its threads use
        # the same compiled programs as code outside of any executor.
        with _jaxcore.with_programs_of(_outer.get() - {number_of(OWN_THREADS)} or None):
            yield
    finally:
        _thread.works_for = before


# ---------------------------------------------------------------------- all threads wait

# Seconds after which the waiting bodies count as stuck, if no task begins meanwhile.
_PATIENCE = 2.0


def is_waited_for(executor: Any) -> bool:
    """Tell whether a thread of the executor waits, or may wait, for this code."""
    return number_of(executor) in _outer.get()


def wait_for_thread(executor: Any, title: str, has_begun: Callable[[], bool]) -> None:
    """Wait until a thread of an executor has begun, unless all of its threads wait for code like this.

    Args:
        executor: the executor.
        title: the op's name.
        has_begun: waits a little, and tells whether a thread has begun.

    Raises:
        RuntimeError: every thread of the executor has waited for long. The error names the ways out.
    """
    load, threads = _load_of(executor), workers_of(executor)
    begun, since = load.begun, time.monotonic()
    with _lock:
        load.waiting += 1
    try:
        while not has_begun():
            if begun != load.begun or load.waiting < threads:
                begun, since = load.begun, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                text = (
                    f"{title}: it waits for a thread of executor=, and all {threads} of them run bodies that wait "
                    "for it; give an op that is called from a body on its own pool another executor, or a larger one"
                )
                raise refusal(RuntimeError(text))
    finally:
        with _lock:
            load.waiting -= 1

"""What `jaxpyop.report()` counts: `Host.enter` and, for a direct or cut call, `run_now` of `_op` note each call once.

`reports` holds the reports that are open. A call looks at `metrics.reports` where it begins and where its function
runs. If no report is open, these two looks are the whole cost. Compiled programs look when they run, so it does not
matter whether they were compiled before the report was opened.
"""

from __future__ import annotations

import collections
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.monitoring

from jaxpyop._host.errors import failure_text
from jaxpyop._host.host_call import Batch, HostCall
from jaxpyop._host.report_table import ROUTES, row_of, shown_table

reports: tuple[Report, ...] = ()


# The lock is reentrant, because a thread that holds it may collect garbage, and a finalizer may call an op.
_lock = threading.RLock()

_NUMBERS = (
    *("elements", "runs", "rules", "function_seconds", "rule_seconds", "total_seconds", "bytes_in", "bytes_out"),
    *("records", "pushed_out", "recomputed", "failures", "worker_runs", "compilations", "compile_seconds"),
)
_SECONDS_OF = {"runs": "function_seconds", "rules": "rule_seconds"}
_ZEROS: dict[str, Any] = dict.fromkeys((*ROUTES, *_NUMBERS), 0) | {"first_failure": ""}


def _no_totals() -> dict[str, dict[str, Any]]:
    return collections.defaultdict(_ZEROS.copy)


# ------------------------------------------------------------------------- what calls do


def note(name: str, first_failure: str = "", **amounts: float) -> None:
    """Add to the row of an op in all open reports.

    Args:
        name: the op's name.
        first_failure: the error of a function as text. A row keeps the first one that it gets.
        **amounts: the columns to add to.
    """
    with _lock:
        for report in reports:
            totals = report.totals[name]
            if first_failure and not totals["first_failure"]:
                totals["first_failure"] = first_failure
            for column, amount in amounts.items():
                totals[column] += amount


def begin(name: str) -> float:
    """Note that a call of this op begins on this thread, until `end`, and return the time."""
    _Running.names = (*_Running.names, name)
    return time.perf_counter()


def end(began: float) -> float:
    """Note the end of what began last on this thread, and return how many seconds it took."""
    _Running.names = _Running.names[:-1]
    return time.perf_counter() - began


class _RunningOps(threading.local):
    """The names of the ops that this thread is in, the innermost last."""

    names: tuple[str, ...] = ()


_Running = _RunningOps()


def _note_compilation(event: str, duration_secs: float, **_: Any) -> None:
    """Count a compilation of JAX for the op that is running. JAX calls this for all that it measures."""
    if reports and _Running.names and event == "/jax/core/compile/backend_compile_duration":
        note(_Running.names[-1], compilations=1, compile_seconds=duration_secs)


@functools.cache
def _listen() -> None:
    # JAX has no way to end this, so it begins with the first report.
    jax.monitoring.register_event_duration_secs_listener(_note_compilation)


def timed(name: str, column: str, func: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user, and note how long it took.

    Args:
        name: the op's name.
        column: "runs" if it is the op's function, "rules" if it is a rule.
        func: what to call.
        *args: its arguments.
    """
    began = begin(name)
    try:
        return func(*args)
    finally:
        amounts: dict[str, Any] = {column: 1, _SECONDS_OF[column]: end(began)}
        note(name, **amounts)


def note_call(
    call: HostCall,
    route: str,
    batch: Batch,
    began: float,
    nbytes: tuple[int, int] = (0, 0),
    error: BaseException | None = None,
) -> None:
    """Note a call that is over.

    Args:
        call: the call.
        route: how it came to Python, one of `ROUTES`.
        batch: the elements that it was for.
        began: what `begin` returned.
        nbytes: the bytes of its inputs and of its results.
        error: what it raised.
    """
    failure = "" if error is None else failure_text(error, call.title)
    amounts: dict[str, Any] = {route: 1, "elements": batch.count, "total_seconds": end(began)}
    note(call.op.name, failure, **amounts, bytes_in=nbytes[0], bytes_out=nbytes[1], failures=int(bool(failure)))


def nbytes(arrays: Sequence[Any]) -> int:
    """Add up the bytes of arrays. What is no array, such as a number of Python, counts as zero."""
    return sum([getattr(array, "nbytes", 0) for array in arrays])


class Counter(Protocol):
    """Counts the runs of a native call, which do not come to Python, in the last of its words."""

    words: Any


# The native calls of the programs that live, by number: the name of the op, and the word that counts the runs.
_native: dict[int, tuple[str, Any]] = {}


def count_native(name: str, counter: Counter) -> None:
    """Have reports count the runs of a native call of an op, also if its program goes while they are open."""
    number = id(counter)
    with _lock:
        _native[number] = name, counter.words
    weakref.finalize(counter, _forget_native, number).atexit = False


def _forget_native(number: int) -> None:
    with _lock:
        for report in reports:
            report.add_native_runs(number)
        del _native[number]


# -------------------------------------------------------------------- worker processes


def count_in_worker() -> None:
    """Count from now on what the jobs in this worker process do."""
    global reports
    _listen()
    with _lock:
        if _of_jobs not in reports:
            reports = (*reports, _of_jobs)


def counted_in_worker() -> dict[str, dict[str, Any]]:
    """Return what this worker process counted since the last call of this function, by op."""
    with _lock:
        found, _of_jobs.totals = dict(_of_jobs.totals), _no_totals()
    return found


def add_counted(totals: dict[str, dict[str, Any]]) -> None:
    """Add what a worker process counted to the reports of this process."""
    for name, amounts in totals.items():
        note(name, **amounts | {"worker_runs": amounts["runs"]})


def _forget() -> None:
    # A forked process has copies of the open reports, which nobody reads there. Its copy of the lock may be held by a
    # thread that was not forked, and would never be released.
    global reports, _lock
    reports, _lock = (), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

# ------------------------------------------------------------------------------ reports


class Report:
    """What the ops did in a ``with`` block. Made by :func:`jaxpyop.report`.

    Attributes:
        totals: the sums, by the name of the op and then by column.
    """

    def __init__(self) -> None:
        self.totals: dict[str, dict[str, Any]] = _no_totals()
        self._native_runs: dict[int, int] = {}

    def __enter__(self) -> Report:
        global reports
        _listen()
        with _lock:
            if self in reports:
                raise RuntimeError("this report is open already; open another one with jaxpyop.report()")
            self._native_runs = {number: int(words[-1]) for number, (_, words) in _native.items()}
            reports = (*reports, self)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        global reports
        try:
            # If the block itself raised, its error says more than the error of an effect.
            if kind is None:
                jax.effects_barrier()
        finally:
            with _lock:
                reports = tuple(report for report in reports if report is not self)
                for number in _native:
                    self.add_native_runs(number)

    def add_native_runs(self, number: int) -> None:
        """Add the runs of a native call since the report was opened."""
        name, words = _native[number]
        if runs := int(words[-1]) - self._native_runs.pop(number, 0):
            self.totals[name]["native"] += runs

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each op. The ops that took longest come first."""
        with _lock:
            rows = [row_of(name, dict(totals)) for name, totals in self.totals.items()]
        return sorted(rows, key=lambda row: -row["function_seconds"] - row["rule_seconds"] - row["around_seconds"])

    def __repr__(self) -> str:
        return shown_table(self.rows())


# All jobs of a worker process have one report together, since several may run at once on its threads.
_of_jobs = Report()


def report() -> Report:
    """Count and time all ops that run in a ``with`` block.

    All threads and worker processes are counted, and so are programs that were compiled
    before. Reports may be nested, and each counts everything that happens while it is
    open. The end of the block waits for effects in flight (:func:`jax.effects_barrier`).
    A program without effects may still be running then: wait for its results in the block,
    with :func:`jax.block_until_ready`. TensorFlow has its profiler for this.

    Returns:
        A context manager. Printed, it is a table with a row for each name of an op. ``rows()``
        returns a dictionary for each, for ``pandas.DataFrame``. In a notebook it is shown as
        a table.

    Raises:
        jax.errors.JaxRuntimeError: raised at the end of the block by an effect that failed.

    Example:
        >>> import jax.numpy as jnp, numpy as np, jaxpyop
        >>> with jaxpyop.report() as r:
        ...     y = jaxpyop.numpy_function(np.sin, [jnp.ones(3)], jnp.float32)
        >>> row = r.rows()[0]
        >>> print(row["op"], row["route"], row["calls"], row["runs"], row["bytes_in"])
        sin direct 1 1 12
    """
    return Report()

"""What `jaxpyop.report()` and `on_error=` count; `Host.enter` and `direct.run_now` note each call once.

`reports` holds the reports that are open. A call looks at `metrics.reports` where it begins and where its function
runs. If no report is open, these two looks are the whole cost. Compiled programs look when they run, so it does not
matter whether they were compiled before the report was opened.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.monitoring

from jaxpyop import _jaxcore
from jaxpyop._host.errors import failure_text
from jaxpyop._host.host_call import Batch, HostCall
from jaxpyop._host.show import where

reports: tuple[Report, ...] = ()


# The lock is reentrant, because a thread that holds it may collect garbage, and a finalizer may call an op.
_lock = threading.RLock()

_ROUTES = ("direct", "buffer", "callback", "cut", "native", "traced")
_NUMBERS = (
    *("elements", "runs", "rules", "function_seconds", "rule_seconds", "total_seconds", "bytes_in", "bytes_out"),
    *("records", "pushed_out", "recomputed", "failures", "chained", "worker_runs", "compilations", "compile_seconds"),
)
_SECONDS_OF = {"runs": "function_seconds", "rules": "rule_seconds"}
_ZEROS: dict[str, Any] = dict.fromkeys((*_ROUTES, *_NUMBERS), 0) | {"first_failure": ""}


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
    """Note a call that is over. `Host.enter` and, for a direct call, `run_now` do so.

    Args:
        call: the call.
        route: how it came to Python, one of `_ROUTES`.
        batch: the elements that it was for.
        began: what `begin` returned.
        nbytes: the bytes of its inputs and of its results.
        error: what it raised.
    """
    failure = "" if error is None else failure_text(error, call.title)
    amounts: dict[str, Any] = {route: 1, "elements": batch.count, "total_seconds": end(began)}
    note(call.op.name, failure, **amounts, bytes_in=nbytes[0], bytes_out=nbytes[1], failures=int(bool(failure)))


def nbytes(arrays: Sequence[Any]) -> int:
    """Add up the bytes of arrays. A record that is handed over in place of an array counts as zero."""
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
            rows = [_row(name, dict(totals)) for name, totals in self.totals.items()]
        return sorted(rows, key=lambda row: -row["function_seconds"] - row["rule_seconds"] - row["around_seconds"])

    def __repr__(self) -> str:
        rows = self.rows()
        columns = [c for c in _SHOWN if c in _ALWAYS_SHOWN or any(row[c] for row in rows)]
        table = [[_SHOWN[c] for c in columns], *([_shown(c, row[c]) for c in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]
        lines += [f"{row['op']}: {row['advice']}" for row in rows if row["advice"]]
        lines += [f"{row['op']}: the first failure: {row['first_failure']}" for row in rows if row["first_failure"]]
        return "\n".join(lines)


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


# --------------------------------------------------------------------- rows and tables

# The columns of the table with their titles. A column that is zero in all rows is left out.
_SHOWN = {
    **{column: column for column in ("op", "route", "calls", "traces", "elements", "runs", "rules")},
    "mean_seconds": "mean",
    "function_seconds": "in function",
    "rule_seconds": "in rules",
    "around_seconds": "around it",
    "bytes_in": "in",
    "bytes_out": "out",
    "records": "records",
    "pushed_out": "pushed out",
    "recomputed": "recomputed",
    "failures": "failures",
    "compilations": "compilations",
    "compile_seconds": "compiling",
}
_ALWAYS_SHOWN = ("op", "route", "calls")


def _row(name: str, totals: dict[str, Any]) -> dict[str, Any]:
    by_route = {route: totals.pop(route) for route in _ROUTES}
    inside = totals["function_seconds"] + totals["rule_seconds"]
    row: dict[str, Any] = {
        "op": name,
        "route": ", ".join(route for route, count in by_route.items() if count),
        "traces": by_route.pop("traced"),
        "calls": sum(by_route.values()),
        "mean_seconds": totals["function_seconds"] / (totals["runs"] or 1),
        "around_seconds": max(0.0, totals.pop("total_seconds") - inside),
        **totals,
    }
    chained, worker_runs = row.pop("chained"), row.pop("worker_runs")
    return {**row, "advice": _advice(row, inside, chained, worker_runs)}


def _advice(row: dict[str, Any], inside: Any, chained: int, worker_runs: int) -> str:
    if row["recomputed"] and row["pushed_out"]:
        return f"{row['pushed_out']} records were pushed out: increase max_record_bytes"
    if worker_runs >= 100 and row["around_seconds"] > inside:
        around, inside = (_shown("function_seconds", seconds) for seconds in (row["around_seconds"], inside))
        return (
            f"the way to the workers and back took {around}, and func {inside}: without executor= the calls take less "
            "time, unless most of it was the start of the workers"
        )
    if (
        row["calls"] >= 10
        and row["compilations"] >= 10
        and row["compile_seconds"] > (inside + row["around_seconds"]) / 2
    ):
        return (
            f"{row['compilations']} compilations took more than half of the time: JAX compiles an operation for each "
            "new shape, so give the arrays few shapes, by a mask or by padding; the first calls compile, too"
        )
    is_chain = 2 * chained > row["calls"]
    if row["calls"] >= 1000 and row["elements"] == row["calls"] and row["mean_seconds"] < 1e-3 and not is_chain:
        return (
            f"{row['calls']} calls of one element: if none needs the result of another, vmap and "
            "vmap_method='expand_dims' make one call of many"
        )
    return ""


def _shown(column: str, value: Any) -> str:
    if column.endswith("_seconds"):
        unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if value >= s), ("us", 1e-6))
        return f"{value / scale:.1f} {unit}"
    if column.startswith("bytes_"):
        unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if value >= s), ("B", 1))
        return f"{value / scale:.{int(scale > 1)}f} {unit}"
    return str(value)


# ---------------------------------------------------------- failures that `on_error=` filled


class Failures:
    """The failures of one op.

    Args:
        title: how warnings name the op.
        func: the op's function, or None in the copy that a worker process has.

    Attributes:
        count: how many elements failed so far.
        first: the error of the first failure and its inputs, as text.
    """

    def __init__(self, title: str, func: Any) -> None:
        self.count = 0
        self.first = ""
        self._title = title
        self._place = None if func is None else where(func)
        self._lock = threading.Lock()
        self._batches = 0

    def __reduce__(self) -> Any:
        # The copy in a worker counts from zero. The result of each job carries the count back to the op's own process.
        return Failures, (self._title, None)

    def note(self, error: Exception, count: int) -> str:
        """Count elements that failed, and warn. Inside `in_batch` the warning waits for the end of the batch.

        Returns:
            The error and the inputs, as text.
        """
        text = failure_text(error, self._title)
        self.add((count, text))
        if not self._batches:
            self._warn()
        return text

    def add(self, noted: tuple[int, str]) -> None:
        """Add a number of failures, and the text of the first of them."""
        with self._lock:
            self.count += noted[0]
            self.first = self.first or noted[1]

    def taken(self) -> tuple[int, str]:
        """Return what a worker counted since the last call of this method, and start again from zero.

        In the op's own process it returns nothing new, because the failures are counted in the right place already.
        """
        if self._place is not None:
            return 0, ""
        with self._lock:
            noted, self.count, self.first = (self.count, self.first), 0, ""
        return noted

    @contextlib.contextmanager
    def in_batch(self) -> Iterator[None]:
        """Delay the warning to the end of a batch, when it is known how many of its elements failed."""
        with self._lock:
            self._batches += 1
        try:
            yield
        finally:
            with self._lock:
                self._batches -= 1
        if self.count and not self._batches:
            self._warn()

    def _warn(self) -> None:
        if self._place is None:
            return
        _jaxcore.warn_once(
            ("on_error=", self._title, self._place),
            f"{self._title}: on_error= filled the results of {self.count} element{'' if self.count == 1 else 's'} that "
            f"failed; later failures come without a warning. The first one: {self.first}",
        )

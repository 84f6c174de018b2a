"""How fast this is, measured here and now, beside what else there is.

All cases of a group take turns in one run, so that a busy machine slows them
alike; the figures to trust are the ratios of the medians.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jaxpyop
from jaxpyop._cli.cases import GROUPS, LONG, Case, Group


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table; times in microseconds per call."""

    group: str
    case: str
    median: float
    low: float
    high: float
    ratio: float | None  # ours to this one


def _wait(result: Any) -> None:
    jax.block_until_ready(result)


def _sample(case: Case) -> float:
    start = time.perf_counter()
    for _ in range(case.calls - 1):
        case.run()
    _wait(case.run())
    return (time.perf_counter() - start) / case.calls * 1e6


def measure(group: Group) -> list[Row]:
    """Time the cases of a group in turn."""
    times = group.take_times() if group.take_times else _in_turn(group)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ours_name = next(iter(times))
    ours = medians[ours_name]
    rows = []
    for name, taken in times.items():
        low, _, high = statistics.quantiles(taken, n=4)
        ratio = None if name == ours_name else ours / medians[name]
        rows.append(Row(group.title, name, medians[name], low, high, ratio))
    return rows


def _in_turn(group: Group) -> dict[str, list[float]]:
    for case in group.cases:
        _wait(case.run())
        _wait(case.run())  # the first run can leave the compiling to the second
    times: dict[str, list[float]] = {case.name: [] for case in group.cases}
    for _ in range(group.samples):
        for case in group.cases:
            times[case.name].append(_sample(case))
    return times


# ------------------------------------------------------------------------ report


def _progress(done: int, count: int, title: str = "") -> None:
    if sys.stderr.isatty():
        bar = "#" * (40 * done // count)
        sys.stderr.write(f"\r[{bar:<40}] {done}/{count}  {title:<45}" + ("" if title else "\n"))
        sys.stderr.flush()


def run(long: bool = False) -> Iterator[list[Row]]:
    """Measure one group after the other, with those that take minutes if they are asked for."""
    groups = GROUPS + LONG if long else GROUPS
    for done, make in enumerate(groups):
        group = make()
        _progress(done, len(groups), group.title)
        if len(group.cases) > 1 or group.take_times:
            yield measure(group)
    _progress(len(groups), len(groups))


def _about() -> str:
    return (
        f"jaxpyop {jaxpyop.__version__}, jax {jax.__version__}, numpy {np.__version__}, "
        f"Python {sys.version.split()[0]}, {jax.default_backend()}, {os.cpu_count()} cores"
    )


_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"), (0.0, "us"))


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def _line(title: str, row: Row) -> str:
    scale, unit = next((size or 1.0, unit) for size, unit in _UNITS if row.median >= size)
    median, low, high = (_three_digits(time / scale) for time in (row.median, row.low, row.high))
    ratio = "ours" if row.ratio is None else f"{row.ratio:#.2g}".rstrip(".")
    return f"{title:<41}{row.case:<25}{f'{median} {unit}':>8}{f'{low} to {high} {unit}':>18}{ratio:>8}"


def _table(rows: list[Row]) -> Iterator[str]:
    yield _about()
    yield "Time per call: median, and the middle half of the samples, taken in turn within a group."
    yield "Ratio: our time divided by that of the line, so below 1 ours is the faster."
    yield ""
    yield f"{'':<41}{'':<25}{'median':>8}{'middle half':>18}{'ratio':>8}"
    for title, group in itertools.groupby(rows, lambda row: row.group):
        for i, row in enumerate(group):
            yield _line("" if i else title, row)
    if absent := [name for name in ("tensorflow", "torch") if importlib.util.find_spec(name) is None]:
        yield ""
        yield f"Not installed, so without a line here: {', '.join(absent)}."


def main(as_json: bool, long: bool = False) -> int:
    """Print the table, or the same as JSON."""
    rows = [row for group in run(long) for row in group]
    if as_json:
        print(json.dumps({"about": _about(), "rows": [dataclasses.asdict(row) for row in rows]}, indent=2))
    else:
        print("\n".join(_table(rows)))
    return 0

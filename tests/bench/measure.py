"""Measures how fast jaxpyop is on this machine, beside JAX's own callbacks and other frameworks.

The cases of a group take turns, which is why a busy machine slows all of them alike. The ratios of the medians are
the figures to trust.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import sys
import time

import jax
import numpy as np

import jaxpyop
from tests.bench.cases import SUBJECTS


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table, in microseconds per call. `ratio` is our time divided by this one, and None for ours."""

    group: str
    case: str
    median: float
    low: float
    high: float
    ratio: float | None


def measure(group):
    """Time the cases of a group: the rows of the table."""
    # Two runs first: JAX can leave a part of the compilation to the second one.
    for case in group.cases * 2:
        jax.block_until_ready(case.run())
    samples = [[_sample(case) for case in group.cases] for _ in range(group.samples)]
    rows = []
    for case, taken in zip(group.cases, zip(*samples), strict=True):
        low, median, high = statistics.quantiles(taken, n=4)
        rows.append(Row(group.title, case.name, median, low, high, rows[0].median / median if rows else None))
    return rows


def _sample(case):
    start = time.perf_counter()
    for _ in range(case.calls - 1):
        case.run()
    jax.block_until_ready(case.run())
    return (time.perf_counter() - start) / case.calls * 1e6


def run(subjects, failed):
    """Measure the groups of these subjects one after the other, and note those that raise, as in an older package."""
    for make in [make for subject in subjects for make in SUBJECTS[subject]]:
        group = make()
        print(f"measuring: {group.title}", file=sys.stderr)
        try:
            yield from measure(group) if len(group.cases) > 1 else ()
        except Exception as error:
            failed.append(group.title)
            print(f"  not measured: {error!r:.200}", file=sys.stderr)


# ------------------------------------------------------------------------ report


def _about():
    return (
        f"jaxpyop {jaxpyop.__version__}, jax {jax.__version__}, numpy {np.__version__}, "
        f"Python {sys.version.split()[0]}, {jax.default_backend()}, {os.cpu_count()} cores"
    )


def _three_digits(value):
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def _line(title, row):
    scale, unit = next((s, unit) for s, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")) if row.median >= s or s == 1)
    median, low, high = (_three_digits(time / scale) for time in (row.median, row.low, row.high))
    ratio = "ours" if row.ratio is None else f"{row.ratio:#.2g}".rstrip(".")
    return f"{title:<41}{row.case:<25}{f'{median} {unit}':>8}{f'{low} to {high} {unit}':>18}{ratio:>8}"


def table(about, rows):
    """The lines of the printed table."""
    yield about
    yield "Time per call: the median, and the middle half of the samples. The cases of a group take turns."
    yield "Ratio: our time divided by the time on that line. Below 1, jaxpyop is faster."
    yield ""
    yield f"{'':<41}{'':<25}{'median':>8}{'middle half':>18}{'ratio':>8}"
    for title, group in itertools.groupby(rows, lambda row: row.group):
        for i, row in enumerate(group):
            yield _line("" if i else title, row)


def main(subjects, as_json):
    """Print the table, or the same figures as JSON, and return how many groups raised."""
    failed = []
    rows = list(run(subjects, failed))
    if as_json:
        print(json.dumps({"about": _about(), "rows": [dataclasses.asdict(row) for row in rows]}, indent=2))
        return len(failed)
    print("\n".join(table(_about(), rows)))
    if not importlib.util.find_spec("tensorflow"):
        print("\nTensorFlow is not installed, and therefore not in the table.")
    return len(failed)

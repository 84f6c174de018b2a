"""The rows of a report, and how it prints them: titles, units, and the advice that follows from the numbers."""

from __future__ import annotations

from typing import Any

# How a call came to Python, or was run.
ROUTES = ("direct", "buffer", "callback", "cut", "native", "traced")

# The columns of the table. One that is zero in all rows is left out.
_COLUMNS = (
    *("op", "route", "calls", "traces", "elements", "runs", "rules"),
    *("mean_seconds", "function_seconds", "rule_seconds", "around_seconds", "bytes_in", "bytes_out"),
    *("records", "pushed_out", "recomputed", "failures", "compilations", "compile_seconds"),
)
_ALWAYS_SHOWN = ("op", "route", "calls")


def shown_table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a table, with the advice and the first failures below it."""
    columns = [c for c in _COLUMNS if c in _ALWAYS_SHOWN or any(row[c] for row in rows)]
    titles = [column.removesuffix("_seconds").replace("_", " ") for column in columns]
    table = [titles, *([_shown(c, row[c]) for c in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]
    lines += [f"{row['op']}: {row['advice']}" for row in rows if row["advice"]]
    lines += [f"{row['op']}: the first failure: {row['first_failure']}" for row in rows if row["first_failure"]]
    return "\n".join(lines)


def row_of(name: str, totals: dict[str, Any]) -> dict[str, Any]:
    """Make the row of an op from its totals."""
    by_route = {route: totals.pop(route) for route in ROUTES}
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
    worker_runs = row.pop("worker_runs")
    return {**row, "advice": _advice(row, inside, worker_runs)}


def _advice(row: dict[str, Any], inside: Any, worker_runs: int) -> str:
    if row["recomputed"] and row["pushed_out"]:
        return f"{row['pushed_out']} records were pushed out: increase max_record_bytes"
    if worker_runs >= 100 and row["around_seconds"] > inside:
        around, inside = (_shown("function_seconds", seconds) for seconds in (row["around_seconds"], inside))
        return (
            f"the way to the workers and back took {around}, and func {inside}: without executor= the calls take less "
            "time, unless most of it was the start of the workers"
        )
    is_looping = row["runs"] >= row["elements"] >= 100 * max(1, row["calls"])
    if is_looping and not worker_runs and row["around_seconds"] > 2 * inside:
        return (
            f"func ran once for each of {row['elements']} elements, and took less time than the way to it: "
            "vmap_method='expand_dims' runs it once for the batch, if it takes arrays with the batch axis in front"
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
    return ""


def _shown(column: str, value: Any) -> str:
    if column.endswith("_seconds"):
        unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if value >= s), ("us", 1e-6))
        return f"{value / scale:.1f} {unit}"
    if column.startswith("bytes_"):
        unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if value >= s), ("B", 1))
        return f"{value / scale:.{int(scale > 1)}f} {unit}"
    return str(value)

"""Divides the equations of a program into segments, and orders the segments and the Python calls.

A level is one segment and the Python calls after it. There are as few levels as possible: one more than the largest
number of times that a chain of dependent equations goes from a Python call back to a compiled equation. Each compiled
equation goes into the latest segment possible, because a segment is one XLA program, all of whose results become ready
at once. A body that asks for a value therefore waits only for work that it, or an earlier body, needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jaxpyop._cut.inline import Program, variables_of

# A step is either a segment, which is a list of equations, or a single equation that Python runs.
Step: TypeAlias = list[Any] | Any


def partitioned(program: Program, is_host: Callable[[Any], bool]) -> list[Step]:
    """Return the segments and the equations that Python runs, in the order in which they run.

    Args:
        program: what to cut.
        is_host: tells of an equation whether Python runs it.
    """
    hosts = set(filter(is_host, program.eqns))
    levels = _as_late_as_possible(program, hosts, _as_early_as_possible(program.eqns, hosts))
    steps: list[Step] = []
    for level in range(max(levels.values(), default=-1) + 1):
        eqns = [eqn for eqn in program.eqns if levels[eqn] == level]
        if segment := [eqn for eqn in eqns if eqn not in hosts]:
            steps.append(segment)
        steps.extend(eqn for eqn in eqns if eqn in hosts)
    return steps


def _as_early_as_possible(eqns: Sequence[Any], hosts: set[Any]) -> dict[Any, int]:
    """Return the first level at which each equation can run. Those with effects stay in program order."""
    levels: dict[Any, int] = {}
    maker: dict[Any, Any] = {}
    last_effect: list[Any] = []
    for eqn in eqns:
        before = [maker[x] for x in variables_of(eqn.invars) if x in maker]
        if eqn.effects:
            before += last_effect
            last_effect = [eqn]
        # A compiled equation that reads the result of a Python call goes into the next segment.
        is_segment = eqn not in hosts
        levels[eqn] = max((levels[b] + (is_segment and b in hosts) for b in before), default=0)
        maker.update((value, eqn) for value in eqn.outvars)
    return levels


def _as_late_as_possible(program: Program, hosts: set[Any], first: dict[Any, int]) -> dict[Any, int]:
    """Move each compiled equation without effects to the last level at which its results are in time."""
    levels = dict(first)
    top = max((level + (eqn in hosts) for eqn, level in levels.items()), default=0)
    needed_at = dict.fromkeys(program.outputs, top)
    for eqn in reversed(program.eqns):
        if eqn not in hosts and not eqn.effects:
            levels[eqn] = min(needed_at[value] for value in eqn.outvars if value in needed_at)
        for x in variables_of(eqn.invars):
            needed_at[x] = min(needed_at.get(x, top), levels[eqn])
    return levels

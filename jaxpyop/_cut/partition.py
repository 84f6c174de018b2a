"""Divides the nodes of a program into segments, and orders the segments and the Python calls.

A level is one segment and the Python calls after it. There are as few levels as possible. (Follow a chain of nodes that
depend on each other, and count how often it goes from a Python call back to a compiled node. The number of levels is
one more than the largest such count.) Each compiled node goes into the latest segment possible. A segment is one XLA
program, so all its results become ready at once. A body that asks for a value therefore waits only for work that it, or
an earlier body, needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from jaxpyop._cut.inline import Node, Program, Value

# A step is either a segment, which is a list of nodes, or a single node that Python runs.
Step: TypeAlias = list[Node] | Node


def partitioned(program: Program, is_host: Callable[[Node], bool]) -> list[Step]:
    """Return the segments and the nodes that Python runs, in the order in which they run.

    Args:
        program: what to cut.
        is_host: tells of a node whether Python runs it.
    """
    hosts = set(filter(is_host, program.nodes))
    levels = _as_late_as_possible(program, hosts, _as_early_as_possible(program.nodes, hosts))
    steps: list[Step] = []
    for level in range(max(levels.values(), default=-1) + 1):
        nodes = [node for node in program.nodes if levels[node] == level]
        if segment := [node for node in nodes if node not in hosts]:
            steps.append(segment)
        steps.extend(node for node in nodes if node in hosts)
    return steps


def _as_early_as_possible(nodes: Sequence[Node], hosts: set[Node]) -> dict[Node, int]:
    """Return the first level at which each node can run. Nodes with effects stay in program order."""
    levels: dict[Node, int] = {}
    maker: dict[Value, Node] = {}
    last_effect: list[Node] = []
    for node in nodes:
        before = [maker[x] for x in node.reads if isinstance(x, Value) and x in maker]
        if node.effects:
            before += last_effect
            last_effect = [node]
        # A compiled node that reads the result of a Python call goes into the next segment.
        is_segment = node not in hosts
        levels[node] = max((levels[b] + (is_segment and b in hosts) for b in before), default=0)
        maker.update((value, node) for value in node.makes)
    return levels


def _as_late_as_possible(program: Program, hosts: set[Node], first: dict[Node, int]) -> dict[Node, int]:
    """Move each compiled node without effects to the last level at which its results are in time."""
    levels = dict(first)
    top = max((level + (node in hosts) for node, level in levels.items()), default=0)
    needed_at = dict.fromkeys(program.outputs, top)
    for node in reversed(program.nodes):
        if node not in hosts and not node.effects:
            levels[node] = min(needed_at[value] for value in node.makes if value in needed_at)
        for x in node.reads:
            if isinstance(x, Value):
                needed_at[x] = min(needed_at.get(x, top), levels[node])
    return levels

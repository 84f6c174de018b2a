"""Divides the nodes of a program into segments, and orders the segments and the Python calls.

A level is one segment and the Python calls after it. There are as few levels as possible: one more than the largest
number of times that a chain of dependent nodes goes from a Python call back to compiled work. Each node goes into the
latest segment possible. The results of a segment are ready all at once, because it is one XLA program. So a body that
asks for a value waits only for work that it, or an earlier body, needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from jaxpyop._cut.inline import Node, Program, Value

# A list of nodes is a segment. A single node is run by Python.
Step: TypeAlias = list[Node] | Node


def partitioned(program: Program, is_host: Callable[[Node], bool]) -> list[Step]:
    """Return the segments and the nodes that Python runs, in the order in which they run.

    Args:
        program: what to cut.
        is_host: tells whether Python runs a node.
    """
    hosts = set(filter(is_host, program.nodes))
    levels = _as_late_as_possible(program, hosts, _as_early_as_possible(program.nodes, hosts))
    steps: list[Step] = []
    for level in range(max(levels.values(), default=-1) + 1):
        of_level = [node for node in program.nodes if levels[node] == level]
        if segment := [node for node in of_level if node not in hosts]:
            steps.append(segment)
        steps.extend(node for node in of_level if node in hosts)
    return steps


def _as_early_as_possible(nodes: Sequence[Node], hosts: set[Node]) -> dict[Node, int]:
    """Return the first level of each node.

    Nodes with effects keep the order of the program among each other.
    """
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

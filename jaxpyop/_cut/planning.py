"""Makes the plan of a traced program: flattens the program, divides it into steps, and prepares each step to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxpyop._cut.host_step import HostStep
from jaxpyop._cut.inline import Node, Program, Value, inlined
from jaxpyop._cut.loops import is_loop, run_from_python
from jaxpyop._cut.partition import Step, partitioned
from jaxpyop._cut.plan import Options, Plan
from jaxpyop._cut.whole import StaysWhole


def planned(closed: Any, donated: Sequence[bool], options: Options) -> Plan:
    """Plan a traced program.

    Args:
        closed: the jaxpr of the program.
        donated: which inputs of the program may be overwritten.
        options: how the program is planned.

    Raises:
        StaysWhole: the program cannot be cut, or has no Python call between its equations.
        Exception: the program has a Python call that cannot run, such as a backward pass without a rule.
    """
    plan = _planned(closed, donated, options)
    if not plan.calls and not plan.loops:
        raise StaysWhole("it calls no Python, or only inside a loop or a cond")
    return plan


def _planned(closed: Any, donated: Sequence[bool], options: Options) -> Plan:
    program, steps = divided(closed, cut_loops=options.loops == "python")
    hosts = _hosts(program, steps, lambda closed, donated: _planned(closed, donated, options))
    return Plan(program, steps, donated, hosts, options)


def divided(closed: Any, *, cut_loops: bool) -> tuple[Program, list[Step]]:
    """Flatten a traced program, and divide it. Return the flat program and its steps.

    Args:
        closed: the jaxpr of the program.
        cut_loops: whether Python runs a loop that holds a Python call, between segments.

    Raises:
        StaysWhole: the program cannot be cut.
    """
    program = inlined(closed)

    def is_host(node: Node) -> bool:
        return node.call is not None or (cut_loops and node.holds_call and is_loop(node.eqn))

    return program, partitioned(program, is_host)


def _hosts(
    program: Program, steps: Sequence[Step], plan: Callable[[Any, Sequence[bool]], Plan]
) -> dict[Node, Callable[..., Sequence[Any]]]:
    readers = _readers(program)
    handed, waiting = _handed_over(program, readers), _waiting(steps)
    hosts = {step for step in steps if isinstance(step, Node)}

    def takes_numpy(reader: Node | None) -> bool:
        return reader is not None and (reader not in hosts or (reader.call is not None and not reader.call.on_jax))

    found: dict[Node, Callable[..., Sequence[Any]]] = {}
    for step in steps:
        if not isinstance(step, Node):
            continue
        if step.call is None:
            found[step] = run_from_python(step.eqn, plan)
            continue
        if step.call.refusal is not None:
            raise step.call.refusal()
        numpy = all(takes_numpy(reader) for value in step.makes for reader in readers.get(value, ()))
        found[step] = HostStep(
            step, hands_over=not handed.isdisjoint(step.makes), waits=step in waiting, takes_numpy=numpy
        )
    return found


def _waiting(steps: Sequence[Step]) -> set[Node]:
    """Return the Python calls with an effect that must wait, because a segment with an effect runs before them."""
    found: set[Node] = set()
    pending = False
    for step in steps:
        if not isinstance(step, Node):
            pending = pending or any(node.effects for node in step)
        elif step.effects and pending:
            found.add(step)
    return found


def _readers(program: Program) -> dict[Value, list[Node | None]]:
    """Return the nodes that read each value. None stands for the caller, who gets the outputs."""
    readers: dict[Value, list[Node | None]] = {value: [None] for value in program.outputs}
    for node in program.nodes:
        for x in node.reads:
            if isinstance(x, Value):
                readers.setdefault(x, []).append(node)
    return readers


def _handed_over(program: Program, readers: dict[Value, list[Node | None]]) -> set[Value]:
    """Return the receipts whose readers can all take the record itself in place of the receipt."""
    receipts = [node.makes[-1] for node in program.nodes if _is_alone(node) and node.call.handing_over() is not None]
    return {receipt for receipt in receipts if all(_takes(reader, receipt) for reader in readers.get(receipt, []))}


def _is_alone(node: Node) -> bool:
    """Tell whether a node is a Python call without batch axes."""
    return node.call is not None and not node.eqn.params["batch"].sizes


def _takes(reader: Node | None, receipt: Value) -> bool:
    return reader is not None and _is_alone(reader) and reader.call.takes_records and reader.reads[0] is receipt

"""`Plan`: a cut program, which runs its segments and Python calls one after the other; `plan_of` makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore
from jaxpyop._cut.host_steps import LOOPS, HostStep, LoopStep
from jaxpyop._cut.inline import Node, Operand, Program, StaysWhole, Value, inlined
from jaxpyop._cut.partition import Step, partitioned


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a program is planned.

    Attributes:
        name: the name of its function, which profiles show.
        loops: whether loops that hold a Python call are compiled or run from Python.
        compiler_options: the argument `compiler_options` of `jax.jit`, as sorted pairs.
    """

    name: str
    loops: str
    compiler_options: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(slots=True)
class _Instruction:
    """One step of a plan. The values of a run are in a list of slots.

    Attributes:
        run: the compiled segment, or the Python call.
        reads: the indices of the slots of its inputs.
        makes: the slots of its results, which follow each other.
        dead: the indices of the slots whose values no later step reads.
    """

    run: Callable[..., Sequence[Any]]
    reads: Sequence[int]
    makes: slice
    dead: Sequence[int]


class Plan:
    """A program as a list of instructions. A run leaves no state in it, so several threads may run it at once.

    Args:
        program: the program to run.
        steps: its segments, and the nodes that Python runs.
        donated: which inputs of the program may be overwritten.
        hosts: the function that runs a node, for each node that Python runs.
        options: how the program is compiled.
    """

    def __init__(
        self,
        program: Program,
        steps: Sequence[Step],
        donated: Sequence[bool],
        hosts: dict[Node, Callable[..., Sequence[Any]]],
        options: Options,
    ) -> None:
        self._slots: dict[Value, int] = {}
        self._initial: list[Any] = []
        for value in program.inputs:
            self._slot(value)
        self._instructions: list[_Instruction] = []
        self.text: list[str] = []
        lifetimes = Lifetimes(program, steps, donated)
        for number, step in enumerate(steps):
            reads, makes = lifetimes.reads[number], lifetimes.makes(number)
            if isinstance(step, Node):
                run, makes = hosts[step], step.makes
                # The function gets its inputs from slots, so a literal gets a slot too.
                reads = [x if isinstance(x, Value) else _constant(x) for x in step.reads]
                self.text.append(f"Python: {run}")
            else:
                donate = lifetimes.donations(number)
                run = _compiled(step, reads, makes, donate, f"{options.name}_{number}", options)
                self.text.append(f"segment: {', '.join(map(_name, step))}")
            from_slots = list(map(self._slot, reads))
            made_slots = slice(len(self._initial), len(self._initial) + len(makes))
            for value in makes:
                self._slot(value)
            dead = [
                self._slots[x] for x in {*reads, *makes} if x.constant is None and lifetimes.ends.get(x, -1) <= number
            ]
            self._instructions.append(_Instruction(run, from_slots, made_slots, dead))
        self._outputs = list(map(self._slot, program.outputs))
        self.calls = [step.call for step in steps if isinstance(step, Node) and step.call is not None]
        self.loops = [step for step in steps if isinstance(step, Node) and step.call is None]
        self._is_one_device = _jaxcore.is_one_cpu()

    def _slot(self, value: Value) -> int:
        if value not in self._slots:
            self._slots[value] = len(self._initial)
            self._initial.append(None if value.constant is None else jnp.asarray(value.constant))
        return self._slots[value]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the program on jax.Arrays, and return its results."""
        slots = self._initial.copy()
        slots[: len(inputs)] = inputs
        for step in self._instructions:
            slots[step.makes] = step.run(*map(slots.__getitem__, step.reads))
            for k in step.dead:
                slots[k] = None
        outputs = list(map(slots.__getitem__, self._outputs))
        return outputs if self._is_one_device else _placed(outputs, inputs)

    def __str__(self) -> str:
        return "\n".join(self.text)


def _constant(literal: Any) -> Value:
    return Value(literal.aval, jnp.asarray(literal.val, literal.aval.dtype))


def _name(node: Node) -> str:
    return "copy" if node.eqn is None else str(node.eqn.primitive)


def _placed(outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
    """Put all results on the devices of the committed inputs, as `jax.jit` does.

    This includes results that depend on no input.
    """
    for like in filter(_jaxcore.is_committed, inputs):
        return [x if _jaxcore.is_committed(x) else _jaxcore.placed_like(x, like) for x in outputs]
    return outputs


class Lifetimes:
    """How long each value of a program is needed: from the step that makes it to the last step that reads it."""

    def __init__(self, program: Program, steps: Sequence[Step], donated: Sequence[bool]) -> None:
        self._steps = steps
        self.reads = [_read_by(step) for step in steps]
        self.ends = {value: number for number, reads in enumerate(self.reads) for value in reads}
        self.ends.update(dict.fromkeys(program.outputs, len(steps)))
        # The memory of these values is never used again. A body may keep its inputs and results. The program's inputs
        # belong to the caller, unless they are donated.
        self._kept = {v for v, gives in zip(program.inputs, donated, strict=True) if not gives}
        for step in steps:
            if isinstance(step, Node):
                self._kept.update(x for x in (*step.reads, *step.makes) if isinstance(x, Value))

    def makes(self, number: int) -> list[Value]:
        """Return the results of a step that a later step, or the caller, reads."""
        step = self._steps[number]
        nodes = [step] if isinstance(step, Node) else step
        return [value for node in nodes for value in node.makes if self.ends.get(value, -1) > number]

    def donations(self, number: int) -> list[int]:
        """Return the indices of a segment's operands that are not needed any more, and whose memory fits a result."""
        room = [_type(value) for value in self.makes(number)]
        found: list[int] = []
        for k, value in enumerate(self.reads[number]):
            if value not in self._kept and self.ends[value] == number and _type(value) in room:
                room.remove(_type(value))
                found.append(k)
        return found


def _read_by(step: Step) -> list[Value]:
    """Return the values that a step takes from earlier steps or from the program's inputs.

    For a segment, each value is listed once. Constants are left out, because they are part of the compiled segment.
    """
    if isinstance(step, Node):
        return [x for x in step.reads if isinstance(x, Value)]
    made = {value for node in step for value in node.makes}
    reads = (x for node in step for x in node.reads if isinstance(x, Value) and x.constant is None)
    return list(dict.fromkeys(x for x in reads if x not in made))


def _type(value: Value) -> tuple[Any, Any]:
    return value.aval.shape, value.aval.dtype


def segment_of(nodes: Sequence[Node], reads: Sequence[Value], makes: Sequence[Value]) -> Callable[..., list[Any]]:
    """Return the function of a segment, which takes the arrays that it reads, and returns the arrays that it makes."""

    def segment(*arrays: Any) -> list[Any]:
        env: dict[Value, Any] = dict(zip(reads, arrays))

        def read(x: Operand) -> Any:
            if not isinstance(x, Value):
                return x.val
            return env[x] if x.constant is None else x.constant

        for node in nodes:
            env.update(zip(node.makes, node.run(*map(read, node.reads))))
        # Operands that Python made may have lost their weak types.
        return [_jaxcore.with_weak_type(env[value], value.aval) for value in makes]

    return segment


def _compiled(
    nodes: Sequence[Node],
    reads: Sequence[Value],
    makes: Sequence[Value],
    donate: Sequence[int],
    name: str,
    options: Options,
) -> Callable[..., Sequence[Any]]:
    segment = segment_of(nodes, reads, makes)
    segment.__name__ = segment.__qualname__ = name
    return jax.jit(segment, donate_argnums=tuple(donate), compiler_options=dict(options.compiler_options) or None)


# -------------------------------------------------- from a traced program to a plan


def plan_of(closed: Any, donated: Sequence[bool], options: Options) -> Plan:
    """Make the plan of a traced program: flatten the program, divide it into steps, and prepare each step to run.

    Args:
        closed: the jaxpr of the program.
        donated: which inputs of the program may be overwritten.
        options: how the program is planned.

    Raises:
        StaysWhole: the program cannot be cut, or has no Python call between its equations.
        Exception: the program has a Python call that cannot run, such as a backward pass without a rule.
    """
    plan = _plan_of_part(closed, donated, options)
    if not plan.calls and not plan.loops:
        raise StaysWhole("it calls no Python, or only inside a loop or a cond")
    return plan


def _plan_of_part(closed: Any, donated: Sequence[bool], options: Options) -> Plan:
    program, steps = divided(closed, cut_loops=options.loops == "python")
    hosts = _hosts(program, steps, lambda closed, donated: _plan_of_part(closed, donated, options))
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
        return node.call is not None or (cut_loops and node.holds_call and node.eqn.primitive.name in LOOPS)

    return program, partitioned(program, is_host)


def _hosts(
    program: Program, steps: Sequence[Step], plan: Callable[[Any, Sequence[bool]], Plan]
) -> dict[Node, Callable[..., Sequence[Any]]]:
    readers = _readers(program)
    handed = _handed_over(program, readers)
    hosts = {step for step in steps if isinstance(step, Node)}

    def takes_numpy(reader: Node | None) -> bool:
        return reader is not None and (reader not in hosts or (reader.call is not None and not reader.call.on_jax))

    found: dict[Node, Callable[..., Sequence[Any]]] = {}
    segments_have_effects = False
    for step in steps:
        if not isinstance(step, Node):
            segments_have_effects = segments_have_effects or any(node.effects for node in step)
            continue
        if step.call is None:
            found[step] = LoopStep(step.eqn, plan)
            continue
        if step.call.refusal is not None:
            raise step.call.refusal()
        numpy = all(takes_numpy(reader) for value in step.makes for reader in readers.get(value, ()))
        # A call with an effect waits for the effects of the segments before it.
        waits = step.effects and segments_have_effects
        found[step] = HostStep(step, hands_over=not handed.isdisjoint(step.makes), waits=waits, takes_numpy=numpy)
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
    receipts = [node.makes[-1] for node in program.nodes if _is_alone(node) and node.call.can_hand_over]
    return {receipt for receipt in receipts if all(_takes(reader, receipt) for reader in readers.get(receipt, []))}


def _is_alone(node: Node) -> bool:
    """Tell whether a node is a Python call without batch axes."""
    return node.call is not None and not node.eqn.params["batch"].sizes


def _takes(reader: Node | None, receipt: Value) -> bool:
    return reader is not None and _is_alone(reader) and reader.call.takes_records and reader.reads[0] is receipt

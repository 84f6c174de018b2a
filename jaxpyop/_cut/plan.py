"""`Plan`: a cut program, which runs its segments and Python calls one after the other; `plan_of` makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore, _sharding
from jaxpyop._cut.host_steps import HostStep, LoopStep, is_run_by_turns
from jaxpyop._cut.inline import Program, call_of, holds_call, inlined, variables_of
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


class _Instruction(NamedTuple):
    """One step of a plan. The values of a run are in a list, in which each variable has an index.

    Attributes:
        run: the compiled segment, or the Python call.
        reads: the indices of its inputs.
        makes: the indices of its results, which follow each other.
        dead: the indices of the values that no later step reads.
    """

    run: Callable[..., Sequence[Any]]
    reads: Sequence[int]
    makes: slice
    dead: Sequence[int]


class Plan:
    """A program as a list of instructions. A run leaves no state in it, so several threads may run it at once.

    Args:
        program: the program to run.
        steps: its segments, and the equations that Python runs.
        donated: which inputs of the program may be overwritten.
        hosts: the function that runs an equation, for each equation that Python runs.
        options: how the program is compiled.
    """

    def __init__(
        self,
        program: Program,
        steps: Sequence[Step],
        donated: Sequence[bool],
        hosts: dict[Any, Callable[..., Sequence[Any]]],
        options: Options,
    ) -> None:
        # A segment has its constants inside, and a Python call reads them as it reads everything else.
        read_by_hosts = {x for eqn in hosts for x in eqn.invars}
        known = {x: jnp.asarray(value) for x, value in program.constants.items() if x in read_by_hosts}
        self._initial: list[Any] = [*(None for _ in program.inputs), *known.values()]
        indices = {x: k for k, x in enumerate((*program.inputs, *known))}
        self._instructions: list[_Instruction] = []
        self.text: list[str] = []
        lifetimes = Lifetimes(program, steps, donated)
        for number, step in enumerate(steps):
            reads, makes = lifetimes.reads[number], lifetimes.makes(number)
            if isinstance(step, list):
                run = segment_of(program, step, reads, makes)
                run.__name__ = run.__qualname__ = f"{options.name}_{number}"
                donate, for_xla = tuple(lifetimes.donations(number)), dict(options.compiler_options) or None
                run = jax.jit(run, donate_argnums=donate, compiler_options=for_xla)
                self.text.append(f"segment: {', '.join(str(eqn.primitive) for eqn in step)}")
            else:
                run, reads, makes = hosts[step], step.invars, step.outvars
                self.text.append(f"Python: {run}")
            made = slice(len(self._initial), len(self._initial) + len(makes))
            indices.update((x, made.start + k) for k, x in enumerate(makes))
            self._initial.extend(None for _ in makes)
            dead = [indices[x] for x in {*reads, *makes} - known.keys() if lifetimes.ends.get(x, -1) <= number]
            self._instructions.append(_Instruction(run, [indices[x] for x in reads], made, dead))
        self._outputs = [indices[x] for x in program.outputs]
        self.calls = [call_of(eqn) for eqn in hosts if call_of(eqn) is not None]
        self.loops = [eqn for eqn in hosts if call_of(eqn) is None]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the program on jax.Arrays, and return its results."""
        values = self._initial.copy()
        values[: len(inputs)] = inputs
        for run, reads, makes, dead in self._instructions:
            values[makes] = run(*map(values.__getitem__, reads))
            for k in dead:
                values[k] = None
        outputs = list(map(values.__getitem__, self._outputs))
        return outputs if _jaxcore.is_one_cpu() else _placed(outputs, inputs)

    def __str__(self) -> str:
        return "\n".join(self.text)


def _placed(outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
    """Put all results on the devices of the committed inputs, as `jax.jit` does.

    This includes results that depend on no input.
    """
    for like in filter(_sharding.is_committed, inputs):
        return [x if _sharding.is_committed(x) else _sharding.placed_like(x, like) for x in outputs]
    return outputs


class Lifetimes:
    """How long each value of a program is needed: from the step that makes it to the last step that reads it."""

    def __init__(self, program: Program, steps: Sequence[Step], donated: Sequence[bool]) -> None:
        self._steps = steps
        self.reads = [_read_by(step, program.constants) for step in steps]
        self.ends = {value: number for number, reads in enumerate(self.reads) for value in reads}
        self.ends.update(dict.fromkeys(program.outputs, len(steps)))
        # The memory of these values is never used again. A body may keep its inputs and results. The program's inputs
        # belong to the caller, unless they are donated.
        self._kept = {v for v, gives in zip(program.inputs, donated, strict=True) if not gives}
        for step in steps:
            if not isinstance(step, list):
                self._kept.update((*step.invars, *step.outvars))

    def makes(self, number: int) -> list[Any]:
        """Return the results of a step that a later step, or the caller, reads."""
        step = self._steps[number]
        eqns = step if isinstance(step, list) else [step]
        return [value for eqn in eqns for value in eqn.outvars if self.ends.get(value, -1) > number]

    def donations(self, number: int) -> list[int]:
        """Return the indices of a segment's operands that are not needed any more, and whose memory fits a result."""
        room = [_type(value) for value in self.makes(number)]
        found: list[int] = []
        for k, value in enumerate(self.reads[number]):
            if value not in self._kept and self.ends[value] == number and _type(value) in room:
                room.remove(_type(value))
                found.append(k)
        return found


def _read_by(step: Step, constants: dict[Any, Any]) -> list[Any]:
    """Return the variables that a step takes from earlier steps or from the program's inputs.

    For a segment, each one is listed once. Constants are left out, because they are part of the compiled segment.
    """
    if not isinstance(step, list):
        return list(step.invars)
    made = {value for eqn in step for value in eqn.outvars}
    reads = dict.fromkeys(x for eqn in step for x in variables_of(eqn.invars))
    return [x for x in reads if x not in made and x not in constants]


def _type(value: Any) -> tuple[Any, Any]:
    return value.aval.shape, value.aval.dtype


def segment_of(
    program: Program, eqns: Sequence[Any], reads: Sequence[Any], makes: Sequence[Any]
) -> Callable[..., list[Any]]:
    """Return the function of a segment, which takes the arrays that it reads, and returns the arrays that it makes."""

    def segment(*arrays: Any) -> list[Any]:
        env = program.constants | dict(zip(reads, arrays))
        _jaxcore.run_equations(eqns, env)
        # Operands that Python made may have lost their weak types.
        return [_jaxcore.with_weak_type(env[value], value.aval) for value in makes]

    return segment


# -------------------------------------------------- from a traced program to a plan


def plan_of(closed: Any, donated: Sequence[bool], options: Options) -> Plan:
    """Make the plan of a traced program: flatten the program, divide it into steps, and prepare each step to run.

    Args:
        closed: the jaxpr of the program, or of a part of it that Python runs turn by turn.
        donated: which inputs of the program may be overwritten.
        options: how the program is planned.

    Raises:
        StaysWhole: the program cannot be cut.
        Exception: the program has a Python call that cannot run, such as a backward pass without a rule.
    """
    program, steps = divided(closed, cut_loops=options.loops == "python")
    hosts = _hosts(program, steps, lambda closed, donated: plan_of(closed, donated, options))
    return Plan(program, steps, donated, hosts, options)


def divided(closed: Any, *, cut_loops: bool) -> tuple[Program, list[Step]]:
    """Flatten a traced program, and divide it. Return the flat program and its steps.

    An equation that Python runs reads constants in place of literals.

    Args:
        closed: the jaxpr of the program.
        cut_loops: whether Python runs a loop that holds a Python call, between segments.

    Raises:
        StaysWhole: the program cannot be cut.
    """
    program = inlined(closed)

    def is_host(eqn: Any) -> bool:
        return call_of(eqn) is not None or (cut_loops and is_run_by_turns(eqn) and holds_call(eqn))

    eqns = [_without_literals(eqn, program.constants) if is_host(eqn) else eqn for eqn in program.eqns]
    program = dataclasses.replace(program, eqns=eqns)
    return program, partitioned(program, is_host)


def _without_literals(eqn: Any, constants: dict[Any, Any]) -> Any:
    """Return an equation that reads variables alone. The values of its literals are added to the constants."""
    operands: list[Any] = []
    for x in eqn.invars:
        if isinstance(x, _jaxcore.Literal):
            literal, x = x, _jaxcore.Variable(x.aval)
            constants[x] = np.asarray(literal.val, literal.aval.dtype)
        operands.append(x)
    return eqn.replace(invars=operands)


def _hosts(
    program: Program, steps: Sequence[Step], plan: Callable[[Any, Sequence[bool]], Plan]
) -> dict[Any, Callable[..., Sequence[Any]]]:
    # The caller, loops and functions of JAX operations read arrays of JAX.
    calls = {step: call_of(step) for step in steps if not isinstance(step, list)}
    read_by_jax = {x for step, call in calls.items() if call is None or call.on_jax for x in step.invars}
    read_by_jax.update(program.outputs)
    found: dict[Any, Callable[..., Sequence[Any]]] = {}
    segments_have_effects = False
    for step in steps:
        if isinstance(step, list):
            segments_have_effects = segments_have_effects or any(eqn.effects for eqn in step)
            continue
        if (call := calls[step]) is None:
            found[step] = LoopStep(step, plan)
            continue
        if call.refusal is not None:
            raise call.refusal()
        # A call with an effect waits for the effects of the segments before it.
        waits = bool(step.effects) and segments_have_effects
        found[step] = HostStep(step, waits=waits, takes_numpy=read_by_jax.isdisjoint(step.outvars))
    return found

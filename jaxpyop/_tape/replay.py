"""Walking a recorded line: cotangents from its end to its start, tangents the other way."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from jaxpyop import _jaxcore
from jaxpyop._tape.flow import live_equations
from jaxpyop._tape.keys import Cache, value_type
from jaxpyop._tape.linear import Linear
from jaxpyop._tape.ops import Operation
from jaxpyop._tape.vjp import filled, pull, push, zeros

_functions = Cache(2048)  # compiled derivatives of single ops


class Node(NamedTuple):
    """One recorded call.

    Attributes:
        how: what was called.
        ins: the slots of the inputs' values.
        outs: the slots of the outputs' values, -1 for those without a tangent.
        needs: see `Flow`.
    """

    how: Operation | Linear
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]


class Part(NamedTuple):
    """The derivative of an op's `wanted` outputs in its `diff` inputs; `rule` is `pull` or `push`."""

    rule: Callable[..., Sequence[Any]]
    op: Operation
    wanted: tuple[int, ...]
    diff: tuple[int, ...]


Evaluate = Callable[[Part, list[Any], list[Any]], Sequence[Any]]  # at values, on vectors


def direct(part: Part, args: Sequence[Any], vectors: Sequence[Any]) -> Sequence[Any]:
    """Apply a derivative under the current trace."""
    # A value that no derivative reads was dropped, down to its type: zeros do
    # as well, and are dead code when compiled.
    full = [zeros(a) if isinstance(a, _jaxcore.ShapedArray) else a for a in args]
    return part.rule(part.op.outputs, part.wanted, part.diff, full, vectors)


def apply(part: Part, args: Sequence[Any], vectors: Sequence[Any]) -> Sequence[Any]:
    """Apply a derivative, compiled on the second sight of the op and its types.

    Compiling takes as long as thousands of evaluations.
    """
    if part.op.id is None:
        return direct(part, args, vectors)
    present = tuple([i for i, a in enumerate(args) if not isinstance(a, _jaxcore.ShapedArray)])
    key = (part.rule, part.op.id, part.wanted, part.diff, present, *map(value_type, args))
    function = _functions.compiled(key, lambda: _compile(part, present, args))
    if function is None:
        return direct(part, args, vectors)
    return function([args[i] for i in present], vectors)


def _compile(part: Part, present: Sequence[int], args: Sequence[Any]) -> Callable[..., Any]:
    blanks = filled(args, present, [None] * len(present))

    def tape_op(arrays: list[Any], vectors: list[Any]) -> Sequence[Any]:
        return direct(part, filled(blanks, present, arrays), vectors)

    return jax.jit(tape_op)


def walk_back(
    nodes: Sequence[Node], values: Sequence[Any], seeds: Iterable[tuple[int, Any]], evaluate: Evaluate
) -> dict[int, Any]:
    """Cotangents by slot, from those of the outputs.

    Args:
        nodes: the line.
        values: by slot; of those that no derivative reads, the type.
        seeds: slots of outputs, which may repeat, each with a cotangent.
        evaluate: `apply` or `direct`.
    """
    cotangents: dict[int, Any] = {}

    def add(slot: int, cotangent: Any) -> None:
        old = cotangents.get(slot)
        cotangents[slot] = cotangent if old is None else jax.lax.add(old, cotangent)

    for slot, cotangent in seeds:
        add(slot, cotangent)
    for node in reversed(nodes):
        wanted = tuple([j for j, slot in enumerate(node.outs) if slot in cotangents])
        if not wanted:
            continue
        given = [cotangents.pop(node.outs[j]) for j in wanted]
        diff = tuple(sorted({i for j in wanted for i in node.needs[j]}))
        if isinstance(node.how, Linear):
            results = node.how.pull(wanted, given)
        else:
            results = evaluate(Part(pull, node.how, wanted, diff), [values[s] for s in node.ins], given)
        for i, cotangent in zip(diff, results, strict=True):
            add(node.ins[i], cotangent)
    return cotangents


def walk_forward(nodes: Sequence[Node], values: Sequence[Any], seeds: dict[int, Any]) -> dict[int, Any]:
    """Tangents by slot, from those of the inputs (`seeds`)."""
    tangents = dict(seeds)
    for node in nodes:
        moving = [i for i, slot in enumerate(node.ins) if slot in tangents]
        wanted = tuple([j for j, need in enumerate(node.needs) if not set(moving).isdisjoint(need)])
        if not wanted:
            continue
        diff = tuple([i for i in moving if any(i in node.needs[j] for j in wanted)])
        given = [tangents[node.ins[i]] for i in diff]
        if isinstance(node.how, Linear):
            results = node.how.push(wanted, dict(zip(diff, given, strict=True)))
        else:
            results = apply(Part(push, node.how, wanted, diff), [values[s] for s in node.ins], given)
        tangents.update((node.outs[j], t) for j, t in zip(wanted, results, strict=True))
    return tangents


# Longer lines are walked op by op: tracing takes about a millisecond per op,
# and XLA's time grows faster than linearly.
MAX_LINE = 512

lines = Cache(256)  # compiled pullbacks
programs = Cache(128)  # recorded lines that came back, one for all of their records


class Program(NamedTuple):
    """A recorded straight line, without its values.

    Attributes:
        nodes: the calls, in order.
        ins: the slots of the inputs, -1 for those without a tangent.
        outs: the slots of the outputs, -1 for constants.
        kept: the slots whose values derivatives read.
        types: by slot, of the other values that go into nodes.
        sizes: of what is kept, in bytes; of a program that is shared.
        key: equal for programs that are alike, types included; None if it cannot be shared.
    """

    nodes: Sequence[Node]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    kept: tuple[int, ...]
    types: tuple[Any, ...]
    sizes: tuple[int, ...]
    key: Hashable | None


def pull_program(program: Program, kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents of a program's inputs from those of its outputs; None is zero."""
    given = tuple([j for j, c in enumerate(cotangents) if c is not None and program.outs[j] >= 0])
    if not given:
        return [None] * len(program.ins)
    seeds = [cotangents[j] for j in given]
    if program.key is not None:
        function = lines.compiled((program.key, given), lambda: _compile_program(program, given, kept, seeds))
        if function is not None:
            return function(kept, seeds)
    return _pull(program, given, kept, seeds, apply)


def _pull(
    program: Program, given: tuple[int, ...], kept: Sequence[Any], seeds: Sequence[Any], evaluate: Evaluate
) -> list[Any]:
    pairs = [(program.outs[j], seed) for j, seed in zip(given, seeds, strict=True)]
    values = filled(program.types, program.kept, kept)
    found = walk_back(program.nodes, values, pairs, evaluate)
    return [found.get(s) for s in program.ins]


def _compile_program(
    program: Program, given: tuple[int, ...], kept: Sequence[Any], seeds: Sequence[Any]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """The compiled `_pull`, given only the values that it uses.

    XLA would drop the others as well, but each argument takes time in every
    call.
    """

    def pull(kept: list[Any], seeds: list[Any]) -> list[Any]:
        return _pull(program, given, kept, seeds, direct)

    closed, results = jax.make_jaxpr(pull, return_shape=True)(list(kept), seeds)
    eqns, live = live_equations(closed.jaxpr)
    invars = closed.jaxpr.invars
    used = [i for i, v in enumerate(invars[: len(kept)]) if v in live]
    binders = [invars[i] for i in used] + invars[len(kept) :]
    tree = jax.tree.structure(results)

    def tape_line(arrays: list[Any]) -> list[Any]:
        env = dict(zip(binders, arrays, strict=True))
        return jax.tree.unflatten(tree, _evaluate(closed, eqns, env))

    function = jax.jit(tape_line)
    return lambda kept, seeds: function([*[kept[i] for i in used], *seeds])


def _evaluate(closed: Any, eqns: Sequence[Any], env: dict[Any, Any]) -> list[Any]:
    env.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _jaxcore.Literal) else env[atom]

    for eqn in eqns:
        primitive = eqn.primitive
        outs = primitive.bind(*map(read, eqn.invars), **primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, outs if primitive.multiple_results else [outs], strict=True))
    return list(map(read, closed.jaxpr.outvars))


def push_program(program: Program, kept: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Tangents of a program's outputs from those of its inputs; None is zero."""
    values = filled(program.types, program.kept, kept)
    seeds = {s: t for s, t in zip(program.ins, tangents, strict=True) if s >= 0 and t is not None}
    found = walk_forward(program.nodes, values, seeds)
    return [found.get(s) for s in program.outs]

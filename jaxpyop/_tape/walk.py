"""Walking a recorded line: cotangents from its end to its start, tangents the other way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from jaxpyop import _jaxcore
from jaxpyop._tape.keys import Cache, value_type
from jaxpyop._tape.linear import Linear
from jaxpyop._tape.ops import Operation
from jaxpyop._tape.rules import filled, pull, push, zeros

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

"""Differentiates a recorded program: call by call, or compiled as one when the same program comes back.

Cotangents go from the end of the program to its start, tangents the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from jaxpyop import _jaxcore
from jaxpyop._jaxcore import replaced
from jaxpyop._tape.cache import Cache, value_type
from jaxpyop._tape.linear import Linear
from jaxpyop._tape.ops import Operation
from jaxpyop._tape.pull_push import pull, push

# Longer programs are pulled back call by call: tracing takes about a millisecond a call, and the time of XLA grows
# faster than linearly.
MAX_COMPILED = 512

# The compiled derivatives of single operations, and the compiled pullbacks of programs.
_derivatives = Cache(2048)
pullbacks = Cache(256)


class Node(NamedTuple):
    """One recorded call.

    Attributes:
        how: the operation that was called, or the derivative of a call that is never evaluated again.
        ins: the slots of the inputs' values.
        outs: the slots of the outputs' values, -1 for those without a tangent.
        needs: for each output, the inputs that its tangent depends on.
    """

    how: Operation | Linear
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]


class Program(NamedTuple):
    """A recorded sequence of calls, without its values.

    Attributes:
        nodes: the calls, in order.
        ins: the slots of the inputs, -1 for those without a tangent.
        outs: the slots of the outputs, -1 for constants.
        kept: the slots whose values derivatives read.
        types: by slot, the types of the other values that go into nodes.
        sizes: the sizes of the kept values in bytes, for a program that is shared.
        key: equal for programs that are alike, types included; None if it cannot be shared.
        is_wide: whether a value has a dtype of 64 bits, which a function may turn on for some of its calls only.
    """

    nodes: Sequence[Node]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    kept: tuple[int, ...]
    types: tuple[Any, ...]
    sizes: tuple[int, ...]
    key: Hashable | None
    is_wide: bool


# ------------------------------------------------------ derivatives of one operation


class Derivative(NamedTuple):
    """The derivative of an operation's outputs `outnums` in its inputs `argnums`. `rule` is `pull` or `push`."""

    rule: Callable[..., Sequence[Any]]
    op: Operation
    outnums: tuple[int, ...]
    argnums: tuple[int, ...]


# Applies a derivative at values (the first list) to vectors (the second).
Apply = Callable[[Derivative, list[Any], list[Any]], Sequence[Any]]


def apply_traced(derivative: Derivative, args: Sequence[Any], vectors: Sequence[Any]) -> Sequence[Any]:
    """Applies a derivative under the current trace."""
    rule, op, outnums, argnums = derivative
    # For a value that no derivative reads, only its type was kept. Zeros can take its place; compiling drops them.
    full = [_jaxcore.zeros(a) if isinstance(a, _jaxcore.ShapedArray) else a for a in args]
    if (own_rule := op.pull if rule is pull else op.push) is not None:
        return own_rule(outnums, argnums, full, vectors)
    return rule(op.outputs, outnums, argnums, full, vectors)


def apply_compiled(derivative: Derivative, args: Sequence[Any], vectors: Sequence[Any]) -> Sequence[Any]:
    """Applies a derivative, compiled when the operation comes with the same types for the second time."""
    if derivative.op.id is None:
        return apply_traced(derivative, args, vectors)
    rule, op, outnums, argnums = derivative
    present = tuple([i for i, a in enumerate(args) if not isinstance(a, _jaxcore.ShapedArray)])
    key = (rule, op.id, outnums, argnums, present, *map(value_type, args))
    function = _derivatives.compiled(key, lambda: _compile(derivative, present, args))
    if function is None:
        return apply_traced(derivative, args, vectors)
    return function([args[i] for i in present], vectors)


def _compile(derivative: Derivative, present: Sequence[int], args: Sequence[Any]) -> Callable[..., Any]:
    # The function must not keep these values alive.
    types = replaced(args, present, [None] * len(present))

    def tape_derivative(arrays: list[Any], vectors: list[Any]) -> Sequence[Any]:
        return apply_traced(derivative, replaced(types, present, arrays), vectors)

    return jax.jit(tape_derivative)


# -------------------------------------------------------- derivatives of a program


def cotangents_by_slot(
    nodes: Sequence[Node], values: Sequence[Any], seeds: Iterable[tuple[int, Any]], apply: Apply
) -> dict[int, Any]:
    """Propagates the cotangents of outputs backward, and returns all cotangents by slot.

    Args:
        nodes: the calls of the program.
        values: by slot, values or, where no derivative reads them, types.
        seeds: slots of outputs, which may repeat, each with a cotangent.
        apply: `apply_compiled` or `apply_traced`.
    """
    cotangents: dict[int, Any] = {}

    def add(slot: int, cotangent: Any) -> None:
        old = cotangents.get(slot)
        cotangents[slot] = cotangent if old is None else jax.lax.add(old, cotangent)

    for slot, cotangent in seeds:
        add(slot, cotangent)
    for node in reversed(nodes):
        outnums = tuple([j for j, slot in enumerate(node.outs) if slot in cotangents])
        if not outnums:
            continue
        nonzero = [cotangents.pop(node.outs[j]) for j in outnums]
        argnums = tuple(sorted({i for j in outnums for i in node.needs[j]}))
        if isinstance(node.how, Linear):
            results = node.how.pull(outnums, nonzero)
        else:
            results = apply(Derivative(pull, node.how, outnums, argnums), [values[s] for s in node.ins], nonzero)
        for i, cotangent in zip(argnums, results, strict=True):
            add(node.ins[i], cotangent)
    return cotangents


def tangents_by_slot(
    nodes: Sequence[Node], values: Sequence[Any], seeds: dict[int, Any], apply: Apply
) -> dict[int, Any]:
    """Propagates the tangents of inputs, by slot, forward, and returns all tangents by slot."""
    tangents = dict(seeds)
    for node in nodes:
        perturbed = [i for i, slot in enumerate(node.ins) if slot in tangents]
        outnums = tuple([j for j, need in enumerate(node.needs) if not set(perturbed).isdisjoint(need)])
        if not outnums:
            continue
        argnums = tuple([i for i in perturbed if any(i in node.needs[j] for j in outnums)])
        nonzero = [tangents[node.ins[i]] for i in argnums]
        if isinstance(node.how, Linear):
            results = node.how.push(outnums, dict(zip(argnums, nonzero, strict=True)))
        else:
            results = apply(Derivative(push, node.how, outnums, argnums), [values[s] for s in node.ins], nonzero)
        tangents.update((node.outs[j], t) for j, t in zip(outnums, results, strict=True))
    return tangents


def push_program(program: Program, kept: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Returns the tangents of a program's outputs for these tangents of its inputs; None is zero."""
    seeds = {s: t for s, t in zip(program.ins, tangents, strict=True) if s >= 0 and t is not None}
    found = tangents_by_slot(program.nodes, replaced(program.types, program.kept, kept), seeds, apply_compiled)
    return [found.get(s) for s in program.outs]


def pull_program(program: Program, kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Returns the cotangents of a program's inputs for these cotangents of its outputs; None is zero."""
    nonzero = tuple([j for j, c in enumerate(cotangents) if c is not None and program.outs[j] >= 0])
    if not nonzero:
        return [None] * len(program.ins)
    seeds = [cotangents[j] for j in nonzero]
    if program.key is not None:
        # A pullback may run outside of the `jax.set_mesh` in which its program was recorded.
        key = (program.key, nonzero, jax.sharding.get_abstract_mesh())
        function = pullbacks.compiled(key, lambda: _compile_pullback(program, nonzero, kept, seeds))
        if function is not None:
            return function(kept, seeds)
    return _pull(program, nonzero, kept, seeds, apply_compiled)


def _pull(
    program: Program, nonzero: tuple[int, ...], kept: Sequence[Any], seeds: Sequence[Any], apply: Apply
) -> list[Any]:
    pairs = [(program.outs[j], seed) for j, seed in zip(nonzero, seeds, strict=True)]
    found = cotangents_by_slot(program.nodes, replaced(program.types, program.kept, kept), pairs, apply)
    return [found.get(s) for s in program.ins]


def _compile_pullback(
    program: Program, nonzero: tuple[int, ...], kept: Sequence[Any], seeds: Sequence[Any]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """Compiles `_pull` as a function of the values that it uses, and of no others.

    XLA would drop the others as well, but each argument takes time in every call.
    """

    def pull(kept: list[Any], seeds: list[Any]) -> list[Any]:
        return _pull(program, nonzero, kept, seeds, apply_traced)

    closed, results = jax.make_jaxpr(pull, return_shape=True)(list(kept), seeds)
    jaxpr, consts = _jaxcore.opened(closed)
    jaxpr, is_used = _jaxcore.without_dead_code(jaxpr)
    used = [i for i, flag in enumerate(is_used) if flag]
    tree = jax.tree.structure(results)

    def tape_pullback(arrays: list[Any]) -> list[Any]:
        return jax.tree.unflatten(tree, _jaxcore.run_jaxpr(jaxpr, *arrays))

    function = jax.jit(tape_pullback)

    def call(kept: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
        values = [*consts, *kept, *seeds]
        return function([values[i] for i in used])

    return call

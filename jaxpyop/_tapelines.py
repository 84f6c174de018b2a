"""Derivatives of whole recorded lines, compiled when a line comes back.

The compiled function is the walk over the line under `jax.jit`. A line is
compiled when its key is seen for the second time: that takes as long as
thousands of evaluations, and a loop whose length differs in every call never
comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

from jaxpyop import _jaxcore
from jaxpyop._tapeflow import live_equations
from jaxpyop._tapekeys import Cache, value_type
from jaxpyop._taperules import filled
from jaxpyop._tapewalk import Evaluate, Node, apply, direct, walk_back, walk_forward

# Longer lines are walked op by op: tracing takes about a millisecond per op,
# and XLA's time grows faster than linearly.
MAX_LINE = 512

lines = Cache(256)  # compiled pullbacks


class Program(NamedTuple):
    """A recorded straight line, without its values.

    Attributes:
        nodes: the calls, in order.
        ins: the slots of the inputs, -1 for those without a tangent.
        outs: the slots of the outputs, -1 for constants.
        free: the slots that no node computes: inputs and constants.
        key: equal for alike programs; None if it cannot be shared.
    """

    nodes: Sequence[Node]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    free: tuple[int, ...]
    key: Hashable | None


def pull_program(program: Program, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents of a program's inputs from those of its outputs; None is zero."""
    given = tuple([j for j, c in enumerate(cotangents) if c is not None and program.outs[j] >= 0])
    if not given:
        return [None] * len(program.ins)
    seeds = [cotangents[j] for j in given]
    if program.key is not None:
        key = (program.key, given, *[value_type(values[s]) for s in program.free])
        function = lines.compiled(key, lambda: _compile(program, given, values, seeds))
        if function is not None:
            return function(values, seeds)
    return _pull(program, given, values, seeds, apply)


def _pull(
    program: Program, given: tuple[int, ...], values: Sequence[Any], seeds: Sequence[Any], evaluate: Evaluate
) -> list[Any]:
    pairs = [(program.outs[j], seed) for j, seed in zip(given, seeds, strict=True)]
    found = walk_back(program.nodes, values, pairs, evaluate)
    return [found.get(s) for s in program.ins]


def _compile(
    program: Program, given: tuple[int, ...], values: Sequence[Any], seeds: Sequence[Any]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """The compiled `_pull`, given only the values that it uses.

    XLA would drop the others as well, but each argument takes time in every
    call.
    """
    present = [s for s, v in enumerate(values) if not (v is None or isinstance(v, _jaxcore.ShapedArray))]

    def pull(arrays: list[Any], seeds: list[Any]) -> list[Any]:
        return _pull(program, given, filled(values, present, arrays), seeds, direct)

    closed, results = jax.make_jaxpr(pull, return_shape=True)([values[s] for s in present], seeds)
    eqns, live = live_equations(closed.jaxpr)
    invars = closed.jaxpr.invars
    used = [s for s, v in zip(present, invars[: len(present)], strict=True) if v in live]
    binders = [v for v in invars[: len(present)] if v in live] + invars[len(present) :]
    tree = jax.tree.structure(results)

    def tape_line(arrays: list[Any]) -> list[Any]:
        env = dict(zip(binders, arrays, strict=True))
        return jax.tree.unflatten(tree, _evaluate(closed, eqns, env))

    function = jax.jit(tape_line)
    return lambda values, seeds: function([*[values[s] for s in used], *seeds])


def _evaluate(closed: Any, eqns: Sequence[Any], env: dict[Any, Any]) -> list[Any]:
    env.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _jaxcore.Literal) else env[atom]

    for eqn in eqns:
        primitive = eqn.primitive
        outs = primitive.bind(*map(read, eqn.invars), **primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, outs if primitive.multiple_results else [outs], strict=True))
    return list(map(read, closed.jaxpr.outvars))


def push_program(program: Program, values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Tangents of a program's outputs from those of its inputs; None is zero."""
    seeds = {s: t for s, t in zip(program.ins, tangents, strict=True) if s >= 0 and t is not None}
    found = walk_forward(program.nodes, values, seeds)
    return [found.get(s) for s in program.outs]

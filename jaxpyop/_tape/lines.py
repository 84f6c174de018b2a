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
from jaxpyop._tape.flow import live_equations
from jaxpyop._tape.keys import Cache
from jaxpyop._tape.rules import filled
from jaxpyop._tape.walk import Evaluate, Node, apply, direct, walk_back, walk_forward

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
        function = lines.compiled((program.key, given), lambda: _compile(program, given, kept, seeds))
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


def _compile(
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

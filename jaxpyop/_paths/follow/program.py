"""The program that recorded paths become: equations and decisions, and how it is evaluated.

Atoms are compared by identity. Each result of an equation is one `Value`, and each distinct constant is one `Const`, so
two paths that mention 2.0 mention the same atom.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """An input of the body, or a result of an equation or of a decision."""

    aval: Any


@dataclasses.dataclass(eq=False, slots=True)
class Const:
    """A literal, or a value that the body closes over, which may be a tracer.

    `comparable` is False if the constant is known by its identity alone.
    """

    val: Any
    aval: Any
    comparable: bool


Atom = Value | Const


@dataclasses.dataclass(eq=False, slots=True)
class Equation:
    """A recorded equation, or a cast that was added (`eqn` is None).

    `origin` holds the user's functions behind the call of a custom derivative, where they are known. JAX wraps them
    anew in every run.
    """

    eqn: Any
    ins: Sequence[Atom]
    outs: Sequence[Value]
    origin: Any = None

    @property
    def size(self) -> int:
        return 1


@dataclasses.dataclass(eq=False, slots=True)
class Branch:
    """A decision between sides, which all have the results `outs`.

    The first test whose predicate has the given truth value decides. Test `i` leads to the side `targets[i]`, and
    `targets[-1]` is the side if no test succeeds. A branch with one test is a `lax.cond`. Those with more tests come
    from ``elif``, ``and`` and ``or``, and are a `lax.switch`.
    """

    tests: Sequence[tuple[Atom, bool]]
    targets: Sequence[int]
    sides: Sequence[Block]
    outs: Sequence[Value]

    @property
    def size(self) -> int:
        return 1 + sum(block_size(side) for side in self.sides)


Item = Equation | Branch


@dataclasses.dataclass(eq=False, slots=True)
class Block:
    """Equations and decisions in program order, then the results."""

    items: Sequence[Item]
    outs: Sequence[Atom]


def block_size(block: Block) -> int:
    return sum(item.size for item in block.items)


def has_effects(block: Block) -> bool:
    """Tells whether an equation must run even if nothing uses its results."""
    return any(
        any(map(has_effects, item.sides)) if isinstance(item, Branch) else item.eqn is not None and item.eqn.effects
        for item in block.items
    )


def free_values(block: Block) -> Iterator[Value]:
    """Yields the values that a block uses and does not define. A value may come several times."""
    defined: set[int] = set()
    for item in block.items:
        yield from _outer(_inputs(item), defined)
        defined.update(map(id, item.outs))
    yield from _outer(block.outs, defined)


def _inputs(item: Item) -> Iterable[Atom]:
    if isinstance(item, Equation):
        return item.ins
    inner = [value for side in item.sides for value in free_values(side)]
    return [*inner, *(pred for pred, _ in item.tests)]


def _outer(atoms: Iterable[Atom], defined: set[int]) -> Iterator[Value]:
    for atom in atoms:
        if isinstance(atom, Value) and id(atom) not in defined:
            yield atom


def evaluate(block: Block, env: dict[int, Any]) -> list[Any]:
    """Runs a block under the current trace.

    Args:
        block: the program.
        env: the JAX values of the block's free `Value`s, by the `id` of these.
    """

    def read(atom: Atom) -> Any:
        return atom.val if isinstance(atom, Const) else env[id(atom)]

    for item in block.items:
        if isinstance(item, Branch):
            outs = _decide(item, env, [read(pred) for pred, _ in item.tests])
        elif item.eqn is None:
            outs = [jax.lax.convert_element_type(read(item.ins[0]), item.outs[0].aval.dtype)]
        else:
            outs = core.run_equation(item.eqn, [read(atom) for atom in item.ins])
        env.update(zip(map(id, item.outs), outs, strict=True))
    return [read(atom) for atom in block.outs]


def _decide(branch: Branch, env: dict[int, Any], preds: Sequence[Any]) -> Sequence[Any]:
    free = list({id(v): v for side in branch.sides for v in free_values(side)})

    def function(block: Block) -> Callable[..., list[Any]]:
        return lambda *vals: evaluate(block, dict(zip(free, vals, strict=True)))

    # The values go in as operands. Concrete arrays that the branches close over would be constants, and every eager
    # call would compile again.
    operands = [env[key] for key in free]
    sides = list(map(function, branch.sides))
    if len(preds) == 1:
        yes, no = (sides[target] for target in branch.targets)
        if not branch.tests[0][1]:
            yes, no = no, yes
        return jax.lax.cond(preds[0], yes, no, *operands)
    index: Any = np.int32(branch.targets[-1])
    for i in reversed(range(len(preds))):
        target, truth = np.int32(branch.targets[i]), branch.tests[i][1]
        index = jax.lax.select(preds[i], *((target, index) if truth else (index, target)))
    return jax.lax.switch(index, sides, *operands)

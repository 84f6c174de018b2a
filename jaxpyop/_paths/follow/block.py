"""The program that recorded paths become: equations and decisions.

Values are compared by identity: one `Value` per equation result, and one `Const`
per distinct constant, so that two paths that mention 2.0 mention the same atom.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core

# A constant up to this many elements is compared by its bytes, a larger one by
# where it lies in memory: a body may close over a large table.
_COMPARED_ELEMENTS = 4096


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """An input of the body or the result of an equation."""

    aval: Any


@dataclasses.dataclass(eq=False, slots=True)
class Const:
    """A literal or a value that the body closes over (tracers included)."""

    val: Any
    aval: Any
    comparable: bool


Atom = Value | Const


@dataclasses.dataclass(eq=False, slots=True)
class Equation:
    """One equation: a recorded one, or a cast that was added (`eqn` is None).

    `origin` are the user's functions behind the call of a custom derivative,
    where they are known: JAX wraps them anew in every run.
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

    The first test whose predicate has the given truth value decides: test `i`
    takes the side `targets[i]`, and `targets[-1]` is for none of them. One test is
    a `lax.cond`; more are what ``elif``, ``and`` and ``or`` make, a `lax.switch`.
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


def const_key(val: Any, aval: Any) -> tuple[Any, Any]:
    """A key equal for equal constants, and what must live as long as the key."""
    if isinstance(val, core.Tracer):
        return (id(val),), val
    size = getattr(aval, "size", _COMPARED_ELEMENTS + 1)
    if isinstance(val, jax.Array) and size > _COMPARED_ELEMENTS:
        return (id(val),), val  # looking at it would copy it from the device
    try:
        array = np.asarray(val)
    except Exception:  # typed PRNG keys, arrays on other hosts
        return (id(val),), val
    kind = (str(aval.dtype), array.shape, aval.weak_type)
    if size <= _COMPARED_ELEMENTS:
        return (*kind, array.tobytes()), None
    pointer = array.__array_interface__["data"][0]
    return (*kind, array.strides, pointer), array


def block_size(block: Block) -> int:
    return sum(item.size for item in block.items)


def has_effects(block: Block) -> bool:
    """True where an equation must run although nothing uses its results."""
    for item in block.items:
        if isinstance(item, Branch):
            if any(map(has_effects, item.sides)):
                return True
        elif item.eqn is not None and item.eqn.effects:
            return True
    return False


def free_values(block: Block) -> Iterator[Value]:
    """The values that a block uses and does not define, repetitions included."""
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
    """Run a block under the current trace.

    Args:
        block: the program.
        env: the JAX values of the block's free `Value`s, by identity.
    """

    def read(atom: Atom) -> Any:
        return atom.val if isinstance(atom, Const) else env[id(atom)]

    for item in block.items:
        if isinstance(item, Branch):
            outs = _decide(item, env, [read(pred) for pred, _ in item.tests])
        else:
            outs = _bind(item, [read(atom) for atom in item.ins])
        env.update(zip(map(id, item.outs), outs, strict=True))
    return [read(atom) for atom in block.outs]


def _decide(branch: Branch, env: dict[int, Any], preds: Sequence[Any]) -> Sequence[Any]:
    free = list({id(v): v for side in branch.sides for v in free_values(side)})

    def function(block: Block) -> Callable[..., list[Any]]:
        return lambda *vals: evaluate(block, dict(zip(free, vals, strict=True)))

    # The values go in as operands: closed-over concrete arrays would be
    # constants of the branches, a new compilation for every eager call.
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


def _bind(op: Equation, vals: list[Any]) -> Sequence[Any]:
    if op.eqn is None:
        return [jax.lax.convert_element_type(vals[0], op.outs[0].aval.dtype)]
    return core.run_equation(op.eqn, vals)

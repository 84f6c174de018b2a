"""A tree of recorded paths.

Each path of a body is a straight line of equations with a mark at every
decision. Paths share the equations before the first decision in which they
differ, so together they form a binary tree, which becomes a program from the
leaves up (see `merge.join`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.block import Atom, Block, Const, Equation, Value, const_key
from jaxpyop._paths.follow.merge import RULES, join

# What marks a decision in a recorded path: one input, the predicate.
MARK = core.Primitive("jaxpyop_path_decision")
MARK.multiple_results = True
MARK.def_abstract_eval(lambda predicate: [])


class NondeterministicError(Exception):
    """Two runs of the body with the same decisions recorded different programs."""


class Node:
    """A stretch of a path up to its next decision or to its end."""

    __slots__ = ("children", "ops", "outs", "pred")

    def __init__(self) -> None:
        self.ops: list[Equation] = []
        self.pred: Atom | None = None
        self.children: dict[bool, Node] = {}
        self.outs: list[Atom] | None = None

    @property
    def finished(self) -> bool:
        return self.pred is not None or self.outs is not None


class PathTree:
    """Collects recorded paths; `block` is the program of all of them."""

    def __init__(self) -> None:
        self.root = Node()
        self.args: list[Value] | None = None
        self.leaves: list[Node] = []
        self._consts: dict[Any, Const] = {}
        self._kept: list[Any] = []  # what the keys of _consts point to

    def add(self, recorded: Any, decisions: Iterable[bool], origins: Sequence[Any] = ()) -> list[Any]:
        """Add a path.

        Args:
            recorded: the closed jaxpr of one run, with a `MARK` per decision.
            decisions: the answers given, in order.
            origins: the functions behind each call of a custom derivative.

        Returns:
            The avals of the path's results.

        Raises:
            NondeterministicError: an earlier path with the same decisions up to some
                point recorded something else up to there.
        """
        jaxpr, answers = recorded.jaxpr, iter(decisions)
        named = _with_origins(jaxpr.eqns, origins)
        if self.args is None:
            self.args = [Value(var.aval) for var in jaxpr.invars]
        env: dict[Any, Atom] = dict(zip(jaxpr.invars, self.args, strict=True))
        for var, val in zip(jaxpr.constvars, recorded.consts, strict=True):
            env[var] = self._const(val, var.aval)

        def read(atom: Any) -> Atom:
            if isinstance(atom, core.Literal):
                return self._const(atom.val, atom.aval)
            return env[atom]

        node, position = self.root, 0
        for eqn, origin in named:
            ins = [read(atom) for atom in eqn.invars]
            if eqn.primitive is MARK:
                node, position = _turn(node, position, ins[0], next(answers)), 0
                continue
            op = _step(node, position, Equation(eqn, ins, (), origin))
            env.update(zip(eqn.outvars, op.outs, strict=True))
            position += 1
        if node.finished:
            raise NondeterministicError
        node.outs = [read(atom) for atom in jaxpr.outvars]
        self.leaves.append(node)
        return [atom.aval for atom in node.outs]

    def block(self) -> Block:
        """The merged program; results that differ in dtype are made equal."""
        rows = [leaf.outs or [] for leaf in self.leaves]
        for column in range(len(rows[0])):
            target = common_type([row[column].aval for row in rows])
            for leaf, row in zip(self.leaves, rows, strict=True):
                row[column] = _cast(leaf, row[column], target)
        return _block(self.root)

    def _const(self, val: Any, aval: Any) -> Const:
        key, keep = const_key(val, aval)
        if key not in self._consts:
            self._consts[key] = Const(val, aval, comparable=len(key) > 1)
            self._kept.append(keep)
        return self._consts[key]


def _turn(node: Node, position: int, pred: Atom, answer: bool) -> Node:
    if not node.finished:
        node.pred = pred
    if node.pred is not pred or position != len(node.ops):
        raise NondeterministicError
    return node.children.setdefault(answer, Node())


def _with_origins(eqns: Sequence[Any], origins: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    custom = [eqn for eqn in eqns if eqn.params.keys() & RULES]
    if len(custom) != len(origins):  # the recording inlined some
        origins = [None] * len(custom)
    found = dict(zip(map(id, custom), origins, strict=True))
    return ((eqn, found.get(id(eqn))) for eqn in eqns)


def _step(node: Node, position: int, new: Equation) -> Equation:
    """The next equation of a path: the recorded one where there is one."""
    eqn, ins = new.eqn, new.ins
    if not node.finished:
        new.outs = [Value(var.aval) for var in eqn.outvars]
        node.ops.append(new)
        return new
    if position >= len(node.ops):
        raise NondeterministicError
    op = node.ops[position]
    known = op.eqn
    # Parameters are not compared here: callables in them are new in every run.
    if known.primitive is not eqn.primitive or len(ins) != len(op.ins):
        raise NondeterministicError
    if [var.aval for var in eqn.outvars] != [value.aval for value in op.outs]:
        raise NondeterministicError
    if not all(map(_same_or_opaque, op.ins, ins)):
        raise NondeterministicError
    return op


def _same_or_opaque(a: Atom, b: Atom) -> bool:
    if a is b:
        return True
    if not (isinstance(a, Const) and isinstance(b, Const)):
        return False
    return not a.comparable and not b.comparable and a.aval == b.aval


def common_type(avals: Sequence[Any]) -> Any:
    """The dtype to cast to, or None where all types are equal already."""
    kinds = {(aval.dtype, getattr(aval, "weak_type", False)) for aval in avals}
    if len(kinds) == 1:
        return None
    dtypes = {dtype for dtype, _ in kinds}
    if len(dtypes) == 1:
        return dtypes.pop()
    with jax.numpy_dtype_promotion("standard"):
        return jax.numpy.result_type(*(_scalar(*kind) for kind in kinds))


def have_common_type(avals: Sequence[Any]) -> bool:
    """False for a PRNG key and a number."""
    try:
        common_type(avals)
    except TypeError:
        return False
    return True


def _scalar(dtype: Any, weak: bool) -> Any:
    """What stands for this dtype in `result_type`, which has no weak dtypes."""
    return np.zeros((), dtype).item() if weak else dtype


def _cast(leaf: Node, atom: Atom, target: Any) -> Atom:
    aval = atom.aval
    if target is None or (aval.dtype == target and not aval.weak_type):
        return atom
    out = Value(aval.update(dtype=np.dtype(target), weak_type=False))
    leaf.ops.append(Equation(None, [atom], [out]))
    return out


def _block(node: Node) -> Block:
    if node.outs is not None:
        return Block(node.ops, node.outs)
    assert node.pred is not None
    rest = join(node.pred, _block(node.children[True]), _block(node.children[False]))
    return Block([*node.ops, *rest.items], rest.outs)

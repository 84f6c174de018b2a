"""The tree of recorded paths, which becomes one program.

Each path of a body is a straight line of equations with a mark at every decision. Paths share the equations before the
first decision in which they differ. So together they form a binary tree, which is turned into a program from the
leaves up (see `merge.join`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.merge import RULES, join
from jaxpyop._paths.follow.program import Atom, Block, Const, Equation, Value

# Marks a decision in a recorded path. Its one input is the predicate.
decision_p = core.Primitive("jaxpyop_path_decision")
decision_p.multiple_results = True
decision_p.def_abstract_eval(lambda predicate: [])

# Constants with up to this many elements are compared by their bytes, and larger ones by their place in memory: a body
# may close over a large table.
_COMPARED_ELEMENTS = 4096


class NondeterministicError(Exception):
    """Two runs of the body with the same decisions recorded different programs."""


class Node:
    """The part of a path up to its next decision, or up to its end."""

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
    """Collects recorded paths. `block` makes one program of them."""

    def __init__(self) -> None:
        self.root = Node()
        self.args: list[Value] | None = None
        self.leaves: list[Node] = []
        self._consts: dict[Any, Const] = {}
        # The objects whose addresses are in the keys of `_consts`.
        self._kept: list[Any] = []

    def add(self, recorded: Any, decisions: Iterable[bool], origins: Sequence[Any] = ()) -> list[Any]:
        """Adds a path.

        Args:
            recorded: the closed jaxpr of one run, with a `decision_p` for each decision.
            decisions: the answers that were given, in order.
            origins: the functions behind each call of a custom derivative.

        Returns:
            The avals of the path's results.

        Raises:
            NondeterministicError: an earlier path recorded other equations before the first decision in which the two
                differ.
        """
        jaxpr, answers = recorded.jaxpr, iter(decisions)
        if self.args is None:
            self.args = [Value(var.aval) for var in jaxpr.invars]
        env: dict[Any, Atom] = dict(zip(jaxpr.invars, self.args, strict=True))
        for var, val in zip(jaxpr.constvars, recorded.consts, strict=True):
            env[var] = self._const(val, var.aval)

        def read(atom: Any) -> Atom:
            return self._const(atom.val, atom.aval) if isinstance(atom, core.Literal) else env[atom]

        node, position = self.root, 0
        for eqn, origin in _with_origins(jaxpr.eqns, origins):
            ins = [read(atom) for atom in eqn.invars]
            if eqn.primitive is decision_p:
                node, position = _descend(node, position, ins[0], next(answers)), 0
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
        """Merges the paths into one program. Results whose dtypes differ are cast to their common type."""
        rows = [leaf.outs or [] for leaf in self.leaves]
        for column in range(len(rows[0])):
            target = common_type([row[column].aval for row in rows])
            for leaf, row in zip(self.leaves, rows, strict=True):
                row[column] = _cast(leaf, row[column], target)
        return _merged(self.root)

    def _const(self, val: Any, aval: Any) -> Const:
        key, keep = _const_key(val, aval)
        if key not in self._consts:
            self._consts[key] = Const(val, aval, comparable=len(key) > 1)
            self._kept.append(keep)
        return self._consts[key]


def _const_key(val: Any, aval: Any) -> tuple[Any, Any]:
    """Returns a key that is equal for equal constants, and the object that must live as long as the key."""
    size = getattr(aval, "size", _COMPARED_ELEMENTS + 1)
    # Looking at a large array would copy it from the device.
    if isinstance(val, core.Tracer) or (isinstance(val, jax.Array) and size > _COMPARED_ELEMENTS):
        return (id(val),), val
    try:
        array = np.asarray(val)
    except Exception:
        # Typed PRNG keys, and arrays on other hosts.
        return (id(val),), val
    kind = (str(aval.dtype), array.shape, aval.weak_type)
    if size <= _COMPARED_ELEMENTS:
        return (*kind, array.tobytes()), None
    return (*kind, array.strides, array.__array_interface__["data"][0]), array


def _descend(node: Node, position: int, pred: Atom, answer: bool) -> Node:
    if not node.finished:
        node.pred = pred
    if node.pred is not pred or position != len(node.ops):
        raise NondeterministicError
    return node.children.setdefault(answer, Node())


def _with_origins(eqns: Sequence[Any], origins: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    custom = [eqn for eqn in eqns if eqn.params.keys() & RULES]
    # There are fewer such equations than origins if the recording inlined some of the calls.
    found = dict(zip(map(id, custom), origins)) if len(custom) == len(origins) else {}
    return ((eqn, found.get(id(eqn))) for eqn in eqns)


def _step(node: Node, position: int, new: Equation) -> Equation:
    """Returns the next equation of a path, which an earlier path may have recorded."""
    eqn, ins = new.eqn, new.ins
    if not node.finished:
        new.outs = [Value(var.aval) for var in eqn.outvars]
        node.ops.append(new)
        return new
    if position >= len(node.ops):
        raise NondeterministicError
    op = node.ops[position]
    # Parameters are not compared here: callables in them are new in every run.
    is_known = (
        op.eqn.primitive is eqn.primitive
        and len(op.ins) == len(ins)
        and [value.aval for value in op.outs] == [var.aval for var in eqn.outvars]
        and all(map(_same_or_opaque, op.ins, ins))
    )
    if not is_known:
        raise NondeterministicError
    return op


def _same_or_opaque(a: Atom, b: Atom) -> bool:
    if a is b:
        return True
    if not (isinstance(a, Const) and isinstance(b, Const)):
        return False
    return not a.comparable and not b.comparable and a.aval == b.aval


def common_type(avals: Sequence[Any]) -> tuple[Any, bool] | None:
    """Returns the dtype in which all fit and whether it is weak. None if there is none, as for a key and a number."""
    types = {(aval.dtype, getattr(aval, "weak_type", False)) for aval in avals}
    if len(types) == 1:
        return types.pop()
    dtypes = {dtype for dtype, _ in types}
    if len(dtypes) == 1:
        return dtypes.pop(), False
    # `result_type` knows no weak dtypes, but Python numbers.
    scalars = [np.zeros((), dtype).item() if weak else dtype for dtype, weak in types]
    try:
        with jax.numpy_dtype_promotion("standard"):
            return jax.numpy.result_type(*scalars), False
    except TypeError:
        return None


def _cast(leaf: Node, atom: Atom, target: Any) -> Atom:
    dtype, weak = target
    if atom.aval.dtype == dtype and (weak or not atom.aval.weak_type):
        return atom
    out = Value(atom.aval.update(dtype=dtype, weak_type=False))
    leaf.ops.append(Equation(None, [atom], [out]))
    return out


def _merged(node: Node) -> Block:
    if node.outs is not None:
        return Block(node.ops, node.outs)
    assert node.pred is not None
    rest = join(node.pred, _merged(node.children[True]), _merged(node.children[False]))
    return Block([*node.ops, *rest.items], rest.outs)

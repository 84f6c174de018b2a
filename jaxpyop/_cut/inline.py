"""Turns a traced program into a flat list of nodes.

Jaxprs nest: the body of an inner `jit`, of a function with custom rules or of a `checkpoint` is a jaxpr of its own. A
program can only be cut between the equations of its outermost level. So an equation that holds a Python call is
replaced by the equations inside it. An equation that holds no Python call stays one node. `StaysWhole` says why a
program cannot be cut.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from jaxpyop import _jaxcore
from jaxpyop._op import python_call_p


class StaysWhole(Exception):  # noqa: N818  # This is no error.
    """Ends the planning of a program that stays one compiled function. The text says why."""


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """An array of a program.

    Attributes:
        aval: the type of the array.
        constant: the array itself, if it was known when the program was traced; otherwise None.
    """

    aval: Any
    constant: Any = None


# An operand of a node is a value or a literal of JAX, which is a number in the program itself.
Operand: TypeAlias = Value | Any


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """An equation of a program.

    Attributes:
        run: evaluates it on its operands, under the current trace.
        reads: its operands.
        makes: its results.
        eqn: JAX's equation, or None for a node that this module adds.
        holds_call: whether it is a Python call, or holds one.
    """

    run: Callable[..., list[Any]]
    reads: Sequence[Operand]
    makes: Sequence[Value]
    eqn: Any = None
    holds_call: bool = False

    @property
    def effects(self) -> bool:
        """Whether the node has effects. Such a node runs even if its results are not used, and in program order."""
        return self.eqn is not None and bool(self.eqn.effects)

    @property
    def call(self) -> Any:
        """The Python call, if the node is one; otherwise None."""
        if self.eqn is None or self.eqn.primitive is not python_call_p:
            return None
        return self.eqn.params["call"]


@dataclasses.dataclass(eq=False, slots=True)
class Program:
    """The nodes of a program in an order in which they can run."""

    inputs: Sequence[Value]
    nodes: Sequence[Node]
    outputs: Sequence[Value]


def inlined(closed: Any) -> Program:
    """Return the program of a closed jaxpr, without the nodes that nothing needs.

    Raises:
        StaysWhole: the program cannot be cut.
    """
    inputs = [Value(v.aval) for v in _jaxcore.jaxpr_of(closed).invars]
    inliner = _Inliner()
    outputs = inliner.enter(closed, inputs, None)
    outputs = inliner.distinct(outputs, inputs, [v.aval for v in _jaxcore.jaxpr_of(closed).outvars])
    return Program(inputs, needed(inliner.nodes, outputs), outputs)


# The primitives whose equations are replaced by the equations inside, with the parameter that holds their jaxpr.
_ENTERED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
}


class _Inliner:
    """Collects the nodes of one program."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        # For the id of a jaxpr, whether it holds a Python call. The program keeps its jaxprs alive, so ids stay unique.
        self._holding: dict[int, bool] = {}

    def enter(self, closed: Any, args: Sequence[Operand], scope: Any) -> list[Operand]:
        """Add the nodes of a jaxpr that is called on these arguments, and return its results.

        Args:
            closed: the jaxpr.
            args: the arguments, which are values and literals.
            scope: the named scopes around the jaxpr; None for the outermost program.
        """
        jaxpr, consts = _jaxcore.jaxpr_of(closed), _jaxcore.consts_of(closed)
        env: dict[Any, Operand] = dict(zip(jaxpr.invars, args, strict=True))
        env.update((v, Value(v.aval, constant)) for v, constant in zip(jaxpr.constvars, consts, strict=True))

        def read(atom: Any) -> Operand:
            return atom if isinstance(atom, _jaxcore.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            if scope is not None:
                eqn = _jaxcore.within_scope(eqn, scope)
            reads = list(map(read, eqn.invars))
            holds_call = self._holds_call(eqn)
            _check_equation(eqn, holds_call)
            if holds_call and eqn.primitive.name in _ENTERED:
                made = self._entered(eqn, reads)
            else:
                made = [Value(v.aval) for v in eqn.outvars]
                run = functools.partial(_run_equation, eqn)
                self.nodes.append(Node(run, reads, made, eqn, holds_call))
            env.update(zip(eqn.outvars, made, strict=True))
        return list(map(read, jaxpr.outvars))

    def _entered(self, eqn: Any, reads: Sequence[Operand]) -> list[Operand]:
        params = eqn.params
        if params.get("prevent_cse") and params.get("differentiated"):
            # A checkpoint computes its results a second time, in order not to keep them. Without this barrier, XLA
            # could merge the second computation with the first one, and would keep the results after all.
            behind = {x: Value(x.aval) for x in reads if isinstance(x, Value)}
            self.nodes.append(Node(_barrier, list(behind), list(behind.values())))
            reads = [behind[x] if isinstance(x, Value) else x for x in reads]
        return self.enter(params[_ENTERED[eqn.primitive.name]], reads, eqn.source_info.name_stack)

    def _holds_call(self, eqn: Any) -> bool:
        return eqn.primitive is python_call_p or any(map(self._jaxpr_holds_call, _jaxcore.jaxprs_in(eqn.params)))

    def _jaxpr_holds_call(self, closed: Any) -> bool:
        jaxpr = _jaxcore.jaxpr_of(closed)
        found = self._holding.get(id(jaxpr))
        if found is None:
            found = self._holding[id(jaxpr)] = any(map(self._holds_call, jaxpr.eqns))
        return found

    def distinct(self, outputs: Sequence[Operand], inputs: Sequence[Value], avals: Sequence[Any]) -> list[Value]:
        """Copy every output that is an input, a constant or another output: the results of `jit` share no memory."""
        seen = set(inputs)
        found: list[Value] = []
        for x, aval in zip(outputs, avals, strict=True):
            if not isinstance(x, Value) or x in seen or x.constant is not None:
                copied = Value(aval)
                self.nodes.append(Node(_copied, [x], [copied]))
                x = copied
            seen.add(x)
            found.append(x)
        return found


def _check_equation(eqn: Any, holds_call: bool) -> None:
    """Check that a program with this equation can be cut.

    Raises:
        StaysWhole: the program cannot be cut. The text gives the reason.
    """
    if any(_jaxcore.is_ref_type(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        raise StaysWhole("a mutable array (jax.new_ref) cannot leave a compiled program")
    if holds_call and eqn.primitive is _jaxcore.jit_p:
        if _jaxcore.is_sharded_jit(eqn.params):
            raise StaysWhole("an inner jit with in_shardings or out_shardings holds a Python call")
        if eqn.params.get("compiler_options_kvs"):
            raise StaysWhole("an inner jit with compiler_options holds a Python call")


def _run_equation(eqn: Any, *values: Any) -> list[Any]:
    return _jaxcore.run_equation(eqn, values)


def _barrier(*values: Any) -> list[Any]:
    return list(jax.lax.optimization_barrier(values))


def _copied(value: Any) -> list[Any]:
    # The segment is compiled by `jax.jit`, which copies an input that is also a result.
    return [value]


def needed(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[Node]:
    """Return the nodes that these values need, and the nodes with effects."""
    values, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if node.effects or not values.isdisjoint(node.makes):
            kept.append(node)
            values.update(x for x in node.reads if isinstance(x, Value))
    return kept[::-1]

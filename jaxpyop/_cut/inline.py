"""Turns a traced program into a flat list of equations.

Jaxprs nest: the body of an inner `jit`, of a function with custom rules or of a `checkpoint` is a jaxpr of its own. A
program can only be cut between the equations of its outermost level. So an equation that holds a Python call is
replaced by the equations inside it. Any other equation stays as it is. `StaysWhole` says why a program cannot be cut.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from jaxpyop import _dtypes, _jaxcore, _settings, _sharding
from jaxpyop._op import python_call_p


class StaysWhole(Exception):  # noqa: N818  # This is no error.
    """Ends the planning of a program that stays one compiled function. The text says why."""


@dataclasses.dataclass(eq=False, slots=True)
class Program:
    """A flat program, in JAX's equations and variables.

    Attributes:
        inputs: the variables of its inputs.
        eqns: its equations in an order in which they can run.
        outputs: the variables of its results, of which none is an input, a constant or another result.
        constants: the arrays of the variables that were known when the program was traced.
    """

    inputs: list[Any]
    eqns: list[Any]
    outputs: list[Any]
    constants: dict[Any, Any]


def variables_of(atoms: Iterable[Any]) -> list[Any]:
    """Return the operands that are variables, and not literals, which are numbers in the program itself."""
    return [x for x in atoms if not isinstance(x, _jaxcore.Literal)]


def call_of(eqn: Any) -> Any:
    """Return the Python call that an equation is; None if it is another operation."""
    return eqn.params["call"] if eqn.primitive is python_call_p else None


def holds_call(eqn: Any) -> bool:
    """Tell whether an equation is a Python call, or holds one."""
    inner = _jaxcore.equations_in(eqn.params)
    return eqn.primitive is python_call_p or any(one.primitive is python_call_p for one in inner)


def inlined(closed: Any) -> Program:
    """Return the program of a closed jaxpr, without the equations that nothing needs.

    Raises:
        StaysWhole: the program cannot be cut.
    """
    inputs = list(_jaxcore.jaxpr_of(closed).invars)
    if jax.process_count() > 1:
        raise StaysWhole("several processes run the program together")
    if _sharding.is_explicit_mesh(jax.sharding.get_abstract_mesh()) or any(
        _sharding.is_explicit(v.aval) for v in inputs
    ):
        raise StaysWhole("the types of its arrays say how they are sharded (a mesh of Explicit axes)")
    inliner = _Inliner()
    outputs = inliner.distinct(inliner.enter(closed, inputs), inputs)
    _check_settings(inliner.eqns)
    return Program(inputs, needed(inliner.eqns, outputs), outputs, inliner.constants)


# The primitives whose equations are replaced by the equations inside, with the parameter that holds their jaxpr (JAX
# 0.10 to 0.12, where a checkpoint is called remat2).
_ENTERED = {"jit": "jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


class _Inliner:
    """Collects the equations and constants of one program."""

    def __init__(self) -> None:
        self.eqns: list[Any] = []
        self.constants: dict[Any, Any] = {}

    def enter(self, closed: Any, args: Sequence[Any], scope: Any = None) -> list[Any]:
        """Add the equations of a jaxpr that is called on these arguments, and return its results.

        The same jaxpr may be called several times, so each call gets variables of its own.

        Args:
            closed: the jaxpr.
            args: the arguments, which are variables and literals.
            scope: the named scopes around the jaxpr; None for the outermost program.
        """
        jaxpr = _jaxcore.jaxpr_of(closed)
        env: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))
        for v, constant in zip(jaxpr.constvars, _jaxcore.consts_of(closed), strict=True):
            env[v] = copy.copy(v)
            self.constants[env[v]] = constant

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, _jaxcore.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            if scope is not None:
                eqn = _jaxcore.within_scope(eqn, scope)
            operands = list(map(read, eqn.invars))
            is_entered = eqn.primitive.name in _ENTERED and holds_call(eqn)
            _check_equation(eqn, is_entered)
            if is_entered:
                inner = eqn.params[_ENTERED[eqn.primitive.name]]
                made = self.enter(inner, operands, eqn.source_info.name_stack)
            else:
                made = list(map(copy.copy, eqn.outvars))
                self.eqns.append(eqn.replace(invars=operands, outvars=made))
            env.update(zip(eqn.outvars, made, strict=True))
        return list(map(read, jaxpr.outvars))

    def distinct(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Copy every output that is an input, a constant or another output: the results of `jit` share no memory."""
        found: dict[Any, None] = {}
        for x in outputs:
            if isinstance(x, _jaxcore.Literal) or x in found or x in inputs or x in self.constants:
                copied = _jaxcore.make_jaxpr(lambda x: [jax.lax.copy_p.bind(x)], [_dtypes.struct_of(x.aval)])
                (x,) = self.enter(copied, [x])
            found[x] = None
        return list(found)


def _check_equation(eqn: Any, is_entered: bool) -> None:
    """Check that a program with this equation can be cut.

    Raises:
        StaysWhole: the program cannot be cut. The text gives the reason.
    """
    if any(_jaxcore.is_ref_type(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        raise StaysWhole("a mutable array (jax.new_ref) cannot leave a compiled program")
    if is_entered and eqn.primitive is _jaxcore.jit_p:
        if _jaxcore.is_sharded_jit(eqn.params):
            raise StaysWhole("an inner jit with in_shardings or out_shardings holds a Python call")
        if eqn.params.get("compiler_options_kvs"):
            raise StaysWhole("an inner jit with compiler_options holds a Python call")


def _check_settings(eqns: Sequence[Any]) -> None:
    """Check that all of a program, which runs in pieces, was traced with the settings of JAX that it will run with.

    Raises:
        StaysWhole: some of it was traced in a block with other settings.
    """
    settings = _settings.thread_settings()
    inside = [each for eqn in eqns for each in (eqn, *_jaxcore.equations_in(eqn.params))]
    calls = [call for call in map(call_of, inside) if call is not None]
    if any(_settings.with_debug_nans_of_here(call.environment.settings) != settings for call in calls):
        raise StaysWhole("a Python call is made in a block with other settings of JAX than around the program")
    # Between the pieces, JAX would make arrays of 64 bits into arrays of 32.
    avals = [x.aval for eqn in inside for x in (*eqn.invars, *eqn.outvars)]
    if any(hasattr(aval, "dtype") and _dtypes.is_wide(aval.dtype) for aval in avals):
        raise StaysWhole("it has arrays of 64 bits, which JAX's settings turn off around it")


def needed(eqns: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the equations that these variables need, and the equations with effects."""
    values, kept = set(outputs), list[Any]()
    for eqn in reversed(eqns):
        if eqn.effects or not values.isdisjoint(eqn.outvars):
            kept.append(eqn)
            values.update(variables_of(eqn.invars))
    return kept[::-1]

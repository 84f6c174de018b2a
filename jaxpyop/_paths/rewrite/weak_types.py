"""Adapts an iteration of a loop that was recorded for Python numbers to arrays of the same dtypes.

A Python number before a loop is often an array after its first iteration (`total = 0.0`, then `total += x`). Its dtype
is the same, but no longer weak: it does not give way to the dtypes of others. To record the iteration again would mean
to record each loop inside it again, too, which doubles the time with every level of nesting. If no weak value in the
recording gave way to another dtype, the recording is right for both, and is used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore as core
from jaxpyop._paths.loop import Loop

_convert_p = jax.lax.convert_element_type_p


def with_full_types(closed: Any, changed: Sequence[bool], structs: Sequence[Any]) -> Any:
    """Returns the closed jaxpr for inputs whose types are not weak, or None if a new recording might differ.

    Args:
        closed: the recording. Its first equations make the changed inputs weak.
        changed: for each input whether it was weak and no longer is.
        structs: the shapes and dtypes of the inputs.
    """
    jaxpr, consts = core.opened(closed)
    inputs = {v for v, was_weak in zip(jaxpr.invars[len(consts) :], changed, strict=True) if was_weak}
    weak = {eqn.invars[0]: eqn.outvars[0] for eqn in jaxpr.eqns if _makes_weak(eqn, inputs)}
    eqns = [eqn for eqn in jaxpr.eqns if not _makes_weak(eqn, inputs)]
    if weak.keys() != inputs or any(v in inputs for eqn in eqns for v in _variables(eqn.invars)):
        return None
    if any(v in inputs for v in _variables(jaxpr.outvars)) or not _keep_dtypes(eqns, set(weak.values())):
        return None
    opened = jaxpr.replace(invars=[weak.get(v, v) for v in jaxpr.invars], eqns=eqns)
    return core.make_jaxpr(lambda *xs: core.run_jaxpr(opened, *consts, *xs), structs)


def _makes_weak(eqn: Any, inputs: set[Any]) -> bool:
    return eqn.primitive is _convert_p and eqn.params["weak_type"] and not inputs.isdisjoint(_variables(eqn.invars))


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _keep_dtypes(eqns: Sequence[Any], weak: set[Any]) -> bool:
    """Tells whether no value that depends on the weak values took another dtype. False if that cannot be seen."""
    for eqn in eqns:
        operands = [v for v in _variables(eqn.invars) if v in weak]
        if not operands:
            continue
        if eqn.primitive is _convert_p:
            if eqn.params["weak_type"] or eqn.params["new_dtype"] != operands[0].aval.dtype:
                return False
        elif any(isinstance(x, (*core.JAXPR_TYPES, Loop)) or callable(x) for x in jax.tree.leaves(eqn.params)):
            return False
        weak.update(v for v in eqn.outvars if v.aval.weak_type)
    return True

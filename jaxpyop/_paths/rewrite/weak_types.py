"""An iteration that was recorded for Python numbers, used again for arrays of the same dtypes.

A Python number before a loop is often an array after its first iteration (`total = 0.0`, then `total += x`). Its dtype
is the same, but it is no longer weak: it does not take the dtypes of others. The iteration would have to be recorded
again, and so would each loop in it, which doubles the time with every level. If nothing in the recording took another
dtype, the recording holds for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore as core
from jaxpyop._paths.loop import Loop

_convert_p = jax.lax.convert_element_type_p


def with_full_types(closed: Any, changed: Sequence[bool], structs: Sequence[Any]) -> Any:
    """Returns the closed jaxpr for inputs of full types, or None if a new recording might be another one.

    Args:
        closed: the recording, in which each changed input is made weak at first.
        changed: for each input whether it was weak and no longer is.
        structs: the inputs.
    """
    jaxpr, consts = core.opened(closed)
    inputs = {v for v, was_weak in zip(jaxpr.invars[len(consts) :], changed, strict=True) if was_weak}
    weak = {eqn.invars[0]: eqn.outvars[0] for eqn in jaxpr.eqns if _is_start(eqn, inputs)}
    eqns = [eqn for eqn in jaxpr.eqns if not _is_start(eqn, inputs)]
    if weak.keys() != inputs or any(v in inputs for eqn in eqns for v in _variables(eqn.invars)):
        return None
    if any(v in inputs for v in _variables(jaxpr.outvars)) or not _holds(eqns, set(weak.values())):
        return None
    opened = jaxpr.replace(invars=[weak.get(v, v) for v in jaxpr.invars], eqns=eqns)
    return core.make_jaxpr(lambda *xs: core.run_jaxpr(opened, *consts, *xs), structs)


def _is_start(eqn: Any, inputs: set[Any]) -> bool:
    return eqn.primitive is _convert_p and eqn.params["weak_type"] and not inputs.isdisjoint(_variables(eqn.invars))


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _holds(eqns: Sequence[Any], weak: set[Any]) -> bool:
    """Tells whether no value that depends on the weak ones took another dtype, as far as can be seen."""
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

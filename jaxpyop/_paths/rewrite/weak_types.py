"""A recorded turn of a loop, for inputs that no longer give way to other types.

A Python number before a loop is often an array after its first turn (`total = 0.0`, then `total += x`): its dtype is
the same, but it no longer gives way to others. The turn would have to be recorded again, and so would each loop in
it, which doubles with every level. Where nothing gave way in what was recorded, the recording holds for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore as core
from jaxpyop._paths.loop import Loop

_convert_p = jax.lax.convert_element_type_p


def strengthened(closed: Any, marks: Sequence[bool], structs: Sequence[Any]) -> Any:
    """The closed jaxpr for inputs of full types where marked, or None where it might have been another one.

    Args:
        closed: recorded with inputs of which each marked one is made weak at first.
        marks: one for each input.
        structs: the inputs.
    """
    jaxpr, consts = core.opened(closed)
    inputs = {v for v, mark in zip(jaxpr.invars[len(consts) :], marks, strict=True) if mark}
    weak = {eqn.invars[0]: eqn.outvars[0] for eqn in jaxpr.eqns if _is_start(eqn, inputs)}
    eqns = [eqn for eqn in jaxpr.eqns if not _is_start(eqn, inputs)]
    if weak.keys() != inputs or any(v in inputs for eqn in eqns for v in _variables(eqn.invars)):
        return None
    if any(v in inputs for v in _variables(jaxpr.outvars)) or not _holds(eqns, set(weak.values())):
        return None
    opened = jaxpr.replace(invars=[weak.get(v, v) for v in jaxpr.invars], eqns=eqns)
    return core.record(lambda *xs: core.run_jaxpr(opened, *consts, *xs), structs)


def _is_start(eqn: Any, inputs: set[Any]) -> bool:
    return eqn.primitive is _convert_p and eqn.params["weak_type"] and not inputs.isdisjoint(_variables(eqn.invars))


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _holds(eqns: Sequence[Any], weak: set[Any]) -> bool:
    """Whether no value that depends on the weak ones gave way, as far as can be seen."""
    for eqn in eqns:
        given = [v for v in _variables(eqn.invars) if v in weak]
        if not given:
            continue
        if eqn.primitive is _convert_p:
            if eqn.params["weak_type"] or eqn.params["new_dtype"] != given[0].aval.dtype:
                return False
        elif any(isinstance(x, (*core.JAXPR_TYPES, Loop)) or callable(x) for x in jax.tree.leaves(eqn.params)):
            return False
        weak.update(v for v in eqn.outvars if v.aval.weak_type)
    return True

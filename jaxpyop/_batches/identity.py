"""What a folder compares of the function of the user: the program that JAX makes of it, and its functions on the host.

A program tells all that it computes: names and comments in the source do not count, and every value that the function
reads does. But not all can be seen that a Python function on the host reads while it runs. So the user names a version
of it. If its code differs, a warning comes, because a version is easily forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxpyop._batches.inputs import bytes_of, data_of
from jaxpyop._jaxcore import Literal, consts_of, equations_in, jaxpr_of, jaxprs_in
from jaxpyop._op import python_call_p
from jaxpyop._saved import code_checksum


def program_checksum(traced: Any, text: str) -> str:
    """Returns a checksum of what JAX compiles, of which this is the text."""
    hashed = hashlib.sha256(text.encode())
    # JAX can be set to lower constants as inputs, so that their values are not in the text.
    for x in map(data_of, _constants({"": traced.jaxpr})):
        hashed.update(f"{x.shape} {x.dtype}".encode() + bytes_of(x))
    return hashed.hexdigest()


def _constants(params: dict[str, Any]) -> Iterator[Any]:
    for closed in jaxprs_in(params):
        yield from consts_of(closed)
        for eqn in jaxpr_of(closed).eqns:
            yield from (atom.val for atom in eqn.invars if isinstance(atom, Literal) and np.ndim(atom.val))
            yield from _constants(eqn.params)


def host_functions(traced: Any, text: str) -> tuple[list[str], list[Any]]:
    """Returns the Python functions that a program calls for a value: how it calls each, and checksums of their code."""
    found: list[str] = []
    code: list[Any] = []
    eqns = list(equations_in({"": traced.jaxpr}))
    calls = [eqn for eqn in eqns if eqn.primitive is python_call_p or "callback" in eqn.params]
    if not calls and "_callback" in text:
        found.append("a callback of another library")
    # The results do not depend on a call that has none.
    for eqn in (eqn for eqn in calls if eqn.outvars):
        if eqn.primitive is python_call_p:
            op = eqn.params["call"].op
            rules = dict(op.rules.functions())
            options = op.vmap_method.name, op.casting, op.on_jax, op.out, op.step, op.fills
            found.append(f"{eqn.params['call']!r} {list(rules)} {options}")
            code += map(code_checksum, (op.func, *rules.values()))
        else:
            callback = getattr(eqn.params["callback"], "callback_func", eqn.params["callback"])
            found.append(f"{eqn.primitive} {getattr(callback, '__qualname__', '')}")
            code.append(code_checksum(callback))
    return found, code

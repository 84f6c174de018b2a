"""What a folder compares of the function of the user: the program that JAX makes of it, and its functions on the host.

A program tells all that it computes: names and comments in the source do not count, and every value that the function
reads does. But not all can be seen that a Python function on the host reads while it runs. So the user names a version
of it. If its code differs, a warning comes, because a version is easily forgotten.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
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


def host_functions(traced: Any, text: str) -> tuple[list[list[str]], list[str | None]]:
    """Returns the Python functions that a program calls for a value: how it calls each, and checksums of their code."""
    found: list[list[str]] = []
    code: list[str | None] = []
    # The results do not depend on a call that has none.
    for eqn in (eqn for eqn in equations_in({"": traced.jaxpr}) if eqn.outvars):
        if eqn.primitive is python_call_p:
            call = eqn.params["call"]
            op, rules = call.op, dict(call.op.rules.functions())
            options = op.vmap_method.name, op.casting, op.on_jax, op.out, op.step, op.fills, list(rules)
            # The text of a padded result leaves some of its options out.
            results = [(leaf, leaf.encoding and dataclasses.astuple(leaf.encoding)) for leaf in op.spec.returned.leaves]
            found.append([repr(call), shown(options), shown(results), _inputs_of(call)])
            code += map(code_checksum, (op.func, *rules.values()))
        elif "callback" in eqn.params:
            callback = getattr(eqn.params["callback"], "callback_func", eqn.params["callback"])
            found.append([f"{eqn.primitive} {getattr(callback, '__qualname__', '')}"])
            code.append(code_checksum(callback))
    if not found and "_callback" in text:
        found.append(["a callback of another library"])
    return found, code


def _inputs_of(call: Any) -> str:
    """The structure of the inputs of a user's call, with what is no array among them."""
    while call.origin is not None:
        call = call.origin[0]
    inputs = getattr(getattr(call, "user_body", None), "inputs", None)
    return "" if inputs is None else shown((inputs.tree, inputs.leaves))


def shown(value: Any) -> str:
    """The text of a value, without the addresses of objects, which are other ones in each process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

"""What decides the derivative of a record, in a form that two runs of a function can be compared by.

The text of a call leaves out the addresses of objects, which differ from run to run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._tape.linear import Linear
from jaxpyop._tape.replay import Program

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def comparable_program(program: Program, kept: Sequence[Any]) -> tuple[str, list[Any]]:
    """Returns a text of a program's calls, and the arrays that their derivatives read."""
    kept_in = dict(zip(program.kept, kept))
    made = {*program.ins}.union(*(node.outs for node in program.nodes)) - {-1}
    # Slots are numbered anew without those of constants. Equal constants share a slot if they are the same array, which
    # may differ from run to run.
    numbers = {s: k for k, s in enumerate(sorted(made))}
    arrays = [kept_in[s] for s in numbers if s in kept_in]
    texts = [f"{[numbers.get(s) for s in (*program.ins, *program.outs)]}"]
    for how, ins, outs, dependence in program.nodes:
        texts.append(f"{how.text()} {[numbers.get(s) for s in (*ins, *outs)]} {dependence}")
        arrays += [kept_in[s] for s in ins if s not in numbers and s in kept_in]
        if isinstance(how, Linear):
            arrays += how.arrays()
    return without_addresses("\n".join(texts)), comparable_arrays(arrays)


def without_addresses(text: str) -> str:
    """Returns a text without the addresses of objects."""
    return _ADDRESS.sub("", text)


def comparable_arrays(values: Sequence[Any]) -> list[Any]:
    """Returns the arrays and numbers among some values, as arrays of NumPy's dtypes."""
    found = [jax.random.key_data(v) if _is_key(v) else v for v in values]
    arrays = [np.asarray(v) for v in found if isinstance(v, (jax.Array, np.ndarray, np.generic, int, float, complex))]
    return [v for v in arrays if v.dtype != jax.dtypes.float0]


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)

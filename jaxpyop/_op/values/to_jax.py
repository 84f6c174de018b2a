"""NumPy's values as jax.Arrays that share memory with nobody.

What XLA lends to a call is garbage afterwards, and a function may go on writing
into what it returned; and `jax.device_put`, even with `may_alias=False`, takes
NumPy's memory over where it is aligned (0.10 to 0.12), as XLA's always is. So a
copy is made in any case: of small inputs, which then pass one compiled identity
together, the fastest way into JAX; of a large value to where it is taken over
and not copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import SCRATCH

_LARGE = 1 << 18  # bytes, from which one copy more costs more than a dispatch

_identity = jax.jit(lambda values: values)
_config: Any = jax.config  # whose attributes are made at run time


def as_jax(values: Sequence[Any]) -> list[Any]:
    """jax.Arrays of what may be views of memory that is not ours; of None, None.

    They are of few shapes: each combination of small ones is compiled once.
    """
    small = [value.copy() for value in values if type(value) is np.ndarray and value.nbytes < _LARGE]
    if not small or _config.jax_disable_jit:  # under which the identity does nothing
        return [_as_one(value) for value in values]
    found = _jaxcore.with_transfers(_identity, small)
    if len(found) == len(values):
        return found
    it = iter(found)
    return [next(it) if type(value) is np.ndarray and value.nbytes < _LARGE else _as_one(value) for value in values]


def _as_one(value: Any) -> Any:
    return value if value is None or isinstance(value, jax.Array) else own(value)


def own(value: Any, like: Any = None) -> jax.Array:
    """A jax.Array of something of NumPy's, of any shape; on the devices of the jax.Array `like`, if one is given."""
    if value.nbytes < _LARGE or not jax.sharding.get_abstract_mesh().empty:
        return taken_over(np.array(value, order="C"), like)
    return taken_over(SCRATCH.lasting_copy_of(value), like)


def taken_over(value: np.ndarray[Any, Any], like: Any = None) -> jax.Array:
    """The same of an array that nobody else has, so that it need not be copied."""
    found = _jaxcore.quick_array(value, like)
    if found is None:
        # jnp.asarray would copy a large array once more (0.10 to 0.12).
        large = value.nbytes >= _LARGE and jax.sharding.get_abstract_mesh().empty
        found = jax.device_put(value) if large else _jaxcore.with_transfers(jnp.asarray, value)
        if like is not None and _jaxcore.is_committed(like):
            found = _jaxcore.with_transfers(_jaxcore.placed_like, found, like)
    return found


def anchor_of(inputs: Sequence[Any]) -> Any:
    """The input in whose place a body's results belong: the first committed one, or else the first jax.Array."""
    first = None
    for x in inputs:
        if isinstance(x, jax.Array):
            if _jaxcore.is_committed(x):
                return x
            if first is None:
                first = x
    return first

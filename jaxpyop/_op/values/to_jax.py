"""Makes `jax.Array` values of NumPy arrays, in memory that nothing else uses.

The memory that XLA lends to a call is garbage afterwards, and a function may go on writing into an array that it
returned. `jax.device_put` takes NumPy's memory over where it is aligned, as XLA's always is, even with
`may_alias=False` (JAX 0.10 to 0.12). So every array is copied first. Small inputs then pass one compiled identity
together, which is the fastest way into JAX. A large copy is aligned, so that JAX takes it over without another copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import SCRATCH

# From this many bytes on, one more copy takes longer than a dispatch.
_LARGE = 1 << 18

_identity = jax.jit(lambda values: values)


def as_jax(values: Sequence[Any]) -> list[Any]:
    """Turn the inputs of a call into `jax.Array` values that share no memory. None stays None.

    The shapes should be few: each combination of small arrays is compiled once.
    """
    # Most inputs are `jax.Array` values already, which this finds in a third of the time.
    small = [_is_small(value) for value in values] if np.ndarray in map(type, values) else ()
    # Under jax_disable_jit the identity does nothing.
    if not any(small) or _jaxcore.jax_config.jax_disable_jit:
        return list(map(_one_as_jax, values))
    copies = iter(_jaxcore.with_transfers(_identity, [value.copy() for value, mark in zip(values, small) if mark]))
    return [next(copies) if mark else _one_as_jax(value) for value, mark in zip(values, small)]


def _is_small(value: Any) -> bool:
    return type(value) is np.ndarray and value.nbytes < _LARGE


def _one_as_jax(value: Any) -> Any:
    return value if value is None or isinstance(value, jax.Array) else copy_to_jax(value)


def copy_to_jax(value: Any, like: Any = None) -> jax.Array:
    """Copy a NumPy array or scalar, of any shape, into a `jax.Array`, on the devices of `like` if that is given."""
    if value.nbytes < _LARGE or not jax.sharding.get_abstract_mesh().empty:
        return taken_over(np.array(value, order="C"), like)
    return taken_over(SCRATCH.lasting_copy_of(value), like)


def taken_over(value: np.ndarray[Any, Any], like: Any = None, aval: Any = None) -> jax.Array:
    """Make a `jax.Array` of an array that is not used elsewhere, and therefore need not be copied.

    `aval` is for `quick_array`.
    """
    found = _jaxcore.quick_array(value, like, aval)
    if found is None:
        # jnp.asarray would copy a large array once more (JAX 0.10 to 0.12).
        large = value.nbytes >= _LARGE and jax.sharding.get_abstract_mesh().empty
        found = jax.device_put(value) if large else _jaxcore.with_transfers(jnp.asarray, value)
        if like is not None and _jaxcore.is_committed(like):
            found = _jaxcore.with_transfers(_jaxcore.placed_like, found, like)
    return found


def anchor_of(inputs: Sequence[Any]) -> Any:
    """The input whose devices a body's results go to: the first committed one, or else the first `jax.Array`."""
    # A loop takes half of the time of a generator, and every call comes here.
    first = None
    for x in inputs:
        if isinstance(x, jax.Array):
            if _jaxcore.is_committed(x):
                return x
            if first is None:
                first = x
    return first


def without_weak_type(x: Any) -> Any:
    """Return an array without its weak type: ops are given none, and return none.

    The transpose makes the cotangent of a weakly typed array weakly typed, as JAX's are.
    """
    return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x

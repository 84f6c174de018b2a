"""`mode="traced"`: the body becomes part of the program instead of being called.

Nothing runs on the host: XLA places the operations, and JAX's own rules
differentiate them, so the body may close over traced values. What an eager
body's results are checked for by value is checked by dtype here, for every
path that the body can take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _paths, _results
from jaxpyop._bodies import Op, UserBody
from jaxpyop._inputs import Inputs
from jaxpyop._spec import Leaf


class UntraceableError(TypeError):
    """A body that `mode="traced"` cannot follow; the text says where and why."""


def trace(op: Op, inputs: Inputs, arrays: Sequence[Any]) -> list[Any]:
    """Trace a body, along all of its paths, into the current trace.

    Raises:
        UntraceableError: the body asks for a value, raises on a path, or has
            too many paths.
    """
    body = UserBody(op, inputs)

    def checked(*arrays: Any) -> list[Any]:
        values = body.results(arrays)
        leaves = body.promised(arrays)
        return [_checked(op, k, value, leaf) for k, (value, leaf) in enumerate(zip(values, leaves))]

    try:
        # Strong types and no Python scalars, as an eager body gets.
        return _paths.trace_paths(checked, [jax.lax.convert_element_type(a, a.dtype) for a in arrays])
    except _paths.PathError as error:
        cause = error.__cause__
        if cause is not None and str(cause).startswith(op.title):  # one of our checks of the results
            raise cause from None
        raise UntraceableError(f"{op.title}: {error}") from cause


def _checked(op: Op, k: int, value: Any, leaf: Leaf) -> Any:
    which = op.which(k)
    if isinstance(value, jax.Array):
        _results.check_usable(value, which, op.title)
        _results.check_traced(value.dtype, leaf, op.casting, which, op.title)
        value = jax.lax.convert_element_type(value, leaf.dtype)
    else:
        value = jnp.asarray(_results.to_numpy(value, leaf, op.casting, which, op.title))
    _results.check_shape(value.shape, leaf, (), "promised", which, op.title)
    return value

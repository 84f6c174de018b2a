"""`on_error=`: what stands for the results of an element whose function or rule raised.

A body catches the exception where it calls the user's code, and asks `failed_results`. If the body ran on a block, it
runs again on each element of the block, so that one failure costs one element. On the tape the results depend on the
inputs, with a derivative of zero, or of NaN where the fill is NaN. So the derivatives of all orders follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import is_own_failure, metrics
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.request import is_nan
from jaxpyop._op.values import Struct

if TYPE_CHECKING:
    from jaxpyop._op.body.body_protocol import Body


class FailedResults(list[Any]):
    """The results of a run in which the function failed.

    Attributes:
        failed: whether it failed, for each element of a block.
    """

    failed: np.ndarray[Any, Any] = np.asarray(True)


def failed_results(body: Body, error: Exception, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
    """What stands for the results of a run that raised. It is called where the exception is handled.

    Args:
        body: what ran.
        error: what it raised.
        arrays: its inputs, as they were before the run.
        lead: the batch axes that the inputs of a block have in front.

    Raises:
        Exception: the error, if it is not the function's own, or if the op has no `on_error=`.
    """
    op = body.op
    if op.failures is None or not is_own_failure(error):
        raise error
    count = math.prod(lead)
    if count > 1 and not op.stateful:
        with op.failures.in_batch():
            return each_alone(body, arrays, lead)
    found = FailedResults(body.fills(arrays, lead))
    found.failed = np.full(lead, True)
    metrics.note(op.name, op.failures.note(error, count), failures=count)
    return found


def each_alone(run: Any, arrays: Sequence[Any], lead: tuple[int, ...]) -> FailedResults:
    """Run each element of a block as a block of one element.

    Args:
        run: a body, called with the inputs and `lead`.
        arrays: the inputs of the block.
        lead: its batch axes.
    """
    each = [
        run(
            *(a[tuple(slice(k, k + 1) if a.shape[n] > 1 else slice(1) for n, k in enumerate(index))] for a in arrays),
            lead=(1,) * len(lead),
        )
        for index in np.ndindex(*lead)
    ]
    columns = [np.stack(list(map(np.asarray, column))) for column in zip(*each)]
    found = FailedResults(c.reshape(*lead, *c.shape[1 + len(lead) :]) for c in columns)
    found.failed = np.reshape([np.any(getattr(values, "failed", False)) for values in each], lead)
    return found


def kept_for_failure(body: Body, arrays: Sequence[Any], lead: tuple[int, ...]) -> Sequence[Any]:
    """The inputs for `failed_results`. A function may change the inputs of a block before it fails."""
    if not lead or body.op.failures is None or body.op.on_jax:
        return arrays
    return [np.array(a) for a in arrays]


def constants(
    fills: Sequence[Any], structs: Sequence[Struct], arrays: Sequence[Any], lead: tuple[int, ...]
) -> list[Any]:
    """Arrays of these shapes, each filled with a constant, whose derivatives are zero, or NaN if the constant is.

    Args:
        fills: the constants.
        structs: the shapes and dtypes for one element.
        arrays: the inputs, on which the arrays depend if the tape is there.
        lead: the batch axes of the arrays.
    """
    taped = [a for a in arrays if isinstance(a, _jaxcore.Tracer) and is_inexact(a)]
    found: list[Any] = []
    for fill, struct in zip(fills, structs):
        value = np.full((*lead, *struct.shape), fill, struct.dtype)
        if taped and is_inexact(value):
            total = sum(jnp.sum(part(a)).astype(value.dtype) for a in taped for part in (jnp.real, jnp.imag))
            # The derivatives of exp are never constant, so that those of all orders are NaN.
            value = jnp.exp(total) * value if is_nan(fill) else jnp.where(False, total, value)
        found.append(value)
    return found

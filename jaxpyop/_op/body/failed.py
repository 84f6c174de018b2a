"""`on_error=`: the constants that replace the results of an element whose function or rule raised.

A body catches the exception where it calls the user's code, and asks `failed_results`. If the body ran on a block (all
elements of a batch in one call), it runs again on each element alone, so that one failure costs one element. On the
tape, the constants are written as functions of the inputs. Their derivatives of every order are zero, or NaN if the
constant is NaN.
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
    """The results of a run in which the function failed for some elements.

    Attributes:
        failed: for each element of a block, whether the function failed.
    """

    failed: np.ndarray[Any, Any] = np.asarray(True)


def failed_results(body: Body, error: Exception, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
    """Return the values that replace the results of a run that raised. It is called in the `except` clause.

    Args:
        body: the body that ran.
        error: the exception that it raised.
        arrays: the inputs of the body, as they were before the run.
        lead: the sizes of the batch axes that the inputs of a block have in front.

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
        lead: the sizes of its batch axes.
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
    """Return the inputs for `failed_results`: copies where the function could change the inputs before it fails."""
    if not lead or body.op.failures is None or body.op.on_jax:
        return arrays
    return [np.array(a) for a in arrays]


def constants(
    fills: Sequence[Any], structs: Sequence[Struct], arrays: Sequence[Any], lead: tuple[int, ...]
) -> list[Any]:
    """Return arrays that are each filled with a constant. Their derivatives are zero, or NaN if the constant is NaN.

    Args:
        fills: the constants.
        structs: the shapes and dtypes of the arrays for one element.
        arrays: the inputs. On the tape, the returned arrays depend on them.
        lead: the sizes of the batch axes of the returned arrays.
    """
    taped = [a for a in arrays if isinstance(a, _jaxcore.Tracer) and is_inexact(a)]
    found: list[Any] = []
    for fill, struct in zip(fills, structs):
        value = np.full((*lead, *struct.shape), fill, struct.dtype)
        if taped and is_inexact(value):
            total = sum(jnp.sum(part(a)).astype(value.dtype) for a in taped for part in (jnp.real, jnp.imag))
            # No derivative of exp is zero, so NaN times exp is NaN in the derivatives of every order.
            value = jnp.exp(total) * value if is_nan(fill) else jnp.where(False, total, value)
        found.append(value)
    return found

"""Finds out which batch axes of a backward pass are the axes of the block that `fwd` ran for."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np


def axes_of_fwd_last(
    receipts: np.ndarray[Any, Any], fwd_lead: tuple[int, ...], lead: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the numbers of the batch axes, ordered so that the axes of the run of `fwd` come last.

    The residuals begin with the axes of `fwd`, so in this order they broadcast against the cotangents. The receipts may
    have been transposed, reversed or sliced like any array, so each receipt holds the number of its element. The result
    is None if the elements are not all elements of the run of `fwd`, in their order.

    Args:
        receipts: the receipts of the elements. A batch axis that they do not depend on has size 1.
        fwd_lead: the sizes of the batch axes of the run of `fwd`.
        lead: the sizes of the batch axes of the backward pass.
    """
    tokens, numbers = receipts[..., 0], receipts[..., 2]
    expected = np.arange(math.prod(fwd_lead)).reshape(fwd_lead)
    for fwd_axes in itertools.permutations(range(len(lead)), len(fwd_lead)):
        if tuple(lead[axis] for axis in fwd_axes) != fwd_lead:
            continue
        order = (*(axis for axis in range(len(lead)) if axis not in fwd_axes), *fwd_axes)
        # A token of 0 stands for an element that did not run.
        if ((numbers.transpose(order) == expected) | (tokens.transpose(order) == 0)).all():
            return order
    return None

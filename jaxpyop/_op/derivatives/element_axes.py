"""Which batch axes of a backward pass are those of the block that `fwd` ran for."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np


def axes_of_fwd_last(
    receipts: np.ndarray[Any, Any], ran: tuple[int, ...], lead: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The batch axes, ordered so that the axes of the run of `fwd` come last; None if the elements are other ones.

    The residuals begin with the axes of `fwd`, so in this order they broadcast against the cotangents. The receipts may
    have been transposed, reversed or sliced like any array, so each tells the number of its element.

    Args:
        receipts: of the elements, with an axis of size 1 for each batch axis that they do not have.
        ran: the batch axes of the run of `fwd`.
        lead: the batch axes now.
    """
    tokens, numbers = receipts[..., 0], receipts[..., 2]
    expected = np.arange(math.prod(ran)).reshape(ran)
    for theirs in itertools.permutations(range(len(lead)), len(ran)):
        if tuple(lead[axis] for axis in theirs) != ran:
            continue
        order = (*(axis for axis in range(len(lead)) if axis not in theirs), *theirs)
        # A token of 0 stands for an element that did not run.
        if ((numbers.transpose(order) == expected) | (tokens.transpose(order) == 0)).all():
            return order
    return None

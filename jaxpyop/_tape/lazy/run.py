"""One run of a stretch: what may enter it, and whether it pays to record the function lazily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxpyop import _jaxcore
from jaxpyop._tape.lazy.stretch import CallStep
from jaxpyop._tape.lazy.tracer import LazyTapeTracer
from jaxpyop._tape.lazy.trie import Place, losses_in_a_row

# After more runs in a row than this without a gain, a function is recorded eagerly. One run in `_RETRY` tries the lazy
# tape again.
_MAX_LOSSES = 32
_RETRY = 32
_MAX_TITLES = 1024


class Run:
    """One run of a stretch.

    Attributes:
        place: the place in the trie.
        inputs: the values that entered.
        slots: their slots on the tape, -1 for constants.
        entered: the position of each value that entered. The key is `~slot` for a value on the tape, and the `id` for a
            constant.
        has_numbers: whether Python or NumPy numbers are among the inputs.
        pending: the tracers by position, None for values that have none.
    """

    __slots__ = ("entered", "has_numbers", "inputs", "pending", "place", "slots")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.inputs: list[Any] = []
        self.has_numbers = False
        self.slots: list[int] = []
        self.entered: dict[int, int] = {}
        self.pending: list[LazyTapeTracer | None] = []


def is_plain(x: Any) -> bool:
    """Tells whether an array lies on one device, chosen by JAX, in memory that nobody else has.

    An array that shares memory by DLPack is committed to its device.
    """
    # The dtype of a key is not NumPy's.
    dtype: Any = getattr(x, "dtype", None)
    return (
        isinstance(dtype, np.dtype)
        and isinstance(x, jax.Array)
        and not isinstance(x, _jaxcore.Tracer)
        and not x.committed
        and type(x.sharding) is SingleDeviceSharding
        and not x.is_deleted()
    )


def is_number(x: Any) -> bool:
    """Tells whether an operand is a Python number that JAX can hold."""
    return type(x) in (bool, float, complex) or (type(x) is int and abs(x) < 2**31)


def ancestors_of(chain: Sequence[Place], wanted: int | None) -> set[int] | None:
    """Returns the positions of the results that a value depends on, itself included."""
    if wanted is None:
        return None
    found = {wanted}
    for p in reversed(chain):
        if type(p.step) is CallStep and not found.isdisjoint(range(p.first, p.count)):
            found.update(p.step.ins)
    return found


def pays(title: str) -> bool:
    """Tells whether to record a function lazily."""
    if (losses := losses_in_a_row.get(title, 0)) <= _MAX_LOSSES:
        return True
    losses_in_a_row[title] = losses + 1
    return losses % _RETRY == 0


def note_gain(title: str, gain: int) -> None:
    """Notes what a run has gained against the eager tape, in calls of operations."""
    if gain > 0:
        losses_in_a_row.pop(title, None)
        return
    if len(losses_in_a_row) >= _MAX_TITLES:
        losses_in_a_row.clear()
    losses_in_a_row[title] = losses_in_a_row.get(title, 0) + 1

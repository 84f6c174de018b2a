"""Fingerprints of arrays: 32 bits that tell whether a function that ran again did the same bit by bit."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

# In a larger array only the two ends are read in order. The rest enters through sums, which take a fifth of the time.
_IN_ORDER = 1 << 16


def fingerprint(arrays: Sequence[Any], text: str = "") -> int:
    """Return the fingerprint of a text and of NumPy arrays, or jax.Arrays, which are waited for."""
    found = zlib.crc32(text.encode()) if text else 0
    for array in arrays:
        found = _checksum(np.asarray(array), found)
    return found


def fingerprints(arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
    """Return one fingerprint for each element of a block of results that have the batch axes `lead` in front."""
    rows = [np.asarray(array).reshape(math.prod(lead), *array.shape[len(lead) :]) for array in arrays]
    found = [fingerprint([row[k] for row in rows]) for k in range(math.prod(lead))]
    return np.asarray(found, np.uint32).reshape(lead)


def _checksum(array: np.ndarray[Any, Any], before: int) -> int:
    if array.nbytes <= 2 * _IN_ORDER:
        return zlib.crc32(array.tobytes(), before)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = data[: data.nbytes // 8 * 8].view(np.uint64)
    sums = np.stack([np.add.reduce(words), np.bitwise_xor.reduce(words)])
    ends = data[:_IN_ORDER].tobytes() + data[-_IN_ORDER:].tobytes()
    return zlib.crc32(ends + sums.tobytes(), before)


def check_fingerprints(found: Any, expected: Any, title: str, what: str) -> None:
    """Raise unless a function that ran again for a backward pass gave the results of the forward pass.

    Args:
        found: the fingerprints of the results or of the derivative now, or the one of a single element.
        expected: those of the forward pass.
        title: the op's name.
        what: what ran again: "func" or "fwd".

    Raises:
        RuntimeError: they differ.
    """
    if not np.array_equal(found, expected):
        raise RuntimeError(
            f"{title}: {what} ran again for a backward pass, because the record of its forward pass was gone, and gave "
            "other results or another derivative than in the forward pass: it draws random numbers, or reads something "
            "that changes. Its gradient would be that of another run. Pass what changes (a random key, say) as an "
            "input; or pass stateful=True and increase jaxpyop.config.max_record_bytes or max_records, so that nothing "
            "runs again"
        )

"""Fingerprints of evicted records: of the calls and the arrays that determine their derivatives."""

from __future__ import annotations

import numpy as np


class EvictedFingerprints:
    """Fingerprints of what decided the derivatives of records that are gone, by token.

    A function that runs again may give the same results and another derivative. So these fingerprints are taken when
    a record is evicted, which costs nothing as long as all records fit. The fingerprint of a token takes the place of
    the one that is `_SIZE` tokens older.
    """

    _SIZE = 2**18

    def __init__(self) -> None:
        # The operating system gives these zeros memory only where something is written.
        self._by_place = np.zeros((self._SIZE, 2), np.uint32)

    def put(self, token: int, fingerprint: int) -> None:
        self._by_place[token % self._SIZE] = token, fingerprint

    def get(self, token: int) -> int | None:
        found, fingerprint = self._by_place[token % self._SIZE].tolist()
        return fingerprint if found == token else None

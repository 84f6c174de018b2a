"""Files that the workers of a pool open: large shared inputs, and notes of which process runs a job.

They have no name, and are gone with this process, however that ends. Only Linux has such files that another process can
open. Elsewhere inputs travel with each job, and nobody notes what a process runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np


class _File:
    works = sys.platform == "linux"

    def __init__(self) -> None:
        self._file: Any = tempfile.TemporaryFile(buffering=0, prefix="jaxpyop-")  # noqa: SIM115  # `close` closes it
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def close(self) -> None:
        """Give the file back, once no worker opens it any more."""
        self._file.close()


class SharedArray(_File):
    """An array in a file, which is a read-only array over the file in another process."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        super().__init__()
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(self._file)
        self._kind = array.dtype, array.shape

    def __reduce__(self) -> Any:
        return _mapped, (self.path, *self._kind)


def _mapped(path: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    return np.asarray(np.memmap(path, np.uint8, "r")).view(dtype).reshape(shape)


_SIZE = 8


class Notes(_File):
    """A place for each job, which has the number of the process while that runs the job, and still when it has died."""

    _places = 0

    def new_place(self) -> int:
        """A place for one job."""
        self._places += 1
        return self._places * _SIZE

    def process_at(self, place: int) -> int:
        """The process that runs a job, or died while it ran it; otherwise 0."""
        return int.from_bytes(os.pread(self._file.fileno(), _SIZE, place), "little")


def run_noting(path: str, place: int, job: Any, *shared: Any) -> Any:
    """Run a job in a process that notes meanwhile that it does."""
    with open(path, "r+b", buffering=0) as file:
        try:
            os.pwrite(file.fileno(), os.getpid().to_bytes(_SIZE, "little"), place)
            return job(*shared)
        finally:
            os.pwrite(file.fileno(), bytes(_SIZE), place)

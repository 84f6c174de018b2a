"""Files of one call that workers on this machine open: large shared inputs, and notes of which element a worker runs.

On Linux such a file has no name, and is gone with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np


class SharedFile:
    """A temporary file that the workers on this machine open by its path, as long as this process has it."""

    def __init__(self) -> None:
        # The files without a name are those of Linux. Elsewhere this process deletes the file.
        self._is_named = sys.platform != "linux"
        make: Any = tempfile.NamedTemporaryFile if self._is_named else tempfile.TemporaryFile
        self.file = make(buffering=0, prefix="jaxpyop-", **({"delete": False} if self._is_named else {}))
        self.path = self.file.name if self._is_named else f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    def close(self) -> None:
        """Give the file back. Windows keeps one that a worker has mapped."""
        self.file.close()
        if self._is_named:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class SharedArray(SharedFile):
    """An array in a file, which is a read-only array over the file in another process."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        super().__init__()
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(self.file)
        self._kind = array.dtype, array.shape

    def __reduce__(self) -> Any:
        return _mapped, (self.path, *self._kind)


def _mapped(path: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    return np.asarray(np.memmap(path, np.uint8, "r")).view(dtype).reshape(shape)


# ---------------------------------------------------------------------- which element a worker runs


class Running(NamedTuple):
    """What a worker runs.

    Attributes:
        process: the number of its process.
        element: which element of its chunk it runs.
        deadline: when `timeout=` ends its process.
    """

    process: int
    element: int
    deadline: float


_FORMAT = struct.Struct("qqd")
_TOKEN = 16


class Note(NamedTuple):
    """A place in a file where a worker notes what it runs.

    Attributes:
        path: the file.
        token: how it begins, since the file of this name on another machine is another one.
        at: the place.
    """

    path: str
    token: bytes
    at: int

    def opened(self) -> Any:
        """The file, for `write`; None on another machine."""
        with contextlib.suppress(OSError):
            # Any name may be that of a device there.
            if os.path.isfile(self.path):
                file = open(self.path, "r+b", buffering=0)  # noqa: SIM115  # it is returned
                if file.read(_TOKEN) == self.token:
                    return file
                file.close()
        return None

    def write(self, file: Any, index: int | None, seconds: float = math.inf) -> None:
        """Note that this process runs an element and may take so long for it, or that it runs none."""
        file.seek(self.at)
        running = (0, 0, 0.0) if index is None else (os.getpid(), index, time.monotonic() + seconds)
        file.write(_FORMAT.pack(*running))


class Notes(SharedFile):
    """The places where workers note which elements they run. An element that ran when its worker died is a suspect."""

    def __init__(self) -> None:
        super().__init__()
        self._token = os.urandom(_TOKEN)
        self.file.write(self._token)
        self._end = _TOKEN

    def new(self) -> Note:
        """A place for one job."""
        self._end += _FORMAT.size
        return Note(self.path, self._token, self._end)

    def read(self, note: Note | None) -> Running | None:
        """What the worker of a job runs, or ran when it died; None if that is nothing, or on another machine."""
        if note is None:
            return None
        self.file.seek(note.at)
        data = self.file.read(_FORMAT.size)
        running = Running(*_FORMAT.unpack(data)) if len(data) == _FORMAT.size else None
        return running if running and running.process else None

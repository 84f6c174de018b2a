"""One run of a body for all devices of a program: devices that call with the same inputs share its results.

A program over several devices calls a buffer callback on each of them. Nothing says which calls belong to one
execution. But the results of a stateless op depend on its inputs alone, so any call with equal inputs may have them.
Each run serves as many calls as the process has devices, and is then forgotten.

A result can be read once a single device has it. But Python must not exit while other devices still call:
ending a thread in the middle of a call aborts the process.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._host.buffers.entry import Host
from jaxpyop._host.buffers.lending import view_of
from jaxpyop._host.buffers.memory import SCRATCH
from jaxpyop._host.errors import PythonBodyError

# The largest number of runs that wait for calls. The calls of an execution that failed elsewhere never come.
_MAX_RUNS = 64

# Inputs of fewer bytes than this are compared as `bytes`, which is faster than comparing arrays.
_SMALL = 1 << 16


class _Run:
    """A run of the body, and the calls that it has served."""

    def __init__(self, inputs: Sequence[Any], host: Host) -> None:
        self.inputs = [x if isinstance(x, bytes) else SCRATCH.copy_of(x) for x in inputs]
        self.outs = [np.empty(shape, dtype) for shape, dtype in host.results]
        self.error: PythonBodyError | None = None
        self.served = 1
        # The lock is held until the run is over. An Event would be slower.
        self._running = threading.Lock()
        self._running.acquire()

    def start(self, host: Host, buffers: Sequence[Any]) -> None:
        try:
            host.enter(buffers, self.outs)
        except PythonBodyError as error:
            self.error = error
        finally:
            self._running.release()

    def wait(self) -> None:
        with self._running:
            pass

    def is_for(self, inputs: Sequence[Any]) -> bool:
        return all(map(_equal, self.inputs, inputs))


def _comparable(buffer: Any) -> Any:
    """The bytes of a buffer, or a view of a large one."""
    # This view of the buffer must not live on: `view_of` says why.
    array = np.asarray(buffer)
    return array.tobytes() if array.nbytes < _SMALL else view_of(buffer)


def _equal(a: Any, b: Any) -> bool:
    """Tell whether two contiguous arrays of one type, or their bytes, are equal bit by bit."""
    if isinstance(a, bytes):
        return a == b
    words = np.uint64 if a.nbytes % 8 == 0 else np.uint8
    return bool((a.reshape(-1).view(words) == b.reshape(-1).view(words)).all())


# Python's exit waits for calls that are not answered yet. `_calls` has an entry for each call in progress.
_all: weakref.WeakSet[Shared] = weakref.WeakSet()
_calls: list[None] = []

# Seconds that Python's exit waits: `_MAX_SECONDS` for a function that does not end, `_PATIENCE` for calls that do not
# come.
_MAX_SECONDS = 10.0
_PATIENCE = 0.5


class Shared:
    """A host that is called once for `devices` calls with equal inputs."""

    def __init__(self, host: Host, devices: int) -> None:
        _all.add(self)
        self.host = host
        self.devices = devices
        self._lock = threading.Lock()
        self._runs: list[_Run] = []

    def on_buffers(self, ctx: Any, outs: Sequence[Any], *buffers: Any) -> None:
        """The body of a `buffer_callback`."""
        _calls.append(None)
        try:
            self._fill(outs, buffers)
        finally:
            _calls.pop()

    def is_awaiting(self) -> bool:
        """Tell whether some devices have not called yet."""
        return bool(self._runs)

    def _fill(self, outs: Sequence[Any], buffers: Sequence[Any]) -> None:
        run, first = self._join([_comparable(buffer) for buffer in buffers])
        if first:
            run.start(self.host, buffers)
        else:
            run.wait()
        if (error := run.error) is not None:
            # Each device raises the error, since a device that went on would wait for the others.
            raise error.again()
        for out, value in zip(outs, run.outs):
            # No name refers to this view of a buffer: `view_of` says why.
            np.asarray(out)[...] = value

    def _join(self, inputs: Sequence[Any]) -> tuple[_Run, bool]:
        with self._lock:
            for run in self._runs:
                if run.is_for(inputs):
                    run.served += 1
                    if run.served == self.devices:
                        self._runs.remove(run)
                        large, run.inputs = [x for x in run.inputs if not isinstance(x, bytes)], []
                        SCRATCH.recycle(large)
                    return run, False
            run = _Run(inputs, self.host)
            if self.devices > 1:
                self._runs.append(run)
                del self._runs[:-_MAX_RUNS]
            return run, True


@atexit.register
def _wait() -> None:
    began = quiet = time.monotonic()
    while time.monotonic() < began + _MAX_SECONDS:
        if _calls:
            quiet = time.monotonic()
        elif not any(shared.is_awaiting() for shared in list(_all)) or time.monotonic() > quiet + _PATIENCE:
            break
        time.sleep(0.01)
    if _all:
        # The last calls still have to return to XLA.
        time.sleep(0.02)

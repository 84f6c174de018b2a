"""One run of a body for all devices of a program: those that call with the same inputs share what came of it.

A program over several devices calls a buffer callback on each. Which calls
belong to one execution is not said; but a stateless op's results depend on its
inputs alone, so any call with equal inputs may have them. Each run serves as
many calls as the process has devices, and is forgotten then.

A result can be read when one device has it. Python cannot end while others
still call: a thread that it ends in the middle of that aborts the process.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._host.buffers.entry import Host, view_of
from jaxpyop._host.buffers.memory import SCRATCH
from jaxpyop._host.errors import PythonBodyError

_MOST = 64  # runs that wait for calls to come; those of an execution that failed elsewhere never do
_SMALL = 1 << 16  # bytes, below which a copy to compare with is faster than to compare with what is there


class _Run:
    def __init__(self, inputs: Sequence[Any], host: Host) -> None:
        self.inputs = [x if isinstance(x, bytes) else SCRATCH.copy_of(x) for x in inputs]
        self.outs = [np.empty(shape, dtype) for shape, dtype in host.results]
        self.error: PythonBodyError | None = None
        self.served = 1
        self._over = threading.Lock()  # held until it is; an Event takes longer
        self._over.acquire()

    def start(self, host: Host, buffers: Sequence[Any]) -> None:
        try:
            host.enter(buffers, self.outs)
        except PythonBodyError as error:
            self.error = error
        finally:
            self._over.release()

    def wait(self) -> None:
        with self._over:
            pass

    def is_for(self, inputs: Sequence[Any]) -> bool:
        return all(map(_equal, self.inputs, inputs))


def _comparable(buffer: Any) -> Any:
    """The bytes of a buffer, or a view of a large one."""
    array = np.asarray(buffer)  # see view_of: nothing holds on to this view
    return array.tobytes() if array.nbytes < _SMALL else view_of(buffer)


def _equal(a: Any, b: Any) -> bool:
    """Whether two contiguous arrays of one type are the same, bit by bit; or the bytes of two."""
    if isinstance(a, bytes):
        return a == b
    words = np.uint64 if a.nbytes % 8 == 0 else np.uint8
    return bool((a.reshape(-1).view(words) == b.reshape(-1).view(words)).all())


_shared: weakref.WeakSet[Shared] = weakref.WeakSet()
_inside: list[None] = []  # as many as there are calls now
_MOST_SECONDS = 10.0  # of a function that does not end
_PATIENCE = 0.5  # seconds for calls that do not come


class Shared:
    """A host that is called once for `devices` calls with equal inputs."""

    def __init__(self, host: Host, devices: int) -> None:
        _shared.add(self)
        self.host = host
        self.devices = devices
        self._lock = threading.Lock()
        self._runs: list[_Run] = []

    def on_buffers(self, ctx: Any, outs: Sequence[Any], *buffers: Any) -> None:
        """The body of a `buffer_callback`."""
        _inside.append(None)
        try:
            self._fill(outs, buffers)
        finally:
            _inside.pop()

    def is_awaiting(self) -> bool:
        """Whether some devices have not called yet."""
        return bool(self._runs)

    def _fill(self, outs: Sequence[Any], buffers: Sequence[Any]) -> None:
        run, first = self._join([_comparable(buffer) for buffer in buffers])
        if first:
            run.start(self.host, buffers)
        else:
            run.wait()
        if (error := run.error) is not None:  # raised on each device: one that went on would wait for the others
            raise error.again()
        for out, value in zip(outs, run.outs):
            np.asarray(out)[...] = value  # see view_of: nothing holds on to this view

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
                del self._runs[:-_MOST]
            return run, True


@atexit.register
def _wait() -> None:
    began = quiet = time.monotonic()
    while time.monotonic() < began + _MOST_SECONDS:
        if _inside:
            quiet = time.monotonic()
        elif not any(shared.is_awaiting() for shared in list(_shared)) or time.monotonic() > quiet + _PATIENCE:
            break
        time.sleep(0.01)
    if _shared:
        time.sleep(0.02)  # the last ones return to XLA

"""Lets the functions that run end before the process does.

While Python exits, it ends each thread that comes back to Python code. If that is a thread of XLA's in the middle of a
call, the process is aborted, with status 134. JAX waits at exit for programs with effects only. So the exit also waits
for the functions that run in other programs, for results that are not there yet, and for all that the main thread
began. It cannot know of a program of another thread that has not come to its function yet, if all its results were
dropped.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
import weakref
from typing import Any, Protocol

import jax
import numpy as np


class Awaiting(Protocol):
    """What may wait for the calls of further devices."""

    def is_awaiting(self) -> bool:
        """Tell whether calls are still to come."""
        ...


# The thread of each call in progress. A function may call a program, so that a thread can be there twice.
running: list[int] = []
# What asks whether calls of other devices are still to come. A result can be read once a single device has it.
awaiting: weakref.WeakSet[Awaiting] = weakref.WeakSet()
# Whether a program of the process has a function, and whether it is too late to begin one.
state = {"used": False, "over": False}
if hasattr(os, "register_at_fork"):
    # A forked child has none of XLA's threads.
    os.register_at_fork(after_in_child=lambda: state.update(used=False))

# Seconds that the exit waits: `_MAX_SECONDS` for functions and results, `_PATIENCE` for calls of other devices, and
# `_GRACE` for the function of a program that waited for another one, or for functions that were told to end. The last
# calls need `_RETURN` to return to XLA.
_MAX_SECONDS = 10.0
_PATIENCE = 0.5
_GRACE = 0.1
_RETURN = 0.02


def _end_of_main() -> list[jax.Array]:
    """Return arrays that are computed once all programs that the main thread began are done.

    A device runs the programs that one thread began in their order, whether somebody holds their results or not. Those
    of one device and those of several are two such orders.
    """
    devices = jax.local_devices()
    mesh = jax.make_mesh((len(devices),), ("devices",), devices=devices)
    places = [*devices, jax.sharding.NamedSharding(mesh, jax.P("devices"))] if len(devices) > 1 else devices
    end, zeros = jax.jit(lambda x: -x), np.zeros(len(devices), np.float32)
    with jax.transfer_guard("allow"):
        return [end(jax.device_put(zeros, place)) for place in places]


def _is_computed(array: Any) -> bool:
    return array.is_deleted() or array.is_ready()


@atexit.register
def _wait() -> None:
    if not state["used"]:
        return
    began = quiet = time.monotonic()
    pending, patience = [*jax.live_arrays(), *_end_of_main()], _RETURN
    while (now := time.monotonic()) < began + _MAX_SECONDS:
        pending = [array for array in pending if not _is_computed(array)]
        if running or pending:
            quiet, patience = now, _GRACE
        elif now > quiet + (_PATIENCE if any(one.is_awaiting() for one in list(awaiting)) else patience):
            return
        time.sleep(0.01)
    _end_all()
    time.sleep(_RETURN)


def _end_all() -> None:
    """Let no function begin, and raise SystemExit in those that run, which ends them when they come back to Python."""
    state["over"] = True
    for thread in set(running):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
    late = time.monotonic() + _GRACE
    while running and time.monotonic() < late:
        time.sleep(0.01)

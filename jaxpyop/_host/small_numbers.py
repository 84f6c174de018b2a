"""Gives functions that run on XLA's threads the smallest floating-point numbers, as they have them everywhere else.

XLA sets a mode of the processor on each thread that runs a program: numbers too small for a normal exponent (below
2.2e-308 in 64 bits, 1.2e-38 in 32) count as zero, as operands and as results. Python's floats and NumPy's arrays follow
this mode, and a thread that starts on such a thread inherits it. So a function that XLA calls runs in the mode that the
process had when this module was imported, and XLA gets its own mode back afterwards.

The mode is a part of C's floating-point environment. A call of the C function that sets it takes 0.2 microseconds. So
a product is asked first whether the mode has to be set, which takes 0.03.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

# The product of these two is zero in XLA's mode. They are variables because Python multiplies constants in advance.
_LEAST_NORMAL = sys.float_info.min
_HALF = 0.5

# Longer than the environment of any platform. Each is filled by C's `fegetenv`.
_Environment = ctypes.c_char * 128


def _c_function(name: str) -> Any:
    """Return a function of C's <fenv.h>; None on a platform where it is not found."""
    # The process itself has these functions, or else the library that they are in on Linux.
    for library in (None, "libm.so.6"):
        with contextlib.suppress(OSError, TypeError, AttributeError):
            # They return at once. To release Python's lock meanwhile would take longer than the function does.
            function: Any = getattr(ctypes.PyDLL(library), name)
            function.restype = None
            return function
    return None


_read, _set = _c_function("fegetenv"), _c_function("fesetenv")
_usual, _of_xla = _Environment(), _Environment()
_state = {"is xla's known": False}
if _read is not None:
    _read(_usual)
# Where the functions are missing, and in a process that has XLA's mode everywhere, functions run in the mode that is.
_CAN_SET = _read is not None and _set is not None and bool(_LEAST_NORMAL * _HALF)


def leave_flushing() -> bool:
    """Set the usual mode on a thread that XLA may have given its own. If it had, return True: call `flush_again`."""
    if _LEAST_NORMAL * _HALF or not _CAN_SET:
        return False
    if not _state["is xla's known"]:
        # It is the same on all threads.
        _read(_of_xla)
        _state["is xla's known"] = True
    _set(_usual)
    return True


def flush_again() -> None:
    """Set XLA's mode again."""
    _set(_of_xla)


@contextlib.contextmanager
def keeping_small_numbers() -> Iterator[None]:
    """Run a block in the usual mode, on any thread."""
    flushed = leave_flushing()
    try:
        yield
    finally:
        if flushed:
            flush_again()

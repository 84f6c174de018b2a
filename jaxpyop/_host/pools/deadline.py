"""`timeout=`: ends a call of the function that takes too long, in the worker that runs it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


class ElementTimeoutError(TimeoutError):
    """Raised in a function that takes longer than `timeout=`."""

    def __init__(self, *args: Any) -> None:
        # Python makes it without arguments where it raises it in another thread.
        super().__init__(*args or ("func took longer than timeout=",))


# Seconds that the function has to end after the error was raised in it. After that the process is ended.
_GRACE = 1.0

# While a function holds Python's lock, nothing here can run. A thread without Python then ends the process, and shows
# in the standard error where it was.
_STDERR = 2


def run_within(seconds: float, func: Callable[..., Any], *args: Any, may_exit: bool) -> Any:
    """Call a function, and raise ElementTimeoutError in it when the time is over.

    Args:
        seconds: how long it may take.
        func: what to call.
        *args: its arguments.
        may_exit: whether to end the process if the function goes on. The engine then has lost a worker.

    Raises:
        ElementTimeoutError: it took longer.
    """
    thread = threading.current_thread()
    lock, ended = threading.Lock(), threading.Event()
    is_over = is_late = False

    def interrupt() -> None:
        nonlocal is_late
        with lock:
            if is_over:
                return
            is_late = True
            _raise_in(thread)
        if may_exit and not ended.wait(_GRACE):
            os._exit(1)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    before = _take_alarm() if thread is threading.main_thread() else None
    if may_exit:
        faulthandler.dump_traceback_later(seconds + 2 * _GRACE, exit=True, file=_STDERR)
    timer.start()
    try:
        try:
            return func(*args)
        finally:
            with lock:
                is_over = True
            # The error may be on its way to this thread, which must not leave before it comes.
            until = time.monotonic() + 0.1
            while is_late and time.monotonic() < until and not isinstance(sys.exception(), ElementTimeoutError):
                time.sleep(0.001)
    finally:
        ended.set()
        timer.cancel()
        if may_exit:
            faulthandler.cancel_dump_traceback_later()
        if before is not None:
            signal.signal(signal.SIGALRM, before)


def _take_alarm() -> Any:
    """Make SIGALRM raise the error, and return what it did before; None where there is no such signal."""
    if not hasattr(signal, "SIGALRM"):
        return None

    def late(*_: Any) -> None:
        raise ElementTimeoutError

    return signal.signal(signal.SIGALRM, late) or signal.SIG_DFL


def _raise_in(thread: threading.Thread) -> None:
    if thread is threading.main_thread() and hasattr(signal, "SIGALRM"):
        # Unlike the other way, a signal ends a wait: for a lock, for a file, for time to pass.
        signal.pthread_kill(thread.ident or 0, signal.SIGALRM)
    else:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(ElementTimeoutError)
        )

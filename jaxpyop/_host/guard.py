"""Why JAX code inside a body does not deadlock, and when that is not certain.

The CPU client runs programs on a pool with as many threads as there are cores. A body holds one of these threads while
it waits for the JAX operations inside it, so enough bodies at once leave no thread to run those operations. The cure is
a larger pool, and before JAX 0.12 also synchronous dispatch. Both must be in place when the CPU client is made, which
happens at the first JAX operation.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
import types
import warnings
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._functions import reads_of
from jaxpyop._host.host_call import HostCall
from jaxpyop._host.pools import has_threads
from jaxpyop._host.show import plain_function

# The least number of threads that the CPU client gets.
POOL = 32
_NEEDS_SYNCHRONOUS_DISPATCH = _jaxcore.JAX_VERSION < (0, 12)
_CURE = "import jaxpyop before the first JAX operation of the process (right after `import jax` is early enough)"

# Whether JAX had started before the import, and whether the user set the size of the pool.
_state = {"late": False, "users": False}


def _pool_in_environment() -> int:
    try:
        return int(os.environ.get("NPROC", "0"))
    except ValueError:
        return 0


def install_guard() -> None:
    """Enlarge the pool, or warn if the CPU client exists already.

    XLA's CPU client reads the size of its thread pool from ``NPROC``. A value that the user set is kept.
    """
    if not _jaxcore.backends_are_initialized():
        _state["users"] = _pool_in_environment() > 0
        if not _state["users"]:
            # The guard never makes a pool smaller: a machine with more cores than POOL keeps their number.
            os.environ["NPROC"] = str(max(POOL, os.cpu_count() or 1))
        if _NEEDS_SYNCHRONOUS_DISPATCH:
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    elif _pool_in_environment() < POOL or (
        _NEEDS_SYNCHRONOUS_DISPATCH and jax.config.read("jax_cpu_enable_async_dispatch")
    ):
        _state["late"] = True
        warnings.warn(
            f"jaxpyop was imported after JAX had started: JAX code inside a body may deadlock. To be safe, {_CURE}.",
            RuntimeWarning,
            stacklevel=3,
        )


def verdict() -> str:
    """Tell whether JAX code inside a body is safe here, and why."""
    if _state["late"]:
        return f"no: JAX had started before jaxpyop was imported; {_CURE}"
    bodies = _pool_in_environment()
    # Before JAX 0.12, at most POOL threads of a larger pool take part.
    if _NEEDS_SYNCHRONOUS_DISPATCH:
        bodies = min(bodies, POOL)
    if _state["users"] and bodies < POOL:
        return (
            f"while fewer than {bodies} bodies run at once: NPROC={bodies} was set in the environment, and is kept; "
            f"set NPROC={POOL}, or do not set it"
        )
    return f"yes: while fewer than {bodies} bodies run at once"


# ------------------------------------------------------------ one body too many

# Before JAX 0.12 a CPU device begins no more than 32 programs before one has ended, and a program in a body counts. 32
# bodies that all use JAX would wait for one another for good, so the last one raises an error instead.
_AT_ONCE = 32

# Seconds that the last one waits while all other bodies wait, too.
_PATIENCE = 5.0

# The threads of the bodies that use JAX and run now. The lock is reentrant, because a thread that holds it may collect
# garbage, and a finalizer may call an op.
_running: list[int] = []
_lock = threading.RLock()

# The system call by which a thread waits for another one, on Linux. A thread that waits for JAX is in it; one that
# sleeps, reads or computes is not, and its body will end.
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())


def may_wait_for_others(call: HostCall) -> bool:
    """Tell whether a call's body uses JAX in this process, so that one too many of its kind would wait for good."""
    executor = call.op.executor
    return (executor is None or has_threads(executor)) and (call.on_jax or mentions_jax(call.func))


def begin(call: HostCall) -> None:
    """Count a body that uses JAX among those that run, until `end` is called.

    Raises:
        RuntimeError: all programs that the devices can run are in such bodies, and all of these have been waiting for
            other threads for a while.
    """
    if _is_counted(_AT_ONCE - 1):
        return
    most = _AT_ONCE * jax.local_device_count() - 1 if jax.default_backend() == "cpu" else sys.maxsize
    late = time.monotonic() + _PATIENCE
    while not _is_counted(most):
        if not all(map(_may_wait_for_jax, list(_running))):
            late = time.monotonic() + _PATIENCE
        if time.monotonic() > late:
            raise RuntimeError(
                f"{call.title}: {len(_running) + 1} functions that use JAX run at once, this one among them, and would "
                f"wait for one another for good: before JAX 0.12 a device runs {_AT_ONCE} programs at once, and "
                f"programs in functions count. Run at most {_AT_ONCE - 1} at once (threads), or nest fewer; make a "
                "vmap of them, which is one call; leave JAX out of the function; or use JAX 0.12"
            )
        time.sleep(0.01)


def _is_counted(most: int) -> bool:
    """Count one more body, unless so many run already."""
    with _lock:
        has_room = len(_running) < most
        if has_room:
            _running.append(threading.get_native_id())
    return has_room


def _may_wait_for_jax(thread: int) -> bool:
    """Tell whether a thread waits for another one, as far as the system tells."""
    # A function that this thread runs waits for the program in it, which is here.
    if thread == threading.get_native_id():
        return True
    try:
        with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
            return _FUTEX in (None, file.read().partition(" ")[0])
    except OSError:
        return True


def end() -> None:
    """Note that a body has ended."""
    with _lock:
        _running.remove(threading.get_native_id())


def mentions_jax(func: Any) -> bool:
    """Tell whether a function, or a function that it calls, names something of JAX's, as far as its code tells."""
    func = plain_function(func)
    # What the function reads may be a proxy that raises when it is asked for its class.
    with contextlib.suppress(Exception):
        for name, value in (("func", func), *reads_of(func, names=True, depth=4)):
            home = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
            if not _JAX.isdisjoint((name, home.partition(".")[0])):
                return True
    return False


_JAX = {"jax", "jaxlib"}

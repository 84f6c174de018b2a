"""Why JAX code inside a body does not deadlock, and when that is not certain.

The CPU client runs programs on a pool of as many threads as there are cores.
A body holds one of them while it waits for the JAX operations inside it, so
enough bodies at once leave none to run those operations. The cure is a larger
pool, and before JAX 0.12 also synchronous dispatch; both must be in place
when the CPU client is made, that is, before the first JAX operation.
"""

from __future__ import annotations

import os
import pathlib
import warnings

import jax

from jaxpyop import _jaxcore

POOL = 32
_CURE = "import jaxpyop before the first JAX operation of the process (right after `import jax` is early enough)"

_state = {"late": False, "users": False}


def _wanted_pool() -> int:
    # More cores than POOL keep their own number: the guard never shrinks a pool.
    return max(POOL, os.cpu_count() or 1)


def _pool_in_environment() -> int:
    try:
        return int(os.environ.get("NPROC", "0"))
    except ValueError:
        return 0


def _needs_synchronous_dispatch() -> bool:
    return _jaxcore.JAX_VERSION < (0, 12)


def _in_place() -> bool:
    return _pool_in_environment() >= POOL and not (
        _needs_synchronous_dispatch() and jax.config.read("jax_cpu_enable_async_dispatch")
    )


def install_guard() -> None:
    """Arrange the pool, or warn when the CPU client already exists.

    ``NPROC`` is what XLA's CPU client reads for the size of its thread pool. What the user set is kept.
    """
    if not _jaxcore.backends_are_initialized():
        _state["users"] = _pool_in_environment() > 0
        if not _state["users"]:
            os.environ["NPROC"] = str(_wanted_pool())
        if _needs_synchronous_dispatch():
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    elif not _in_place():
        _state["late"] = True
        warnings.warn(
            f"jaxpyop was imported after JAX had started: JAX code inside a body may deadlock. To be safe, {_CURE}.",
            RuntimeWarning,
            stacklevel=3,
        )


def pool_threads() -> int | None:
    """Threads of the CPU client's pool; None where they cannot be counted."""
    try:
        names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    except OSError:
        return None
    return sum("XLAEigen" in name for name in names) or None


def verdict() -> tuple[bool, str]:
    """Whether JAX code inside a body is safe here, and why."""
    if _state["late"]:
        return False, f"no: JAX had started before jaxpyop was imported; {_CURE}"
    bodies = _pool_in_environment()
    if _needs_synchronous_dispatch():  # of a larger pool, too, no more take part (0.10)
        bodies = min(bodies, POOL)
    if _state["users"] and bodies < POOL:
        return False, (
            f"while fewer than {bodies} bodies run at once: NPROC={bodies} was set in the environment, and is kept; "
            f"set NPROC={POOL}, or do not set it"
        )
    return True, f"yes: while fewer than {bodies} bodies run at once"

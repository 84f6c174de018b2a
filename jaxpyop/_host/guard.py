"""Why JAX code inside a body does not deadlock, and when that is not certain.

The CPU client runs programs on a pool of as many threads as there are cores.
A body holds one of them while it waits for the JAX operations inside it, so
enough bodies at once leave none to run those operations. The cure is a larger
pool, and before JAX 0.12 also synchronous dispatch; both must be in place
when the CPU client is made, that is, before the first JAX operation.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._host.errors import plain_function
from jaxpyop._host.pools import is_local

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


# ------------------------------------------------------------ one body too many

_AT_ONCE = 32  # programs that a CPU device runs, those in bodies among them
_PATIENCE = 5.0  # seconds without one that begins or ends


class Running:
    """The bodies of compiled programs that run now.

    Before JAX 0.12 a CPU device begins no more than 32 programs before one has ended, and a program in a body counts.
    With 32 bodies that all use JAX, each waits for the others for good. So the last one raises instead.
    """

    def __init__(self) -> None:
        self._calls: dict[object, Any] = {}  # of which every change is atomic
        self._changed = 0.0  # when one last began or ended

    def enter(self, call: Any) -> object:
        """Note a body that begins.

        Args:
            call: what runs it.

        Returns:
            What `leave` takes.

        Raises:
            RuntimeError: all that run, and this one, use JAX, and none has ended for a while.
        """
        ticket = object()
        self._calls[ticket] = call
        if len(self._calls) >= _AT_ONCE:
            try:
                self._check(call)
            except BaseException:
                del self._calls[ticket]
                raise
        self._changed = time.monotonic()
        return ticket

    def leave(self, ticket: object) -> None:
        """Note that it has ended."""
        del self._calls[ticket]
        self._changed = time.monotonic()

    def _check(self, call: Any) -> None:
        others = dict(self._calls)
        if len(others) < _AT_ONCE * jax.local_device_count("cpu") or not all(map(_uses_jax, others.values())):
            return
        begun = time.monotonic()
        while time.monotonic() < max(begun + _PATIENCE / 50, self._changed + _PATIENCE):
            if any(ticket not in self._calls for ticket in others):
                return
            time.sleep(0.01)
        raise RuntimeError(
            f"{call.title}: {len(others)} functions that use JAX run at once, this one among them, and would wait for "
            f"one another for good: before JAX 0.12 a device runs {_AT_ONCE} programs at once, and those in functions "
            f"count. Run at most {_AT_ONCE - 1} at once (threads), or nest fewer; make a vmap of them, which is one "
            "call; leave JAX out of the function; or use JAX 0.12"
        )


def _uses_jax(call: Any) -> bool:
    executor = call.op.executor
    here = executor is None or is_local(executor)
    return here and (call.on_jax or mentions_jax(call.func))


def mentions_jax(func: Any, depth: int = 4) -> bool:
    """Whether a function names something of JAX's, or one that it calls does, as far as its code tells."""
    func = plain_function(func)
    if _is_of_jax(func):
        return True
    code = getattr(func, "__code__", None)
    if not isinstance(code, types.CodeType) or not depth:
        return False
    names, known = set(_names_in(code)), getattr(func, "__globals__", {})
    values = [known[name] for name in names if name in known]
    for cell in getattr(func, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a variable that is not set yet
            values.append(cell.cell_contents)
    return "jax" in names or any(_is_of_jax(v) or mentions_jax(v, depth - 1) for v in values)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _is_of_jax(value: Any) -> bool:
    name = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
    return name.partition(".")[0] in ("jax", "jaxlib")


_RUNNING = Running()


def running() -> Running | None:
    """Where bodies are to be noted; None where any number may run."""
    return _RUNNING if _needs_synchronous_dispatch() and jax.default_backend() == "cpu" else None

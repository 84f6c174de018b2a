"""The running process: JAX's client, its log, its profiler, transfers and the programs in flight."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax

from jaxpyop._jaxcore.capabilities import using
from jaxpyop._jaxcore.traces import jax_config

_has_started, _tokens = using("started"), using("failed_programs")


def backends_are_initialized() -> bool:
    """Tells whether a JAX client exists already; asking does not make one. False if that cannot be known."""
    return _has_started is not None and bool(_has_started())


# JAX writes each callback's error to this log, beside raising it (JAX 0.10 to 0.12).
CALLBACK_LOGGER = logging.getLogger("jax._src.callback")

_NOT_PROFILED = contextlib.nullcontext()


def profiled_as(label: str) -> contextlib.AbstractContextManager[Any]:
    """Shows a block in the profiler's trace, if one is being taken."""
    # The base class has this method, JAX 0.10 to 0.12.
    enabled = jax.profiler.TraceAnnotation.is_enabled()
    return jax.profiler.TraceAnnotation(label) if enabled else _NOT_PROFILED


def with_transfers(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function that brings values to the device on purpose, as `jax.device_put` does.

    A transfer guard of "disallow" or "log" is about other transfers.
    """
    if jax_config.jax_transfer_guard_host_to_device not in ("disallow", "log"):
        return function(*args)
    with jax.transfer_guard_host_to_device("allow"):
        return function(*args)


# Python's threads by their identifiers.
_threads: dict[int, threading.Thread] = vars(threading)["_active"]


def python_thread() -> threading.Thread | None:
    """Returns the thread that this code runs on; None for a thread that Python does not know, such as one of XLA's.

    Unlike threading.current_thread(), it does not register such a thread with Python.
    """
    return _threads.get(threading.get_ident())


# A part of the key of every compiled program. It has to be made before threads start.
_programs_of = jax.make_user_context(None)


def with_programs_of(owner: Any) -> contextlib.AbstractContextManager[Any]:
    """Surrounds a block whose compiled programs are used again only in blocks with an equal owner.

    Code outside of such blocks has the owner None.
    """
    return _programs_of(owner)


def forget_failed_programs() -> None:
    """Drops the tokens of programs that failed.

    The next ordered program would raise the error of the one before, which has been seen (JAX 0.10 to 0.12).
    """
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        if _tokens is not None:
            _tokens.clear()

"""JAX's settings of a thread: what they are, and another thread's for a block. All of it is public in JAX."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

# JAX makes the attributes of this object at run time, so type checkers do not know them.
jax_config: Any = jax.config

# JAX's settings of a thread that decide what an operation gives or whether it raises, and what sets them for a block.
_SETTINGS: dict[str, Any] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_threefry_partitionable": jax.threefry_partitionable,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    # `with_debug_nans_of_here` takes this one for the last.
    "jax_debug_nans": jax.debug_nans,
}
# Each call of a compiled program reads them.
_read_settings = operator.attrgetter(*_SETTINGS)


def thread_settings() -> tuple[Any, ...]:
    """Returns the values of the settings of this thread that decide what an operation gives."""
    return _read_settings(jax_config)


# Settings of the process that decide it, too. No context of JAX's sets them for a block.
OF_PROCESS = ("jax_random_seed_offset", "jax_explicit_x64_dtypes")


def process_settings() -> tuple[Any, ...]:
    """Returns the values of the settings of this process that decide what an operation gives."""
    return tuple([getattr(jax_config, name, None) for name in OF_PROCESS])


def with_thread_settings(settings: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Gives a block the settings of another thread, or of other code."""
    return contextlib.nullcontext() if thread_settings() == settings else _entered(settings)


def with_debug_nans_of_here(settings: Sequence[Any]) -> tuple[Any, ...]:
    """Returns settings of other code in which whoever runs it decides whether JAX looks for NaNs."""
    return (*settings[:-1], jax_config.jax_debug_nans)


@contextlib.contextmanager
def _entered(settings: Sequence[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for here, there, context in zip(thread_settings(), settings, _SETTINGS.values()):
            if here != there:
                stack.enter_context(context(there))
        yield


def with_transfers(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function that brings values to the device on purpose, as `jax.device_put` does.

    A transfer guard of "disallow" or "log" is about other transfers.
    """
    if jax_config.jax_transfer_guard_host_to_device not in ("disallow", "log"):
        return function(*args)
    with jax.transfer_guard_host_to_device("allow"):
        return function(*args)


def looks_at_transfers() -> bool:
    """Tells whether JAX looks at each array that comes to a device: for NaNs, or because of a transfer guard."""
    return bool(jax_config.jax_debug_nans or jax_config.jax_debug_infs or jax_config.jax_transfer_guard_host_to_device)

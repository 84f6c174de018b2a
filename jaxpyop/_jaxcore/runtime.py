"""The running process: its clients and devices, arrays and their shardings, mesh axes, programs, log and profiler."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpyop._dtypes import canonical_dtype
from jaxpyop._jaxcore.changes import make, makes
from jaxpyop._jaxcore.private import has, private
from jaxpyop._jaxcore.public import ShapedArray
from jaxpyop._settings import jax_config, looks_at_transfers
from jaxpyop._sharding import has_callbacks, is_committed, single_device_of


def backends_are_initialized() -> bool:
    """Tells whether a JAX client exists already; asking does not make one. False if that cannot be known."""
    return private.backends_are_initialized is not None and bool(private.backends_are_initialized())


def keep_out_of_log(kind: type[Exception]) -> None:
    """Keeps the exceptions of a class out of JAX's log, where JAX writes each one of a callback beside raising it."""
    _kept_out.add(kind)
    make("log")


_kept_out: set[type[Exception]] = set()


@makes("log")
def _filter_log() -> None:
    is_ours = lambda record: bool(record.exc_info) and isinstance(record.exc_info[1], tuple(_kept_out))
    logging.getLogger("jax._src.callback").addFilter(lambda record: not is_ours(record))


# `with with_programs_of(owner):` surrounds a block whose compiled programs are used again only in blocks with an equal
# owner. Code outside of such blocks has the owner None. It is a part of the key of every compiled program, and has to
# be made before threads start.
with_programs_of: Any = jax.make_user_context(None)


def forget_failed_programs() -> None:
    """Drops the tokens of programs that failed.

    The next ordered program would raise the error of the one before, which has been seen (JAX 0.10 to 0.12).
    """
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        if has("errors"):
            private.runtime_tokens.clear()


def static_arguments(jitted: Any) -> tuple[Sequence[int], Sequence[str]]:
    """Returns which arguments of a function under `jax.jit` are static, by position and by name.

    JAX infers one from the other. If it does not tell them, there is no feature that asks.
    """
    info = getattr(jitted, "_jit_info", None)
    return ((), ()) if info is None else (info.static_argnums, info.static_argnames)


def program_count(jitted: Any) -> int:
    """Returns how many programs JAX has compiled of a function under `jax.jit`; -1 if it does not tell."""
    count = getattr(jitted, "_cache_size", None)
    return -1 if count is None else count()


def is_jitted(function: Any) -> bool:
    """Tells whether a function is under `jax.jit`."""
    return type(function) is _JITTED


_JITTED = type(jax.jit(len))


# ----------------------------------------------------------- clients and devices


def platforms(ctx: Any) -> tuple[str, ...]:
    """Returns the platforms that a lowering is for. Only `jax.export` lowers for several."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def backend_without_callbacks(ctx: Any) -> str | None:
    """Names the client that a lowering is for, if its programs cannot call Python."""
    try:
        client = ctx.module_context.get_backend()
    except (ValueError, RuntimeError):
        return f"{', '.join(platforms(ctx))}, which this process only lowers for"
    if has_callbacks(client):
        return None
    return " ".join(f"{client.platform}, {client.platform_version}".split())


def all_have_callbacks() -> bool:
    """Tells whether the programs of every client can call Python."""
    return private.backends is not None and all(map(has_callbacks, private.backends().values()))


@functools.cache
def is_one_cpu() -> bool:
    """Tells whether the process has one device, a CPU whose programs can call Python. It makes its clients once."""
    clients = {} if private.backends is None else private.backends()
    # jaxlib makes its own CPU client under this name.
    return len(clients) == 1 and "cpu" in clients and clients["cpu"].device_count() == 1


# ------------------------------------------------------------------------ arrays


def quick_array(value: np.ndarray[Any, Any], like: Any = None) -> Any:
    """Makes a jax.Array of a NumPy array that is not used elsewhere, in a tenth of the time that `jnp.asarray` takes.

    Args:
        value: may be taken over, not copied.
        like: a jax.Array. The result is on its device, and committed to it as `like` is.

    Returns:
        The array; None where only the public functions know what to do: in portable mode, under a mesh, a transfer
        guard or a check for NaNs, on several devices, and for dtypes that JAX changes.
    """
    if private.batched_device_put is None or looks_at_transfers() or not jax.sharding.get_abstract_mesh().empty:
        return None
    aval = _aval(value.shape, value.dtype, bool(jax_config.jax_enable_x64))
    if aval is None or (sharding := single_device_of(like)) is None:
        return None
    return private.batched_device_put(aval, sharding, [value], list(sharding.device_set), is_committed(like))


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any], x64: bool) -> Any:
    """Returns the type of the jax.Array, or None where it would have another dtype."""
    if not dtype.isnative or canonical_dtype(dtype) != dtype:
        return None
    return ShapedArray(shape, dtype)


# ---------------------------------------------------------------------- sharding


def cast_to_common_axes(args: Sequence[Any]) -> list[Any]:
    """Gives all values the same varying axes, as `shard_map` asks of operands."""
    # The mesh axes over which each value differs between shards.
    axes: list[frozenset[str]] = [frozenset(jax.typeof(a).manual_axis_type.varying) for a in args]
    union = frozenset().union(*axes)
    if not union:
        return list(args)
    return [jax.lax.pcast(a, tuple(union - own), to="varying") if union - own else a for a, own in zip(args, axes)]


def result_aval(shape: Sequence[int], dtype: Any, operands: Sequence[Any]) -> Any:
    """Returns the aval of a replicated result, on the explicit mesh and with the varying axes of its operands."""
    aval = ShapedArray(tuple(shape), np.dtype(dtype))
    likes = [a for a in operands if a.manual_axis_type.varying]
    # If an operand is sharded, the result gets no mesh. JAX accepts that as the next carry of a loop whose first carry
    # was sharded, and refuses a replicated result there.
    if not likes and not any(axis is not None for a in operands for axis in a.sharding.spec):
        likes = [a for a in operands if AxisType.Explicit in a.sharding.mesh.axis_types]
    if not likes:
        return aval
    sharding = NamedSharding(likes[0].sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return aval.update(sharding=sharding, manual_axis_type=likes[0].manual_axis_type)


def devices_of(ctx: Any) -> Sequence[Any]:
    """Returns the devices that a lowering is for, of which there are several."""
    devices = ctx.module_context.axis_context.device_assignment
    if devices is None:
        raise NotImplementedError(
            f"JAX {jax.__version__} does not say over which devices a program runs: call Python inside of jax.shard_map"
        )
    return devices

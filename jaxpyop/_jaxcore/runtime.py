"""The running process: its clients and devices, arrays and their shardings, mesh axes, programs, log and profiler."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxpyop._jaxcore.changes import make, makes
from jaxpyop._jaxcore.private import has, private
from jaxpyop._jaxcore.public import ShapedArray
from jaxpyop._jaxcore.traces import canonical_dtype, jax_config


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


def with_transfers(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function that brings values to the device on purpose, as `jax.device_put` does.

    A transfer guard of "disallow" or "log" is about other transfers.
    """
    if jax_config.jax_transfer_guard_host_to_device not in ("disallow", "log"):
        return function(*args)
    with jax.transfer_guard_host_to_device("allow"):
        return function(*args)


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


def is_explicit(aval: Any) -> bool:
    """Tells whether a type says how its arrays are sharded."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and is_explicit_mesh(sharding.mesh)


def is_explicit_mesh(mesh: Any) -> bool:
    """Tells whether types have shardings on a mesh. They have none if all of its axes are Auto."""
    return any(kind != AxisType.Auto for kind in mesh.axis_types)


def client_of(arrays: Sequence[Any]) -> Any:
    """Returns the client of the devices on which a program with these inputs runs."""
    default = jax_config.jax_default_device
    found = default.client if isinstance(default, jax.Device) else None
    for x in arrays:
        if isinstance(x, jax.Array) and (x.committed or found is None):
            found = next(iter(x.sharding.device_set)).client
            if x.committed:
                return found
    return found or jax.local_devices(backend=default if isinstance(default, str) else None)[0].client


def cpu_device() -> Any:
    """Returns the device on which functions run JAX code, and to which callbacks bring their inputs.

    Raises:
        RuntimeError: the process has no CPU client.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        asked = jax_config.jax_platforms
        raise RuntimeError(
            f"a Python function runs on the host, and JAX has no CPU client in this process (jax_platforms is "
            f"{asked!r}): set JAX_PLATFORMS={asked or 'cuda'},cpu, with cpu at the end, or do not set it"
        ) from error


def has_callbacks(client: Any) -> bool:
    """Tells whether a client's programs can call Python.

    JAX lowers callbacks for four platforms, by name. A plugin whose platform is called "cpu" has none of the targets
    that jaxlib registers with its own CPU client.
    """
    if client.platform == "cpu":
        # jaxlib makes this one client under this name.
        try:
            return client is jax.local_devices(backend="cpu")[0].client
        except RuntimeError:
            return False
    return client.platform in ("cuda", "rocm", "gpu", "tpu")


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


def is_committed(x: Any) -> bool:
    """Tells whether an array was put on its device on purpose, so that results computed from it stay there."""
    return bool(getattr(x, "committed", False))


def looks_at_transfers() -> bool:
    """Tells whether JAX looks at each array that comes to a device: for NaNs, or because of a transfer guard."""
    return bool(jax_config.jax_debug_nans or jax_config.jax_debug_infs or jax_config.jax_transfer_guard_host_to_device)


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
    if aval is None or (sharding := _sharding_for(like)) is None:
        return None
    return private.batched_device_put(aval, sharding, [value], list(sharding.device_set), is_committed(like))


def _sharding_for(like: Any) -> SingleDeviceSharding | None:
    default = jax_config.jax_default_device
    if like is not None and (default is None or is_committed(like)):
        sharding = like.sharding
        return sharding if type(sharding) is SingleDeviceSharding and sharding.memory_kind == "device" else None
    if isinstance(default, str):
        return None
    return SingleDeviceSharding(jax.local_devices()[0] if default is None else default)


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any], x64: bool) -> Any:
    """Returns the type of the jax.Array, or None where it would have another dtype."""
    if not dtype.isnative or canonical_dtype(dtype) != dtype:
        return None
    return ShapedArray(shape, dtype)


# Before 0.10.2, a callback of JAX's gets a wrong last value where packed values do not fill their last byte.
HANDS_OVER_PACKED = jax.__version_info__ >= (0, 10, 2)


def is_packed(dtype: Any) -> bool:
    """Tells whether several values of a dtype, such as int4, share a byte in XLA's memory."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return bool(jax.numpy.iinfo(dtype).bits < 8)
    return bool(jax.dtypes.issubdtype(dtype, np.floating) and jax.numpy.finfo(dtype).bits < 8)


def placed_like(x: Any, like: Any) -> Any:
    """Moves an array to the devices of another one, if one of the two is committed to its devices.

    If these are several devices, and the shapes of the two arrays differ, each device gets the whole array. Otherwise
    it is sharded like the other array.
    """
    sharding = like.sharding
    if not is_committed(x) and not is_committed(like):
        return x
    if is_committed(x) and x.sharding.device_set == sharding.device_set:
        return x
    if x.shape != like.shape and len(sharding.device_set) > 1:
        devices = sorted(sharding.device_set, key=lambda device: device.id)
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else Mesh(np.array(devices), ("device",))
        sharding = NamedSharding(mesh, PartitionSpec())
    return jax.device_put(x, sharding)


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


def shard_as(x: Any, aval: Any) -> Any:
    """Shards a value as its type on an explicit mesh says, and elsewhere returns it as it is."""
    wanted = aval.sharding
    if all(axis is None for axis in wanted.spec) or jax.typeof(x).sharding == wanted:
        return x
    return jax.sharding.reshard(x, wanted)


def shard_batch_like(outs: Sequence[Any], args: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Shards the first axis of results as the mapped axis of the inputs of a `vmap`.

    JAX's batching rules expect that all values of a batch are sharded alike on an explicit mesh.
    """
    for arg, dim in zip(args, dims):
        sharding = jax.typeof(arg).sharding
        if dim is not None and (axis := sharding.spec[dim]) is not None:
            specs = [PartitionSpec(axis, *[None] * (out.ndim - 1)) for out in outs]
            return [jax.sharding.reshard(o, NamedSharding(sharding.mesh, spec)) for o, spec in zip(outs, specs)]
    return list(outs)


def devices_of(ctx: Any) -> Sequence[Any]:
    """Returns the devices that a lowering is for, of which there are several."""
    devices = ctx.module_context.axis_context.device_assignment
    if devices is None:
        raise NotImplementedError(
            f"JAX {jax.__version__} does not say over which devices a program runs: call Python inside of jax.shard_map"
        )
    return devices


class AllDevices:
    """All devices of a lowering, each with the whole of a value."""

    def __init__(self, ctx: Any) -> None:
        self._mesh = Mesh(np.array(devices_of(ctx)), ("device",))

    def replicate(self, x: Any) -> Any:
        """Brings a value, wherever it is, to all devices."""
        # On an explicit mesh a constraint is only an assertion.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return jax.lax.with_sharding_constraint(x, NamedSharding(self._mesh, PartitionSpec()))

    def run(self, func: Callable[..., Any], *args: Any) -> Any:
        """Runs a function once on each device, on values that are everywhere."""
        each = PartitionSpec()
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return jax.shard_map(func, mesh=self._mesh, in_specs=each, out_specs=each, check_vma=False)(*args)


def has_static_arguments(jitted: Any) -> bool:
    """Tells whether a function under `jax.jit` has static arguments."""
    return any(static_arguments(jitted))

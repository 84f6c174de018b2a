"""Devices and shardings of arrays: asked, moved, and kept alike for operands and results, as public JAX has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxpyop._settings import jax_config


def is_explicit(aval: Any) -> bool:
    """Tells whether a type says how its arrays are sharded."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and is_explicit_mesh(sharding.mesh)


def is_explicit_mesh(mesh: Any) -> bool:
    """Tells whether types have shardings on a mesh. They have none if all of its axes are Auto."""
    return any(kind != AxisType.Auto for kind in mesh.axis_types)


def is_committed(x: Any) -> bool:
    """Tells whether an array was put on its device on purpose, so that results computed from it stay there."""
    return bool(getattr(x, "committed", False))


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


def single_device_of(like: Any) -> SingleDeviceSharding | None:
    """Returns the sharding on one device that a new array gets here, beside `like`; None if it gets another one."""
    default = jax_config.jax_default_device
    if like is not None and (default is None or is_committed(like)):
        sharding = like.sharding
        return sharding if type(sharding) is SingleDeviceSharding and sharding.memory_kind == "device" else None
    if isinstance(default, str):
        return None
    return SingleDeviceSharding(jax.local_devices()[0] if default is None else default)


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


class AllDevices:
    """All devices of a program, each with the whole of a value."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self._mesh = Mesh(np.array(devices), ("device",))

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

"""A NumPy array becomes a jax.Array, in a tenth of the time that `jnp.asarray` takes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxpyop._jaxcore.capabilities import ShapedArray, parts_of
from jaxpyop._jaxcore.traces import jax_config

# What `jax.device_put` ends in. Without it everything takes the public way.
_put, _get_backend = parts_of("quick_arrays", 2)


def is_committed(x: Any) -> bool:
    """Tells whether an array was put on its device on purpose, so that results computed from it stay there."""
    # `x.committed` reads the same attribute, but in Python (JAX 0.10 to 0.12).
    return bool(getattr(x, "_committed", False))


def looks_at_transfers() -> bool:
    """Tells whether JAX looks at each array that comes to a device: for NaNs, or because of a transfer guard."""
    return bool(jax_config.jax_debug_nans or jax_config.jax_debug_infs or jax_config.jax_transfer_guard_host_to_device)


def quick_array(value: np.ndarray[Any, Any], like: Any = None, aval: Any = None) -> Any:
    """Makes a jax.Array of a NumPy array that is not used elsewhere.

    Args:
        value: may be taken over, not copied.
        like: a jax.Array. The result is on its device, and committed to it as `like` is.
        aval: the type of the result. Whoever gives it has checked that none of the cases under Returns applies.

    Returns:
        The array; None where only the public functions know what to do: under a mesh, a transfer guard or a check for
        NaNs, on several devices, and for dtypes that JAX changes.
    """
    if aval is None and not looks_at_transfers() and jax.sharding.get_abstract_mesh().empty:
        aval = _aval(value.shape, value.dtype, bool(jax_config.jax_enable_x64))
    if _put is None or aval is None or (sharding := _sharding_for(like)) is None:
        return None
    return _put(aval, sharding, [value], [sharding._device], is_committed(like))


def _sharding_for(like: Any) -> SingleDeviceSharding | None:
    default = jax_config.jax_default_device
    if like is not None and (default is None or is_committed(like)):
        sharding = like.sharding
        return sharding if type(sharding) is SingleDeviceSharding and sharding.memory_kind == "device" else None
    return _default_sharding(_get_backend() if default is None else default)


@functools.lru_cache(64)
def _default_sharding(place: Any) -> SingleDeviceSharding | None:
    if isinstance(place, jax.Device):
        return SingleDeviceSharding(place)
    return SingleDeviceSharding(place.local_devices()[0]) if hasattr(place, "local_devices") else None


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any], x64: bool) -> Any:
    """Returns the type of the jax.Array, or None where it would have another dtype."""
    if not dtype.isnative or jax.dtypes.canonicalize_dtype(dtype) != dtype:
        return None
    return ShapedArray(shape, dtype)


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
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else _mesh_of(sharding)
        sharding = NamedSharding(mesh, PartitionSpec())
    return jax.device_put(x, sharding)


def _mesh_of(sharding: Any) -> Any:
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    return jax.sharding.Mesh(np.array(devices), ("device",))

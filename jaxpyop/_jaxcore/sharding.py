"""Sharding: the types of values on meshes and inside `shard_map`, and programs over several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpyop._jaxcore.capabilities import ShapedArray, using


def varying_axes(x: Any) -> frozenset[str]:
    """Returns the mesh axes over which a value differs between shards."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def cast_to_common_axes(args: Sequence[Any]) -> list[Any]:
    """Gives all values the same varying axes, as `shard_map` asks of operands."""
    axes = [varying_axes(a) for a in args]
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
            return [_shard_first_axis(out, sharding.mesh, axis) for out in outs]
    return list(outs)


def _shard_first_axis(x: Any, mesh: Any, axis: Any) -> Any:
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(axis, *[None] * (x.ndim - 1))))


def wants_devices(primitive: Any) -> None:
    """Makes JAX pass the devices to the primitive's lowering rule, as for `pure_callback`."""
    if found := using("devices_in_lowering"):
        (add,) = found
        add(primitive)


def devices_of(ctx: Any) -> Sequence[Any]:
    """Returns the devices that a lowering is for, of which there are several."""
    devices = ctx.module_context.axis_context.device_assignment
    if devices is None:
        raise NotImplementedError(
            f"JAX {jax.__version__} does not say over which devices a program runs: call Python inside of jax.shard_map"
        )
    return devices


class Everywhere:
    """All devices of a lowering, each with the whole of a value."""

    def __init__(self, ctx: Any) -> None:
        self._mesh = Mesh(np.array(devices_of(ctx)), ("device",))

    def spread(self, x: Any) -> Any:
        """Brings a value, wherever it is, to all devices."""
        # On an explicit mesh a constraint is only an assertion.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return jax.lax.with_sharding_constraint(x, NamedSharding(self._mesh, PartitionSpec()))

    def run(self, func: Callable[..., Any], *args: Any) -> Any:
        """Runs a function once on each device, on values that are everywhere."""
        each = PartitionSpec()
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return jax.shard_map(func, mesh=self._mesh, in_specs=each, out_specs=each, check_vma=False)(*args)

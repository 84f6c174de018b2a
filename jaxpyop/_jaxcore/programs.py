"""Programs that are traced, cut and run in pieces: their arguments, their equations, and where they run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType

from jaxpyop._jaxcore.capabilities import using
from jaxpyop._jaxcore.traces import jax_config

_clients = using("clients")


def static_arguments(fun: Callable[..., Any], argnums: Any, argnames: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Returns which arguments `jax.jit` takes as static, by position and by name: one is inferred from the other."""
    if argnums is None and argnames is None:
        return frozenset(), frozenset()
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        # A function written in C has no signature, so neither this function nor JAX can infer anything.
        parameters = []
    both = [(k, p.name) for k, p in enumerate(parameters) if p.kind is p.POSITIONAL_OR_KEYWORD]
    nums = frozenset((argnums,) if isinstance(argnums, int) else argnums or ())
    names = frozenset((argnames,) if isinstance(argnames, str) else argnames or ())
    if argnames is None:
        names = frozenset(name for k, name in both if k in nums)
    elif argnums is None:
        nums = frozenset(k for k, name in both if name in names)
    return nums, names


def within_scope(eqn: Any, scope: Any) -> Any:
    """Returns an equation of an inner function with the named scopes around that function."""
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=scope + info.name_stack))


def scan_counts(eqn: Any) -> tuple[int, int]:
    """Returns how many operands of a `scan` are constants, and how many are carried."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # JAX 0.12 has a tree of the operands instead.
    consts, carry, _ = params["ft_in"].update(range(len(eqn.invars))).unpack()
    return len(list(consts)), len(list(carry))


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


def backend_without_callbacks(ctx: Any) -> str | None:
    """Names the client that a lowering is for, if its programs cannot call Python."""
    client = ctx.module_context.get_backend(optional=True)
    if client is None or has_callbacks(client):
        return None
    return " ".join(f"{client.platform}, {client.platform_version}".split())


@functools.cache
def all_have_callbacks() -> bool:
    """Tells whether the programs of every client can call Python. A process makes its clients once."""
    return _clients is not None and all(map(has_callbacks, _clients().values()))


@functools.cache
def is_one_cpu() -> bool:
    """Tells whether the process has one device, a CPU whose programs can call Python."""
    clients = list(_clients().values()) if _clients is not None else []
    return (
        len(clients) == 1 and clients[0].device_count() == 1 and clients[0].platform == "cpu" and all_have_callbacks()
    )

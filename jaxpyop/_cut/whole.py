"""Decides which programs are not cut, but stay whole as under `jax.jit`: they cannot be cut, or would be slower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore


class StaysWhole(Exception):  # noqa: N818  # This is no error.
    """Ends the planning of a program that stays one compiled function. The text says why."""


def check_equation(eqn: Any, holds_call: bool) -> None:
    """Check that a program with this equation can be cut.

    Raises:
        StaysWhole: the program cannot be cut. The text gives the reason.
    """
    if any(_jaxcore.is_ref_type(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        raise StaysWhole("a mutable array (jax.new_ref) cannot leave a compiled program")
    if holds_call and eqn.primitive is _jaxcore.jit_p:
        if _jaxcore.is_sharded_jit(eqn.params):
            raise StaysWhole("an inner jit with in_shardings or out_shardings holds a Python call")
        if eqn.params.get("compiler_options_kvs"):
            raise StaysWhole("an inner jit with compiler_options holds a Python call")


def check_types(avals: Iterable[Any]) -> None:
    """Check that a program with inputs of these types can be cut in this process.

    Raises:
        StaysWhole: the program cannot be cut. The text gives the reason.
    """
    if jax.process_count() > 1:
        raise StaysWhole("several processes run the program together")
    if _jaxcore.is_explicit_mesh(jax.sharding.get_abstract_mesh()) or any(map(_jaxcore.is_explicit, avals)):
        raise StaysWhole("the types of its arrays say how they are sharded (a mesh of Explicit axes)")


def is_faster_whole(calls: Sequence[Any]) -> bool:
    """Tell whether a program with these Python calls is faster with callbacks, on one CPU device.

    The callback of a stateless NumPy function shares memory with XLA, and costs less than the dispatch of another
    segment. A callback with an effect takes the program off JAX's fast dispatch path. A callback that runs JAX
    operations waits for a thread.
    """
    return all(not (call.on_jax or call.effects.stateful or call.effects.ordered) for call in calls)


def are_together(arrays: Sequence[Any]) -> bool:
    """Tell whether all committed arrays are on the same devices. If they are not, JAX itself raises an error."""
    if _jaxcore.is_one_cpu():
        return True
    return len({frozenset(x.sharding.device_set) for x in arrays if _jaxcore.is_committed(x)}) < 2


# If arrays are spread over several CPU devices, a callback has to gather its inputs. For up to this many bytes, this is
# faster than to gather them between segments.
_SMALL = 1 << 16


def runs_on_one_cpu(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays are on CPU devices with callbacks, and are small if they are spread over several devices."""
    if _jaxcore.is_one_cpu():
        return True
    nbytes = 0
    for x in arrays:
        nbytes += getattr(x, "nbytes", 0)
        if isinstance(x, jax.Array) and len(x.sharding.device_set) > 1 and nbytes > _SMALL:
            return False
    client = _jaxcore.client_of(arrays)
    return client.platform == "cpu" and _jaxcore.has_callbacks(client)

"""One Python call of a cut program, on live arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._cut.inline import Node
from jaxpyop._host import strip_library_frames
from jaxpyop._op import HandedRecord, anchor_of, copy_to_jax, run_now, taken_over

# Results of at least so many bytes do not take the quick path.
_LARGE = 1 << 18


class HostStep:
    """Runs a Python call, and makes sure that its results have the types that the program around it was traced with.

    Args:
        node: the equation of the call.
        hands_over: whether its last result is a record itself, in place of the receipt for it.
        waits: whether it must wait for the effects of the segments before it.
        takes_numpy: whether every reader of its results also takes NumPy arrays.
    """

    def __init__(self, node: Node, *, hands_over: bool = False, waits: bool = False, takes_numpy: bool = False) -> None:
        self._call = node.eqn.params["call"]
        self._batch = node.eqn.params["batch"]
        self._avals = [v.aval for v in node.eqn.outvars]
        self._types = [(a.shape, a.dtype) for a in self._avals[: len(self._avals) - hands_over]]
        self._is_one_device = _jaxcore.is_one_cpu()
        self._waits = waits
        # On the quick path, a large array would be copied once more on its way into a segment.
        is_small = all(a.size * a.dtype.itemsize < _LARGE for a in self._avals)
        is_plain = not (self._call.on_jax or self._batch.sizes or self._call.op.executor or hands_over)
        has_mesh = not jax.sharding.get_abstract_mesh().empty
        self._takes_numpy = takes_numpy
        self._is_quick = is_plain and is_small and self._is_one_device and not has_mesh
        if hands_over:
            self._call = self._call.handing_over()

    def __str__(self) -> str:
        return self._call.label

    def __call__(self, *args: Any) -> list[Any]:
        if self._waits:
            jax.effects_barrier()
        # If the user turned on a check for NaNs or a transfer guard, JAX's public functions move the arrays, and check.
        copy_results = self._copied if self._is_quick and not _jaxcore.looks_at_transfers() else None
        try:
            outs = run_now(self._call, args, self._batch, hold_records=False, copy_results=copy_results)
        except BaseException as error:
            raise strip_library_frames(error, self._call.title)  # noqa: B904  # It is the same error.
        if copy_results is not None or self._are_fitting(outs, args):
            return outs
        like = anchor_of(args)
        found: list[Any] = []
        for k, (out, aval) in enumerate(zip(outs, self._avals, strict=True)):
            found.append(out if isinstance(out, HandedRecord) else self._fitted(k, out, aval, (*args, *found), like))
        return found

    def _copied(self, values: Sequence[np.ndarray[Any, Any]], like: Any) -> list[Any]:
        """Copy the results of a NumPy function. This is the quick path for the most common case."""
        if [(value.shape, value.dtype) for value in values] != self._types:
            for k, (value, aval) in enumerate(zip(values, self._avals)):
                self._check(k, value, aval)
        copies = [np.array(value, order="C") for value in values]
        return copies if self._takes_numpy else [taken_over(v, like, aval) for v, aval in zip(copies, self._avals)]

    def _are_fitting(self, outs: Sequence[Any], args: Sequence[Any]) -> bool:
        """Tell whether all results can stay as they are. This is the common case, so the check is quick."""
        if not self._call.on_jax:
            # The results of a NumPy function were copied to their device, so only their types are compared.
            return [(out.shape, out.dtype) for out in outs[: len(self._types)]] == self._types
        if not self._is_one_device:
            return False
        for out, (shape, dtype) in zip(outs, self._types):
            if out.shape != shape or out.dtype != dtype or out.weak_type or _jaxcore.is_committed(out):
                return False
            for x in args:
                if out is x or _jaxcore.is_committed(x):
                    return False
        return len(outs) == 1 or len(set(map(id, outs))) == len(outs)

    def _check(self, k: int, out: Any, aval: Any) -> None:
        if out.shape != aval.shape:
            sizes = self._batch.sizes
            self._call.check(k, out.shape, aval.shape[len(sizes) :], sizes)
        if out.dtype != aval.dtype:
            origin = self._call.op.origin_of_array(k)
            raise TypeError(f"{self._call.title}: {origin} {out.dtype} where {aval.dtype} was declared")

    def _fitted(self, k: int, out: jax.Array, aval: Any, others: Sequence[Any], like: Any) -> jax.Array:
        self._check(k, out, aval)
        if any(out is x for x in others):
            # As under `jax.jit`, no result of a program shares memory with another result or with an input.
            out = jnp.copy(out)
        if out.weak_type:
            out = jax.lax.convert_element_type(out, out.dtype)
        if _jaxcore.is_committed(out) and not _jaxcore.is_committed(like):
            # The function chose a device, or imported memory that something else may write into. Under `jax.jit` the
            # inputs alone decide where a result is. Only a copy by way of NumPy can go wherever JAX wants it.
            return copy_to_jax(np.asarray(out), like)
        return out if like is None else _jaxcore.placed_like(out, like)

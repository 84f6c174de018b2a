"""Native calls: an op whose function Numba compiled is called by XLA without Python.

`lowered_natively` writes the call down in the terms of `_native`: which arrays are which arguments, and what a dtype
may become. It declines what is unusual, and the lowering then takes another transport. Where the kernel itself cannot
give a result, because it raises or returns another shape, it hands its inputs to the op's `Host`, which does as always.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import Batch, Host, metrics, run_in_parts
from jaxpyop._native import DTYPES, Constant, Filled, Ordinary, Signature, Zeros, is_native, native_block, target
from jaxpyop._op.primitive.call import Call
from jaxpyop._values import number_rule

_LOG = logging.getLogger("jaxpyop")


def lowered_natively(ctx: Any, host: Host, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Lower a call of a function that Numba compiled; None if it has to take another transport."""
    call: Any = host.call
    if not is_native(call.func):
        return None
    try:
        signature = _signature(call, host.batch, ctx)
        block = native_block(signature, host.enter)
    except Ordinary as why:
        _LOG.info("%s is called through Python, although Numba compiled its function: %s", call.title, why)
        return None
    if signature.masks and call.method.at_once:
        # XLA calls Python, which hands parts of the batch to threads.
        host.fill = _on_threads(call, host.batch, block.fill)
        return None
    host.route = "native"
    metrics.count_native(call.op.name, block)
    _jaxcore.keep_alive(ctx, block)
    return _jaxcore.lowered_ffi_call(ctx, target(), operands, block=np.int64(block.address))


def _on_threads(call: Call, batch: Batch, fill: Callable[[Sequence[Any], Sequence[Any]], bool]) -> Any:
    """Make a function that fills the results of a batch on all processors, and tells whether the kernel could."""

    def fill_batch(inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        def fill_part(part: slice) -> bool:
            given = [x[part] if is_batched else x for x, is_batched in zip(inputs, batch.masks[0])]
            return fill(given, [x[part] for x in results])

        return all(run_in_parts(call, batch.sizes[0], fill_part))

    return fill_batch


@dataclasses.dataclass(frozen=True, slots=True)
class _Array:
    """Stands for an array of the call, by its number, or for one of zeros that is like it."""

    number: int
    dtype: np.dtype[Any]
    is_zero: bool = False


def _signature(call: Call, batch: Batch, ctx: Any) -> Signature:
    op, avals_in, avals_out = call.op, ctx.avals_in, ctx.avals_out
    written = call.body.for_native([_Array(k, aval.dtype) for k, aval in enumerate(avals_in)])
    reasons = {
        "it is stateful, has executor= or on_error=": call.stateful or bool(op.executor) or op.failures is not None,
        # Random numbers would be others on each device.
        "each of several devices would call it for itself": _jaxcore.device_count(ctx) > 1,
        "it gets jax.Arrays": call.on_jax,
        "it has when= or residuals": bool(call.operands.leading),
        "of its inputs and results, some are no arrays of Numba's": written is None,
        "Numba lacks one of its dtypes": any(a.dtype.name not in DTYPES for a in (*avals_in, *avals_out)),
    }
    if written is None or any(reasons.values()):
        raise Ordinary(next(why for why, holds in reasons.items() if holds))
    args, kwargs, returns, is_rule = written
    masks = batch.masks if batch.sizes and not batch.block else ()
    inputs = tuple((a.dtype.name, a.ndim - sum(mask[k] for mask in masks)) for k, a in enumerate(avals_in))
    results = tuple((a.dtype.name, a.ndim - len(masks)) for a in avals_out)
    func: Any = call.func
    while type(func) is functools.partial:
        func, args, kwargs = func.func, (*func.args, *args), {**func.keywords, **kwargs}
    named = tuple((name, _part(value)) for name, value in kwargs.items())
    cast, rest = _cast_by(op.casting), {"is_rule": is_rule, "copy": call.copy}
    return Signature(func, tuple(map(_part, args)), named, inputs, results, _tuples(returns), cast, masks, **rest)


def _part(value: Any) -> Any:
    if isinstance(value, _Array):
        return Zeros(value.number) if value.is_zero else value.number
    if isinstance(value, Filled):
        return value
    # Numba takes Python's integers for 64 bits with a sign.
    if value is None or type(value) in (bool, float, complex) or (type(value) is int and value.bit_length() < 64):
        return Constant(value, repr(value))
    if type(value) is tuple:
        return tuple(map(_part, value))
    raise Ordinary(f"an argument holds a {type(value).__name__}, which Numba would get in another form")


def _tuples(tree: Any) -> Any:
    """A tree of numbers, in tuples."""
    if type(tree) in (list, tuple):
        return tuple(map(_tuples, tree))
    if tree is None or isinstance(tree, int):
        return tree
    raise Ordinary(f"results are declared in a {type(tree).__name__}, which Numba has in another form")


@functools.cache
def _cast_by(casting: str) -> Any:
    """A function that tells which numbers of one dtype may become another one, by a casting rule."""

    def cast(source: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        rule = number_rule(casting, source, dtype)
        name = getattr(source, "__name__", str(source))
        if not rule.allowed or rule.level > rule.goal:
            raise Ordinary(f"it returns {name}, which casting={casting!r} does not turn into {dtype.name}")
        if not rule.looks_at_values:
            return 1, 0
        if source == np.dtype(np.uint64):
            raise Ordinary(f"it returns uint64, whose values may not fit {dtype.name}")
        return rule.least, rule.most

    return cast

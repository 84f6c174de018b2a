"""Evaluates a jaxpr one operation after the other, without compiling it: small programs take XLA much longer.

What is exact in NumPy is done there. Everything else is bound as in eager JAX. `tests/traced/test_loops.py` and others
compile such programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore as core


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Returns the results of an open jaxpr."""
    return core.run_jaxpr(jaxpr, *args, consts=consts, bind=_apply)


def _closed(closed: Any, args: Sequence[Any]) -> list[Any]:
    return evaluate(core.jaxpr_of(closed), core.consts_of(closed), args)


def _apply(eqn: Any, ins: Sequence[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in _WITH_JAXPRS:
        return _WITH_JAXPRS[name](ins, **params)
    if name in _IN_NUMPY and all(isinstance(x, (np.ndarray, np.generic, int, float)) for x in ins):
        aval = eqn.outvars[0].aval
        with np.errstate(all="ignore"):
            out = _IN_NUMPY[name](
                aval, *(np.asarray(x, v.aval.dtype) for x, v in zip(ins, eqn.invars, strict=True)), **params
            )
        if out is not None:
            assert out.shape == aval.shape, name
            return [np.asarray(out, aval.dtype)]
    outs = core.run_equation(eqn, ins)
    return [np.asarray(x) if jax.dtypes.issubdtype(x.dtype, np.number) or x.dtype == bool else x for x in outs]


# ------------------------------------------------------------------ control flow


def _cond(ins: Sequence[Any], *, branches: Any, **_: Any) -> list[Any]:
    return _closed(branches[min(max(int(ins[0]), 0), len(branches) - 1)], ins[1:])


def _while(
    ins: Sequence[Any], *, cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any, **_: Any
) -> Any:
    of_test, of_body = ins[:cond_nconsts], ins[cond_nconsts : cond_nconsts + body_nconsts]
    state = ins[cond_nconsts + body_nconsts :]
    while bool(np.all(_closed(cond_jaxpr, [*of_test, *state])[0])):
        state = _closed(body_jaxpr, [*of_body, *state])
    return state


def _loop(ins: Sequence[Any], *, loop: Any) -> Sequence[Any]:
    """A loop of the package, which is a jaxpr for the test and one for the body."""
    consts, state = ins[: loop.const_count], ins[loop.const_count :]
    while evaluate(loop.test, (), [*(consts[i] for i in loop.test_consts), *state])[0]:
        state = evaluate(loop.body, (), [*(consts[i] for i in loop.body_consts), *state])
    return state


_WITH_JAXPRS: dict[str, Callable[..., Sequence[Any]]] = {
    "jit": lambda ins, *, jaxpr, **_: _closed(jaxpr, ins),
    "cond": _cond,
    "while": _while,
    "loop": _loop,
    "custom_jvp_call": lambda ins, *, call_jaxpr, **_: _closed(call_jaxpr, ins),
}


# ------------------------------------------------------------------------- NumPy


def _convert(aval: Any, x: Any, **_: Any) -> Any:
    # What does not fit is clamped by XLA, and anything in NumPy.
    exact = np.can_cast(x.dtype, aval.dtype, "same_kind") or x.dtype.kind in "iub"
    return x.astype(aval.dtype) if exact else None


def _broadcast(aval: Any, x: Any, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    own = [1] * len(shape)
    for dim, size in zip(broadcast_dimensions, x.shape, strict=True):
        own[dim] = size
    return np.broadcast_to(x.reshape(own), shape)


def _starts(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    begins = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(s, s + k) for s, k in zip(begins, sizes, strict=True))


def _update(aval: Any, x: Any, new: Any, *starts: Any) -> Any:
    x = x.copy()
    x[_starts(x, starts, new.shape)] = new
    return x


def _slice(aval: Any, x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    return x[tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))]


def _elementwise(function: Any) -> Callable[..., Any]:
    return lambda aval, *xs, **_: function(*xs)


def _reduction(function: Any) -> Callable[..., Any]:
    return lambda aval, x, *, axes, **_: function(x, axis=tuple(axes))


_ELEMENTWISE = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "max": np.maximum,
    "min": np.minimum, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "copy": np.copy, "stop_gradient": np.copy,
    "select_n": lambda which, *xs: np.choose(which, xs) if len(xs) > 2 else np.where(which, xs[1], xs[0]),
    "div": lambda a, b: a / b if a.dtype.kind == "f" else None,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip

_IN_NUMPY: dict[str, Callable[..., Any]] = {
    **{name: _elementwise(function) for name, function in _ELEMENTWISE.items()},
    "reduce_sum": _reduction(np.sum),
    "reduce_or": _reduction(np.any),
    "convert_element_type": _convert,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda aval, x, **_: x.reshape(aval.shape),
    "squeeze": lambda aval, x, **_: x.reshape(aval.shape),
    "slice": _slice,
    "dynamic_slice": lambda aval, x, *starts, slice_sizes: x[_starts(x, starts, slice_sizes)],
    "dynamic_update_slice": _update,
    "empty2": lambda aval, **_: np.zeros(aval.shape, aval.dtype),
}

"""Reads the arguments of the public functions, and calls an op: directly, or as a part of the traced program.

Every public function ends here. A call reads its arguments each time, and a decorator only once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._host import strip_library_frames
from jaxpyop._op.primitive import bind, run_now
from jaxpyop._op.request import Op, make_op, mark_differentiable
from jaxpyop._op.run_record_replay import UserCall
from jaxpyop._op.traced import trace, trace_if_possible
from jaxpyop._op.values import Inputs, check_closure, flatten_inputs, show_shape, without_weak_type


class _NotGiven:
    """Stands for an argument that was left out, where None has a meaning of its own."""

    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN: Any = _NotGiven()


def call_op(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any], when: Any = None) -> Any:
    """Call an op with its inputs: directly, or as a part of the traced program."""
    if op.out and "out" in kwargs:
        raise TypeError(f"{op.title}: out=True passes the results by the keyword out; give yours another name")
    arrays, inputs = flatten_inputs(args, dict(kwargs), op.title)
    flag = _read_when(when, op.title)
    call = UserCall(op, inputs, conditional=bool(flag))
    arrays = [*flag, *arrays]
    if _jaxcore.is_eager() and not any(isinstance(a, _jaxcore.Tracer) for a in arrays):
        try:
            outs = run_now(call, arrays)
        except BaseException as error:
            # The same error, without our frames.
            raise strip_library_frames(error, op.title)  # noqa: B904
    else:
        outs = _stage(op, inputs, call, arrays)
    spec = op.spec
    if spec.empty:
        # None for None, and a new list for [].
        return jax.tree.map(lambda leaf: leaf, spec.skeleton)
    if spec.returned_spec is not None:
        outs = [out if leaf.encoding is None else leaf.encoding.wrap(out) for out, leaf in zip(outs, spec.leaves)]
    return outs[0] if spec.tree is None else jax.tree.unflatten(spec.tree, outs)


def _stage(op: Op, inputs: Inputs, call: UserCall, arrays: Sequence[Any]) -> list[Any]:
    with jax.named_scope(op.name):
        if op.mode != "eager":
            into = functools.partial(trace, op, inputs)
            if call.operands.conditional:
                into = functools.partial(_trace_when, op, into)
            found = into(arrays) if op.mode == "traced" else trace_if_possible(op, inputs, into, arrays)
            if found is not None:
                return found
        check_closure(op.func, op.title)
        for what, rule in op.rules.functions():
            check_closure(rule, op.title, what)
        return bind(call, *map(without_weak_type, arrays))


def _read_when(when: Any, title: str) -> list[Any]:
    """The inputs that `when=` adds: one, or none if the op always runs.

    Raises:
        TypeError: `when` is not a scalar boolean.
    """
    if when is None or when is True:
        return []
    array = when if isinstance(when, jax.Array) else np.asarray(when)
    if array.shape != () or array.dtype != np.bool_:
        got = f"{array.dtype} of shape {show_shape(array.shape)}" if isinstance(when, jax.Array) else repr(when)
        raise TypeError(f"{title}: when is {got}; expected one boolean, traced or not, such as when=step % 100 == 0")
    return [array]


def _trace_when(op: Op, trace: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Trace a body of `mode="traced"` into a `cond` on the first array."""
    flag, *rest = arrays
    shapes = jax.eval_shape(lambda: trace(rest))

    def in_common_axes(outs: Sequence[Any]) -> list[Any]:
        # Inside shard_map, both branches need the same varying axes.
        return _jaxcore.cast_to_common_axes([*arrays, *outs])[len(arrays) :]

    def absent() -> list[Any]:
        return in_common_axes([jnp.full(s.shape, leaf.fill, s.dtype) for s, leaf in zip(shapes, op.spec.leaves)])

    return jax.lax.cond(flag, lambda: in_common_axes(trace(rest)), absent)


def apply_or_decorate(api: str, func: Any, inp: Any, tout: Any, name: Any, *, when: Any, **options: Any) -> Any:
    """Make an op and call it, or return a decorator if there is neither `func` nor `inp`.

    The options are passed to `make_op`.
    """
    if tout is NOT_GIVEN:
        raise TypeError(
            f"{api}: Tout was not given; write {api}(func, inp, Tout=jnp.float32), or Tout=None for no result; "
            f"as a decorator, @{api}(Tout=jnp.float32)"
        )
    _check_order(inp, api)
    make = functools.partial(make_op, api, tout=tout, name=name, **options)
    if func is None and inp is None:
        return _decorator(make, when)
    if inp is None:
        raise TypeError(f"{api}: inp was not given; write {api}(func, [x, y], Tout), or [] for a func without inputs")
    if func is None:
        raise TypeError(f"{api}: func was not given; write {api}(func, inp, Tout)")
    return call_op(make(func), _read_inp(inp, api), {}, when)


def _check_order(inp: Any, api: str) -> None:
    leaves = jax.tree.leaves(inp, is_leaf=callable)
    if leaves and all(isinstance(x, jax.ShapeDtypeStruct) or _names_a_dtype(x) for x in leaves):
        raise TypeError(
            f"{api}: inp is {inp!r}, which declares results and holds no inputs; the order is func, inp, Tout "
            f"(jax.pure_callback has another): write {api}(func, [x, y], {inp!r})"
        )


def _names_a_dtype(value: Any) -> bool:
    return isinstance(value, (np.dtype, type(jax.numpy.float32))) or (
        isinstance(value, type) and issubclass(value, np.generic)
    )


def _read_inp(inp: Any, api: str) -> Sequence[Any]:
    if isinstance(inp, (list, tuple)):
        return inp
    if isinstance(inp, (str, bytes, Mapping)) or inp is None:
        raise TypeError(f"{api}: inp is {inp!r}; expected a list of inputs, inp=[x, y] (a single pytree p: inp=[p])")
    return [inp]


def _settings() -> tuple[bool, str]:
    return _jaxcore.x64_enabled(), config.mode


def _decorator(make: Callable[[Any], Op], when: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        # What Tout means depends on x64, and the mode on the config.
        op = make(func)
        ops = {_settings(): op}

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = _settings()
            if key not in ops:
                ops[key] = make(func)
            return call_op(ops[key], args, kwargs, when)

        return mark_differentiable(wrapper) if op.on_jax or op.rules.any_given else wrapper

    return decorate

"""`mode="traced"`: the body becomes part of the program instead of being called.

Nothing runs on the host: XLA places the operations, and JAX's own rules
differentiate them, so the body may close over traced values. What an eager
body's results are checked for by value is checked by dtype here, for every
path that the body can take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop._op.body import UserBody
from jaxpyop._op.request import Op
from jaxpyop._op.values import Inputs, Leaf, cast_to_numpy, check_shape, check_traced, check_usable, encode
from jaxpyop._paths import PathError, trace_body


class UntraceableError(TypeError):
    """A body that `mode="traced"` cannot follow; the text says where and why.

    Attributes:
        why: the place and the reason, and what would have it traced as it is.
    """

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why


def trace(op: Op, inputs: Inputs, arrays: Sequence[Any]) -> list[Any]:
    """Trace a body, with its `if`s and its loops on values, into the current trace.

    Raises:
        UntraceableError: the body asks for a value, raises on a path, has too
            many paths, or a loop that cannot be one of the program.
    """

    def checked(func: Any, *arrays: Any) -> list[Any]:
        body = UserBody(dataclasses.replace(op, func=func), inputs)
        values = body.results(arrays)
        arrays_of = encode(op, values, lambda k, value, leaf: _checked(op, k, value, leaf), ())
        for k, (value, leaf) in enumerate(zip(arrays_of, body.promised(arrays))):
            check_shape(value.shape, leaf, (), "declared", op.origin_of_array(k), op.title)
        return [jnp.asarray(value) for value in arrays_of]

    try:
        # Strong types and no Python scalars, as an eager body gets.
        strong = [jax.lax.convert_element_type(a, a.dtype) for a in arrays]
        return trace_body(op.func, checked, strong, op.max_steps, op.title)
    except PathError as error:
        cause = error.__cause__
        if cause is not None and str(cause).startswith(op.title):  # one of our checks of the results
            raise cause from None
        why = f"{error.filename}:{error.lineno}: {error.reason}" + (f"; {error.remedy}" if error.remedy else "")
        raise UntraceableError(f"{op.title}: {error}", why) from cause


def _checked(op: Op, k: int, value: Any, leaf: Leaf) -> Any:
    which = op.origin_of_result(k)
    if isinstance(value, jax.Array):
        check_usable(value, which, op.title)
        check_traced(value.dtype, leaf, op.casting, which, op.title)
        return jax.lax.convert_element_type(value, leaf.dtype)
    return jnp.asarray(cast_to_numpy(value, leaf, op.casting, which, op.title))


# ---- mode='auto'

_LOG = logging.getLogger("jaxpyop")
_Trace = Callable[[Sequence[Any]], list[Any]]
# By function: for each kind of inputs whether it is called.
_called: weakref.WeakKeyDictionary[Any, dict[Any, bool]] = weakref.WeakKeyDictionary()


def trace_if_possible(op: Op, inputs: Inputs, trace: _Trace, arrays: Sequence[Any]) -> list[Any] | None:
    """The results of a body traced into the program, or None where it is to be called."""
    if op.why_called:
        _decide(op, (), called=True, reason=op.why_called)
        return None
    kind = (inputs.tree, *map(_part, inputs.leaves), *(_type(a) for a in arrays))
    if _known(op, kind):
        return None

    def traced(*arrays: Any) -> list[Any]:
        return trace(arrays)

    traced.__name__ = traced.__qualname__ = f"{op.name}_traced"
    try:
        outs = jax.jit(traced)(*arrays)
    except UntraceableError as error:
        _decide(op, kind, called=True, reason=error.why)
        return None
    _decide(op, kind, called=False)
    return outs


def _known(op: Op, kind: Any) -> bool | None:
    owner, own = _function(op.func)
    try:
        return _called.get(owner, {}).get((own, kind))
    except TypeError:  # what cannot be hashed is not kept
        return None


def _decide(op: Op, kind: Any, *, called: bool, reason: str = "") -> None:
    if _known(op, kind) is called:
        return
    if called:
        _LOG.info("%s is called, not traced: %s", op.title, reason)
    else:
        _LOG.info("%s is traced", op.title)
    owner, own = _function(op.func)
    with contextlib.suppress(TypeError):
        _called.setdefault(owner, {})[own, kind] = called


def _function(func: Any) -> tuple[Any, tuple[Any, ...]]:
    """What lives as long as a function, and what else it is made of."""
    if isinstance(func, functools.partial):
        owner, own = _function(func.func)
        keywords = sorted(func.keywords.items())
        return owner, (*own, *map(_part, func.args), *((name, _part(value)) for name, value in keywords))
    if isinstance(func, types.MethodType):
        return func.__func__, (_part(func.__self__),)
    return func, ()


def _part(x: Any) -> Any:
    try:
        return weakref.ref(x)
    except TypeError:
        return type(x), x  # 1 and True are two


def _type(x: Any) -> tuple[Any, ...]:
    aval = jax.typeof(x)
    return aval.shape, aval.dtype

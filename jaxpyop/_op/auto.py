"""`mode="auto"`: the body is traced where it can be, and called where it cannot.

Which of the two is found by trying, once for each function and the types of its inputs. Only that a body cannot be
traced makes it be called: a result that is not what was promised is an error either way. A jaxpr shows a traced body
as ``jit[name=<name>_traced]``, a called one as ``python_call``, and the logger ``jaxpyop`` says why (INFO).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxpyop._op.inputs import Inputs
from jaxpyop._op.op import Op
from jaxpyop._op.traced import UntraceableError

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

"""`mode="traced"`: the function becomes a part of the program. `mode="auto"`: it does where that is possible.

Nothing runs on the host: XLA places the operations, and JAX's own rules differentiate them, so the function may close
over traced values. The checks that look at an eager function's results by value look at their dtypes here, on every
path that the function can take.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore
from jaxpyop._host import VMAP_METHODS, metrics
from jaxpyop._op.body import UserBody
from jaxpyop._op.request import Op
from jaxpyop._values import (
    Inputs,
    Leaf,
    UnknownValuesError,
    cast_to_numpy,
    check_shape,
    check_traced,
    check_usable,
    encode,
    flatten_inputs,
    match,
    read_tout,
)

# The package `_traced` is imported where a function is traced. Most programs trace none, and it takes a quarter of the
# time that an import of jaxpyop takes.
if TYPE_CHECKING:
    from jaxpyop._traced import Refused
# ---------------------------------------------------------------- mode="traced"


def can_trace(op: Op) -> bool:
    """Tell whether functions can be traced on this JAX. If not, they are called, and a warning says so."""
    if why := _jaxcore.why_without("traced mode"):
        text = f"{op.title}: mode={op.mode!r} calls the function, as mode='eager' does, because {why}"
        _jaxcore.warn_once(("traced mode", op.title), text)
    return not why


class UntraceableError(TypeError):
    """A function cannot be traced. The text tells where and why.

    Attributes:
        why: the place, the reason, and what to change so that it can be traced.
    """

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why


def trace(op: Op, inputs: Inputs, call_host: Callable[[Op, Any], Any], arrays: Sequence[Any]) -> list[Any]:
    """Interpret a function into the current trace, with its `if`s and its loops on values.

    Args:
        op: the op.
        inputs: the structure of its inputs.
        call_host: adds a call of an op of one array, whose function is a `_Raising`, to the program.
        arrays: the inputs.

    Raises:
        UntraceableError: the function is not in the language of traced mode.
    """
    from jaxpyop._traced import Refused, interpret

    can_change = lambda value: isinstance(value, (list, dict, set))
    if any(map(can_change, jax.tree.leaves(tuple(inputs.leaves), is_leaf=can_change))):
        reason = "jaxpyop.static holds a list or a dict, which func may change; pass a tuple, or read it as a global"
        raise UntraceableError(f'{op.title}: {reason}; or write mode="eager"', reason)

    def checked(returned: Any) -> Sequence[Any]:
        values = match(op.spec.returned, returned, op.title)
        outs = encode(op, values, _checked, ())
        for k, (value, leaf) in enumerate(zip(outs, UserBody(op, inputs).promised(arrays))):
            check_shape(value.shape, leaf, (), "declared", op.origin_of_array(k), op.title)
        return [jnp.asarray(value) for value in outs]

    # No Python scalars and no weak types, as in an eager call.
    strict = [jax.lax.convert_element_type(a, a.dtype) for a in arrays]
    args, kwargs = inputs.unflatten(inputs.wrap_keys(strict) if any(inputs.key_impls) else strict)
    try:
        outs, number, errors = interpret(
            op.func, args, kwargs, checked, max_steps=op.max_steps, title=op.title, auto=op.mode == "auto"
        )
    except Refused as error:
        why = _reason(error)
        advice = "" if 'mode="eager"' in why else '; or write mode="eager" to call the body at run time instead'
        raise UntraceableError(f"{op.title}: {why}{advice}", why) from error.__cause__
    metrics.note(op.name, traced=1)
    return _raising(op, call_host, number, errors, outs, arrays) if errors else outs


class _Raising:
    """Called by a program to raise the error of a number, or of the first that is not 0.

    Attributes:
        traced: the function that raises them in Python.
        errors: the errors, of which the first has the number 1.
        why_not_saved: what `jaxpyop.export` says, because another process could not find the errors again.
    """

    why_not_saved = "the errors of a traced function are in no file; write mode='eager', or change what may raise"

    def __init__(self, traced: Callable[..., Any], errors: Sequence[Exception]) -> None:
        self.traced = traced
        self.errors = errors

    def __call__(self, number_of_error: Any) -> Any:
        from jaxpyop._traced import copied

        for number in np.ravel(number_of_error):
            if number:
                raise copied(self.errors[number - 1])
        return number_of_error


def _raising(op: Op, call_host: Any, number: Any, errors: Any, outs: list[Any], arrays: Sequence[Any]) -> list[Any]:
    """The results, which do not come if Python raises an error.

    They depend on what the call that raises it gives, because JAX and XLA drop a call on which nothing depends. So do
    their derivatives: each result has one in each input, if only a zero.
    """
    from jaxpyop._traced import some_number

    raising = dataclasses.replace(
        op,
        func=_Raising(op.func, errors),
        spec=read_tout(jax.ShapeDtypeStruct((), np.int32), op.title),
        output_shapes=None,
        vmap_method=VMAP_METHODS["expand_dims"],
        on_jax=False,
        executor=None,
    )
    found = jax.lax.cond(number != 0, lambda k: call_host(raising, k), lambda k: k, number)
    of_inputs = [some_number(x) for x in arrays if _dtypes.is_inexact(x) and x.size]

    def checked(out: Any) -> Any:
        # Nobody sees this value. No compiler can tell that it is that of the result, and leave the call out.
        other = (found & 1).astype(out.dtype)
        for x in of_inputs if _dtypes.is_inexact(out) else ():
            other = other + x.astype(out.dtype)
        return jnp.where(found != 0, other, out)

    return list(map(checked, outs))


def _reason(error: Refused) -> str:
    filename, line = error.where or _jaxcore.NOWHERE
    named = f"`{error.expression}`: " if error.expression and error.expression not in error.reason else ""
    return f"{filename}:{line}: {named}{error.reason}" + (f"; {error.remedy}" if error.remedy else "")


def _checked(op: Op, k: int, value: Any, leaf: Leaf) -> Any:
    from jaxpyop._traced import Either, Num, num_as_dtype

    origin = op.origin_of_result(k)
    if isinstance(value, Either):
        return value.map(lambda v: _checked(op, k, v, leaf))
    if isinstance(value, Num):
        sample = {"b": False, "i": 0, "f": 0.5}[value.kind]
        cast_to_numpy(sample, leaf, op.casting, origin, op.title)
        return num_as_dtype(value, leaf.dtype)
    if isinstance(value, jax.Array):
        check_usable(value, origin, op.title)
        if value.size:
            check_traced(value.dtype, leaf, op.casting, origin, op.title)
        return jax.lax.convert_element_type(value, leaf.dtype)
    return jnp.asarray(cast_to_numpy(value, leaf, op.casting, origin, op.title))


def explain_traced(func: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Say why ``mode="traced"`` refuses a function, without compiling or running it.

    A function of JAX may be refused although ``jax.jit`` takes it, because traced mode
    interprets a small part of Python. The results are not compared with a `Tout`.

    Args:
        func: the function.
        *args: its arguments: arrays, numbers, and whatever else it takes.
        **kwargs: the same, by name.

    Returns:
        The file, the line and the reason, or ``None`` if the function can be traced.

    Raises:
        OverflowError: an integer does not fit the dtype that JAX makes of it.

    Example:
        >>> from jaxpyop import explain_traced
        >>> print(explain_traced(lambda x: x if x > 0 else -x, 1.0))
        None
    """
    from jaxpyop._traced import Refused, interpret

    if why := _jaxcore.why_without("traced mode"):
        return why
    arrays, inputs = flatten_inputs(args, kwargs, "explain_traced")

    def interpreted(*arrays: Any) -> list[Any]:
        args, kwargs = inputs.unflatten(inputs.wrap_keys(arrays))
        return interpret(func, args, kwargs, lambda returned: [])[0]

    try:
        jax.eval_shape(interpreted, *arrays)
    except Refused as error:
        return _reason(error)
    return None


# ---------------------------------------------------------------- mode="auto"

_LOG = logging.getLogger("jaxpyop")


def trace_if_possible(op: Op, trace: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any]) -> list[Any] | None:
    """The results of the traced function, or None where it has to be called. Each trace of a program decides anew."""

    def traced(*arrays: Any) -> list[Any]:
        return trace(arrays)

    # The name is shown in jaxprs and profiles.
    traced.__name__ = traced.__qualname__ = f"{op.name}_traced"
    why = op.reason_to_call
    if not why:
        try:
            outs = jax.jit(traced)(*arrays)
        except (UntraceableError, UnknownValuesError) as error:
            why = getattr(error, "why", str(error))
        else:
            _LOG.info("%s is traced", op.title)
            return outs
    _LOG.info("%s is called, not traced: %s", op.title, why)
    return None

"""Interprets a function of the user into the current trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpyop import _jaxcore as core
from jaxpyop._functions import without_partials
from jaxpyop._traced.expressions import Interpreter
from jaxpyop._traced.operators import RECURSION, name_of_type
from jaxpyop._traced.values import *


def interpret(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    finish: Callable[[Any], Sequence[Any]],
    *,
    max_steps: int | None = None,
    title: str = "",
) -> tuple[list[Any], Any, list[Exception]]:
    """Interprets a function.

    Args:
        function: the user's.
        args: its arguments: trees of JAX values and of constants.
        kwargs: the same, by name.
        finish: makes the results, a flat list of arrays, of what the function returns.
        max_steps: how many turns of each loop a backward pass may keep.
        title: how errors name the function.

    Returns:
        The results, the traced number of the error that Python raises, and the errors. If there are none, the number is
        0. It is, too, if Python raises none of them.

    Raises:
        Refused: the function is not in the language.
    """
    machine = Interpreter(max_steps, title)
    machine.line = line_of(function)
    is_inner = noting.get(None) is not None
    token, noted = set_opaque(jax.tree.leaves((args, dict(kwargs)))), noting.set(machine.check)
    try:
        given = [list(map(machine.from_jax, args)), {k: machine.from_jax(v) for k, v in kwargs.items()}]
        result = machine.call(function, *given)
        if isinstance(result, Union):
            machine.line = machine.returned
            outs = machine.lifted(lambda v: _of_path(machine, finish, v), result)
        else:
            outs = finish(_results(machine, result))
        if machine.errors and is_inner:
            # The traced function that calls it could neither keep the order of errors, nor leave a path out.
            raise Refused("it may raise, and is an op that a traced function calls", "call the function itself there")
        number = machine.raised.slots["number"]
        if machine.errors:
            number = wide(lax.convert_element_type, raw(number), np.int32)
        return list(outs), number, [error for _, error in machine.errors.values()]
    except Refused as e:
        error = e.error if isinstance(e, PyRaise) and not e.on_a_path else None
        if error and ((title and str(error).startswith(title)) or isinstance(error, NotImplementedError)):
            raise error from None
        e.where = e.where or machine.line
        raise
    except RecursionError:
        raise Refused(RECURSION, "write a loop", line_of(function)) from None
    finally:
        reset_opaque(token)
        noting.reset(noted)


def _of_path(m: Interpreter, finish: Callable[[Any], Sequence[Any]], value: Any) -> tuple[Any, ...]:
    """The results on one of several paths that return values of different kinds."""
    try:
        return tuple(finish(_results(m, value)))
    except (TypeError, ValueError, OverflowError) as e:
        raise Refused(f"on one path, {str(e).removeprefix(m.label + ': ')}") from e


@dataclasses.dataclass(frozen=True)
class Either:
    """A result that is of one of several types. `map` calls a function of each, in a branch of its own."""

    map: Callable[[Callable[[Any], Any]], Any]


def _results(m: Interpreter, v: Any) -> Any:
    """What the function returns, with lists and dicts of Python. A number whose value is traced stays a `Num`."""
    if isinstance(v, Union):
        return Either(lambda f: m.lifted(lambda a: f(_results(m, a)), v))
    if isinstance(v, tuple):
        values = [_results(m, x) for x in v]
        return type(v)(*values) if hasattr(v, "_fields") else tuple(values)
    if isinstance(v, Obj) and v.cls is list:
        return [_results(m, x) for x in m.items(v)]
    if is_dict(v):
        return {k: _results(m, x) for k, x in m.items(v)}
    if not isinstance(v, (Num, Obj, Closure)) and is_of_the_program(v):
        raise Refused(f"a {name_of_type(v)} is returned")
    return v


def line_of(function: Any) -> tuple[str, int]:
    """The first line of a function, a method or a partial."""
    function = without_partials(function)
    function = getattr(function, "__wrapped__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else core.NOWHERE

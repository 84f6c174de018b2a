"""Advice for the author of a body or a rule that failed in one of the ways in which many fail at first.

The sentence that matters comes first, with the op's name. An error of JAX keeps its class, and JAX's own page of text
follows that sentence. If the mistake is in the call of the op, a clearer error takes the place of Python's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import add_note, metrics, note_arguments, show_arguments, show_values
from jaxpyop._op.request import RULE_ARGUMENTS, Op
from jaxpyop._refusal import refusal
from jaxpyop._tape import TapeTracer
from jaxpyop._values import IN_A_LOOP, PASS_IT

_TRACER_ERRORS = (
    jax.errors.UnexpectedTracerError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
)


_Arguments = Callable[[], tuple[Sequence[Any], Mapping[str, Any]]]


def call_with_advice(op: Op, what: str, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the user's function or rule, and raise what it raises with advice."""
    try:
        if metrics.reports:
            column = "runs" if what == "func" else "rules"
            return metrics.timed(op.name, column, functools.partial(func, **kwargs), *args)
        return func(*args, **kwargs)
    except Exception as error:
        advise(error, op, what, func, lambda: (args, kwargs))
        raise


def advise(error: Exception, op: Op, what: str, func: Callable[..., Any], arguments: _Arguments) -> None:
    """Say what a function or a rule was called with when it raised an exception, and what to do about it.

    Args:
        error: the exception. Text may be added to it.
        op: the op of the body.
        what: "func", or the name of a rule.
        func: the function that was called.
        arguments: gives the arguments of the call.

    Raises:
        Exception: a clearer error, for some mistakes.
    """
    clearer = None
    if isinstance(error, _TRACER_ERRORS):
        note = f"{op.title}: if {what} uses a traced value of the code around it, {PASS_IT}"
        if TapeTracer.__name__ in str(error):
            keep = "keeps an input while JAX differentiates, keep jax.lax.stop_gradient(x)"
            note = f"{op.title}: if {what} {keep}; or {note}"
        if not str(error).startswith(op.title):
            _put_first(error, note)
    elif isinstance(error, AttributeError):
        if (hint := _hint_for_tensors(error)) is not None:
            _put_first(error, f"{op.title}: {what} gets no tensors: {hint}")
    elif isinstance(error, NameError) and "unbound axis name" in str(error):
        add_note(
            error,
            f"{op.title}: {what} runs on the host, outside of the vmap or shard_map that names this axis; collectives "
            "(psum, axis_index, ...) go outside: use one on the inputs or on the results, or mode='traced'",
        )
    elif isinstance(error, RuntimeError) and "event loop" in str(error):
        add_note(error, f"{op.title}: {IN_A_LOOP}")
    elif type(error) is ValueError and not op.copy and "read-only" in str(error):
        clearer = ValueError(
            f"{op.title}: {what} writes into an input, and copy=False lends inputs for reading; write into a copy of "
            f"it, or leave copy=False out ({error})"
        )
    elif isinstance(error, TypeError):
        if _jaxcore.is_library_file(_jaxcore.raising_file(error) or ""):
            # If the arguments do not fit, Python raises in the frame of the caller, which is ours.
            clearer = _error_about_the_call(error, op, what, func, arguments)
        if clearer is None and _is_about_a_number(error, arguments):
            kind = "an array without axes" if op.on_jax else "a NumPy number"
            remedy = "jaxpyop.static(3) in inp keeps a number of Python, and int(x) or float(x) makes one"
            add_note(error, f"{op.title}: a number in inp reaches {what} as {kind}; {remedy}")
    # Objects of users may raise anything when they are looked at. That must not hide the exception.
    with contextlib.suppress(Exception):
        called = op.title if what == "func" else f"{op.title}, {what}"
        note_arguments(clearer or error, called, _shown_groups(op, what, func, *arguments()))
    if clearer is not None:
        raise refusal(clearer) from error


# What people write who come from TensorFlow, and what to write instead.
_OF_TENSORS = {
    "numpy": "write np.asarray(x), float(x) or x.item()",
    "eval": "write np.asarray(x), float(x) or x.item()",
    "get_shape": "write x.shape",
    "set_shape": "leave it out, and declare the shape in Tout",
}


def _hint_for_tensors(error: AttributeError) -> str | None:
    if error.name == "numpy" and isinstance(error.obj, (str, bytes)):
        return "a text comes as it is; leave .numpy().decode() out"
    if error.name == "as_list" and isinstance(error.obj, tuple):
        return "write list(x.shape)"
    return _OF_TENSORS.get(error.name or "") if isinstance(error.obj, (jax.Array, np.ndarray, np.generic)) else None


def _is_about_a_number(error: TypeError, arguments: _Arguments) -> bool:
    """Tell whether an error may be about an array without axes: it names its type, or asks for an integer."""
    text = str(error)
    kinds = {type(x).__name__ for x in jax.tree.leaves(arguments()) if getattr(x, "shape", None) == ()}
    return bool(kinds) and any(word in text for word in (*kinds, "integer", "index"))


def _shown_groups(
    op: Op, what: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, str]:
    args, kwargs = jax.tree.map(
        _untaped, (tuple(args), {k: v for k, v in kwargs.items() if not (op.out and k == "out")})
    )
    if what in RULE_ARGUMENTS:
        return {name: show_values(group) for name, group in zip(RULE_ARGUMENTS[what], args)}
    return {"inputs": show_arguments(func, args, kwargs)}


def _untaped(value: Any) -> Any:
    # To read the value of a tape's array would count as taking it off the tape.
    while isinstance(value, TapeTracer):
        value = value.value
    return value


def _put_first(error: Exception, note: str) -> None:
    error.args = (f"{note}\n{error}", *error.args[1:])


def _error_about_the_call(
    error: TypeError, op: Op, what: str, func: Callable[..., Any], arguments: _Arguments
) -> Exception | None:
    args, kwargs = arguments()
    try:
        inspect.signature(func).bind(*args, **kwargs)
    except TypeError:
        takes = f"{len(args)} arguments, one for each element of inp"
        takes = f"({', '.join(RULE_ARGUMENTS[what])})" if what in RULE_ARGUMENTS else takes
        takes += f" and the keywords {', '.join(kwargs)}" if kwargs else ""
        return TypeError(f"{op.title}: {what} is called with {takes}, which it does not take: {error}")
    except ValueError:
        # A built-in function without a signature.
        pass
    return None


# ------------------------------------------------------------ inputs with state
#
# The function gets a copy of an input that is an object with state, such as a Flax NNX module. The copy is made of the
# arrays that came through the program, so a change of it would be lost without a word.


def call_and_warn_of_changes(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an op's function, and warn once for each class of inputs whose leaves it replaced."""
    # A list, dict or tuple that the function changes is its own, as everywhere in JAX.
    is_object = lambda x: not isinstance(x, (dict, list, tuple))
    objects = [x for x in jax.tree.leaves((args, kwargs), is_leaf=is_object) if not isinstance(x, jax.Array)]
    before = [_leaves_by_path(x) for x in objects]
    found = op.func(*args, **kwargs)
    for x, old in zip(objects, before):
        new = _leaves_by_path(x)
        # A leaf that was added or removed counts under its own path, a leaf that was replaced under its old one.
        changed = [path for path in (*old, *new) if old.get(path, x) is not new.get(path, x)]
        if changed:
            name = type(x).__name__
            _jaxcore.warn_once(
                ("input", op.title, name, hash(getattr(op.func, "__code__", None))),
                f"{op.title}: func changed {changed[0] or 'a leaf'} of its {name}, which is a copy of the caller's "
                "object: the change is lost; return the new state as a result (in Flax NNX: nnx.split and nnx.update; "
                "docs: recipes, flax)",
            )
    return found


def _leaves_by_path(x: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(x)}

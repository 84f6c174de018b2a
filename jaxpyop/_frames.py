"""The Python stack: the user's line in it, and which of JAX's functions called.

Everything that reads a frame's file, name or line is here.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import jaxlib
import numpy as np


def _folder(path: object) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(str(path))), "")


PACKAGE = _folder(__file__)
_JAX, _NUMPY, _STANDARD_LIBRARY = _folder(jax.__file__), _folder(np.__file__), _folder(os.__file__)
# The library calls bodies through these: none of their frames tells a user anything.
_CALLERS = (PACKAGE, _JAX, _folder(jaxlib.__file__), _folder(concurrent.futures.__file__))
_INSTALLED = (*_CALLERS, _STANDARD_LIBRARY, "<frozen", os.path.join(os.path.dirname(_NUMPY[:-1]), ""))

# A file, and the number of a line in it.
NOWHERE = ("<unknown>", 0)


def is_library_file(filename: str) -> bool:
    """Tells whether a file belongs to jaxpyop, jax, jaxlib, or to the pools that call bodies."""
    return os.path.abspath(filename).startswith(_CALLERS)


def is_users_file(filename: str) -> bool:
    """Tells whether a file is the user's, or of a package that the user installed, other than JAX and NumPy."""
    if filename.startswith((*_CALLERS, _NUMPY)):
        return False
    # site-packages and dist-packages may lie inside the folder of the standard library.
    return "-packages" in filename or not filename.startswith((_STANDARD_LIBRARY, "<frozen"))


def is_own_file(filename: str) -> bool:
    """Tells whether the user wrote a file: it is not installed beside NumPy, and not of the standard library."""
    return not filename.startswith(_INSTALLED)


def users_frame(counts: Callable[[str], bool] = is_users_file) -> types.FrameType | None:
    """Finds the innermost frame of the user's code, starting from the caller.

    Args:
        counts: whether the code in a file counts as the user's: `is_users_file` or `is_own_file`.
    """
    frame = sys._getframe(1)
    while frame is not None and not counts(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def variables_of_jax(kind: Any) -> Iterator[Any]:
    """Yields the variables of a class, or of one of several, in JAX's functions that are running, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_JAX):
            yield from (value for value in frame.f_locals.values() if isinstance(value, kind))
        frame = frame.f_back


def place_of(frame: types.FrameType | None) -> tuple[str, int, str]:
    """The file, the line and the module of a frame. Python drops a warning whose module is None, without a word."""
    if frame is None:
        return (*NOWHERE, "<unknown>")
    return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__") or "<unknown>"


def steps_of(error: BaseException) -> list[types.TracebackType]:
    """Returns the entries of an exception's traceback, the innermost last."""
    found, step = [], error.__traceback__
    while step is not None:
        found.append(step)
        step = step.tb_next
    return found


def raising_file(error: BaseException) -> str | None:
    """Returns the file whose code raised an exception, None for an exception that was not raised."""
    steps = steps_of(error)
    return steps[-1].tb_frame.f_code.co_filename if steps else None


def warn_user(text: str, category: type[Warning]) -> None:
    """Warns at the user's line, as `warnings.warn` does at its caller's."""
    frame = users_frame()
    registry = frame.f_globals.setdefault("__warningregistry__", {}) if frame else None
    filename, line, module = place_of(frame)
    warnings.warn_explicit(text, category, filename, line, module, registry)


# The keys of the warnings that came. Functions may get fresh names for ever, so there is a bound.
_MAX_WARNED = 4096
_warned: set[Hashable] = set()


def warn_once(key: Hashable, text: str, place: tuple[str, int, str] | None = None) -> None:
    """Warns at a place, by default at the user's line, unless a warning with an equal key came before."""
    if key in _warned:
        return
    warnings.warn_explicit(text, RuntimeWarning, *(place or place_of(users_frame())))
    # If the user turned warnings into errors, the line above has raised, and the next call raises again.
    if len(_warned) >= _MAX_WARNED:
        _warned.clear()
    _warned.add(key)


# ------------------------------------------------------------------------- tracebacks


def without_outer_library_frames(error: BaseException) -> types.TracebackType | None:
    """Returns an exception's traceback from the first frame on that is not the library's. None if all of them are."""
    for step in steps_of(error):
        if not is_library_file(step.tb_frame.f_code.co_filename):
            return step
    return None


def traceback_without_locals(error: BaseException) -> types.TracebackType | None:
    """Returns a traceback that reads like an exception's, and holds neither variables nor the callers of its frames."""
    copy: types.TracebackType | None = None
    for step in reversed(steps_of(error)):
        code = step.tb_frame.f_code
        lines = {"co_firstlineno": code.co_firstlineno, "co_linetable": _NO_POSITIONS}
        frame = _frame(co_name=code.co_name, co_qualname=code.co_qualname, co_filename=code.co_filename, **lines)
        copy = types.TracebackType(copy, frame, frame.f_lasti, step.tb_lineno)
    return copy


def traceback_of_one_line(name: str, filename: str, line: int) -> types.TracebackType:
    """Returns a traceback with one entry.

    jaxlib renders an error by walking from the innermost frame of its traceback through all callers, which are
    hundreds of lines of notebook and JAX internals. The frame of a suspended generator has no callers, so with such a
    frame as the innermost the walk ends at once.
    """
    frame = _frame(co_name=name, co_qualname=name, co_filename=filename, co_firstlineno=line - _LINES_BELOW)
    return types.TracebackType(None, frame, frame.f_lasti, frame.f_lineno)


def _frame(**described: Any) -> types.FrameType:
    # Python 3.11 crashes if a debugger, or a measurement of coverage, traces lines in code without positions.
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        return types.FunctionType(_empty.__code__.replace(**described), {})().gi_frame
    finally:
        sys.settrace(tracer)


def _empty() -> Iterator[None]:
    yield None


# A line table that gives no positions; each byte covers eight instructions. Python then shows the line that the entry
# of the traceback names, and marks no part of it.
_NO_POSITIONS = b"\xff" * len(_empty.__code__.co_code)

# A generator that has not started stands at its first line, and on Python 3.13 one line below it.
_LINES_BELOW = _frame(co_firstlineno=1).f_lineno - 1

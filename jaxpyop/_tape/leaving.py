"""A differentiated value that leaves the tape is a constant to the derivative, which is said.

NumPy cannot be recorded: of `x * np.exp(x)` the derivative is that of `x * c`. What takes a whole array away warns,
once for each function and line, or is an error, by `config.constants`. `float(x)` and `x.item()` are how a function
decides, and an error only where that is asked for; `bool(x)` and `int(x)` have no derivative to lose.
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._config import config

_MANY = 4096  # lines that are remembered; functions may get fresh names for ever
_said: set[tuple[str, str, int]] = set()
# Who converts an array on somebody's behalf: JAX, and what is installed beside NumPy.
_INSTALLED = tuple(
    os.path.join(os.path.dirname(os.path.abspath(path)), "")
    for path in (os.path.dirname(str(np.__file__)), str(jax.__file__), os.__file__)
)


def array_leaves(tracer: Any, how: str) -> None:
    """Take note that an array's values leave the tape.

    Args:
        tracer: the array.
        how: what took them, as the text of the warning begins.

    Raises:
        TypeError: by `config.constants`.
    """
    if config.constants == "allow" or not tracer._trace.is_valid():  # of a run that is over, nothing is lost
        return
    text = (
        f"{tracer._trace.title}: {how} takes a differentiated {tracer.aval.str_short()} out of JAX, and what becomes "
        "of it there is a constant, whose derivative is zero. Write the function of jnp, or a numpy_function with "
        "vjp=, or np.asarray(jax.lax.stop_gradient(x)) if a constant is meant"
    )
    if config.constants == "error":
        raise TypeError(f"{text} (jaxpyop.config.constants is 'error')")
    _warn_once(tracer._trace.title, f"{text} (once for all: jaxpyop.config.constants = 'allow', or 'error')")


def number_leaves(tracer: Any, how: str) -> None:
    """The same of a Python number, which only an error is made of.

    Args:
        tracer: the scalar.
        how: what took its value.

    Raises:
        TypeError: by `config.constants`.
    """
    if config.constants == "error" and tracer._trace.is_valid():
        raise TypeError(
            f"{tracer._trace.title}: {how} makes a constant of a differentiated {tracer.aval.str_short()}, whose "
            "derivative is zero. Use x as it is (`if x > 0:` works), or jax.lax.stop_gradient(x) if a constant is "
            "meant (jaxpyop.config.constants is 'error')"
        )


def _warn_once(title: str, text: str) -> None:
    frame = _users_frame()
    key = (title, frame.f_code.co_filename, frame.f_lineno)
    if key in _said:
        return
    module = frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(text, RuntimeWarning, key[1], key[2], module)  # where that raises, it is said again
    if len(_said) >= _MANY:
        _said.clear()
    _said.add(key)


def _users_frame() -> types.FrameType:
    """The line that converts: the innermost that is not installed, or the function's own."""
    frame, found = sys._getframe(3), sys._getframe(3)
    while frame is not None and not (_is_ours(frame) and not _is_ours(found)):
        if not _is_ours(frame):
            found = frame
            if not found.f_code.co_filename.startswith(_INSTALLED):
                break
        frame = frame.f_back
    return found


def _is_ours(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_jaxcore.PACKAGE)

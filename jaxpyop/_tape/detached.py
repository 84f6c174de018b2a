"""Warns where a differentiated value leaves the tape, because it is a constant to the derivative from there on.

NumPy cannot be recorded: the derivative of `x * np.exp(x)` is that of `x * c`. What takes a whole array away warns,
once for each function and line, or is an error, as `config.constants` says. `float(x)` and `x.item()` are how a
function decides, and an error only where `config.constants` asks for one. `bool(x)` and `int(x)` have no derivative
to lose.
"""

from __future__ import annotations

import warnings
from typing import Any

from jaxpyop import _jaxcore
from jaxpyop._config import config

# The lines that warned already. Functions may get fresh names for ever, so there is a bound.
_MAX_LINES = 4096
_warned: set[tuple[str, str, int]] = set()


def array_detached(tracer: Any, how: str) -> None:
    """Takes note that an array's values leave the tape.

    Args:
        tracer: the array.
        how: what took them, as the text of the warning begins.

    Raises:
        TypeError: where `config.constants` is "error".
    """
    # Nothing is lost in a run that is over.
    if config.constants == "allow" or not tracer._trace.is_valid():
        return
    text = (
        f"{tracer._trace.title}: {how} takes a differentiated {tracer.aval.str_short()} out of JAX. What becomes of it "
        "there is a constant, whose derivative is zero. Write jnp's function instead, or a numpy_function with vjp=, "
        "or np.asarray(jax.lax.stop_gradient(x)) if you mean a constant"
    )
    if config.constants == "error":
        raise TypeError(f"{text} (jaxpyop.config.constants is 'error')")
    _warn_once(tracer._trace.title, f"{text} (for all calls: jaxpyop.config.constants = 'allow', or 'error')")


def number_detached(tracer: Any, how: str) -> None:
    """Takes note that a scalar became a Python number, which is an error or nothing.

    Args:
        tracer: the scalar.
        how: what took its value.

    Raises:
        TypeError: where `config.constants` is "error".
    """
    if config.constants == "error" and tracer._trace.is_valid():
        raise TypeError(
            f"{tracer._trace.title}: {how} makes a constant of a differentiated {tracer.aval.str_short()}, whose "
            "derivative is zero. Use x as it is (`if x > 0:` works), or jax.lax.stop_gradient(x) if you mean a "
            "constant (jaxpyop.config.constants is 'error')"
        )


def _warn_once(title: str, text: str) -> None:
    # An installed package may convert an array on behalf of the user, whose line is the one to change.
    frame = _jaxcore.users_frame(_jaxcore.is_own_file) or _jaxcore.users_frame()
    filename, line = (frame.f_code.co_filename, frame.f_lineno) if frame else _jaxcore.NOWHERE
    if (title, filename, line) in _warned:
        return
    module = frame.f_globals.get("__name__") if frame else None
    warnings.warn_explicit(text, RuntimeWarning, filename, line, module)
    # Where a warning is an error, the line above raised, and the next call says it again.
    if len(_warned) >= _MAX_LINES:
        _warned.clear()
    _warned.add((title, filename, line))

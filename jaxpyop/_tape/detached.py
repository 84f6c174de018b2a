"""Warns where a differentiated value leaves the tape, because it is a constant to the derivative from there on.

NumPy cannot be recorded, so `x * np.exp(x)` is differentiated as `x * c` with a constant `c`. Converting an array
(`np.asarray(x)`) warns once per op and line, or raises, depending on `config.constants`. Functions use `float(x)` and
`x.item()` to make decisions. So these do not warn at once. They warn when the run is over, and only if a floating
result depends on no differentiated input, because the number may be hidden in it. They raise if `config.constants` is
"error". `bool(x)` and `int(x)` have no derivative to lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxpyop import _jaxcore
from jaxpyop._config import config


def array_detached(tracer: Any, how: str) -> None:
    """Warns that an array's values leave the tape, or raises.

    Args:
        tracer: the array.
        how: what took them, for the text of the warning.

    Raises:
        TypeError: where `config.constants` is "error".
    """
    # Nothing is lost in a run that is over.
    if config.constants == "allow" or not tracer.is_differentiated or not tracer._trace.is_valid():
        return
    text = (
        f"{tracer._trace.title}: {how} takes a differentiated {tracer.aval.str_short()} out of JAX. Everything "
        "that is computed from it there is a constant, whose derivative is zero. Use jnp's function instead, or a "
        "numpy_function with vjp=, or np.asarray(jax.lax.stop_gradient(x)) if you want a constant"
    )
    if config.constants == "error":
        raise TypeError(f"{text} (jaxpyop.config.constants is 'error')")
    place = _place()
    text = f"{text} (for all calls: jaxpyop.config.constants = 'allow', or 'error')"
    _jaxcore.warn_once(("array", tracer._trace.title, *place[:2]), text, place)


def number_detached(tracer: Any, how: str) -> None:
    """Raises if a scalar must not become a Python number; otherwise notes the first one for `warn_of_constants`.

    Args:
        tracer: the scalar.
        how: what took its value.

    Raises:
        TypeError: where `config.constants` is "error".
    """
    if not tracer.is_differentiated:
        return
    tape = tracer._trace
    if config.constants == "error" and tape.is_valid():
        raise TypeError(
            f"{tape.title}: {how} makes a constant of a differentiated {tracer.aval.str_short()}, whose "
            "derivative is zero. Use x itself (`if x > 0:` works), or jax.lax.stop_gradient(x) if you want a "
            "constant (jaxpyop.config.constants is 'error')"
        )
    if config.constants == "warn" and tape.number_taken is None:
        tape.number_taken = (f"{how} took the value of a differentiated {tracer.aval.str_short()}", _place())


def warn_of_constants(tape: Any, outputs: Sequence[Any], out_slots: Sequence[int]) -> None:
    """Warns of a floating result that the tape does not reach, if differentiated scalars became Python numbers.

    Such a number may be in the result, and then a part of the gradient is missing. The warning comes once for each op,
    at the line that took the first number.
    """
    if tape.number_taken is None:
        return
    for k, (output, slot) in enumerate(zip(outputs, out_slots)):
        if slot < 0 and _jaxcore.is_inexact(output):
            taken, place = tape.number_taken
            text = (
                f"{tape.title}: {taken}, and array {k} of the results depends on no differentiated input, so its "
                "derivative is zero. Use x itself (`if x > 0:` works) and jnp's functions, or "
                "float(jax.lax.stop_gradient(x)) if you want a constant (for all calls: "
                "jaxpyop.config.constants = 'allow', or 'error')"
            )
            _jaxcore.warn_once(("number", tape.title), text, place)
            return


def _place() -> tuple[str, int, Any]:
    """The user's file, line and module."""
    # An installed package may convert an array on behalf of the user, whose line is the one to change.
    return _jaxcore.place_of(_jaxcore.users_frame(_jaxcore.is_own_file) or _jaxcore.users_frame())

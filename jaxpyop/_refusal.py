"""Tells jaxpyop's own errors from those of the user's code: `on_error=` fills results for the latter alone."""

from __future__ import annotations

from typing import Any, TypeVar

_Error = TypeVar("_Error", bound=BaseException)

# The attribute of an exception that says that we raised it, and not the user's code.
_REFUSAL = "_jaxpyop_refusal"


def refusal(error: _Error) -> _Error:
    """Marks an exception as a refusal of ours, which `on_error=` does not fill, and returns it."""
    vars(error)[_REFUSAL] = True
    return error


def is_refusal(error: Any) -> bool:
    """Tells whether an exception is marked as a refusal of ours."""
    return _REFUSAL in vars(error)

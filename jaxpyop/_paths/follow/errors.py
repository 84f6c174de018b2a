"""What cannot be followed: the errors, with the user's line and what to write instead."""

from __future__ import annotations

_ADVICE = (
    "write that part with jnp.where, jax.lax.cond or jax.lax.while_loop, split the body into several traced ops, or "
    'write mode="eager" to call the body at run time instead'
)
RAISING = 'return a value that says so (jnp.nan, a flag), or write mode="eager" to call the body at run time instead'


class PathError(Exception):
    """A body cannot be followed abstractly.

    Attributes:
        reason: why it cannot be followed.
        filename: the user's file, or "<unknown>".
        lineno: the line in that file, or 0.
        advice: what to write instead.
        remedy: what would let the body be followed as it is (an extra to install, a source file), or "".
        final: whether no other way of following the body may be tried.
    """

    remedy = ""
    final = False

    def __init__(self, reason: str, filename: str, lineno: int, advice: str = _ADVICE) -> None:
        super().__init__(reason, filename, lineno, advice)
        self.reason, self.filename, self.lineno = reason, filename, lineno
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno}: {self.reason}; {self.advice}"


class LostDerivativeError(TypeError):
    """A derivative is taken of what became a Python number, and `config.constants` is "error".

    It is no reason to follow a body in another way, or to call it.
    """


def refused_call(name: str, place: tuple[str, int]) -> PathError:
    """Returns the error about a call in an `if` or a loop on traced values."""
    reason = f"`{name}` is called only where a traced value decides so, and whether it has an effect cannot be told"
    error = PathError(reason, *place, 'call it outside of the `if` or the loop, or write mode="eager"')
    error.final = True
    return error


class NeedsPathsError(PathError):
    """A body that was recorded as one path asks for a decision."""


class SlowPathsError(PathError):
    """No path of a body completed within the time limit."""

"""What the package changes in JAX's own tables: one list, with the reason, and the op that makes each change.

The import makes none of them. Rules of our own primitive in JAX's tables are no changes: nobody else looks them up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple


class Change(NamedTuple):
    """A change to JAX's own tables, which the first op that needs it makes, and no import.

    Attributes:
        what: what is changed.
        by: the op that needs it.
        why: why no rule of our own does the same, and what happens without the change.
        issue: the issue at JAX, or the behaviour of JAX, that would make the change unnecessary.
    """

    what: str
    by: str
    why: str
    issue: str


CHANGES = {
    "files": Change(
        "the lists of files that JAX leaves out of tracebacks and source lines get the folder of jaxpyop",
        "an op that is traced",
        "without it, a traceback and an equation's source line show jaxpyop's files in place of the user's",
        "JAX knows the folder of a package by an entry point, or has a public list for tracebacks too",
    ),
    "effects": Change(
        "the batching rules of cond and while_loop, the function that hoists out of a differentiated scan, and the "
        "effects that a scan's derivative keeps",
        "a stateful op that is traced",
        "without it, every vmap of a cond with the op is refused, and the derivative of a loop runs the op once in "
        "all, or not at all; JAX asks no rule of the op, or of its effect, there",
        "https://github.com/jax-ml/jax/issues/16637 and https://github.com/jax-ml/jax/issues/39290",
    ),
    "tangents": Change(
        "the JVP rule of jit",
        "an op without a forward mode whose tangent jax.jvp asks for",
        "without it, a jitted function that drops such a tangent, as x > 0 does, raises; the tangent is an operand of "
        "jit, and no operation of ours",
        "JAX drops the tangents that a jitted function does not use before it asks whether they are valid",
    ),
    "log": Change(
        "the logger of JAX's callbacks gets a filter",
        "a function that raises",
        "without it, JAX logs the error of a function beside raising it",
        "https://github.com/jax-ml/jax/issues/26102",
    ),
}

_makers: dict[str, Callable[[], None]] = {}
_made: set[str] = set()
_making = threading.RLock()


def is_made(change: str) -> bool:
    """Tells whether a change has been made."""
    return change in _made


def makes(change: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorates the function that makes a change."""

    def note(function: Callable[[], None]) -> Callable[[], None]:
        _makers[change] = function
        return function

    return note


def make(change: str) -> None:
    """Makes a change, unless it was made before."""
    if change in _made:
        return
    with _making:
        if change not in _made:
            _makers[change]()
            _made.add(change)


# What sets the rules of our own primitive in tables of JAX that may be others than they were. It has to look at them
# first, which takes a while, so that no import does it.
before_first_op: list[Callable[[], None]] = []


def prepare() -> None:
    """Does what comes before the first op."""
    if before_first_op:
        with _making:
            while before_first_op:
                before_first_op[-1]()
                before_first_op.pop()

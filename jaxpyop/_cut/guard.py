"""`Guard`, which `jax.jit` compiles in place of a function whose programs all stay whole.

A plan is what a cut program runs by. A program that is not cut "stays whole". JAX finds a compiled program in a third
of the time that Python needs to look for a plan. So if all programs of a function stay whole, its calls go straight to
JAX. A call with new types makes JAX trace the function again. The guard raises an error then, so that the new program
is planned first.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from jaxpyop import _jaxcore


class NotPlannedError(Exception):
    """Raised when JAX begins to trace a program that is not planned yet."""


class _Planning(threading.local):
    """Whether this thread is planning a program, so that JAX may trace its function."""

    under_way = False


_planning = _Planning()
_lock = threading.Lock()

# JAX's caches recognize a function by its identity, so a function that is wrapped again gets the same guard. There is a
# guard for each value of `loops`, because `loops` decides which programs are cut.
_guards: weakref.WeakKeyDictionary[Any, dict[str, Guard]] = weakref.WeakKeyDictionary()


def guard_of(fun: Callable[..., Any], loops: str) -> Guard:
    """Return the guard of a function. It lives as long as the function."""
    with _lock:
        try:
            found = _guards.setdefault(fun, {}).setdefault(loops, Guard(fun))
        except TypeError:
            # The function has no hash, and JAX has an error of its own about it.
            return Guard(fun)
    # The key of the found guard may be another object that equals `fun`, and that may be garbage-collected earlier.
    return found if found.__wrapped__ is fun else Guard(fun)


class Guard:
    """Takes the place of a function, without keeping it alive. JAX reads the attributes of the function through it.

    Attributes:
        all_whole: whether all programs traced so far stay whole, on every device of this process.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self._fun = weakref.ref(fun)
        self._under_way = 0
        self._any_cut = False
        self.all_whole = False

    @property
    def __wrapped__(self) -> Any:
        return self._fun()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fun(), name)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function if its program is being planned, or if JAX runs it without tracing it."""
        if not (_planning.under_way or _jaxcore.at_top_level()):
            raise NotPlannedError
        before, _planning.under_way = _planning.under_way, False
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            _planning.under_way = before

    @contextlib.contextmanager
    def planning(self) -> Iterator[Callable[[], None]]:
        """Allow JAX to trace the function in a `with` block, which calls what is yielded if the program is cut."""
        with _lock:
            self._under_way += 1
            # JAX caches this trace at once. Another thread whose call goes straight to JAX would use it, so no call may
            # do that until it is known whether the program is cut.
            self.all_whole = False
        before, _planning.under_way = _planning.under_way, True
        try:
            yield lambda: setattr(self, "_any_cut", True)
        finally:
            _planning.under_way = before
            with _lock:
                self._under_way -= 1
                self.all_whole = not self._any_cut and not self._under_way
